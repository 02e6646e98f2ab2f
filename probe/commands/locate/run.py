"""`mesa-lens locate` from its plan to its report: the worker, and the summary of what was measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformer_lens.model_bridge import TransformerBridge

from mesa.decoder import check_layers
from mesa.engine.bridge import LayerHooks, hooked
from mesa.errors import Failed
from mesa.methods import Method
from probe.commands.locate.interventions import (
    BASELINE,
    JOURNALED,
    PATCHED,
    Heads,
    RunPair,
    blocks,
    by_layer,
    clamped_dims,
)
from probe.commands.locate.page import places, write_located
from probe.commands.locate.plan import (
    BATCH,
    CHOSEN,
    DIMS,
    ENOUGH,
    MAX_HEADS,
    ORIGIN,
    SEARCH,
    ItemGroup,
    LocateKey,
    LocatePlan,
    PairedLosses,
    complement,
    halves,
    has_runs,
    is_searchable,
    losses_at,
    no_gap,
    paired,
    plan,
    random_sets,
    remaining,
    set_key,
    target_loss,
    tasks,
)
from probe.commands.locate.result import LOCATED, PATCH, Effect, InsideCost, Located, Loss, SmallestSet
from probe.eval_tasks.retrieval import repeated_word
from probe.experiment.estimate import estimated
from probe.experiment.journal import Journal, JournalRows
from probe.experiment.model_spec import PlanWorker
from probe.experiment.pool import LOCAL, Runner
from probe.experiment.run import CommandResult, Experiment, run, summary_of
from probe.experiment.task import Key, MeasureTask, Task
from probe.figures.section import as_text
from probe.files import JsonObject


class LocateWorker(PlanWorker):
    """A plan (without its config) and its model, as plain data."""

    def start(self, memory_bytes: int | None = None) -> MeasureTask:
        """Loads the model; a task gives rows of the journal with their keys."""
        loaded = self.source.loaded()
        check_layers(loaded.model)
        bridge = hooked(loaded.model, loaded.tokenizer)
        return RunCache(replace(self.plan, config=loaded.model.config), bridge, loaded.tokenizer).measure


class RunCache:
    """Measures tasks; keeps the runs that interventions start from: of one item or, in a head search, of a group."""

    def __init__(self, plan: LocatePlan, bridge: TransformerBridge | LayerHooks, tokenizer: Any) -> None:
        self.plan, self._bridge, self._tokenizer = plan, bridge, tokenizer
        self._pairs: dict[tuple[int, str, bool], RunPair] = {}
        self._scope: tuple[Any, ...] = ()

    @torch.no_grad()
    def measure(self, task: Task) -> list[tuple[Key, JsonObject]]:
        """The rows of a task."""
        if task.kind == DIMS:
            return [(task.key, {"rules": self._dims(LocateKey.of(task.key).length)})]
        if task.kind == CHOSEN:
            ((chosen, candidates),) = task.inputs
            return [(task.key, {"heads": chosen, "candidates": candidates})]
        row = LocateKey.of(task.key)
        is_search = task.kind == SEARCH
        return [
            ((*row[:4], *tried.key), {"nll": self._losses(row.group, row.method, row.item, tried, is_search)})
            for tried in task.inputs
        ]

    def _losses(self, group: ItemGroup, name: str, number: int, intervention: Any, is_search: bool) -> list[float]:
        """Losses by block of one item; name: the method, Origin for what serves all. RuntimeError if not finite."""
        pair = self._pair(group, name, number, inside=getattr(intervention, "inside", False), is_search=is_search)
        losses = blocks(group[0], intervention.run(pair).losses.double().cpu().numpy())
        if not np.isfinite(losses).all():
            raise Failed(
                f"the losses of {(*group, name, number, *intervention.key)} are not finite; try a wider --dtype "
                "(float32, float64)"
            )
        return losses

    def _dims(self, length: int) -> dict[str, list[Any]]:
        plan, request = self.plan, self.plan.request
        methods = [plan.methods[ORIGIN], plan.methods[plan.compared[0]]]
        ids, _ = repeated_word(self._tokenizer, request.word, length)
        return clamped_dims(self._bridge, ids, methods, request.dims, executor=request.executor)

    def _pair(
        self, group: ItemGroup, name: str, number: int, *, inside: bool = False, is_search: bool = False
    ) -> RunPair:
        """The runs of an item, with the baseline of the item's other pairs; inside: Origin's on its last M tokens."""
        plan, method = self.plan, self.plan.compared[0] if name == ORIGIN else name
        scope = (group, method, is_search) if is_search else (group, number, is_search)
        if self._scope != scope:
            self._pairs, self._scope = {}, scope
        key = (number, method, inside)
        if key not in self._pairs:
            item, origin = plan.items[group][number], plan.methods[ORIGIN]
            if inside:
                item = replace(item, ids=item.ids[-origin.trained_length :])
            methods = {BASELINE: origin, PATCHED: origin if inside else plan.methods[method]}
            pair = RunPair(self._bridge, item, methods, plan.request.executor)
            for (other, _, cut), known in self._pairs.items():
                if not inside and not cut and other == number and BASELINE in known.outcomes:
                    pair.outcomes[BASELINE] = known.outcomes[BASELINE]
            self._pairs[key] = pair
        return self._pairs[key]


@dataclass(frozen=True)
class Locate(Experiment):
    """A plan. batch: interventions a task."""

    plan: LocatePlan
    batch: int = 1
    title, unit, remedy = "locating", "token", "shorten --lengths or leave clamp out of --try"
    worker_class = LocateWorker
    folder, written, needed = LOCATED.command, (LOCATED.path.name, "report.html"), ("nll", "rules", "heads")

    def tasks(self, rows: JournalRows) -> Sequence[Task]:
        """The tasks that can run now."""
        return tasks(self.plan, rows, batch=self.batch)

    def all_tasks(self, rows: JournalRows) -> Sequence[Task]:
        """As for Experiment: as if every excess loss were significant; not the clamps, nor a search's later rounds."""
        return tasks(self.plan, rows, batch=self.batch, foresee=True)

    def remaining(self, rows: JournalRows) -> int:
        """The rows that the journal lacks, as far as can be foreseen."""
        return remaining(self.plan, rows)

    def refusal(self, rows: JournalRows) -> str:
        """As for Experiment: why there is no loss to recover."""
        return no_gap(self.plan, rows)

    def method(self, key: Key) -> Method | None:
        """As for Experiment."""
        return self.plan.methods.get(LocateKey.of(key).method)

    def record(self, journal: Journal, task: Task, value: Any) -> None:
        """Journals a task's rows."""
        for key, row in value:
            journal.add(key, row)


