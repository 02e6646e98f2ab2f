"""D(t) of a built rotary construction by interval arithmetic (mpmath): its own matrices, all rounding enclosed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mpmath
import numpy as np

from mesa.constructed_llama import inverse_frequencies
from theory.model import Construction
from theory.parts import CONST, POSITION
from theory.rotary_model import COS, SIN

_NAMED = (CONST, POSITION, COS, SIN)
iv: Any = mpmath.iv


def enclosed_denominators(
    model: Construction, distance: Sequence[Any], wanted: Sequence[int], factor: Any = 1, grown: Any = 1
) -> list[Any]:
    """Intervals that hold D(t) for each t `wanted`, by head 0 of both layers, whose keys do not read <bos>'s mark.

    distance: the effective ones of r = 0, 1, ...; factor: on the used pair's angle; grown: on scores (numbers or
    intervals).
    """
    assert model.turns is not None
    first, mlp, second = (_arrays(model, part) for part in ("blocks.0.attn", "blocks.0.mlp", "blocks.1.attn"))
    size = len(second["W_Q"])
    pair = int(np.flatnonzero(second["W_K"].any(1))[0])
    theta = iv.mpf(float(inverse_frequencies(model.turns.base, size // 2)[pair])) * factor
    turns = [(iv.cos(theta * r), iv.sin(theta * r)) for r in distance[: max(wanted)]]
    scale = grown / iv.sqrt(size)
    written = _written(first, mlp, turns, pair, scale)
    q, k = ([_read(second[name], stream, pair) for stream in written] for name in ("W_Q", "W_K"))
    found = []
    for t in wanted:
        scores = [_turned(q[t - 1], k[i], turns[t - 1 - i]) * scale for i in range(t)]
        found.append(sum(iv.exp(score - scores[0]) for score in scores))
    return found


def _arrays(model: Construction, part: str) -> dict[str, np.ndarray]:
    """The matrices of a head 0, or of an MLP."""
    names = ("W_1", "W_2") if part.endswith("mlp") else ("W_Q", "W_K")
    found = {name: model.get_buffer(f"{part}.{name}").double().numpy() for name in names}
    return found if part.endswith("mlp") else {name: matrix[0] for name, matrix in found.items()}


def _read(matrix: np.ndarray, stream: dict[int, Any], pair: int) -> tuple[Any, Any]:
    """The used pair's two coordinates."""
    rows = (matrix[pair], matrix[pair + len(matrix) // 2])
    real, imaginary = (sum((float(row[dim]) * stream[dim] for dim in stream if row[dim]), iv.mpf(0)) for row in rows)
    return real, imaginary


def _turned(q: tuple[Any, Any], k: tuple[Any, Any], turn: tuple[Any, Any]) -> Any:
    """Re(conj(k) q e^(i turn))."""
    return (q[0] * k[0] + q[1] * k[1]) * turn[0] - (k[0] * q[1] - k[1] * q[0]) * turn[1]


def _written(
    first: dict[str, np.ndarray], mlp: dict[str, np.ndarray], turns: Sequence[Any], pair: int, scale: Any
) -> list[dict[int, Any]]:
    """The residual stream's named directions after layer 1, at every position."""
    constant = {CONST: iv.mpf(1)}
    q, k = _read(first["W_Q"], constant, pair), _read(first["W_K"], constant, pair)
    weights = [iv.exp(_turned(q, k, turn) * scale) for turn in turns]
    bias, gain = (mlp["W_1"][row].tolist() for row in (CONST, POSITION))
    found, seen = [], iv.mpf(0)
    for weight in weights:
        seen += weight
        x = weight / seen
        hidden = [_relu(b + g * x) for b, g in zip(bias, gain, strict=True)]
        stream = dict(constant)
        for dim in _NAMED[1:]:
            row = mlp["W_2"][dim].tolist()
            out = sum((w * each for w, each in zip(row, hidden, strict=True) if w), iv.mpf(0))
            stream[dim] = out + x if dim == POSITION else out
        found.append(stream)
    return found


def _relu(z: Any) -> Any:
    """max(0, z) of an interval."""
    return z if z.a > 0 else iv.mpf(0) if z.b <= 0 else iv.mpf([0, z.b])
