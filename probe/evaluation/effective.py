"""The effective length of each method: how far RULER's tasks keep most of the score that they have in short prompts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from probe.evaluation.summary import Table

SHARE = 0.85
"""Of the base score, which a length must reach (as in NoLiMa, Modarressi et al. 2025)."""
RULERS = 0.856
"""RULER's own threshold: Llama-2-7B's mean score at 4096 tokens (Hsieh et al. 2024)."""
CHANCE = 0.1
"""What is taken for chance at least; else what copying the prompt would give."""
MEAN = "mean"
RECALL, COPIED = "recall", "copied"
FEWEST = 5
"""Prompts of which there is an interval."""
_RESAMPLED = 2000
_ENDS = [_RESAMPLED // 40, _RESAMPLED - 1 - _RESAMPLED // 40]  # of 95%, among sorted draws
_EXACT = 1e-9
_NONE: Mapping[str, Any] = {"length": None, "low": None, "high": None, "dips": []}

Scores = dict[tuple[str, str, int], dict[int, float]]
"""By task, method and length: by sample."""


def effective_lengths(
    rows: Sequence[Mapping[str, Any]], tasks: Sequence[str], trained_length: int, *, are_rulers: bool = False
) -> list[dict[str, Any]]:
    """One entry a method and task of RULER's, `tasks`, that was run, and their mean: how long prompts may get.

    base: the reference's score (origin's, else the first method's) at `base_length`, the shortest that it was measured
    at, the same for all methods, with its interval `base_low` to `base_high`. unjudged: why there are no lengths: that
    is not above `chance`, or beyond the window; else None. length: the longest with at least `SHARE` of the base, and
    above chance there; None: none. low, high: its 95% interval over resampled prompts, the same for all methods and
    lengths; has_interval: whether there are `FEWEST`. dips: shorter lengths that do not reach it. longest: the longest
    length measured. ruler: the same with `RULERS` as the score to reach, for the mean where all of `tasks` were run and
    `are_rulers`, as large as RULER's; else None.
    """
    by: Scores = {}
    copied: dict[tuple[str, int], list[float]] = {}
    for row in rows:
        if row["task"] in tasks and row["metric"] == RECALL:
            by.setdefault((row["task"], row["method"], row["length"]), {})[row["sample"]] = row["score"]
        elif row["task"] in tasks and row["metric"] == COPIED:
            copied.setdefault((row["task"], row["length"]), []).append(row["score"])
    chances = {at: max(CHANCE, float(np.mean(found))) for at, found in copied.items()}
    run = [task for task in tasks if any(task == at[0] for at in by)]
    means = _means(by)
    methods = list(dict.fromkeys(method for _, method, _ in by))
    reference = "origin" if "origin" in methods else next(iter(methods), "")
    groups = [(task, (task,)) for task in run] + ([(MEAN, tuple(run))] if len(run) > 1 else [])
    found = []
    for name, own in groups:
        scores = {method: _of(means, own, method) for method in methods}
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
        "and above chance [95% interval over prompts, paired]"
    )
    last = (f"{MEAN} of {RULERS:g} (RULER's)",) if ruler else ()
    return Table(title, ("method", *tasks, *last), tuple(rows))


def _means(by: Scores) -> dict[tuple[str, str, int], np.ndarray]:
    """The mean, and then the means of `_RESAMPLED` draws of prompts, the same for a task's methods and lengths."""
    found = {}
    for task in dict.fromkeys(task for task, _, _ in by):
        own = {at: values for at, values in by.items() if at[0] == task}
        shared = sorted(set.intersection(*(set(values) for values in own.values())))
        count = len(shared)
        drawn = np.random.default_rng([*task.encode()]).multinomial(count, np.full(count, 1 / count), _RESAMPLED)
        weights = np.concatenate([np.ones((1, count)), drawn])
        for at, values in own.items():
            found[at] = weights @ np.array([values[sample] for sample in shared]) / count
            if count < FEWEST:
                found[at] = found[at][:1]
    return found


def _of(means: Mapping[tuple[str, str, int], np.ndarray], tasks: Sequence[str], method: str) -> dict[int, np.ndarray]:
    """By length, the mean over the tasks, where all were run."""
    lengths = sorted({length for _, own, length in means if own == method})
    return {
        length: np.mean(found, 0)
        for length in lengths
        if len(found := [means[task, method, length] for task in tasks if (task, method, length) in means])
        == len(tasks)
    }


def _entry(
    task: str,
    method: str,
    reference: str,
    scores: Mapping[str, dict[int, np.ndarray]],
    chance: Mapping[int, float],
    rulers: float | None,
) -> dict[str, Any]:
    base_length = min(scores[reference])
    base = scores[reference][base_length]
    own = {length: score for length, score in scores[method].items() if length >= base_length}
    ends = _interval(base[1:])
    return {
        "task": task,
        "method": method,
        "reference": reference,
        "base": float(base[0]),
        "base_low": None if ends is None else float(ends[0]),
        "base_high": None if ends is None else float(ends[1]),
        "base_length": base_length,
        "chance": chance[base_length],
        "longest": max(own, default=None),
        "has_interval": ends is not None,
        **(_reached(own, SHARE * base, chance) if own else _NONE),
        "ruler": _reached(own, np.full_like(base, rulers), chance) if own and rulers is not None else None,
    }


def _judged(entry: Mapping[str, Any], trained_length: int) -> dict[str, Any]:
    """The entry, without lengths where its base cannot be one."""
    why = None
    if entry["base_length"] > trained_length:
        why = f"no length within M = {trained_length}"
    elif (entry["base_low"] if entry["has_interval"] else entry["base"]) <= entry["chance"]:
        why = "at chance"
    elif entry["longest"] is None:
        why = "not measured"
    return {**entry, "unjudged": why, **(_NONE if why else {})}


def _reached(own: Mapping[int, np.ndarray], least: np.ndarray, chance: Mapping[int, float]) -> dict[str, Any]:
    """The longest length whose score is at least `least` and above chance; its interval; shorter ones that are not."""
    reaches = {length: (score >= least - _EXACT) & (score > chance[length]) for length, score in own.items()}
    longest = np.max([np.where(held, length, 0) for length, held in reaches.items()], axis=0)
    length = int(longest[0]) or None
    ends = _interval(longest[1:])
    low, high = (None, None) if ends is None else (int(end) or None for end in ends)
    dips = [short for short, held in reaches.items() if length and short < length and not held[0]]
    return {"length": length, "low": low, "high": high, "dips": dips}


def _interval(draws: np.ndarray) -> np.ndarray | None:
    return np.sort(draws)[_ENDS] if len(draws) else None


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
