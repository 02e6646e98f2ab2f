"""Theorem 3.1: a transformer without position encoding fails beyond M."""

from __future__ import annotations

import torch

from theory.model import Construction, Layer, float_name
from theory.parts import Shape, averaging_head, check_numbers, embedding, free_head, generator


def nope_model(
    M: int,
    H: float = 0.5,
    *,
    shape: Shape | None = None,
    seed: int = 0,
    dtype: torch.dtype = torch.float64,
) -> Construction:
    """One layer whose head output is o_t = M / t - 1 + H, without positions; W_Q and the free rows are random.

    So o_t > H for t < M and o_t < H for t > M. At t = M both are equal: nothing is claimed there. The paper's o_T is
    the output at position T, not at the last token (T + 1). Raises ValueError for M < 2 and H not finite.
    """
    check_numbers(M, H, precision=float_name(dtype))
    shape, rng = shape or Shape(), generator(seed)
    W_E = embedding(shape, rng)
    heads = [averaging_head(shape, rng, M, H), *(free_head(shape, rng) for _ in range(shape.heads - 1))]
    return Construction(W_E, [Layer(heads)], dtype=dtype)
