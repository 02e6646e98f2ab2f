"""The effective length of a method: how far RULER's tasks keep most of the score that they have in short prompts."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any

import numpy as np

from probe.evaluation.summary import Table, cross_table, interval
from probe.statistics import Estimate, combined, shown, student
from probe.tasks.base import Metric

SHARE = 0.85
"""Share of the base score that a length must reach (as in NoLiMa, Modarressi et al. 2025)."""
CHANCE = 0.1
"""The least score that counts as chance; otherwise the score of copying the prompt."""
MEAN = "mean"
RECALL, COPIED = "recall", "copied"
Scores = Sequence[np.ndarray]
"""A task each, prompt by prompt: the prompts that all methods and lengths of the task share."""
_EXACT = 1e-9


def effective_lengths(
    rows: Sequence[Mapping[str, Any]], tasks: Sequence[str], trained_length: int
) -> list[dict[str, Any]]:
    """One entry a method and task of RULER's, `tasks`, that was run, and their mean: how long prompts may get.

    base: the reference's score (origin's, else the first method's) at `base_length`, the shortest that it was measured
    at, the same for all methods, with its 95% interval `base_low` to `base_high`. unjudged: why there are no lengths
    (the base is not clearly above `chance`, or beyond the window), else None. length: the longest with at least `SHARE`
    of the base, and above chance there; None: none. low, high: its lower and upper bound, by 95% intervals of the
    prompts' scores; has_interval: whether there are any, of two prompts or more. longest: the longest length measured.
    """
    recall: dict[tuple[str, str, int], dict[int, float]] = {}
    copied: dict[tuple[str, int], list[float]] = {}
    for row in rows:
        if row["task"] in tasks and row["metric"] == RECALL:
            recall.setdefault((row["task"], row["method"], row["length"]), {})[row["sample"]] = row["score"]
        elif row["task"] in tasks and row["metric"] == COPIED:
            copied.setdefault((row["task"], row["length"]), []).append(row["score"])
    chance = {key: max(CHANCE, fmean(scores)) for key, scores in copied.items()}
    measured = [task for task in tasks if any(task == key[0] for key in recall)]
    shared = _shared_prompts(recall)
    methods = list(dict.fromkeys(method for _, method, _ in recall))
    reference = "origin" if "origin" in methods else next(iter(methods), "")
    groups = {task: (task,) for task in measured} | ({MEAN: tuple(measured)} if len(measured) > 1 else {})
    entries = []
    for name, group in groups.items():
        scores = {method: _scores(shared, group, method) for method in methods}
        if not scores[reference]:
            continue
        lengths = {length for by_length in scores.values() for length in by_length}
        at_chance = {length: fmean(chance.get((task, length), CHANCE) for task in group) for length in lengths}
        entries += [
            _entry(name, method, reference, scores, at_chance, trained_length) for method in methods if scores[method]
        ]
    return entries


def effective_table(entries: Sequence[Mapping[str, Any]]) -> Table | None:
    """The lengths, a row a method, a column a task; the scores that they are measured against first. None: no task."""
    if not entries:
        return None
    first = {entry["task"]: entry for entry in reversed(entries)}
    base = {
        task: f"{shown(entry['base'], entry['base_low'], entry['base_high'], 'z.2f')}; copying {entry['chance']:z.2f}"
        for task, entry in first.items()
    }
    label = f"{entries[0]['reference']} at {entries[0]['base_length']}"
    texts = {(label, task): text for task, text in base.items()}
    texts |= {(entry["method"], entry["task"]): _length_text(entry) for entry in entries}
    title = (
        f"effective length (tokens): the longest with at least {SHARE:g} of the score in the first row "
        "and above chance [95% interval: lower, upper bound]"
    )
    return cross_table(title, texts, [*dict.fromkeys(entry["task"] for entry in entries)])


def _shared_prompts(
    recall: Mapping[tuple[str, str, int], Mapping[int, float]],
) -> dict[tuple[str, str, int], np.ndarray]:
    """By task, method and length the scores of the prompts that all methods and lengths of the task have."""
    shared = {}
    for task in dict.fromkeys(task for task, _, _ in recall):
        of_task = {key: values for key, values in recall.items() if key[0] == task}
        samples = sorted(set.intersection(*(set(values) for values in of_task.values())))
        shared |= {key: np.array([values[sample] for sample in samples]) for key, values in of_task.items()}
    return shared


def _scores(shared: Mapping[tuple[str, str, int], np.ndarray], tasks: Sequence[str], method: str) -> dict[int, Scores]:
    """By length, the scores of each task, where all were run."""
    lengths = sorted({length for _, name, length in shared if name == method})
    return {
        length: [shared[task, method, length] for task in tasks]
        for length in lengths
        if all((task, method, length) in shared for task in tasks)
    }


def _entry(
    task: str,
    method: str,
    reference: str,
    scores: Mapping[str, Mapping[int, Scores]],
    chance: Mapping[int, float],
    trained_length: int,
) -> dict[str, Any]:
    base_length = min(scores[reference])
    base = scores[reference][base_length]
    value, base_low, base_high = _mean(base)
    by_length = {length: values for length, values in scores[method].items() if length >= base_length}
    unjudged = None
    if base_length > trained_length:
        unjudged = f"no length within M = {trained_length}"
    elif value <= chance[base_length]:
        unjudged = "at chance"
    elif base_low is not None and base_low <= chance[base_length]:
        unjudged = "not told from chance"
    elif not by_length:
        unjudged = "not measured"
    length, low, high = (None,) * 3 if unjudged else _longest(by_length, base, chance)
    return {
        "task": task,
        "method": method,
        "reference": reference,
        "base": value,
        "base_low": base_low,
        "base_high": base_high,
        "base_length": base_length,
        "chance": chance[base_length],
        "unjudged": unjudged,
        "longest": max(by_length, default=None),
        "has_interval": base_low is not None,
        "length": length,
        "low": low,
        "high": high,
    }


def _longest(by_length: Mapping[int, Scores], base: Scores, chance: Mapping[int, float]) -> list[int | None]:
    """The longest length with `SHARE` of the base and above chance: by the means, their lower and upper bounds."""
    means = {length: _mean(values) for length, values in by_length.items()}
    margins = {length: _above(values, base) for length, values in by_length.items()}

    def reaches(length: int, bound: int) -> bool:
        mean, margin = means[length][bound], margins[length][bound]
        return mean is not None and margin is not None and margin >= -_EXACT and mean > chance[length]

    return [max((length for length in by_length if reaches(length, bound)), default=None) for bound in range(3)]


def _length_text(entry: Mapping[str, Any]) -> str:
    """Such as '512 [256, 1024]', 'at least 1024 [512, 1024]', 'none' or 'not judged: at chance'."""
    if entry["unjudged"]:
        return f"not judged: {entry['unjudged']}"
    text = str(entry["length"] or "none")
    if entry["length"] == entry["longest"]:
        text = f"at least {text}"
    return text + (f" [{entry['low'] or 'none'}, {entry['high'] or 'none'}]" if entry["has_interval"] else "")


def _mean(scores: Scores) -> Estimate:
    """The mean over tasks and prompts: by Wilson's interval where all scores are 0 or 1, else by Student's."""
    return _over_tasks(map(_task_mean, scores))


def _above(scores: Scores, base: Scores) -> Estimate:
    """The mean of scores less `SHARE` of the base's, paired by prompt."""
    return _over_tasks(_difference(values, other) for values, other in zip(scores, base, strict=True))


