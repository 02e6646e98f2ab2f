"""The theorems' rotary transformers: their attention, heads and MLP.

Beside the named directions of theory.parts the residual stream has COS and SIN, which the MLP writes: cos and sin of
theta p_t. A head's halves hold its pairs' two coordinates, as in Llama: z = (coordinate m) + i (coordinate m + pairs)
is turned by e^(i theta t), and scores are Re(conj(k) q) / sqrt(head size).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mesa.errors import Refused
from research.rotary_theory.rotary import Rotary, steps
from theory import parts
from theory.model import Block, Construction, Encoding, float_name
from theory.recovery import EXACT, Weights, written_error

COS, SIN, FREE = 3, 4, 5
"""Residual directions: cos and sin of theta p_t; the first of the free ones."""


@dataclass(frozen=True)
class Turning(Encoding):
    """Rotary embedding in place of the bias. factors, grown: a method's, on each pair's angle and on scores."""

    base: float = 10000.0
    factors: tuple[float, ...] | None = None
    grown: float = 1.0

    def scores(self, q: Tensor, k: Tensor, distance: Tensor, effective: Tensor | None) -> Tensor:
        """q.R(angle * distance)k / sqrt(head size), (batch, head, query, key): every distance's rotation by itself.

        q, k: (batch, token, head, head size), whose halves hold the pairs' two coordinates.
        """
        half = q.shape[-1] // 2
        angles = torch.from_numpy(inverse_frequencies(self.base, half) * np.array(self.factors or 1.0))
        turn = (distance if effective is None else effective).to(angles.dtype)[..., None] * angles
        q1, q2, k1, k2 = q[..., :half], q[..., half:], k[..., :half], k[..., half:]
        along = torch.einsum("ptnh,pknh->pntkh", q1, k1) + torch.einsum("ptnh,pknh->pntkh", q2, k2)
        across = torch.einsum("ptnh,pknh->pntkh", q1, k2) - torch.einsum("ptnh,pknh->pntkh", q2, k1)
        turned = (along * turn.cos() + across * turn.sin()).sum(-1).to(q.dtype)
        return self.grown * (turned / q.shape[-1] ** 0.5)


def inverse_frequencies(base: float, pairs: int) -> np.ndarray:
    """Rotary's angles a token, base^(-m / pairs) for m = 0 .. pairs - 1, float64."""
    return float(base) ** (-np.arange(pairs) / pairs)


_LOOKED = 2048  # of more positions than these as many are looked at


def reading_head(shape: parts.Shape, sizes: Rotary) -> parts.Head:
    """Layer 1: writes x_t, the attention on <bos>, to POSITION.

    rotation: q = i a sqrt(head size), k = 1, both from CONST, so scores are Re(i a e^(i theta r)) = -a sin(theta r).
    count: keys of 0, so every score is 0 and x_t = 1 / t.
    """
    head = parts.blank(shape)
    head.W_V[0, parts.BOS] = head.W_O[parts.POSITION, 0] = 1
    if sizes.reads == "rotation":
        head.W_Q[sizes.pair + sizes.pairs, parts.CONST] = sizes.amplitude * shape.head**0.5
        head.W_K[sizes.pair, parts.CONST] = 1
    return head


def turning_steps(shape: parts.Shape, sizes: Rotary) -> Weights:
    """The MLP: t to POSITION, cos and sin of theta t to COS and SIN, by the same steps with other output weights."""
    log_c, b = steps(sizes)
    gain, units = -b * np.exp(-log_c), len(b)
    W_1, W_2 = (np.zeros((shape.model, 2 * units + 2)) for _ in range(2))
    W_1[parts.CONST, :-1] = np.concatenate([[1.0], b, b - 1])
    W_1[parts.POSITION] = np.concatenate([[0.0], gain, gain, [1.0]])
    t = np.arange(1, sizes.recovers + 1)
    for row, values in ((parts.POSITION, t), (COS, np.cos(sizes.theta * t)), (SIN, np.sin(sizes.theta * t))):
        change = np.diff(values)
        W_2[row] = np.concatenate([values[:1], change, -change, [0.0]])
    W_2[parts.POSITION, -1] = -1  # relu(x), to take x out of the residual stream
    return W_1, W_2


