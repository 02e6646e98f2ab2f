"""The effective length of a method: how far RULER's tasks keep most of the score that they have in short prompts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

import numpy as np
import pandas as pd

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
    columns = ["task", "method", "length", "sample", "metric", "score"]
    frame = pd.DataFrame([row for row in rows if row["task"] in tasks], columns=columns)
    recall, copied = frame[frame["metric"] == RECALL], frame[frame["metric"] == COPIED]
    chance = copied.groupby(["task", "length"])["score"].agg(fmean).clip(lower=CHANCE).to_dict()
    shared: dict[tuple[str, str], dict[int, np.ndarray]] = {}
    for task, of_task in recall.groupby("task"):  # the prompts that all methods and lengths of the task have
        table = of_task.pivot(index="sample", columns=["method", "length"], values="score").dropna()
        for method, length in table:
            shared.setdefault((str(task), method), {})[int(length)] = table[method, length].to_numpy()
    measured = [task for task in tasks if task in {*recall["task"]}]
    methods = list(dict.fromkeys(recall["method"]))
    reference = "origin" if "origin" in methods else next(iter(methods), "")
    groups = {task: (task,) for task in measured} | ({MEAN: tuple(measured)} if len(measured) > 1 else {})
    entries = []
    for name, group in groups.items():
        scores: dict[str, dict[int, Scores]] = {}
        for method in methods:  # by length, the scores of each task, where all were run
            of_tasks = [shared.get((task, method), {}) for task in group]
            common = sorted(set.intersection(*map(set, of_tasks)))
            scores[method] = {length: [of_task[length] for of_task in of_tasks] for length in common}
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
    reasons = {
        f"no length within M = {trained_length}": base_length > trained_length,
        "at chance": value <= chance[base_length],
        "not told from chance": base_low is not None and base_low <= chance[base_length],
        "not measured": not by_length,
    }
    unjudged = next((reason for reason, holds in reasons.items() if holds), None)
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
    return combined([_task_mean(values) for values in scores], [1 / len(scores)] * len(scores))


def _above(scores: Scores, base: Scores) -> Estimate:
    """The mean of scores less `SHARE` of the base's, paired by prompt."""
    differences = [_difference(values, other) for values, other in zip(scores, base, strict=True)]
    return combined(differences, [1 / len(differences)] * len(differences))


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
