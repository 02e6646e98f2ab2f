"""The rows of a check and the report that holds them."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

PASSED, FAILED, NOT_RUN, NOTE = "passed", "failed", "not run", "note"


@dataclass(frozen=True)
class CheckRow:
    """A check's result: `difference` was measured where `allowed` is, and a mistake would make about `mistake`.

    result: 'passed', 'failed', 'not run' (never taken for passed) or 'note' (it tells and judges nothing).
    detail: what was compared; where it failed or was not run, why and what to do.
    """

    check: str
    result: str
    detail: str
    method: str = ""
    difference: float | None = None
    allowed: float | None = None
    mistake: float | None = None


@dataclass(frozen=True)
class Comparison:
    """A difference, what rounding in the model's dtype may make of it, and what a mistake would.

    widened: whether more is allowed than by the stock model's rounding.
    """

    difference: float
    allowed: float
    mistake: float
    where: str
    widened: bool = False

    @property
    def share(self) -> float:
        """The part of what is allowed; infinite for NaN."""
        share = self.difference / self.allowed if self.allowed else float(self.difference > 0) * float("inf")
        return share if share == share else float("inf")


def worst_row(check: str, method: str, comparisons: Sequence[Comparison], detail: str, remedy: str) -> CheckRow:
    """The row of the worst comparison."""
    worst = max(comparisons, key=lambda item: item.share)
    numbers = {"difference": worst.difference, "allowed": worst.allowed, "mistake": worst.mistake}
    if worst.share > 1:
        return CheckRow(check, FAILED, f"{worst.where}: {detail}; {remedy}", method, **numbers)
    widened = [item for item in comparisons if item.widened]  # all must be sensitive, not only the sharpest
    sharp = min(comparisons, key=lambda item: item.allowed / item.mistake if item.mistake else float("inf"))
    sharp = next((item for item in widened if not item.allowed <= item.mistake), sharp)
    if not sharp.allowed <= sharp.mistake:
        numbers = {"difference": sharp.difference, "allowed": sharp.allowed, "mistake": sharp.mistake}
        why = f"rounding ({sharp.allowed:.1e}) would hide a mistake ({sharp.mistake:.1e}); run it with --dtype float32"
        if sharp.mistake * 1e3 < sharp.allowed:
            why = "the method changes nothing here (a sliding window or layers without positions may hide it); "
            why += "use a smaller --pretended"
        return CheckRow(check, NOT_RUN, f"{sharp.where}: {why}", method, **numbers)
    return CheckRow(check, PASSED, f"{detail}, {worst.where}", method, **numbers)


@dataclass(frozen=True)
class Report:
    """All rows of a model, and the lengths that they were made at (tokens)."""

    model: str
    rows: tuple[CheckRow, ...]
    pretended: int
    lengths: tuple[int, ...]

    @property
    def failed(self) -> tuple[CheckRow, ...]:
        """The rows that failed."""
        return tuple(row for row in self.rows if row.result == FAILED)

    @property
    def cannot(self) -> str:
        """What it does not show."""
        tried = " and ".join(str(length) for length in self.lengths)
        return (
            "It cannot guarantee that a method helps this model, the quality of what it writes, or lengths other than "
            f"those tried ({tried} tokens, of random words, with the methods made for M = {self.pretended}); "
            "`mesa-lens eval` and `mesa-lens probe` measure the first two at yours."
        )

    def record(self) -> dict[str, Any]:
        """All of it, ready for JSON."""
        counts = {kind: sum(row.result == kind for row in self.rows) for kind in (PASSED, FAILED, NOT_RUN)}
        return {
            "model": self.model,
            "pretended_trained_length": self.pretended,
            "lengths": list(self.lengths),
            **{kind.replace(" ", "_"): count for kind, count in counts.items()},
            "rows": [asdict(row) for row in self.rows],
            "cannot_guarantee": self.cannot,
        }

    def __str__(self) -> str:
        """The table: passed rows of several methods as one, with the largest share of what is allowed."""
        lines = [f"{'check':30s} {'result':8s} {'largest':>8s} {'allowed':>8s}  what"]
        lines += [_line(row, count) for row, count in _grouped(self.rows)]
        record = self.record()
        counted = f"{record['passed']} passed, {record['failed']} failed, {record['not_run']} not run"
        return "\n".join([f"{self.model}: {counted}", "", *lines, "", self.cannot])


def _grouped(rows: Sequence[CheckRow]) -> list[tuple[CheckRow, int]]:
    """Rows and how many they stand for: of one check, those that passed or were not run for one reason."""
    groups: dict[Any, list[CheckRow]] = {}
    for row in rows:
        reason = row.detail if row.difference is None else "insensitive"
        alike = {PASSED: "", NOT_RUN: reason}.get(row.result, row)
        groups.setdefault((row.check, row.result, alike), []).append(row)
    return [
        (max(group, key=lambda row: (row.difference or 0.0) / (row.allowed or 1.0)), len(group))
        for group in groups.values()
    ]


def _line(row: CheckRow, count: int) -> str:
    numbers = [f"{value:8.1e}" if value is not None else " " * 8 for value in (row.difference, row.allowed)]
    who = row.method and f"{row.method}: "
    if count > 1:
        who = f"{count} methods, {row.method} the farthest: " if row.difference is not None else f"{count} methods: "
    return f"{row.check:30s} {row.result:8s} {' '.join(numbers)}  {who}{row.detail}"
