"""The summary of an anatomy run, with intervals, from its journal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from probe.attention.heads import PARTS as MASS_PARTS
from probe.attention.heads import QUERIES, sampled_queries
from probe.attention.request import PARTS, AnatomyPlan
from probe.attention.sentences import RETRIEVES
from probe.experiment.journal import Journal
from probe.experiment.run import summary_of
from probe.files import write_result
from probe.statistics import half_width, wilson
from probe.store.results import ANATOMY, TOKENS

_OFFSETS = (0, 1)
_UNBOUNDED = ("entropy", "mean_distance")  # all other values are shares


def write(plan: AnatomyPlan, journal: Journal, out: Path) -> dict[str, Any]:
    """The summary, which is written to the run's folder if there is a row to tell of."""
    summary = summarize(plan, journal)
    if journal.rows:
        write_result(out / ANATOMY, summary)
    if tokens := token_summary(plan, journal):
        write_result(out / TOKENS, tokens, None)
    return summary


def token_summary(plan: AnatomyPlan, journal: Journal) -> dict[str, Any] | None:
    """The loss and attention of every token of one text under each method; None where they were not captured."""
    length = plan.lengths[-1]
    rows = {name: journal.rows.get(("tokens", name, length, 0)) for name in plan.methods}
    if not plan.words or not any(rows.values()):
        return None
    return {
        **{name: getattr(plan, name) for name in ("trained_length", "reference", "layers")},
        "model": plan.request.model,
        "tokens": plan.words,
        "queries": sampled_queries(length, plan.trained_length, QUERIES),
        "methods": {name: row for name, row in rows.items() if row},
    }


def summarize(plan: AnatomyPlan, journal: Journal) -> dict[str, Any]:
    """The summary of the journal's rows of a plan, of every part, ready for JSON.

    Values are [mean, low, high]: the mean over prompts and its 95% interval over prompts, null where there is one
    prompt. `n` says how many there are.
    """
    summary: dict[str, Any] = {
        **summary_of(plan),
        "lengths": plan.lengths,
        "layers": plan.layers,
        "reference": plan.reference,
        "tasks_left": sum(key not in journal.rows for key in plan.keys),
        **{name: [] for name in ("heads", "all_heads", "retrieval")},
    }
    for part in PARTS[:2]:
        for length in plan.lengths:
            for name in plan.methods:
                keys = ((part, name, length, number) for number in range(plan.request.samples))
                rows = [journal.rows[key] for key in keys if key in journal.rows]
                labels = {"method": name, "length": length, "n": len(rows)}
                if rows and part == "heads":
                    _add_heads(summary, plan, labels, rows)
                elif rows:
                    summary["retrieval"] += _retrieval(plan, labels, rows)
    summary["retrieval_heads"] = retrieval_heads(summary)
    return summary


def _retrieval(plan: AnatomyPlan, labels: dict[str, Any], rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """An entry a head: its score at each offset, and at the better one."""
    scores = np.array([row["score"] for row in rows])
    entries = _by_head(plan, labels, {f"offset_{offset}": scores[..., offset] for offset in _OFFSETS})
    for entry in entries:
        best = max(_OFFSETS, key=lambda offset: entry[f"offset_{offset}"][0])
        entry |= {"best_offset": best, "best": entry[f"offset_{best}"]}
    return entries


def _add_heads(
    summary: dict[str, Any], plan: AnatomyPlan, labels: dict[str, Any], rows: Sequence[Mapping[str, Any]]
) -> None:
    """Adds the statistics of a method and length to the summary: by head, and means over all heads."""
    mass = np.array([row["mass"] for row in rows])
    values = {f"mass_{name}": mass[..., at] for at, name in enumerate(MASS_PARTS)}
    names = ("entropy", "mean_distance", "sink", "previous")
    values |= {name: np.array([row[name] for row in rows]) for name in names}
    for at, span in enumerate(rows[0]["spans"]):
        here = {name: value[:, at] for name, value in values.items()}
        means = {name: intervals(value.mean((1, 2)), _largest(name)) for name, value in here.items()}
        summary["all_heads"].append({**labels, "span": span, **means})
        summary["heads"] += _by_head(plan, {**labels, "span": span}, here)


def _by_head(plan: AnatomyPlan, labels: dict[str, Any], values: Mapping[str, np.ndarray]) -> list[dict[str, Any]]:
    """An entry a layer and head, of values (prompt, layer, head)."""
    columns = {name: intervals(value, _largest(name), counts="offset" in name) for name, value in values.items()}
    return [
        {**labels, "layer": layer, "head": head, **{name: value[row][head] for name, value in columns.items()}}
        for row, layer in enumerate(plan.layers)
        for head in range(plan.config.num_attention_heads)
    ]


def intervals(values: np.ndarray, largest: float = np.inf, *, counts: bool = False) -> Any:
    """[mean, low, high] over the first axis, nested like the others: a 95% interval, None for one prompt.

    Student's, within 0 and `largest`. counts: values are shares of a few trials; where they are all equal their
    interval is Wilson's, since equal scores do not imply certainty.
    """
    mean, ends = values.mean(0), [np.full(values.shape[1:], None)] * 2
    if len(values) > 1:
        low, high = (np.clip(mean + sign * half_width(values), 0, largest) for sign in (-1, 1))
        if counts:
            same = (values == values[0]).all(0)
            lower, upper = np.vectorize(lambda share: wilson(share * len(values), len(values)))(values[0])
            low, high = np.where(same, lower, low), np.where(same, upper, high)
        ends = [end.round(6).astype(object) for end in (low, high)]
    return np.stack([mean.round(6).astype(object), *ends], -1).tolist()


def _largest(name: str) -> float:
    return np.inf if name in _UNBOUNDED else 1.0


def retrieval_heads(summary: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The heads that retrieve at the longest length up to M under the reference, with their scores beyond it.

    `inside`, and `beyond` by method, are [mean, low, high] at the offset that is better inside. `lost`: under the
    reference the score is less than half, and the intervals are disjoint. `kept`: its interval lies above half;
    neither: the prompts do not decide. `restored`: by the methods whose score is at least half of that inside, with an
    interval above the reference's.
    """
    trained, reference = summary["trained_length"], summary["reference"]
    scores = {(row["method"], row["length"], row["layer"], row["head"]): row for row in summary["retrieval"]}
    lengths = sorted({row["length"] for row in summary["retrieval"] if row["method"] == reference})
    inside = [length for length in lengths if length <= trained][-1:]
    heads = []
    for length in (length for length in lengths if length > trained and inside):
        for (name, at, layer, head), row in scores.items():
            if (name, [at]) != (reference, inside) or row["best"][0] < RETRIEVES:
                continue
            offset, half = row["best_offset"], row["best"][0] / 2
            there = {method: scores.get((method, length, layer, head)) for method in summary["methods"]}
            beyond = {method: other[f"offset_{offset}"] for method, other in there.items() if other}
            if reference not in beyond:
                continue
            base = beyond[reference]
            lost = base[0] < half and _is_above(row["best"], base)
            kept = base[1] is not None and base[1] >= half
            restored = [by for by, score in beyond.items() if lost and score[0] >= half and _is_above(score, base)]
            place = {"length": length, "layer": layer, "head": head, "offset": offset, "inside": row["best"]}
            heads.append({**place, "beyond": beyond, "lost": lost, "kept": kept, "restored": restored})
    return heads


def _is_above(first: Sequence[float | None], second: Sequence[float | None]) -> bool:
    """Whether an interval lies above another; without intervals (one prompt) never."""
    return first[1] is not None and second[2] is not None and first[1] > second[2]
