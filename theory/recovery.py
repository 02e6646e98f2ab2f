"""MLPs that read the position t from x_t = 1 / A_t, the attention on <bos> in layer 1 of theorem 3.2.

The paper says that the feed-forward layer "can always" do it. In floating point that depends on how it is written:
three ReLU constructions without biases (CONST serves as one), and the third one again in the logarithm of x. Each
puts out t - x_t, so that the residual sum holds t.
"""

import math
from collections.abc import Callable
from functools import lru_cache

import numpy as np

from mesa.errors import Refused
from theory.parts import CONST, FREE, POSITION, Shape

_ROWS = 256  # positions that are read at a time
EXACT = 1e-2
"""A range of positions counts as recovered exactly where no error is larger; the nearest mistake is 1."""

TRIED = 8192
"""The most positions that are tried where it is measured how many are recovered."""

Weights = tuple[np.ndarray, np.ndarray]
"""W_1 and W_2, both (model size, hidden units) as in the paper: FF(h) = W_2 relu(W_1^T h)."""


def log_denominator(positions: np.ndarray, slope: float = 1.0) -> np.ndarray:
    """log A_t = -log x_t, finite where A_t is not."""
    m = slope * positions
    return m + np.log1p(-np.exp(-m)) - math.log(math.expm1(slope))


def _pack(shape: Shape, bias: np.ndarray, gain: np.ndarray, output: np.ndarray) -> Weights:
    """Units relu(bias + gain * x) with output weights, and one unit relu(x) with weight -1 to cancel the residual."""
    W_1 = np.zeros((shape.model, len(bias) + 1))
    W_2 = np.zeros_like(W_1)
    W_1[CONST, :-1], W_1[POSITION, :-1], W_2[POSITION, :-1] = bias, gain, output
    W_1[POSITION, -1], W_2[POSITION, -1] = 1, -1
    return W_1, W_2


def _falling(positions: int, slope: float) -> np.ndarray:
    """x_1 .. x_positions."""
    return np.exp(-log_denominator(np.arange(1.0, positions + 1), slope))


def naive(shape: Shape, positions: int, slope: float = 1.0) -> Weights:
    """t as K + sum c_k relu(x - x_k), K = `positions`: the interpolation through (x_k, k), written from the left.

    Correct on paper; the slopes grow like e^k and cancel, so that rounding drowns t after a few dozen positions.
    """
    x = _falling(positions, slope)
    slopes = -1 / (x[:-1] - x[1:])  # between x_(k+1) and x_k
    change = np.append(slopes[:-1] - slopes[1:], slopes[-1:])  # at x_2 .. x_K
    units = len(change)
    bias, gain = np.append(1.0, -x[1:]), np.append(0.0, np.ones(units))
    return _pack(shape, bias, gain, np.append(positions, change))


def interpolating(shape: Shape, positions: int, slope: float = 1.0) -> Weights:
    """t as 1 + sum c_k relu(1 - x / x_k): the same function, written from the right with every unit at most 1.

    c_k x (1/x_k) are the changes of slope; at x_t only the units k < t are on, and none of them cancels another.
    """
    x = _falling(positions, slope)
    steepness = 1 / (x[:-1] - x[1:])
    change = np.diff(steepness, prepend=0.0) * x[:-1]
    units = len(change)
    bias, gain = np.ones(units + 1), np.append(0.0, -1 / x[:-1])
    return _pack(shape, bias, gain, np.append(1.0, change))


def sharpness(slope: float = 1.0) -> float:
    """b, so that a step is over before the next x: b >= 1 / (1 - e^(-slope/2)), 2.55 at slope 1, where we take 16."""
    return 16 * math.expm1(-0.5) / math.expm1(-slope / 2)


def log_steps(positions: int, slope: float = 1.0) -> np.ndarray:
    """log c_k, k < `positions`: the step from k to k + 1 begins at c_k = sqrt(x_k x_(k+1))."""
    log_x = -log_denominator(np.arange(1.0, positions + 1), slope)
    return (log_x[:-1] + log_x[1:]) / 2


