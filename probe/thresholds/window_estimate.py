"""The trained length M, estimated from scores: up to which length a longer context does not make the model worse."""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from itertools import takewhile

import numpy as np

from probe.files import JsonObject
from probe.statistics import shown, student
from probe.thresholds.failure import lasting

SHORTEST = 64
"""Tokens of the first context tried."""
WORSE, SLACK = 0.05, 0.1
"""Nats/token: the least difference that counts, and the most that may be left open where a length is no worse."""
_FINEST = 16  # the search ends where the interval is this part of its lower end


@dataclass(frozen=True)
class Compared:
    """Tail NLL (nats/token) at a context of `length` tokens, less that of the same tokens after the `best` shorter one.

    low, high: the 95% interval of the difference, text by text; None: fewer than two texts.
    """

    length: int
    nll: float
    best: int | None
    difference: float
    low: float | None
    high: float | None

    @property
    def is_worse(self) -> bool:
        """Whether it is clearly worse than the last `best` tokens alone."""
        return self.low is not None and self.low > 0 and self.difference >= WORSE

    @property
    def is_no_worse(self) -> bool:
        """Whether it is clearly not worse by more than `SLACK`."""
        return self.best is None or (self.high is not None and self.high < SLACK)


@dataclass(frozen=True)
class WindowEstimate:
    """M is about `works`, and below `fails` (tokens).

    works: the longest length tried up to which no length is worse; None: cannot be told. fails: the shortest one that
    is worse; None: none is. reason: why nothing can be told; else empty. compared: ascending lengths. texts: how many
    each was measured on.
    """

    works: int | None
    fails: int | None
    reason: str
    compared: tuple[Compared, ...]
    texts: int

    def __str__(self) -> str:
        """The estimate in words."""
        texts, longest = f"{self.texts} texts", self.compared[-1].length
        if self.works is None:
            return f"Cannot tell M: {self.reason} ({texts})."
        if self.fails is None:
            beyond = "" if longest == self.works else f" What lies beyond, up to {longest}, cannot be told."
            return (
                f"No length up to {self.works} tokens is worse than a shorter one ({texts}): M is {self.works} or "
                f"more, or the positions extrapolate.{beyond}"
            )
        if not _is_fine(self.works, self.fails):  # the search ended before
            return (
                f"M is below {self.fails} tokens, where the model is worse than on a shorter context; up to "
                f"{self.works} it does no worse. What lies between cannot be told from {texts}; give more with "
                "--samples."
            )
        return (
            f"M is at most about {self.works} tokens: up to there the model does no worse than on a shorter context, "
            f"and worse at {self.fails} ({texts}). "
            f"The largest power of two up to there is {2 ** int(np.log2(self.works))}."
        )

    def record(self) -> JsonObject:
        """All of it as plain numbers."""
        values = asdict(self)
        return {"lengths": values.pop("compared"), **values, "text": str(self)}

    def table(self) -> str:
        """A line a length."""
        lines = [f"{'tokens':>8}  {'NLL':>6}  minus the best shorter one's [95%]"]
        for at in self.compared:
            less = "" if at.best is None else f"{shown(at.difference, at.low, at.high, '+z.3f')} ({at.best})"
            lines.append(f"{at.length:>8}  {at.nll:>z6.2f}  {less}".rstrip())
        return "\n".join(lines)


def doubled(longest: int) -> list[int]:
    """The lengths tried first: `SHORTEST` doubled up to `longest`, which is the last."""
    lengths = [SHORTEST]
    while 2 * lengths[-1] < longest:
        lengths.append(2 * lengths[-1])
    return [*lengths, longest] if longest > SHORTEST else lengths


def estimate_window(measure: Callable[[int], np.ndarray], longest: int, chance: float | None = None) -> WindowEstimate:
    """Tries contexts of 64 tokens to `longest`, doubled until two in turn are worse, then halves what lies between.

    measure: the NLL (nats/token) of the same last tokens of every text, passed a context's length. Each is compared,
    text by text, with the shorter length of the lowest mean: what the last tokens alone give is held at any length.
    chance: the NLL of a guess, less a margin; where no mean is below it nothing can be told.
    """
    scores: dict[int, np.ndarray] = {}

    def estimate(works: int | None, fails: int | None, reason: str = "") -> WindowEstimate:
        return WindowEstimate(works, fails, reason, tuple(_compared(scores)), len(scores[SHORTEST]))

    for length in doubled(longest):
        scores[length] = measure(length)
        if len(scores) > 2 and all(at.is_worse for at in _compared(scores)[-2:]):
            break
    if chance is not None and min(values.mean() for values in scores.values()) >= chance:
        return estimate(None, None, "the model is at chance at every length")
    works, fails = _ends(_compared(scores))
    if fails == sorted(scores)[1]:
        reason = f"{fails} tokens are worse than {SHORTEST}, the shortest context tried; M is below {fails}"
        return estimate(None, fails, reason)
    while works is not None and fails is not None and not _is_fine(works, fails):
        middle = (works + fails) // 2
        scores[middle] = measure(middle)
        narrower = _ends(_compared(scores))
        if narrower == (works, fails):  # it is neither worse nor no worse
            break
        works, fails = narrower
    if works == SHORTEST:
        return estimate(None, fails, "the texts differ too much; give more with --samples")
    return estimate(works, fails)


def _is_fine(works: int, fails: int) -> bool:
    """Whether the two are so close that the search ends."""
    return fails - works <= max(1, works // _FINEST)


def _compared(scores: dict[int, np.ndarray]) -> list[Compared]:
    compared: list[Compared] = []
    for length in sorted(scores):
        best = min(compared, key=lambda at: at.nll).length if compared else None
        less = scores[length] - scores[length if best is None else best]
        compared.append(
            Compared(length, float(scores[length].mean()), best, float(less.mean()), *student(less.tolist()))
        )
    return compared


def _ends(compared: list[Compared]) -> tuple[int | None, int | None]:
    """The longest length with none but clearly no worse ones below it, and the shortest from which on all are worse."""
    fails = lasting(np.array([at.is_worse for at in compared]), np.array([at.length for at in compared]))
    fine = takewhile(lambda at: at.is_no_worse and at.length != fails, compared)
    return max((at.length for at in fine), default=None), fails