def turning_head(shape: parts.Shape, sizes: Rotary, H: float) -> parts.Head:
    """Layer 2: o_t = M / D(t) - 1 + H.

    k = conj(w_i) and q = i a conj(w_t), w = COS + i SIN, so scores are Re(i a w_i conj(w_t) e^(i theta r)) =
    a sin(theta (p_t - p_i - r)). Where p_i = i keys end up at one and the same angle: that key and the query's own turn
    undo each other, whatever t is. So for t <= K all scores are equal, and for t > K those of the first K keys.
    """
    head, real, imaginary = parts.blank(shape), sizes.pair, sizes.pair + sizes.pairs
    scale = sizes.amplitude * shape.head**0.5
    head.W_Q[real, SIN], head.W_Q[imaginary, COS] = scale, scale
    head.W_K[real, COS], head.W_K[imaginary, SIN] = 1, -1
    return parts.with_signal(head, sizes.M, H)


def rotary_model(
    M: int,
    H: float = 0.5,
    *,
    shape: parts.Shape | None = None,
    seed: int = 0,
    dtype: torch.dtype = torch.float64,
    **options: Any,
) -> Construction:
    """Theorem 3.2 under rotary embedding: o_t > H for t < M and o_t < H for every t > M.

    It holds for ever, though scores are periodic: the keys 1 .. K, K >= M, all get the score of <bos>, so D(t) > M.
    options: as for Rotary (reads, recovers, quarter, slope, pair). Raises Refused as Rotary, for H
    without digits, and for more positions than the dtype tells apart.
    """
    shape = shape or parts.Shape()
    rng, precision, half = np.random.default_rng(seed), float_name(dtype), shape.head // 2
    parts.check_numbers(M, H, precision)
    sizes = Rotary(M=M, pairs=half, **options)
    mlp, t = turning_steps(shape, sizes), np.arange(1, sizes.recovers + 1)
    looked = np.unique(np.linspace(0, len(t) - 1, _LOOKED).astype(int))
    x = np.exp(-sizes.log_denominators(t - 1.0))[looked]
    if (error := written_error(mlp, x, t[looked], precision)) > EXACT:
        raise Refused(
            f"slope={sizes.slope} over recovers={sizes.recovers} positions leaves them {error:.1g} off in {precision}; "
            "take float64, a smaller slope or fewer positions"
        )
    W_E = parts.embedding(shape, rng, FREE)
    others = [[parts.free_head(shape, rng, FREE) for _ in range(shape.heads - 1)] for _ in range(2)]
    first, second = reading_head(shape, sizes), turning_head(shape, sizes, H)
    layers = [Block([first, *others[0]], mlp), Block([second, *others[1]])]
    return Construction(W_E, layers, Turning(base=sizes.base), dtype)


def rotary_nope_model(
    M: int, H: float = 0.5, *, shape: parts.Shape | None = None, seed: int = 0, dtype: torch.dtype = torch.float64
) -> Construction:
    """Theorem 3.1 under rotary embedding: keys of 0 stay 0 turned, so o_t = M / t - 1 + H under every method."""
    shape, rng = shape or parts.Shape(), np.random.default_rng(seed)
    parts.check_numbers(M, H, float_name(dtype))
    W_E = parts.embedding(shape, rng, FREE)
    head = parts.averaging_head(shape, rng, M, H)
    head = replace(head, W_K=0 * head.W_K)
    heads = [head, *(parts.free_head(shape, rng, FREE) for _ in range(shape.heads - 1))]
    return Construction(W_E, [Block(heads)], Turning(), dtype)