def locate(
    plan: LocatePlan, out: Path, *, overwrite: bool = False, until: float | None = None, runner: Runner = LOCAL
) -> tuple[Journal, list[Task]]:
    """The journal of the folder `out` with every row of the plan, unless `until` came before; and the lost tasks.

    Raises what `run` raises.
    """
    return run(Locate(plan, 1 if runner.is_local else BATCH), out, overwrite=overwrite, until=until, runner=runner)


_PATCH = ("kind", "way", "layer", "head")
_CLAMP = ("kind", "way", "rule", "which", "span", "layer")
_SET = ("share", "low", "high", "random_low", "random", "random_high")


def summarize(plan: LocatePlan, journal: Journal) -> Located:
    """The summary of a plan; shares only where the excess loss is significant.

    What is there for some items alone is scored on these; `items` says on how many. refusal: why a finished run has
    no loss to recover; else empty.
    """
    rows, gaps, effects, smallest, inside = journal.rows, list[Loss](), list[Effect](), list[SmallestSet](), []
    for group in sorted(plan.items, key=lambda group: group[1]):
        inside += _inside(plan, rows, group)
        for name in (name for name in plan.compared if has_runs(plan, rows, group, name)):
            gap, (measure, length) = paired(plan, rows, group, name).gap, group
            loss = Loss(name, length, measure, *astuple(gap), significant=gap.significant, items=len(plan.items[group]))
            gaps.append(loss)
            if gap.significant:
                effects += _effects(plan, rows, group, loss)
                smallest += _smallest(plan, rows, group, loss)
    return Located(
        **summary_of(plan),
        layers=list(plan.layers),
        heads=plan.config.num_attention_heads,
        tasks_left=remaining(plan, rows),
        refusal=no_gap(plan, rows),
        loss_gaps=gaps,
        effects=effects,
        smallest=smallest,
        inside=inside,
    )


def _effects(plan: LocatePlan, rows: JournalRows, group: ItemGroup, loss: Loss) -> list[Effect]:
    """The loss that each patch of a method, and each clamp of Origin, recovers or loses again."""
    name = loss.method
    numbers_of: dict[tuple[Any, ...], list[int]] = {}
    for key in map(LocateKey.of, rows):
        is_effect = key.group == group and key.method in (name, ORIGIN) and key.tried[:1] in ((JOURNALED,), ("clamp",))
        if is_effect and "inside" not in key.tried and key.item < len(plan.items[group]):
            numbers_of.setdefault((key.method, *key.tried), []).append(key.item)
    effects, losses_of = [], dict[tuple[int, ...], PairedLosses]()
    for (method, *parts), unordered in numbers_of.items():
        numbers = tuple(sorted(unordered))
        if numbers not in losses_of:
            losses_of[numbers] = paired(plan, rows, group, name, numbers)
        entry: dict[str, Any] = dict(zip(_CLAMP if parts[0] == "clamp" else _PATCH, parts, strict=True))
        entry |= {"kind": PATCH} if parts[0] == JOURNALED else {}
        entry.pop("span", None)
        losses = losses_at(rows, [(*group, method, number, *parts) for number in numbers])
        share = losses_of[numbers].share(losses, again=entry["way"] == "without")
        place = {key: None if entry.get(key, -1) == -1 else entry[key] for key in ("layer", "head")}
        measures = {"loss": float(np.mean(losses)), **share._asdict(), "items": len(numbers)}
        effects.append(Effect(**loss.labels, **entry | place, **measures))
    return effects


