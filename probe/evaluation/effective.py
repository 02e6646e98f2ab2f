"""The effective length of a method: how far RULER's tasks keep most of the score that they have in short prompts."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any

import numpy as np

from probe.evaluation.summary import Table, interval
from probe.statistics import Estimate, combined, student
from probe.tasks.base import Metric

SHARE = 0.85
"""Share of the base score that a length must reach (as in NoLiMa, Modarressi et al. 2025)."""
RULERS = 0.856
"""RULER's own threshold: Llama-2-7B's mean score at 4096 tokens (Hsieh et al. 2024)."""
CHANCE = 0.1
"""The least score that counts as chance; otherwise the score of copying the prompt."""
MEAN = "mean"
RECALL, COPIED = "recall", "copied"
Scores = Sequence[np.ndarray]
"""A task each, prompt by prompt: the prompts that all methods and lengths of the task share."""
_NO_LENGTH: Mapping[str, Any] = {"length": None, "low": None, "high": None, "dips": []}
_EXACT = 1e-9


def effective_lengths(
    rows: Sequence[Mapping[str, Any]], tasks: Sequence[str], trained_length: int, *, are_rulers: bool = False
) -> list[dict[str, Any]]:
    """One entry a method and task of RULER's, `tasks`, that was run, and their mean: how long prompts may get.

    base: the reference's score (origin's, else the first method's) at `base_length`, the shortest that it was measured
    at, the same for all methods, with its 95% interval `base_low` to `base_high`. unjudged: why there are no lengths
    (the base is not clearly above `chance`, or beyond the window), else None. length: the longest with at least `SHARE`
    of the base, and above chance there; None: none. low, high: its lower and upper bound, by 95% intervals of the
    prompts' scores; has_interval: whether there are any, of two prompts or more. dips: shorter lengths that do not
    reach it. longest: the longest length measured. ruler: the same with `RULERS` as the score to reach, for the mean
    where all of `tasks` were run and `are_rulers`, as large as RULER's; else None.
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
        ruler = RULERS if name == MEAN and len(measured) == len(tasks) and are_rulers else None
        lengths = {length for by_length in scores.values() for length in by_length}
        at_chance = {length: fmean(chance.get((task, length), CHANCE) for task in group) for length in lengths}
        entries += [
            _judged(_entry(name, method, reference, scores, at_chance, ruler), trained_length)
            for method in methods
            if scores[method]
        ]
    return entries


def effective_table(entries: Sequence[Mapping[str, Any]]) -> Table | None:
    """The lengths, a row a method, a column a task; the scores that they are measured against first. None: no task."""
    if not entries:
        return None
    tasks, methods = (list(dict.fromkeys(entry[name] for entry in entries)) for name in ("task", "method"))
    cells = {(entry["method"], entry["task"]): entry for entry in entries}
    first = {entry["task"]: entry for entry in reversed(entries)}
    has_ruler = any(entry["ruler"] for entry in entries)
    base = (f"{entries[0]['reference']} at {entries[0]['base_length']}", *(_base_text(first[task]) for task in tasks))
    rows = [base + (("",) if has_ruler else ())]
    for method in methods:
        texts = [_cell_text(cells[method, task]) if (method, task) in cells else "-" for task in tasks]
        rows.append((method, *texts, *([_ruler_text(cells.get((method, MEAN)))] if has_ruler else [])))
    title = (
        f"effective length (tokens): the longest with at least {SHARE:g} of the score in the first row "
        "and above chance [95% interval: lower, upper bound]"
    )
    last = (f"{MEAN} of {RULERS:g} (RULER's)",) if has_ruler else ()
    return Table(title, ("method", *tasks, *last), tuple(rows))


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
    ruler: float | None,
) -> dict[str, Any]:
    base_length = min(scores[reference])
    base = scores[reference][base_length]
    by_length = {length: values for length, values in scores[method].items() if length >= base_length}
    means = {length: _mean(values) for length, values in by_length.items()}
    beyond = {length: _minus(mean, chance[length]) for length, mean in means.items()}
    value, low, high = _mean(base)
    return {
        "task": task,
        "method": method,
        "reference": reference,
        "base": value,
        "base_low": low,
        "base_high": high,
        "base_length": base_length,
        "chance": chance[base_length],
        "longest": max(by_length, default=None),
        "has_interval": low is not None,
        **reached({length: _above(values, base, SHARE) for length, values in by_length.items()}, beyond),
        "ruler": None
        if ruler is None or not by_length
        else reached({length: _minus(mean, ruler) for length, mean in means.items()}, beyond),
    }


