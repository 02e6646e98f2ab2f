"""Claims as data: what is stated, where, what was tried, how far it is from the nearest wrong answer."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

import numpy as np
import torch

from theory.bounds import check_window
from theory.parts import check_numbers
from theory.recovery import KINDS, longest

_ROUNDING = 1e-6
MOST_SEED = 2**32 - 1
SAFETY = 10
"""A claim counts only where its margin is this many times the numerical error."""


class Verdict(StrEnum):
    """What came of a claim. The first three are as expected; BROKEN is a failure of the verification."""

    HOLDS = "holds"
    CORRECTED = "holds with the stated correction"
    PRINTED = "fails as printed"
    BROKEN = "BROKEN"


@dataclass(frozen=True)
class Claim:
    """One statement, checked.

    margin: the smallest distance of anything measured from where the verdict would turn, or from the nearest wrong
    formula's value. error: the largest numerical deviation from the closed form. Both are in units of the head output,
    unless `unit` says otherwise. correction: what had to be changed. counterexample: where the printed form fails.
    """

    name: str
    statement: str
    citation: str
    parameters: dict[str, Any]
    tested: str
    expected: Verdict
    margin: float
    error: float = 0.0
    unit: str = "o"
    correction: str = ""
    counterexample: str = ""
    details: dict[str, Any] = field(default_factory=dict)

    @property
    def verdict(self) -> Verdict:
        """The expected verdict, where the margin is positive and far above the error; BROKEN otherwise."""
        return self.expected if self.margin > SAFETY * self.error else Verdict.BROKEN

    @property
    def ok(self) -> bool:
        """Whether the claim came out as it must."""
        return self.verdict is not Verdict.BROKEN

    @property
    def error_text(self) -> str:
        """The error as it is read: what rounding leaves is told by the power of ten it stays below."""
        if 0 < self.error < _ROUNDING:
            return f"below 1e{math.floor(math.log10(self.error)) + 1}"
        return f"{self.error:.1g}"

    def line(self) -> str:
        """One line for the terminal."""
        shown = ", ".join(f"{key}={value}" for key, value in self.parameters.items())
        numbers = f"margin {self.margin:.2g}, error {self.error_text}"
        parts = [self.statement, self.citation, shown, self.tested, numbers]
        return f"[{self.verdict}] {self.name}: " + " | ".join(part for part in parts if part) + self._note()

    def _note(self) -> str:
        notes = [f"corrected: {self.correction}"] if self.correction else []
        notes += [f"counterexample: {self.counterexample}"] if self.counterexample else []
        return f" ({'; '.join(notes)})" if notes else ""

    def as_dict(self) -> dict[str, Any]:
        """All fields and the verdict, ready for JSON; margin and error are None where they are not finite."""
        numbers = {name: value if math.isfinite(value := getattr(self, name)) else None for name in ("margin", "error")}
        return (
            asdict(self)
            | numbers
            | {
                "expected": str(self.expected),
                "verdict": str(self.verdict),
                "ok": self.ok,
                "error_text": self.error_text,
            }
        )


@dataclass(frozen=True)
class Settings:
    """What to check with. M, N, E left out take each claim's own grid; quick: shorter inputs; full: the longest.

    Raises ValueError, naming value and remedy, for what no claim can be checked with.
    """

    M: int | None = None
    N: int | None = None
    E: int | None = None
    H: float = 0.5
    dtype: str = "float64"
    seed: int = 0
    recovery: str = "steps"
    quick: bool = False
    full: bool = False

    def __post_init__(self) -> None:
        """Checks what does not depend on a claim."""
        M = 4096 if self.M is None else self.M
        check_numbers(M, self.H)
        if not 0 <= self.seed <= MOST_SEED:
            raise ValueError(f"seed={self.seed} is not within 0 and {MOST_SEED}; take e.g. 0")
        most = 1e-2 / (M * float(np.finfo(self.dtype).eps))
        if abs(self.H) > most:
            raise ValueError(f"H={self.H} leaves {self.dtype} no digits to tell o from H; take |H| <= {most:.1g}")
        if self.M is not None and self.most_positions < M:
            other = "" if self.recovery == "log" else " or --recovery log (M <= 4096)"
            raise ValueError(
                f"M={M} exceeds the {self.most_positions} positions that the {self.recovery} MLP recovers in "
                f"{self.dtype}; take M <= {self.most_positions}{other}"
            )
        if self.N is not None:
            check_window(max(3, self.N + 1) if self.M is None else M, self.N)
        if self.E is not None and self.E < 2:
            check_window(M, 1, self.E)

    @property
    def torch_dtype(self) -> torch.dtype:
        """`dtype` as torch names it."""
        return getattr(torch, self.dtype)

    @property
    def most_positions(self) -> int:
        """How many positions can be recovered under these settings (4096 for `log`: the attention matrix's memory)."""
        if self.recovery in KINDS:
            return longest(self.recovery, self.dtype)
        if self.recovery != "log":
            raise ValueError(f"unknown position MLP {self.recovery!r}; known: {', '.join(KINDS)}, log")
        return 4096

    @property
    def longest_run(self) -> int:
        """The longest input that claims run, in tokens; their tested range says where it cut them short."""
        return max(1600 if self.quick else 4200, (self.M or 0) + 100)

    def windows(self, *default: int) -> list[int]:
        """The values of M to try: the user's, or those of the default that can be recovered."""
        return [self.M] if self.M is not None else [M for M in default if self.most_positions >= M]

    def pairs(self, *default: tuple[int, int]) -> list[tuple[int, int]]:
        """The values of (M, N) to try: the user's, missing ones completed, or the default."""
        if self.M is None and self.N is None:
            return list(default)
        N = self.N if self.N is not None else min(4, max(1, (self.M or 3) - 2))
        M = self.M if self.M is not None else 2 * N + 2
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
        found = {}
        for name, of in (("3.3", self.pairs), ("3.3-range", self.pairs), ("corollary", self.triples)):
            if name in claims:
                try:
                    of()
                except ValueError as error:
                    found[name] = str(error)
        return found

    def options(self, **more: Any) -> dict[str, Any]:
        """The builders' keyword arguments: what follows from the settings, and `more`."""
        return {"dtype": self.torch_dtype, "seed": self.seed, **more}

    def chosen_mlp(self, M: int, **more: Any) -> dict[str, Any]:
        """`options` with the user's position MLP, for K = max(M, 64) positions or as many as it can recover."""
        positions = max(M, min(64, self.most_positions))
        return self.options(recovery=self.recovery, recovers=positions, **more)

    @property
    def rounding(self) -> float:
        """sqrt(eps) of the dtype: a closed form that is missed by more than a tenth of it is not the model's."""
        return float(np.finfo(self.dtype).eps) ** 0.5

    def told(self, excess: np.ndarray) -> np.ndarray:
        """Where |M / D(t) - 1| is so large that the dtype can tell its sign; float64 always can in our ranges."""
        return np.abs(excess) > SAFETY * np.finfo(self.dtype).eps * len(excess)


@dataclass(frozen=True)
class Reading:
    """What was measured: the worst distance from a wrong verdict, and the worst deviation from the closed form."""

    margin: float
    error: float = 0.0

    def __and__(self, other: Reading) -> Reading:
        """The worse of both."""
        return Reading(min(self.margin, other.margin), max(self.error, other.error))

    @property
    def holds(self) -> bool:
        """Whether a claim with this reading holds."""
        return self.margin > SAFETY * self.error


NOTHING = Reading(math.inf)
"""The reading of nothing: what `&` starts from."""


def deviation(measured: np.ndarray, reference: np.ndarray) -> float:
    """The largest |measured - reference| / max(1, |reference|); infinite where anything is not finite."""
    worst = np.max(np.abs(measured - reference) / np.maximum(1, np.abs(reference)))
    return float(worst) if np.isfinite(worst) else math.inf


def crossing(o: np.ndarray, M: int, H: float) -> float:
    """How clearly o_t > H for t < M and o_t < H for t > M, o from t = 1 on; not positive where it is not so."""
    t = np.arange(1, len(o) + 1)
    return float(min((o - H)[t < M].min(), (H - o)[t > M].min()))


def grid(values: Sequence[Any]) -> Any:
    """A grid of parameters as it is printed: one value, or all in braces."""
    return values[0] if len(values) == 1 else "{" + ", ".join(map(str, values)) + "}"
