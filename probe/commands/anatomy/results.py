"""The summary of an anatomy run, with intervals, from its journal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from probe.commands.anatomy.heads import OFFSETS, QUERIES, sampled_queries
from probe.commands.anatomy.heads import PARTS as MASS_PARTS
from probe.commands.anatomy.plan import PARTS, AnatomyPlan
from probe.commands.anatomy.result import (
    Anatomy,
    Captured,
    HeadMeasured,
    MeasuredAttention,
    Retrieval,
    RetrievalHead,
    Tokens,
)
from probe.commands.anatomy.sentences import RETRIEVES
from probe.experiment.journal import Journal
from probe.experiment.run import summary_of
from probe.files import JsonObject
from probe.statistics import half_width, wilson
from probe.store.result_file import having

_STATISTICS = ("entropy", "mean_distance", "sink", "previous")
_UNBOUNDED = ("entropy", "mean_distance")  # all other values are shares


def token_summary(plan: AnatomyPlan, journal: Journal) -> Tokens | None:
    """The loss and attention of every token of one text under each method; None where they were not captured."""
    length = plan.lengths[-1]
    rows = {name: journal.rows.get(("tokens", name, length, 0)) for name in plan.methods}
    if not plan.words or not any(rows.values()):
        return None
    return Tokens(
        trained_length=plan.trained_length,
        reference=plan.reference,
        layers=list(plan.layers),
        model=plan.request.model,
        tokens=list(plan.words),
        queries=sampled_queries(length, plan.trained_length, QUERIES),
        methods={name: Captured(**row) for name, row in rows.items() if row},
    )


def summarize(plan: AnatomyPlan, journal: Journal) -> Anatomy:
    """The summary of the journal's rows of a plan, of every part."""
    heads, all_heads, retrieval = list[HeadMeasured](), list[MeasuredAttention](), list[Retrieval]()
    for part in PARTS[:2]:
        for length in plan.lengths:
            for name in plan.methods:
                keys = ((part, name, length, number) for number in range(plan.request.samples))
                rows = [journal.rows[key] for key in keys if key in journal.rows]
                labels = {"method": name, "length": length, "n": len(rows)}
                if rows and part == "heads":
                    for span, here in _by_span(rows).items():
                        labels["span"] = span
                        means = {name: intervals(value.mean((1, 2)), _largest(name)) for name, value in here.items()}
                        all_heads.append(MeasuredAttention(**labels, **means))
                        heads += [HeadMeasured(**entry) for entry in _by_head(plan, labels, here)]
                elif rows:
                    retrieval += _retrieval(plan, labels, rows)
    return Anatomy(
        **summary_of(plan),
        lengths=list(plan.lengths),
        layers=list(plan.layers),
        reference=plan.reference,
        tasks_left=sum(key not in journal.rows for key in plan.keys),
        heads=heads,
        all_heads=all_heads,
        retrieval=retrieval,
        retrieval_heads=retrieval_heads(retrieval, plan.trained_length, plan.reference, list(plan.methods)),
    )


def _retrieval(plan: AnatomyPlan, labels: JsonObject, rows: Sequence[JsonObject]) -> list[Retrieval]:
    """An entry a head: its score at each offset, and at the better one."""
    scores = np.array([row["score"] for row in rows])
    entries = _by_head(plan, labels, {f"offset_{offset}": scores[..., offset] for offset in OFFSETS})
    for entry in entries:
        best = max(OFFSETS, key=lambda offset: entry[f"offset_{offset}"][0])
        entry |= {"best_offset": best, "best": entry[f"offset_{best}"]}
    return [Retrieval(**entry) for entry in entries]


def _by_span(rows: Sequence[JsonObject]) -> dict[str, dict[str, np.ndarray]]:
    """Statistics (prompt, layer, head) of a method and length, by where the queries stand."""
    mass = np.array([row["mass"] for row in rows])
    values = {f"mass_{name}": mass[..., at] for at, name in enumerate(MASS_PARTS)}
    values |= {name: np.array([row[name] for row in rows]) for name in _STATISTICS}
    return {span: {name: value[:, at] for name, value in values.items()} for at, span in enumerate(rows[0]["spans"])}


def _by_head(plan: AnatomyPlan, labels: JsonObject, values: Mapping[str, np.ndarray]) -> list[JsonObject]:
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


def retrieval_heads(
    rows: Sequence[Retrieval], trained_length: int, reference: str, methods: Sequence[str]
) -> list[RetrievalHead]:
    """The heads that retrieve at the longest length up to M under the reference, with their scores beyond it.

    `inside`, and `beyond` by method, are at the offset that is better inside. `lost`: under the reference the score is
    less than half, and the intervals are disjoint. `kept`: its interval lies above half; neither: the prompts do not
    decide. `recovered_by`: the methods whose score is at least half of that inside, with an interval above the
    reference's.
    """
    scores = {(row.method, row.length, row.layer, row.head): row for row in rows}
    lengths = sorted({row.length for row in having(rows, method=reference)})
    inside = [length for length in lengths if length <= trained_length][-1:]
    heads = []
    for length in (length for length in lengths if length > trained_length and inside):
        for row in having(rows, method=reference, length=inside[0]):
            there = {method: scores.get((method, length, row.layer, row.head)) for method in methods}
            beyond = {method: other.at(row.best_offset) for method, other in there.items() if other}
            if row.best.mean < RETRIEVES or reference not in beyond:
                continue
            base, half = beyond[reference], row.best.mean / 2
            lost = base.mean < half and row.best.low > base.high
            recovered = [by for by, score in beyond.items() if lost and score.mean >= half and score.low > base.high]
            place = (length, row.layer, row.head, row.best_offset, row.best)
            heads.append(RetrievalHead(*place, beyond=beyond, lost=lost, kept=base.low >= half, recovered_by=recovered))
    return heads
