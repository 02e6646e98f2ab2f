"""The effective length of each method: how far RULER's tasks keep most of the score that they have in short prompts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from probe.evaluation.reached import NOWHERE, Scores, above, less, mean, reached
from probe.evaluation.summary import Table

SHARE = 0.85
"""Of the base score, which a length must reach (as in NoLiMa, Modarressi et al. 2025)."""
RULERS = 0.856
"""RULER's own threshold: Llama-2-7B's mean score at 4096 tokens (Hsieh et al. 2024)."""
CHANCE = 0.1
"""What is taken for chance at least; else what copying the prompt would give."""
MEAN = "mean"
RECALL, COPIED = "recall", "copied"


def effective_lengths(
    rows: Sequence[Mapping[str, Any]], tasks: Sequence[str], trained_length: int, *, are_rulers: bool = False
) -> list[dict[str, Any]]:
    """One entry a method and task of RULER's, `tasks`, that was run, and their mean: how long prompts may get.

    base: the reference's score (origin's, else the first method's) at `base_length`, the shortest that it was measured
    at, the same for all methods, with its 95% interval `base_low` to `base_high`. unjudged: why there are no lengths:
    that is not above `chance`, not told from it, or beyond the window; else None. length: the longest with at least
    `SHARE` of the base, and above chance there; None: none. low, high: the longest that surely has, and that may have,
    by 95% intervals of the prompts' scores; has_interval: whether there are any, of two prompts or more. dips: shorter
    lengths that do not reach it. longest: the longest length measured. ruler: the same with `RULERS` as the score to
    reach, for the mean where all of `tasks` were run and `are_rulers`, as large as RULER's; else None.
    """
    by: dict[tuple[str, str, int], dict[int, float]] = {}
    copied: dict[tuple[str, int], list[float]] = {}
    for row in rows:
        if row["task"] in tasks and row["metric"] == RECALL:
            by.setdefault((row["task"], row["method"], row["length"]), {})[row["sample"]] = row["score"]
        elif row["task"] in tasks and row["metric"] == COPIED:
            copied.setdefault((row["task"], row["length"]), []).append(row["score"])
    chances = {at: max(CHANCE, float(np.mean(found))) for at, found in copied.items()}
    run = [task for task in tasks if any(task == at[0] for at in by)]
    shared = _shared(by)
    methods = list(dict.fromkeys(method for _, method, _ in by))
    reference = "origin" if "origin" in methods else next(iter(methods), "")
    groups = [(task, (task,)) for task in run] + ([(MEAN, tuple(run))] if len(run) > 1 else [])
    found = []
    for name, own in groups:
        scores = {method: _of(shared, own, method) for method in methods}
        if scores[reference]:
            rulers = RULERS if name == MEAN and len(run) == len(tasks) and are_rulers else None
            lengths = {length for each in scores.values() for length in each}
            chance = {
                length: float(np.mean([chances.get((task, length), CHANCE) for task in own])) for length in lengths
            }
            entries = [_entry(name, method, reference, scores, chance, rulers) for method in methods if scores[method]]
            found += [_judged(entry, trained_length) for entry in entries]
    return found


def effective_table(entries: Sequence[Mapping[str, Any]]) -> Table | None:
    """The lengths, a row a method, a column a task; the scores that they are measured against first. None: no task."""
    if not entries:
        return None
    tasks, methods = (list(dict.fromkeys(entry[name] for entry in entries)) for name in ("task", "method"))
    by = {(entry["method"], entry["task"]): entry for entry in entries}
    first = {entry["task"]: entry for entry in reversed(entries)}
    ruler = any(entry["ruler"] for entry in entries)
    base = (f"{entries[0]['reference']} at {entries[0]['base_length']}", *(_base(first[task]) for task in tasks))
    rows = [base + (("",) if ruler else ())]
    for method in methods:
        shown = [_shown(by[method, task]) if (method, task) in by else "-" for task in tasks]
        rows.append((method, *shown, *([_ruler(by.get((method, MEAN)))] if ruler else [])))
    title = (
        f"effective length (tokens): the longest with at least {SHARE:g} of the score in the first row "
        "and above chance [95% interval: surely, perhaps]"
    )
    last = (f"{MEAN} of {RULERS:g} (RULER's)",) if ruler else ()
    return Table(title, ("method", *tasks, *last), tuple(rows))


def _shared(by: Mapping[tuple[str, str, int], Mapping[int, float]]) -> dict[tuple[str, str, int], np.ndarray]:
    """By task, method and length the scores of the prompts that all methods and lengths of the task have."""
    found = {}
    for task in dict.fromkeys(task for task, _, _ in by):
        own = {at: values for at, values in by.items() if at[0] == task}
        samples = sorted(set.intersection(*(set(values) for values in own.values())))
        found |= {at: np.array([values[sample] for sample in samples]) for at, values in own.items()}
    return found


def _of(shared: Mapping[tuple[str, str, int], np.ndarray], tasks: Sequence[str], method: str) -> dict[int, Scores]:
    """By length, the scores of each task, where all were run."""
    lengths = sorted({length for _, own, length in shared if own == method})
    each = {length: [shared[at] for task in tasks if (at := (task, method, length)) in shared] for length in lengths}
    return {length: scores for length, scores in each.items() if len(scores) == len(tasks)}


def _entry(
    task: str,
    method: str,
    reference: str,
    scores: Mapping[str, Mapping[int, Scores]],
    chance: Mapping[int, float],
    rulers: float | None,
) -> dict[str, Any]:
    base_length = min(scores[reference])
    base = scores[reference][base_length]
    own = {length: found for length, found in scores[method].items() if length >= base_length}
    beyond = {length: less(mean(found), chance[length]) for length, found in own.items()}
    value, low, high = mean(base)
    ruler = None
    if own and rulers is not None:
        ruler = reached({length: less(mean(found), rulers) for length, found in own.items()}, beyond)
    return {
        "task": task,
        "method": method,
        "reference": reference,
        "base": value,
        "base_low": low,
        "base_high": high,
        "base_length": base_length,
        "chance": chance[base_length],
        "longest": max(own, default=None),
        "has_interval": low is not None,
        **reached({length: above(found, base, SHARE) for length, found in own.items()}, beyond),
        "ruler": ruler,
    }


def _judged(entry: Mapping[str, Any], trained_length: int) -> dict[str, Any]:
    """The entry, without lengths where its base cannot be one."""
    why = None
    if entry["base_length"] > trained_length:
        why = f"no length within M = {trained_length}"
    elif entry["base"] <= entry["chance"]:
        why = "at chance"
    elif entry["has_interval"] and entry["base_low"] <= entry["chance"]:
        why = "not told from chance"
    elif entry["longest"] is None:
        why = "not measured"
    return {**entry, "unjudged": why, **(NOWHERE if why else {})}


def _base(entry: Mapping[str, Any]) -> str:
    ends = f" [{entry['base_low']:z.2f}, {entry['base_high']:z.2f}]" if entry["has_interval"] else ""
    return f"{entry['base']:z.2f}{ends}; copying {entry['chance']:z.2f}"


def _shown(entry: Mapping[str, Any]) -> str:
    return f"not judged: {entry['unjudged']}" if entry["unjudged"] else _text(entry, entry)


def _ruler(entry: Mapping[str, Any] | None) -> str:
    return "-" if entry is None or entry["ruler"] is None else _text(entry["ruler"], entry)


def _text(reached: Mapping[str, Any], entry: Mapping[str, Any]) -> str:
    """Such as '512 [256, 1024]', 'at least 1024 [512, 1024]' or 'none'."""
    text = str(reached["length"] or "none")
    if reached["length"] == entry["longest"]:
        text = f"at least {text}"
    if entry["has_interval"]:
        text += f" [{reached['low'] or 'none'}, {reached['high'] or 'none'}]"
    return text + (f"; dips at {', '.join(map(str, reached['dips']))}" if reached["dips"] else "")
