"""What is read of each head: how its attention on the first key tells the position, and where that leaves its range.

The constructed head (theorems 3.1 and 3.2) has a_1(t) = 1 / t: D(t) = 1 / a_1(t) is a line in t, the same for all
prompts, its output carries a_1 alone, and D goes on beyond M, where it passes all that it was inside. Plain numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy.stats import rankdata

from probe.statistics import half_width

LINEAR, MONOTONE, CARRIED = 0.8, 0.7, 0.5
"""The least low ends of the intervals by which a head reads positions, follows them, and hands them on."""
WEIGHT, APART = 3.0, 10.0
"""The least `weight` or `apart`: uniform attention on random values tells 1 / t, too, and has 1, and 1 to 3."""
NEAR = 1.25
"""A crossing below so many M is near M."""
PRETENDED = (0.5, 0.625, 0.75, 0.8)
"""Windows inside the window, as shares of M: with `NEAR`, each sees nothing beyond M."""
COUNTERPART, KIN = "counterpart", "kin"
_BURN_IN, _SUSTAINED, _STRIDE = 8, 16, 64  # parts of M
TINY = 1e-100


def chosen_queries(length: int, trained: int) -> list[int]:
    """The token positions at which heads are looked at: M/64 apart, from 1 on; token 0 sees itself alone."""
    return list(range(1, length, max(1, trained // _STRIDE)))


def shortest(trained: int) -> int:
    """The fewest tokens of a text in which a crossing can be told: it is out of range for M/16 of them."""
    return trained + max(2, 2 * trained // _SUSTAINED)


def read_heads(
    attention: np.ndarray, output: np.ndarray, apart: np.ndarray, queries: Sequence[int], trained: int
) -> list[dict[str, Any]]:
    """An entry a head, of what `first_key` measured, with texts in front, at token positions `queries`.

    Inside, that is for M/8 <= t < M:
    - `linear`: R^2 of t read from D = 1 / a_1 by one line for all texts, each text by the line of the others
    - `monotone`: Spearman's correlation of D with t within a text
    - `carried`: R^2 of a_1 read from the head's output in the same way
    each [mean, low, high] over texts (95%, Student), ends None for one text;
    - `weight`, `apart`: how far the first key is singled out, by attention (a_1 times the keys seen) and by its value;
      means over texts
    - `crossing`: the first position from M on from which log D, its mean over texts, is outside its in-window range by
      more than its own uncertainty there, for M/16 tokens; None if there is none
    - `near`: whether that is so within M/4 tokens; `pretended`: the share of `PRETENDED` windows of which it is so, too
    - `part`: `COUNTERPART` for a head that reads linearly off a key that is singled out, hands on and crosses near M,
      `KIN` where it follows t in any monotone way, else ''
    """
    position = np.asarray(queries)
    inside = (position >= trained // _BURN_IN) & (position < trained)
    if inside.sum() < 3:
        raise ValueError(f"trained_length={trained} leaves {inside.sum()} positions inside to read; take 8 or more")
    level = -np.log(np.maximum(attention, TINY))
    target = np.broadcast_to(position[inside].astype(float), (len(attention), int(inside.sum())))
    rows = []
    for layer, head in np.ndindex(*attention.shape[1:3]):
        a_1, first_output, log_d = (each[:, layer, head] for each in (attention, output, level))
        own = a_1[:, inside]
        row: dict[str, Any] = {
            "layer": layer,
            "head": head,
            "linear": _with_ends(explained(1 / np.maximum(own, TINY), target)),
            "monotone": _with_ends(_ranked(log_d[:, inside], target)),
            "carried": _with_ends(explained(first_output[:, inside], own)),
            "weight": float((own * (position[inside] + 1)).mean()),
            "apart": float(apart[:, layer, head].mean()),
            "crossing": crossing(log_d, position, trained, trained, int(position[-1]) + 1),
            "near": _is_near(log_d, position, trained, trained),
            "pretended": float(np.mean([_is_near(log_d, position, trained, share * trained) for share in PRETENDED])),
        }
        rows.append({**row, "part": _part(row)})
    return rows


def explained(given: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """R^2 by text of `wanted` read from `given`, both (text, position), by the line of all other texts; at least -1.

    One text alone is read by its own line. -1 where `wanted` is constant.
    """
    shares = []
    for text in range(len(given)):
        others = np.arange(len(given)) != text if len(given) > 1 else np.array([True])
        slope, constant = _line(given[others].ravel(), wanted[others].ravel())
        missed = ((wanted[text] - slope * given[text] - constant) ** 2).sum()
        whole = ((wanted[text] - wanted[text].mean()) ** 2).sum()
        shares.append(1 - missed / whole if missed < 2 * whole else -1.0)
    return np.array(shares)


def crossing(level: np.ndarray, position: np.ndarray, trained: int, at: float, until: float) -> int | None:
    """The first position in [at, until) from which the mean of `level` (text, query) is out of its range in [at/8, at).

    Out for M/16 tokens in one run, on one side, by more than the median half-width of the means inside (95%; of one
    text 0). M is `trained`, whatever window `at` is pretended.
    """
    inside = (position >= at / _BURN_IN) & (position < at)
    beyond = (position >= at) & (position < until)
    mean = level.mean(0)
    unsure = float(np.median(half_width(level[:, inside]))) if len(level) > 1 else 0.0
    step = int(np.diff(position).max(initial=1))
    sustained = max(2, trained // _SUSTAINED // step)
    low, high = mean[inside].min() - unsure, mean[inside].max() + unsure
    firsts = []
    for out in (mean[beyond] > high, mean[beyond] < low):
        runs = np.lib.stride_tricks.sliding_window_view(out, sustained) if len(out) >= sustained else out[:0, None]
        firsts += np.flatnonzero(runs.all(1))[:1].tolist()
    return int(position[beyond][min(firsts)]) if firsts else None


def _is_near(level: np.ndarray, position: np.ndarray, trained: int, at: float) -> bool:
    return crossing(level, position, trained, at, NEAR * at) is not None


def _part(row: dict[str, Any]) -> str:
    """Which part a head plays, by the low ends of its intervals; of one text, by its values."""
    linear, monotone, carried = (
        row[name][0] if row[name][1] is None else row[name][1] for name in ("linear", "monotone", "carried")
    )
    singled = row["weight"] >= WEIGHT or row["apart"] >= APART
    if not (row["near"] and singled and carried >= CARRIED):
        return ""
    return COUNTERPART if linear >= LINEAR else KIN if monotone >= MONOTONE else ""


def _line(given: np.ndarray, wanted: np.ndarray) -> tuple[float, float]:
    """Slope and constant of least squares."""
    size = np.abs(given).max() or 1.0
    about = given / size - (given / size).mean()
    spread = float(about @ about)
    slope = float(about @ wanted) / spread / size if spread > 0 else 0.0
    return slope, float(wanted.mean() - slope * given.mean())


def _ranked(given: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Spearman's correlation by text; 0 where `given` is constant."""
    ranks = [rankdata(each, axis=1) for each in (given, wanted)]
    first, second = (each - each.mean(1, keepdims=True) for each in ranks)
    spread = np.sqrt((first**2).sum(1) * (second**2).sum(1))
    return np.divide((first * second).sum(1), spread, out=np.zeros(len(spread)), where=spread > 0)


def _with_ends(values: np.ndarray) -> list[float | None]:
    mean = float(values.mean())
    if len(values) < 2:
        return [mean, None, None]
    half = float(half_width(values))
    return [mean, mean - half, mean + half]