def _over_tasks(estimates: Iterable[Estimate]) -> Estimate:
    parts = list(estimates)
    return combined(parts, [1 / len(parts)] * len(parts))


def _task_mean(scores: np.ndarray) -> Estimate:
    metric = Metric("score", "share", binary=_are_hits(scores), most=1)
    low, high = interval(scores.tolist(), metric)
    return fmean(scores.tolist()), low, high


def _difference(scores: np.ndarray, base: np.ndarray) -> Estimate:
    """Of one task: by Student's interval; from the intervals of both where they are hits or differ by a constant."""
    if scores is base:
        return combined([_task_mean(base)], [1 - SHARE])
    differences = (scores - SHARE * base).tolist()
    if max(differences) - min(differences) > _EXACT and not (_are_hits(scores) and _are_hits(base)):
        low, high = student(differences)
        return fmean(differences), low, high
    return combined([_task_mean(scores), _task_mean(base)], [1, -SHARE], _correlation(scores, base))


def _are_hits(scores: np.ndarray) -> bool:
    return bool(np.isin(scores, (0, 1)).all())


def _correlation(scores: np.ndarray, base: np.ndarray) -> float:
    """Of scores of 0 and 1, corrected downwards where above 0 (Newcombe 1998, method 10); 0 where one is constant."""
    count, hits, base_hits = len(scores), scores.sum(), base.sum()
    spread = math.sqrt(hits * (count - hits) * base_hits * (count - base_hits))
    shared = count * (scores @ base) - hits * base_hits
    return float(min(shared, max(0.0, shared - count / 2)) / spread) if spread and shared else 0.0
