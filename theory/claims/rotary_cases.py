"""The sizes that rotary claims are checked at, their models and methods, and what is read off them."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from transformers import PreTrainedModel

from mesa.methods import Origin, ReRoPE, StairPE
from mesa.methods.base import Method
from theory.applied import measured
from theory.builders import build, construction
from theory.claims.base import Reading, deviation
from theory.claims.settings import Settings
from theory.model import Construction
from theory.parts import Shape
from theory.rotary import READS, Rotary
from theory.rotary_model import FREE


class Size(NamedTuple):
    """M, N, E; K positions told apart, L tokens to a quarter turn, slope; the head's size, whose pair 1 is used."""

    M: int
    N: int
    E: int
    K: int
    L: int
    slope: float
    head: int = 4

    def rotary(self, reads: str) -> Rotary:
        """The closed forms' sizes."""
        return Rotary(M=self.M, pairs=self.head // 2, pair=1, **self.options(reads))

    def options(self, reads: str) -> dict[str, Any]:
        """The builder's, beside M, H, pair and shape."""
        return {"reads": reads, "recovers": self.K, "quarter": self.L, "slope": self.slope}


SIZES = [
    Size(8, 2, 2, 8, 8, 0.5),
    Size(8, 3, 3, 8, 16, 1.0),
    Size(12, 4, 2, 12, 12, 0.4),
    Size(16, 4, 2, 16, 16, 0.5),
    Size(16, 4, 4, 24, 24, 0.4),
    Size(16, 8, 2, 16, 32, 0.25),
    Size(24, 6, 3, 24, 24, 0.3),
    Size(32, 8, 4, 32, 32, 0.25),
    Size(64, 16, 4, 64, 64, 0.15),
]
"""The first is small enough to enclose at every t."""

NAMES = "(M, N, E, K, L, slope, head)"

LONGEST = 760
"""Tokens that a built model is run for here."""


def cases(settings: Settings) -> list[tuple[Size, str]]:
    """Every size, or the first four of a quick check, with both ways to read positions."""
    return [(size, reads) for size in SIZES[: 4 if settings.quick else None] for reads in READS]


def llama(size: Size, reads: str, settings: Settings, **more: Any) -> PreTrainedModel:
    """The built Llama, float64 unless `more` says otherwise."""
    shape = Shape(model=FREE + 1, head=size.head, heads=1)
    options = {"shape": shape, "seed": settings.seed, "pair": 1, **size.options(reads), **more}
    return build("rotary", M=size.M, H=settings.H, **options)


def own(size: Size, reads: str, **more: Any) -> Construction:
    """The same weights as theory's own model."""
    shape = Shape(model=FREE + 1, head=size.head, heads=1)
    return construction("rotary", M=size.M, shape=shape, pair=1, **size.options(reads), **more)


def origin(M: int) -> Method:
    """As trained."""
    return Origin(trained_length=M)


def rerope(M: int, N: int) -> Method:
    """The weave of theorem 3.3."""
    return ReRoPE(trained_length=M, window=N, log_n=False)


def stair_pe(M: int, N: int, E: int) -> Method:
    """The corollary's."""
    return StairPE(trained_length=M, window=N, width=E, log_n=False)


def first_below(o: np.ndarray, M: int, H: float) -> int | None:
    """The first t > M with o_t <= H, o from t = 1 on."""
    found = np.flatnonzero(o[M:] <= H)
    return int(found[0]) + M + 1 if len(found) else None


def read_method(
    size: Size, reads: str, method: Method, length: int, settings: Settings, **more: Any
) -> tuple[int | None, Reading]:
    """The first failure of the built model up to `length`; how clear it is, and how far all is from the closed form."""
    sizes, H = size.rotary(reads), settings.H
    p, o = measured(llama(size, reads, settings), method, length)
    told = sizes.M / sizes.denominator(np.arange(1, length + 1), **more) - 1
    fails = first_below(o, size.M, H)
    before = (o - H)[size.M : (fails or length + 1) - 1]
    margin = min(before.min() if len(before) else math.inf, H - o[fails - 1] if fails else math.inf)
    error = max(deviation(o - H, told), deviation(p, sizes.position(length, **more)))
    return fails, Reading(float(margin) if fails == first_below(told, size.M, 0.0) else -1.0, error)
