"""What a counterpart run found, from its journal: heads, what holding them restores, crossings that it takes away."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from probe.evaluation.intervals import shown, student
from probe.experiment.journal import Journal
from probe.files import write_json
from probe.mechanism.restoration import Paired
from research.trained_counterpart.counterpart import FOLDER, cells, chosen_sets, curves, heads_of
from research.trained_counterpart.reading import COUNTERPART, KIN
from research.trained_counterpart.request import FOUND, NEAREST, SETS, CounterpartPlan, random_names

SUMMARY = "summary.json"
_ROWS = 8


def summarize(made: CounterpartPlan, journal: Journal) -> dict[str, Any]:
    """The summary of what the journal holds of a plan, ready for JSON.

    `heads`: as `read_heads` tells them; `curves`: D of those found and nearest. `held`, by length and set: nats/token
    that holding it restores (`restored`), and that less its random sets' mean (`beyond_random`), each [mean, low, high]
    over the judged texts; the `random` sets' mean, least and largest; and the `share` of the gap, where there is one.
    `crossed`, by hook: dims that cross on the repeated word as trained and with each set held, and the `random` sets'
    counts.
    """
    heads = heads_of(made, journal)
    sets = chosen_sets(made, heads) if heads else {}
    drawn = sorted({*sets.get(FOUND, []), *sets.get(NEAREST, [])})
    return {
        "model": made.request.model,
        "trained_length": made.trained_length,
        "seed": made.request.seed,
        "versions": {package: version(package) for package in ("mesa-lens", "torch", "transformers")},
        "lengths": made.lengths,
        "method": made.mending.describe(),
        **journal.provenance,
        "texts": {"found_on": len(made.finding), "judged": len(made.judging)},
        "cells_left": sum(cell not in journal.rows for cell in cells(made)),
        "heads": heads,
        "sets": sets,
        "curves": curves(made, journal, drawn) if heads else {},
        "held": [row for length in made.lengths for row in _held(made, journal, length)],
        "crossed": _crossed(made, journal),
    }


def write(made: CounterpartPlan, journal: Journal, out: Path) -> dict[str, Any]:
    """The summary, which is written to the run's folder."""
    summary = summarize(made, journal)
    write_json(out / FOLDER / SUMMARY, summary)
    return summary


def _held(made: CounterpartPlan, journal: Journal, length: int) -> list[dict[str, Any]]:
    """An entry a set, of the judged texts that are there."""
    rows = [journal.rows[cell]["nll"] for n in made.judging if (cell := ("hold", length, n)) in journal.rows]
    if not rows:
        return []
    losses = {name: [row[name] for row in rows] for name in rows[0]}
    judge = Paired(losses[made.origin.name], losses[made.mending.name])
    gap, broken, found = judge.gap, np.array(losses[made.origin.name]), []
    for name in (name for name in SETS if name in losses):
        gained = broken - np.array(losses[name])
        random = np.array([broken - np.array(losses[r]) for r in random_names(name, made.request.draws) if r in losses])
        share = judge.share(losses[name]) if gap.judged else None
        entry: dict[str, Any] = {
            "length": length,
            "set": name,
            "texts": len(rows),
            "gap": [gap.broken - gap.mended, gap.low, gap.high],
            "restored": _mean(gained.mean(1)),
            "share": None if share is None else [share.value, share.low, share.high],
        }
        if len(random):
            entry["beyond_random"] = _mean((gained - random.mean(0)).mean(1))
            entry["random"] = [float(f(random.mean((1, 2)))) for f in (np.mean, np.min, np.max)]
        found.append({key: _finite(value) for key, value in entry.items()})
    return found


def _crossed(made: CounterpartPlan, journal: Journal) -> dict[str, Any]:
    """By hook, how many dims cross."""
    row = journal.rows.get(("crossed", made.lengths[-1]), {"crossing": {}})
    found = {}
    for hook, counts in row["crossing"].items():
        random = {name: [counts[r] for r in random_names(name, made.request.draws) if r in counts] for name in SETS}
        found[hook] = {
            "as_trained": counts[made.origin.name],
            **{name: counts[name] for name in SETS if name in counts},
            "random": {name: each for name, each in random.items() if each},
        }
    return found


def said(summary: Mapping[str, Any]) -> str:
    """The summary in words and tables, as the command prints it."""
    heads = sorted(summary["heads"], key=lambda row: (row["part"] == "", -row["monotone"][0]))
    if not heads:
        return "no head is read yet: texts are left"
    playing = {part: [row for row in heads if row["part"] == part] for part in (COUNTERPART, KIN)}
    told = ", ".join(f"{len(each)} {part}" for part, each in playing.items())
    lines = [f"{told} of {len(heads)} heads, on {summary['texts']['found_on']} texts", _head_table(heads[:_ROWS])]
    if summary["texts"]["found_on"] == 1:
        lines.append("one text: no intervals, heads are judged by values")
    lines += [_held_line(row) for row in summary["held"]]
    for hook, counts in summary["crossed"].items():
        left = ", ".join(f"{name} {counts[name]}{_of(counts['random'].get(name))}" for name in SETS if name in counts)
        lines.append(f"dims of {hook} that cross: {counts['as_trained']}; with heads held: {left}")
    return "\n".join(lines)


def _head_table(rows: Sequence[Mapping[str, Any]]) -> str:
    names = ("linear", "monotone", "carried")
    lines = [
        f"{'head':>6} {'linear':>20} {'monotone':>20} {'carried':>20} {'weight':>7} {'apart':>7} crossing pretended"
    ]
    for row in rows:
        numbers = " ".join(f"{shown(*row[name], form='z.2f'):>20}" for name in names)
        lines.append(
            f"{row['layer']:>3}.{row['head']:<2} {numbers} {row['weight']:>z7.1f} {row['apart']:>z7.1f} "
            f"{row['crossing'] or '-':>8} {row['pretended']:>z9.2f} {row['part']}"
        )
    return "\n".join(lines)


def _held_line(row: Mapping[str, Any]) -> str:
    beside = f", beyond random heads {shown(*row['beyond_random'], form='+z.3f')}" if "random" in row else ""
    share = f" ({row['share'][0]:.0%} of the gap)" if row["share"] and row["share"][0] is not None else ""
    restored = shown(*row["restored"], form="+z.3f")
    return f"{row['length']} tokens, {row['set']} held: {restored} nats/token restored{share}{beside}"


def _of(random: Sequence[int] | None) -> str:
    return f" (random {min(random)}-{max(random)})" if random else ""


def _mean(values: np.ndarray) -> list[float | None]:
    return [float(values.mean()), *student(values.tolist())]


def _finite(value: Any) -> Any:
    """Lists without NaN, which JSON lacks."""
    return [None if each is None or np.isnan(each) else each for each in value] if isinstance(value, list) else value