def _inside(plan: LocatePlan, rows: JournalRows, group: ItemGroup) -> list[InsideCost]:
    """What clamping costs inside the window: loss less that of the plain run, nats/token, with its interval."""
    plain = [n for n in range(len(plan.items[group])) if (*group, ORIGIN, n, "run-inside") in rows]
    known = [key for key in map(LocateKey.of, rows) if (key.group, key.method) == (group, ORIGIN)]
    clamps = {key.tried for key in known if key.tried[0] == "clamp" and "inside" in key.tried}
    costs = []
    for parts in sorted(clamps):
        numbers = [number for number in plain if (*group, ORIGIN, number, *parts) in rows]
        clamped, without = (
            losses_at(rows, [(*group, ORIGIN, number, *tried) for number in numbers])
            for tried in (parts, ("run-inside",))
        )
        cost = PairedLosses(clamped, without).gap
        way, rule, which = map(str, parts[1:4])
        costs.append(InsideCost(group[1], group[0], way, rule, which, cost.size, cost.low, cost.high))
    return costs


def _smallest(plan: LocatePlan, rows: JournalRows, group: ItemGroup, loss: Loss) -> list[SmallestSet]:
    """By candidates, most first: the greedy sets in order, and random ones, on the items that they were not chosen on.

    finished: whether the search ended, by its own half of the items. enough: the heads it ended with, if they recover
    `ENOUGH` of the other half too. Without heads: no search, since one half shows no loss.
    """
    name, sizes = loss.method, dict[str, int]()
    for key in map(LocateKey.of, rows):
        if (key.group, key.method, key.item) == (group, name, -1) and key.tried[:1] == ("chosen",):
            _, candidates, size = key.tried
            sizes[str(candidates)] = max(int(size), sizes.get(str(candidates), 0))
    if not sizes and "smallest" not in plan.request.kinds:
        return []
    if not is_searchable(plan, rows, group, name):
        return [SmallestSet(**loss.labels)]
    choosing, scoring = halves(len(plan.items[group]))
    scored = paired(plan, rows, group, name, scoring)
    target = target_loss(paired(plan, rows, group, name, choosing).gap)

    def losses(heads: Heads, numbers: Sequence[int]) -> list[list[float]]:
        return losses_at(rows, [set_key(group, name, number, heads) for number in numbers])

    searches = []
    for candidates_key, last in sizes.items():
        row = rows[(*group, name, -1, "chosen", candidates_key, last)]
        heads, candidates = ([(layer, head) for layer, head in row[key]] for key in ("heads", "candidates"))
        steps = range(1, last + 1)
        shares = [scored.share(losses(by_layer(heads[:size]), scoring)) for size in steps]
        random = [
            [scored.share(losses(drawn, scoring)).share for drawn in random_sets(candidates, size)] for size in steps
        ]
        ends = np.quantile(np.array(random), [0.025, 0.5, 0.975], axis=1).tolist()
        others = complement(plan, heads)
        is_measured = bool(others) and all(set_key(group, name, number, others) in rows for number in scoring)
        reached = float(np.mean(losses(by_layer(heads), choosing))) <= target
        searches.append(
            SmallestSet(
                **loss.labels,
                heads=heads,
                rest=scored.share(losses(others, scoring)) if is_measured else (np.nan, np.nan, np.nan),
                candidates=len(candidates),
                **dict(zip(_SET, map(list, [*zip(*shares, strict=True), *ends]), strict=True)),
                finished=reached or last == min(len(candidates), MAX_HEADS),
                enough=last if reached and shares[-1].share >= ENOUGH else None,
            )
        )
    return sorted(searches, key=lambda search: -search.candidates)


__all__ = ["estimate", "plan", "run_and_report"]
estimate = partial(estimated, Locate)
"""What a plan takes."""


def run_and_report(plan: LocatePlan, out: Path, **how: Any) -> CommandResult:
    """Measures what the folder `out` lacks of the plan, and writes its results and report. how: as `run` takes it."""
    journal, failed = locate(plan, out, **how)
    summary = summarize(plan, journal)
    text = as_text(places(summary))
    if journal.rows:
        LOCATED.write(out, summary)
        text += f"\n\nwrote {write_located(out, summary).parent}: report.html, summary.json, tables"
    return CommandResult(summary, text, len(failed), str(summary.tasks_left or ""), summary.refusal)
