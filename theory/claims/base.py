"""Claims as data: what is stated, where, what was tried, how far it is from the nearest wrong answer."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from theory.verdicts import Verdict

_ROUNDING = 1e-6
SAFETY = 10
"""A claim counts only where its margin is this many times the numerical error."""


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
        """Whether the verdict is the expected one."""
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
