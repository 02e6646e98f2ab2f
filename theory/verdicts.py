"""Verdicts on claims, and how many there are of each in one sentence; no torch."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum


class Verdict(StrEnum):
    """What came of a claim. The first three are as expected; BROKEN is a failure of the verification."""

    HOLDS = "holds"
    CORRECTED = "holds with the stated correction"
    PRINTED = "fails as printed"
    BROKEN = "BROKEN"


_PLURAL = {
    Verdict.HOLDS: "hold",
    Verdict.CORRECTED: "hold with the stated correction",
    Verdict.PRINTED: "fail as printed",
    Verdict.BROKEN: "BROKEN",
}


def summary(verdicts: Iterable[tuple[str, str]]) -> str:
    """How many of the claims, (name, verdict) each, have which verdict, in one sentence that names the broken ones.

    Raises ValueError for an unknown verdict.
    """
    names: dict[Verdict, list[str]] = {verdict: [] for verdict in Verdict}
    for name, verdict in verdicts:
        names[Verdict(verdict)].append(name)
    total = sum(map(len, names.values()))
    counts = [f"{len(of)} {verdict if len(of) == 1 else _PLURAL[verdict]}" for verdict, of in names.items() if of]
    broken = names[Verdict.BROKEN]
    tail = f" ({', '.join(broken)})" if broken else "; every verdict is the expected one" * (total > 0)
    return f"{total} claim{'s' * (total != 1)} checked: {', '.join(counts) or 'none'}{tail}."
