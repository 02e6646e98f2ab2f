"""Claims as data: what is stated, where, what was tried, and how far it is from the nearest wrong answer. No torch."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import KW_ONLY, asdict, dataclass
from enum import StrEnum
from functools import partial
from typing import Any

import numpy as np

_ROUNDING = 1e-6
SAFETY = 10
"""A claim counts only where its margin is this many times the numerical error."""


class ClaimVerdict(StrEnum):
    """The outcome of a claim. The first four are as expected; BROKEN is a failure of the verification."""

    HOLDS = "holds"
    CORRECTED = "holds with the stated correction"
    MISPRINT = "misprint: one entry"
    LENGTH = "holds up to a length"
    BROKEN = "BROKEN"


PAPER, OURS = "the paper's", "ours"
"""Whose a claim is."""

THEOREMS = {
    "3.1": "3.1 holds",
    "3.2": "3.2 holds, its printed matrices after one entry",
    "3.3": "3.3 holds up to a length that grows like e^(.6 M), not for every T > M as printed",
    "corollary": "the corollary holds up to about e^(N (1 - 1 / E)) M tokens where its MLP tells T / E positions "
    "apart, to about E M with 3.2's own M - 1, not for every T > M as printed",
}
"""What is said of the paper's theorems, where the claim of this name comes out as expected."""


def summary(claims: Iterable[tuple[str, str, str]]) -> str:
    """What became of the claims (name, verdict, whose): the paper's theorems, its other statements, ours, BROKEN ones.

    Raises ValueError for an unknown verdict.
    """
    known = [(name, ClaimVerdict(verdict), whose) for name, verdict, whose in claims]
    broken = [name for name, verdict, _ in known if verdict is ClaimVerdict.BROKEN]
    theorems = [THEOREMS[name] for name, verdict, _ in known if name in THEOREMS and name not in broken]
    parts = [f"The paper's theorems: {'; '.join(theorems)}."] if theorems else []
    for whose, what in ((PAPER, "other statements of the paper's"), (OURS, "of our own about them")):
        of = [verdict for name, verdict, by in known if by == whose and name not in (*THEOREMS, *broken)]
        counts = [f"{of.count(verdict)} {verdict}" for verdict in ClaimVerdict if verdict in of]
        counts = [count if count.startswith("1 ") else count.replace("holds", "hold") for count in counts]
        parts += [
            f"{len(of)} {what if len(of) > 1 else what.replace('statements', 'statement')}: {', '.join(counts)}."
        ] * bool(of)
    parts.append(f"BROKEN: {', '.join(broken)}." if broken else "Every verdict is the expected one.")
    return " ".join(parts)


@dataclass(frozen=True)
class Measurement:
    """What was measured: the worst distance from a wrong verdict, and the worst deviation from the closed form."""

    margin: float
    error: float = 0.0

    def __and__(self, other: Measurement) -> Measurement:
        """The worst of both: the smaller margin, the larger error; NaN where one is NaN."""
        return Measurement(float(np.minimum(self.margin, other.margin)), float(np.maximum(self.error, other.error)))

    @property
    def holds(self) -> bool:
        """Whether a claim with this reading holds."""
        return self.margin > SAFETY * self.error


IDENTITY = Measurement(math.inf)
"""The measurement that leaves every other as it is: what `&` starts from."""


@dataclass(frozen=True)
class Outcome:
    """What a check measured.

    reading: its margin is the smallest distance of anything measured from where the verdict would turn, or from the
    nearest wrong formula's value; its error the largest numerical deviation from the closed form. Both are in units of
    the head output, unless `unit` says otherwise. correction: what had to be changed. counterexample: where the
    printed form fails.
    """

    parameters: dict[str, Any]
    tested: str
    reading: Measurement
    _: KW_ONLY
    unit: str = "o"
    correction: str = ""
    counterexample: str = ""