def _judged(entry: Mapping[str, Any], trained_length: int) -> dict[str, Any]:
    """The entry, without lengths where its base cannot be one."""
    reason = None
    if entry["base_length"] > trained_length:
        reason = f"no length within M = {trained_length}"
    elif entry["base"] <= entry["chance"]:
        reason = "at chance"
    elif entry["has_interval"] and entry["base_low"] <= entry["chance"]:
        reason = "not told from chance"
    elif entry["longest"] is None:
        reason = "not measured"
    return {**entry, "unjudged": reason, **(_NO_LENGTH if reason else {})}


def _base_text(entry: Mapping[str, Any]) -> str:
    ends = f" [{entry['base_low']:z.2f}, {entry['base_high']:z.2f}]" if entry["has_interval"] else ""
    return f"{entry['base']:z.2f}{ends}; copying {entry['chance']:z.2f}"


def _cell_text(entry: Mapping[str, Any]) -> str:
    return f"not judged: {entry['unjudged']}" if entry["unjudged"] else _length_text(entry, entry)


def _ruler_text(entry: Mapping[str, Any] | None) -> str:
    return "-" if entry is None or entry["ruler"] is None else _length_text(entry["ruler"], entry)


def _length_text(length: Mapping[str, Any], entry: Mapping[str, Any]) -> str:
    """Such as '512 [256, 1024]', 'at least 1024 [512, 1024]' or 'none'."""
    text = str(length["length"] or "none")
    if length["length"] == entry["longest"]:
        text = f"at least {text}"
    if entry["has_interval"]:
        text += f" [{length['low'] or 'none'}, {length['high'] or 'none'}]"
    return text + (f"; dips at {', '.join(map(str, length['dips']))}" if length["dips"] else "")


def reached(margins: Mapping[int, Estimate], beyond_chance: Mapping[int, Estimate]) -> dict[str, Any]:
    """The longest length that reaches its score, by the mean, the lower and the upper bound; and shorter that do not.

    margins: by length, scores less what they must reach. beyond_chance: the same scores less chance, to be above 0.
    """
    reaching, lower, upper = (
        [length for length, margin in margins.items() if _reaches(margin[end], beyond_chance[length][end])]
        for end in range(3)
    )
    length, low, high = (max(lengths, default=None) for lengths in (reaching, lower, upper))
    dips = [short for short in margins if short < (length or 0) and short not in reaching]
    return {"length": length, "low": low, "high": high, "dips": dips}


def _reaches(margin: float | None, beyond_chance: float | None) -> bool:
    return margin is not None and beyond_chance is not None and margin >= -_EXACT and beyond_chance > 0


def _mean(scores: Scores) -> Estimate:
    """The mean over tasks and prompts: by Wilson's interval where all scores are 0 or 1, else by Student's."""
    return _over_tasks(map(_task_mean, scores))


def _above(scores: Scores, base: Scores, share: float) -> Estimate:
    """The mean of scores less a share of the base's, paired by prompt."""
    return _over_tasks(_difference(values, other, share) for values, other in zip(scores, base, strict=True))


def _minus(estimate: Estimate, number: float) -> Estimate:
    value, low, high = estimate
    if low is None or high is None:
        return value - number, None, None
    return value - number, low - number, high - number


def _over_tasks(estimates: Iterable[Estimate]) -> Estimate:
    parts = list(estimates)
    return combined(parts, [1 / len(parts)] * len(parts))


def _task_mean(scores: np.ndarray) -> Estimate:
    metric = Metric("score", "share", binary=_are_hits(scores), most=1)
    low, high = interval(scores.tolist(), metric)
    return fmean(scores.tolist()), low, high


def _difference(scores: np.ndarray, base: np.ndarray, share: float) -> Estimate:
    """Of one task: by Student's interval; from the intervals of both where they are hits or differ by a constant."""
    if scores is base:
        return combined([_task_mean(base)], [1 - share])
    differences = (scores - share * base).tolist()
    if max(differences) - min(differences) > _EXACT and not (_are_hits(scores) and _are_hits(base)):
        low, high = student(differences)
        return fmean(differences), low, high
    return combined([_task_mean(scores), _task_mean(base)], [1, -share], _correlation(scores, base))


def _are_hits(scores: np.ndarray) -> bool:
    return bool(np.isin(scores, (0, 1)).all())


def _correlation(scores: np.ndarray, base: np.ndarray) -> float:
    """Of scores of 0 and 1, corrected downwards where above 0 (Newcombe 1998, method 10); 0 where one is constant."""
    count, hits, base_hits = len(scores), scores.sum(), base.sum()
    spread = math.sqrt(hits * (count - hits) * base_hits * (count - base_hits))
    shared = count * (scores @ base) - hits * base_hits
    return float(min(shared, max(0.0, shared - count / 2)) / spread) if spread and shared else 0.0
