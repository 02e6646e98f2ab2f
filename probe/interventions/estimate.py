"""What a locate run would take: passes, tokens, memory."""

from __future__ import annotations

from collections import defaultdict

from mesa.methods import Method
from probe.capture.memory import passes_text
from probe.experiment.journal import Rows
from probe.interventions.head_search import has_runs
from probe.interventions.interventions import Plain, weaves
from probe.interventions.passes import BASELINE, PATCHED
from probe.interventions.request import ORIGIN, LocatePlan, needed_bytes, plan
from probe.interventions.tasks import judged_methods

__all__ = ["estimate", "pass_counts", "plan"]


def pass_counts(plan: LocatePlan, rows: Rows | None = None) -> dict[tuple[Method, int], float]:
    """Passes of both runs and of weaves by method and length; a pass from a layer on is a part of one.

    Those that the journal's rows lack; a gap that is not judged has no weaves.
    """
    rows = rows or {}
    depth, wanted = plan.config.num_hidden_layers, "weave" in plan.request.kinds
    woven = list(weaves(plan.layers, plan.heads, plan.request.ways)) if wanted else []
    runs = ((ORIGIN, Plain(BASELINE)), (None, Plain(PATCHED)))
    counts: dict[tuple[Method, int], float] = defaultdict(float)
    for group, items in plan.items.items():
        judged = judged_methods(plan, rows, group)
        for name in plan.compared:
            tried = woven if name in judged or not has_runs(plan, rows, group, name) else []
            parts = [(other or name, run.key, 1.0) for other, run in runs]
            parts += [(name, weave.key, (depth - weave.layer) / depth) for weave in tried]
            for number, item in enumerate(items):
                passes = sum(part for of, key, part in parts if (*group, of, number, *key) not in rows)
                counts[plan.methods[name], len(item.ids)] += passes
    return dict(counts)


def estimate(plan: LocatePlan) -> str:
    """Passes, tokens and memory of a run, as text."""
    prompts, longest = sum(map(len, plan.items.values())), max(length for _, length in plan.items)
    beside = [f"beside {kind}" for kind in ("clamp", "smallest") if kind in plan.request.kinds]
    names = (f"{len(plan.layers)} layers", f"{len(plan.heads)} heads", f"{len(plan.compared)} methods")
    what = ", ".join([*names, f"{prompts} prompts", *beside])
    return passes_text(what, pass_counts(plan), longest, needed_bytes(plan))
