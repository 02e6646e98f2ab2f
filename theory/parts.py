"""The matrices of the proofs: embedding and attention heads, each with the proof of what it does.

Columns are hidden states, as in the paper: q = W_Q h with W_Q of shape (head size, model size), o = W_O z with W_O of
shape (model size, head size). The residual stream has three named directions and free ones, which the constructed
heads neither read nor write. Positions t, i count from 1; <bos> is token 0 of the vocabulary and stands at t = 1.
"""

from dataclasses import dataclass, replace
from decimal import ROUND_FLOOR, Context

import numpy as np

from mesa.errors import Refused

CONST, BOS, POSITION, FREE = 0, 1, 2, 3
"""Residual directions: 1 everywhere; 1 at <bos>; the paper's third dimension; the first of the free ones."""


@dataclass(frozen=True)
class Shape:
    """Sizes of a construction. Head 0 is the constructed one; the others and the free rows are random."""

    model: int = 8
    head: int = 4
    heads: int = 2
    vocabulary: int = 11


@dataclass(frozen=True)
class Head:
    """One attention head: W_Q, W_K, W_V (head size, model size) and W_O (model size, head size)."""

    W_Q: np.ndarray
    W_K: np.ndarray
    W_V: np.ndarray
    W_O: np.ndarray


def embedding(shape: Shape, rng: np.random.Generator, free: int = FREE) -> np.ndarray:
    """W_E (model size, vocabulary) of theorem 3.1: 1 in CONST, <bos> marked in BOS, random rows from `free` on."""
    W_E = np.zeros((shape.model, shape.vocabulary))
    W_E[CONST] = 1
    W_E[BOS, 0] = 1
    W_E[free:] = rng.standard_normal((shape.model - free, shape.vocabulary))
    return W_E


def blank(shape: Shape) -> Head:
    """A head of zeros."""
    reads = np.zeros((shape.head, shape.model))
    return Head(reads, reads.copy(), reads.copy(), reads.T.copy())


def _random_reads(shape: Shape, rng: np.random.Generator) -> np.ndarray:
    return rng.standard_normal((shape.head, shape.model))


def free_head(shape: Shape, rng: np.random.Generator, free: int = FREE) -> Head:
    """A random head that leaves the named directions, those before `free`, alone: W_O is zero in their rows.

    It may read anything without changing o_t. We let it read all but POSITION and what follows, whose values change
    with t: so the free directions hold noise that is alike at every t, against which o_t has to be found.
    """
    W_O = rng.standard_normal((shape.model, shape.head))
    W_O[:free] = 0
    reads = [_random_reads(shape, rng) for _ in range(3)]
    for matrix in reads:
        matrix[:, POSITION:free] = 0
    return Head(reads[0], reads[1], reads[2], W_O)


def with_signal(head: Head, M: int, H: float) -> Head:
    """Lets `head` write M * (attention on <bos>) - (1 - H) to POSITION (paper eq. wo-matrix).

    v_i = (M [i is <bos>], 1 - H) and W_O's third row is (1, -1), so o_t = M alpha_1 - (1 - H) since the attention sums
    to 1. The printed W_V needs two rows, though theorem 3.1 says head size h >= 1; with h = 1 we write both into one
    row, (H - 1, M), which does the same.
    """
    W_V, W_O = np.zeros_like(head.W_V), np.zeros_like(head.W_O)
    W_V[0, BOS] = M
    W_O[POSITION, 0] = 1
    if len(W_V) == 1:
        W_V[0, CONST] = H - 1
    else:
        W_V[1, CONST] = 1 - H
        W_O[POSITION, 1] = -1
    return replace(head, W_V=W_V, W_O=W_O)


def averaging_head(shape: Shape, rng: np.random.Generator, M: int, H: float) -> Head:
    """Theorem 3.1's head: o_t = M / t - 1 + H.

    Every key is (1, ..., 1), read from CONST, so all scores of a query are equal, whatever W_Q is, and the attention on
    each of t tokens is 1 / t.
    """
    head = blank(shape)
    head.W_K[:, CONST] = 1
    return with_signal(replace(head, W_Q=_random_reads(shape, rng)), M, H)


def bos_head(shape: Shape, rng: np.random.Generator) -> Head:
    """Layer 1 of theorem 3.2: writes x_t, the attention on <bos>, to POSITION.

    W_K = 0, so the position encoding alone makes the scores: -m W(t - i), whatever W_Q is. Plain encoding:
    x_t = e^-m(t-1) / S(t) = 1 / A_t, strictly falling in t, so that t can be read from it.
    """
    head = blank(shape)
    head.W_V[0, BOS] = 1
    head.W_O[POSITION, 0] = 1
    return replace(head, W_Q=_random_reads(shape, rng))


def crossing_head(
    shape: Shape, rng: np.random.Generator, M: int, H: float, slope: float = 1.0, printed: bool = False
) -> Head:
    """Layer 2 of theorem 3.2, the paper's matrices with one entry moved: o_t = M / D(t) - 1 + H.

    With p the recovered positions, row 3 of W_K gives the key -m p_i. The printed row 3 of W_Q reads the position too
    (entry 3), so that q.k = tau - t i and o never crosses H; moved to entry 1, a constant, it gives q.k = tau - m p_i.
    That cancels a plain encoding's -m (t - i) but for what all keys share: D(t) = t. A remapped encoding leaves
    m (p_t - p_i - W(t - i)), but for that. The other rows are the paper's: W_Q arbitrary against keys of 1, and zeros.
    With a head size below 3, row 3 is the last one; slope: m. printed: leave the entry where it is printed.
    """
    head, row = replace(blank(shape), W_Q=_random_reads(shape, rng)), min(2, shape.head - 1)
    head.W_Q[: row + 1] = 0
    head.W_Q[row, POSITION if printed else CONST] = 1
    head.W_K[row, POSITION] = -slope
    head.W_K[row + 1 :, CONST] = 1
    return with_signal(head, M, H)


def check_numbers(M: int, H: float, precision: str = "float64") -> None:
    """Raises Refused, naming value and remedy, for M < 2, and an H that leaves o no digits in dtype `precision`."""
    if M < 2:
        raise Refused(f"M={M} is below 2; take M >= 2")
    most = 1e-2 / (M * float(np.finfo(precision).eps))
    if not abs(H) <= most:
        limit = float(Context(prec=1, rounding=ROUND_FLOOR).create_decimal_from_float(most))
        raise Refused(f"H={H} leaves {precision} no digits to tell o from H; take |H| <= {limit:.1g}")
