"""What claims are checked with: sizes, precision, seed, and how long the inputs are."""

from collections.abc import Iterable
from dataclasses import dataclass, fields
from inspect import unwrap
from types import CodeType, FunctionType
from typing import Any

import numpy as np
import torch

from mesa.errors import Refused
from theory.bounds import check_window
from theory.claim import SAFETY
from theory.parts import check_numbers
from theory.recovery import EXACT, longest


@dataclass(frozen=True)
class VerifyOptions:
    """What to check with. M, N, E left out take each claim's own grid; quick: shorter inputs; full: the longest.

    Raises Refused, naming value and remedy, for what no claim can be checked with.
    """

    M: int | None = None
    N: int | None = None
    E: int | None = None
    H: float = 0.5
    dtype: str = "float64"
    seed: int = 0
    quick: bool = False
    full: bool = False

    def __post_init__(self) -> None:
        """Checks what does not depend on a claim."""
        M = 4096 if self.M is None else self.M
        if self.M is not None and self.most_positions < M:
            raise Refused(
                f"M={M} exceeds the {self.most_positions} positions that the steps MLP recovers in {self.dtype}; "
                f"take M <= {self.most_positions}"
            )
        check_numbers(M, self.H, self.dtype)
        if self.N is not None:
            check_window(max(3, self.N + 1) if self.M is None else M, self.N)
            if self.most_positions < self.N + 2:
                raise Refused(
                    f"N={self.N} takes {self.N + 2} positions, and the steps MLP recovers {self.most_positions} in "
                    f"{self.dtype}; take N <= {self.most_positions - 2}"
                )
        if self.E is not None:
            check_window(max(3, M), 1, self.E)

    @property
    def torch_dtype(self) -> torch.dtype:
        """`dtype` as torch names it."""
        return getattr(torch, self.dtype)

    @property
    def most_positions(self) -> int:
        """How many positions the step MLP recovers: so closely that the order in which a processor sums leaves the
        claims their margins, the smallest of which is 1 / M."""
        return longest("steps", self.dtype, exact=EXACT / 100)

    @property
    def longest_run(self) -> int:
        """The longest input that claims run, in tokens; their tested range says where it cut them short."""
        return 1600 if self.quick else 4200

    def windows(self, *default: int) -> list[int]:
        """The values of M to try: the user's, or those of the default that can be recovered."""
        return [self.M] if self.M is not None else [M for M in default if self.most_positions >= M]

    def pairs(self, *default: tuple[int, int]) -> list[tuple[int, int]]:
        """The values of (M, N) to try: the user's, missing ones completed, or the default."""
        if self.M is None and self.N is None:
            return list(default)
        N = self.N if self.N is not None else min(4, max(1, (self.M or 3) - 2))
        M = self.M if self.M is not None else min(2 * N + 2, self.most_positions)
        check_window(M, N)
        return [(M, N)]

    def triples(self, *default: tuple[int, int, int]) -> list[tuple[int, int, int]]:
        """The values of (M, N, E) to try: the user's, missing ones completed, or the default."""
        if self.M is None and self.N is None and self.E is None:
            return list(default)
        M, N = self.pairs((16, 4))[0]
        E = 2 if self.E is None else self.E
        check_window(M, N, E)
        return [(M, N, E)]

    def unsuited(self, claims: Iterable[str]) -> dict[str, str]:
        """Which of these claims cannot be checked with these sizes, and why."""
        reasons = {}
        for name, of in (("3.3", self.pairs), ("3.3-range", self.pairs), ("corollary", self.triples)):
            if name in claims:
                try:
                    of()
                except Refused as error:
                    reasons[name] = str(error)
        return reasons

    def options(self, **more: Any) -> dict[str, Any]:
        """The builders' keyword arguments: what follows from the settings, and `more`."""
        return {"dtype": self.torch_dtype, "seed": self.seed, **more}

    def chosen_mlp(self, M: int, **more: Any) -> dict[str, Any]:
        """`options` with K = max(M, 64) positions."""
        return self.options(recovers=max(M, 64), **more)

    def wide_mlp(self, K: int, **more: Any) -> dict[str, Any]:
        """`options` with an MLP for K positions; log steps where matrices overflow."""
        fits = longest("steps", self.dtype) >= K
        return self.options(recovery="steps" if fits else "log", recovers=K, **more)

    @property
    def rounding(self) -> float:
        """sqrt(eps) of the dtype: a closed form that is missed by more than a tenth of it is not the model's."""
        return float(np.finfo(self.dtype).eps) ** 0.5

    def sign_is_certain(self, excess: np.ndarray) -> np.ndarray:
        """Where |M / D(t) - 1| is so large that the dtype can tell its sign; float64 always can in our ranges."""
        return np.abs(excess) > SAFETY * np.finfo(self.dtype).eps * len(excess)


def read_by(function: Any) -> set[str]:
    """The settings that a function reads, itself or in what it calls of this package; told by its code, at once."""
    known, read = {field.name for field in fields(VerifyOptions)}, set[str]()
    waiting, met = [function], list[Any]()
    while waiting:
        called: Any = waiting.pop()
        called = unwrap(getattr(called, "fget", called))
        if called in met or not isinstance(called, FunctionType) or not called.__module__.startswith("theory."):
            continue
        met.append(called)
        for name in _names(called.__code__):
            read |= {name} & known
            waiting += [place[name] for place in (called.__globals__, vars(VerifyOptions)) if name in place]
    return read


def _names(code: CodeType) -> set[str]:
    """Globals and attributes that code names, also in functions inside it."""
    inner = (part for part in code.co_consts if isinstance(part, CodeType))
    return {*code.co_names}.union(*map(_names, inner))