def steps(shape: Shape, positions: int, slope: float = 1.0) -> Weights:
    """t as 1 + sum of steps relu(z_k) - relu(z_k - 1), z_k = b (1 - x / c_k): rounds what lies between two x.

    At x_t, z_k >= 1 for every k < t and z_k < 0 for every k >= t, since x_t / c_k is at most e^-1/2 or above 1: t - 1
    steps are exactly 1 and the others exactly 0.
    """
    b = sharpness(slope)
    gain = -b * np.exp(-log_steps(positions, slope))
    units = len(gain)
    bias = np.concatenate([[1.0], np.full(units, b), np.full(units, b - 1)])
    output = np.concatenate([[1.0], np.ones(units), -np.ones(units)])
    return _pack(shape, bias, np.concatenate([[0.0], gain, gain]), output)


def rounded(log_a: np.ndarray, b: float = 16.0) -> np.ndarray:
    """What `steps` writes at slope 1 where the attention on <bos> is e^-log_a; its steps go on for ever."""
    starts = -log_steps(int(log_a.max()) + 4)
    begun = np.searchsorted(starts, log_a)  # steps, of which the last one need not be over
    share = -b * np.expm1(starts[np.maximum(begun, 1) - 1] - log_a)
    return np.where(begun > 0, begun + np.clip(share, 0, 1), 1.0)


KINDS: dict[str, Callable[..., Weights]] = {"naive": naive, "interpolating": interpolating, "steps": steps}
"""The MLPs that are real matrices; `log` (steps in the logarithm of x) is the fourth way, without overflow."""


@lru_cache
def longest(kind: str, dtype: str, slope: float = 1.0, exact: float = EXACT) -> int:
    """The most positions that `kind` recovers to `exact` positions in `dtype`, a numpy name; measured, by bisection.

    No more than `TRIED` are tried, which only slopes below 0.1 reach.
    """
    low, high = 2, _most_tried(slope)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if worst_error(kind, dtype, middle, slope) <= exact else (low, middle - 1)
    return low


def _most_tried(slope: float) -> int:
    """How many positions are tried: x leaves float64 before 800 / slope, and no more than `TRIED`."""
    return int(max(2, min(800 / slope, TRIED)))


def worst_error(kind: str, dtype: str, positions: int, slope: float = 1.0) -> float:
    """The largest |recovered - t| over t = 1 .. positions, all in `dtype`; infinite where the weights overflow."""
    with np.errstate(all="ignore"):
        weights = KINDS[kind](Shape(model=FREE), positions, slope)
        return written_error(weights, _falling(positions, slope), np.arange(1, positions + 1), dtype)


def written_error(weights: Weights, x: np.ndarray, positions: np.ndarray, dtype: str) -> float:
    """The largest |recovered - t| where layer 1 has written x_t, for these t, all in `dtype`; infinite for NaN."""
    worst = 0.0
    with np.errstate(all="ignore"):
        W_1, W_2 = (matrix[[CONST, POSITION]].astype(dtype) for matrix in weights)
        for rows in range(0, len(x), _ROWS):
            part = x[rows : rows + _ROWS].astype(dtype)
            hidden = np.maximum(np.stack([np.ones_like(part), part], axis=1) @ W_1, 0)
            error = np.abs(part + hidden @ W_2[1] - positions[rows : rows + _ROWS]).max()
            worst = max(worst, float(error) if np.isfinite(error) else math.inf)
    return worst


def check_range(kind: str, dtype: str, positions: int, slope: float = 1.0) -> None:
    """Raises Refused, naming the limit, where `kind` cannot recover `positions` positions in `dtype`."""
    if not 0 < slope <= 700:
        raise Refused(f"slope={slope} is not above 0 and at most 700; take 1, the paper's")
    if kind == "log":
        return
    if kind not in KINDS:
        raise Refused(f"unknown position MLP {kind!r}; known: {', '.join(KINDS)}, log")
    if positions > _most_tried(slope) or worst_error(kind, dtype, positions, slope) > EXACT:
        limit = longest(kind, dtype, slope)
        raise Refused(
            f"{positions} positions exceed what the {kind} MLP recovers in {dtype} ({limit}); "
            f"take M and recovers <= {limit}, or recovery 'log'"
        )