@dataclass(frozen=True, kw_only=True)
class Claim(Outcome):
    """One statement, checked."""

    name: str
    statement: str
    citation: str
    expected: ClaimVerdict

    @property
    def verdict(self) -> ClaimVerdict:
        """The expected verdict, where the margin is positive and far above the error; BROKEN otherwise."""
        return self.expected if self.reading.holds else ClaimVerdict.BROKEN

    @property
    def whose(self) -> str:
        """`PAPER` or `OURS`, as its citation begins."""
        return OURS if self.citation.startswith(OURS) else PAPER

    @property
    def ok(self) -> bool:
        """Whether the verdict is the expected one."""
        return self.verdict is not ClaimVerdict.BROKEN

    @property
    def error_text(self) -> str:
        """The error as text; rounding errors are reported by the power of ten that they stay below."""
        error = self.reading.error
        return f"below 1e{math.floor(math.log10(error)) + 1}" if 0 < error < _ROUNDING else f"{error:.1g}"

    @property
    def notes(self) -> dict[str, str]:
        """Correction and counterexample, where there are any, by what they are to this verdict."""
        names = ("how far", "beyond") if self.expected is ClaimVerdict.LENGTH else ("corrected", "as printed")
        return {name: text for name, text in zip(names, (self.correction, self.counterexample), strict=True) if text}

    def line(self) -> str:
        """One line for the terminal."""
        parameters = ", ".join(f"{key}={value}" for key, value in self.parameters.items())
        numbers = f"margin {self.reading.margin:.2g}, error {self.error_text}"
        parts = [self.statement, self.citation, parameters, self.tested, numbers]
        note = f" ({'; '.join(f'{name}: {text}' for name, text in self.notes.items())})" if self.notes else ""
        return f"[{self.verdict}] {self.name} ({self.whose}): " + " | ".join(part for part in parts if part) + note

    def as_dict(self) -> dict[str, Any]:
        """All fields and the verdict, ready for JSON; margin and error are None where they are not finite."""
        fields = asdict(self)
        reading = {name: value if math.isfinite(value) else None for name, value in fields.pop("reading").items()}
        verdict = {"whose": self.whose, "expected": str(self.expected), "verdict": str(self.verdict), "ok": self.ok}
        return fields | reading | verdict | {"error_text": self.error_text}


@dataclass(frozen=True)
class Check:
    """The check of a claim, called with `theory.claims.VerifyOptions`; the statement is its docstring's first lines."""

    name: str
    expected: ClaimVerdict
    citation: str
    measure: Callable[[Any], Outcome]

    def __call__(self, settings: Any) -> Claim:
        """The claim, checked."""
        statement = " ".join((self.measure.__doc__ or "").partition("\n\n")[0].split()).removesuffix(".")
        identity = {"name": self.name, "statement": statement, "citation": self.citation, "expected": self.expected}
        return Claim(**vars(self.measure(settings)), **identity)


def claim(name: str, expected: ClaimVerdict, citation: str) -> Callable[[Callable[[Any], Outcome]], Check]:
    """Decorates what measures a claim."""
    return partial(Check, name, expected, citation)


def deviation(measured: np.ndarray, reference: np.ndarray) -> float:
    """The largest |measured - reference| / max(1, |reference|); infinite where anything is not finite."""
    worst = np.max(np.abs(measured - reference) / np.maximum(1, np.abs(reference)))
    return float(worst) if np.isfinite(worst) else math.inf


def crossing(o: np.ndarray, M: int, H: float) -> float:
    """How clearly o_t > H for t < M and o_t < H for t > M, o from t = 1 on; not positive where it is not so."""
    t = np.arange(1, len(o) + 1)
    return float(np.minimum((o - H)[t < M].min(), (H - o)[t > M].min()))


def first_below(o: np.ndarray, M: int, H: float) -> int | None:
    """The first t > M with o_t <= H, o from t = 1 on."""
    failing = np.flatnonzero(o[M:] <= H)
    return int(failing[0]) + M + 1 if len(failing) else None


def grid(values: Sequence[Any]) -> Any:
    """A grid of parameters as it is printed: one value, or all in braces."""
    return values[0] if len(values) == 1 else "{" + ", ".join(map(str, values)) + "}"
