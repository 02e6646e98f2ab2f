"""Whether the stated trained length M fits what was measured: broken inside it, or working far beyond it?

Every failure is measured against the reference's scores at M. Where M is stated wrongly, so is that level, and no
multiple of M means anything.
"""

from collections.abc import Iterator, Mapping
from typing import TypeVar

import numpy as np
import xarray as xr
from pydantic import computed_field
from pydantic.dataclasses import dataclass

from probe.statistics import Confidence, confidence_of, finite, shown
from probe.store.result_file import InWords

Key = TypeVar("Key", int, str)
NATS_ABOVE = 0.5
MIN_ACCURACY = 0.5
FITS, TOO_LARGE, MAY_BE_TOO_LARGE = "fits", "too large", "may be too large"
TOO_SMALL, CANNOT_TELL = "may be too small", "cannot tell"
NOT_EVALUATED = "not evaluated: M"
"""Of what rests on an M that is stated wrongly."""
SLIGHT_NATS = 0.05
"""A loss above that at a shorter length by this much, and certainly above 0, makes M doubtful."""
MIN_TEXTS = 4
"""Of fewer, Student's interval is too often narrow by chance for the best of many differences to be sure."""
FAR_MULTIPLE = 4
"""A rotary model that works at this many times the stated M makes M doubtful."""


@dataclass(frozen=True)
class Sign:
    """What speaks against the reference at `length` tokens, in words; `sure` where its 95% interval says so.

    slight: a loss that is below `NATS_ABOVE`, and certainly above 0.
    """

    length: int
    text: str
    sure: bool
    slight: bool = False


@dataclass(frozen=True)
class StatedWindow(InWords):
    """What the measured lengths say of the stated M.

    outcome: `FITS`, `TOO_LARGE`, `MAY_BE_TOO_LARGE`, `TOO_SMALL` or `CANNOT_TELL`. signs: what speaks against the
    reference at the longest measured length up to M. works: the longest measured length at which it is not broken,
    nor at any below; None: the shortest one fails already. fails: the shortest one beyond `works`; None: none does.
    reason: why it cannot be told; else empty.
    """

    reference: str
    stated: int
    outcome: str
    signs: tuple[Sign, ...]
    works: int | None
    fails: int | None
    reason: str = ""

    @computed_field
    @property
    def is_wrong(self) -> bool:
        """Whether the model fails inside the passed M, so that nothing can be evaluated against it."""
        return self.outcome == TOO_LARGE

    @computed_field
    @property
    def is_doubtful(self) -> bool:
        """Whether a multiple of M would say more than is known."""
        return self.outcome in (TOO_LARGE, MAY_BE_TOO_LARGE, TOO_SMALL) or bool(self.signs)

    @property
    def unfit(self) -> str:
        """Why nothing that rests on M can be evaluated; empty where it can."""
        broken = f"{self.reference} already fails inside the stated M = {self.stated} tokens"
        return broken if self.is_wrong else ""

    def __str__(self) -> str:
        """One or two sentences; empty where M fits."""
        check = f"Check --trained-length {self.stated}"
        if self.outcome == TOO_LARGE:
            signs = "; ".join(sign.text for sign in self.signs if sign.sure)
            return f"{check}: {self.reference} already fails inside it ({signs}). {self._estimate()}"
        if self.outcome == MAY_BE_TOO_LARGE:
            signs = "; ".join(sign.text for sign in self.signs)
            return f"{check}: it may be too large ({signs}). `mesa-lens check --estimate-window` estimates M."
        if self.outcome == TOO_SMALL:
            return f"{check}: it may be too small. {self._estimate()}"
        if self.outcome == CANNOT_TELL:
            return f"Cannot tell whether M = {self.stated} is right: {self.reason}."
        return ""

    def _estimate(self) -> str:
        works = [f"works at {self.works} tokens"] if self.works is not None else []
        fails = [f"not at {self.fails}"] if self.fails is not None else []
        shortest = f"fails at {self.fails} tokens, the shortest length measured"
        lengths = " and ".join([*works, *fails]) if works else shortest
        return f"As measured, {self.reference} {lengths}; `mesa-lens check --estimate-window` estimates M."


def stated_window(evaluation: xr.Dataset, stated: int, reference: str, *, guess: float | None = None) -> StatedWindow:
    """Compares all measured lengths up to M with each other, and the reference with the other methods there.

    evaluation: as for `measured_failure`, ascending lengths. guess: the tail NLL of chance; None: unknown. At a length
    the reference is broken where its tail NLL is `NATS_ABOVE` above that of a shorter length, or of another method
    there, on the same texts, or where it finds less than half of the passkeys, and half or more at a shorter length. It
    is sure where the 95% interval of the difference, of `MIN_TEXTS` or more, lies above half of `NATS_ABOVE`, and
    where those of the passkeys found do not meet. M may be too large where the tail NLL there is less above that of a
    shorter length, but `SLIGHT_NATS` or more, and an interval that allows for the choice among them lies above 0.
    The attribute `rotary` (default true): only of rotary models is working far beyond M a sign of a wrong M.
    """
    losses, confidence = _rows(evaluation["tail_nll"]), confidence_of(evaluation.attrs)
    nll = losses.pop(reference)
    hits = _rows(evaluation["passkey"])[reference] if "passkey" in evaluation else {}
    inside, by_length = [length for length in nll if length <= stated], dict[int, tuple[Sign, ...]]()
    for length in nll:
        others = {name: rows[length] for name, rows in losses.items() if length <= stated and length in rows}
        by_length[length] = tuple(_signs(nll, hits, others, length, confidence))
    fails = min((at for at, signs in by_length.items() if any(not sign.slight for sign in signs)), default=None)
    works = max((length for length in nll if fails is None or length < fails), default=None)
    signs, is_far = by_length[inside[-1]], works is not None and works >= FAR_MULTIPLE * stated
    is_far &= bool(evaluation.attrs.get("rotary", True))
    outcome, reason = _outcome({length: nll[length] for length in inside}, signs, is_far, guess, confidence)
    return StatedWindow(reference, stated, outcome, signs, works, fails, reason)


_Rows = Mapping[int, np.ndarray]
"""Scores of prompts, by length."""


def _rows(scores: xr.DataArray) -> dict[str, dict[int, np.ndarray]]:
    """What was measured of each method, by length."""
    scores = scores.transpose("method", "length", ...)
    lengths = scores["length"].values.astype(int).tolist()
    return {
        method: {length: row for length, row in zip(lengths, rows, strict=True) if not np.isnan(row).all()}
        for method, rows in zip(scores["method"].values.tolist(), scores.values, strict=True)
    }


def _lowest(rows: Mapping[Key, np.ndarray]) -> Key:
    """Where the mean is lowest, the first of several."""
    return min(rows, key=lambda key: np.nanmean(rows[key]))


def _outcome(
    inside: _Rows, signs: tuple[Sign, ...], is_far: bool, guess: float | None, confidence: Confidence
) -> tuple[str, str]:
    """The outcome, and why it cannot be told. inside: tail NLL up to M; is_far: a rotary model works far beyond M."""
    longest = max(inside)
    if any(sign.sure and not sign.slight for sign in signs):
        return TOO_LARGE, ""
    if any(not sign.slight for sign in signs):
        return CANNOT_TELL, f"{'; '.join(sign.text for sign in signs)}, on too few prompts to be sure"
    if guess is not None and min(map(np.nanmean, inside.values())) >= guess:
        return CANNOT_TELL, f"the model is at chance at every length up to {longest}"
    if is_far:
        return TOO_SMALL, ""
    if signs:
        return MAY_BE_TOO_LARGE, ""
    if len(inside) < 2:
        return CANNOT_TELL, "no shorter length was measured"
    best = _lowest({length: row for length, row in inside.items() if length < longest})
    above = finite(inside[longest] - inside[best])
    _, high = confidence.student(above.tolist())
    if high is None:
        return CANNOT_TELL, f"{'one text has' if len(above) == 1 else f'{len(above)} texts have'} no interval"
    if high < NATS_ABOVE:
        return FITS, ""
    return CANNOT_TELL, (
        f"{len(above)} texts allow a loss at {longest} tokens of {high:+z.2f} nats/token over that at {best}"
    )


def _signs(
    nll: _Rows, hits: _Rows, others: Mapping[str, np.ndarray], length: int, confidence: Confidence
) -> Iterator[Sign]:
    """What speaks against the reference at a length: shorter ones, and the tail NLL of other methods there."""
    if shorter := {at: row for at, row in nll.items() if at < length}:
        best = _lowest(shorter)
        above = [*_above(nll[length], nll[best], length, f"at {best}", confidence)]
        yield from above or _slightly_above(nll[length], nll[best], length, best, len(shorter), confidence)
        yield from _lost({at: row for at, row in hits.items() if at in nll}, length, confidence)
    if others:
        best_method = _lowest(others)
        yield from _above(nll[length], others[best_method], length, f"there under {best_method}", confidence)


def _above(values: np.ndarray, others: np.ndarray, length: int, where: str, confidence: Confidence) -> Iterator[Sign]:
    above = finite(values - others)
    if above.size and above.mean() >= NATS_ABOVE:
        low, high = confidence.student(above.tolist())
        difference, both = shown(float(above.mean()), low, high, "+z.2f"), np.isfinite(values - others)
        means = [float(row[both].mean()) for row in (values, others)]
        text = f"tail NLL {means[0]:z.2f} at {length} tokens, {means[1]:z.2f} {where}, {difference}"
        yield Sign(length, text, low is not None and low > NATS_ABOVE / 2 and len(above) >= MIN_TEXTS)


def _slightly_above(
    values: np.ndarray, others: np.ndarray, length: int, best: int, among: int, confidence: Confidence
) -> Iterator[Sign]:
    """A loss that is surely above that of the best `among` shorter lengths; the interval is Bonferroni's over these."""
    above = finite(values - others)
    low, _ = Confidence(1 - (1 - confidence.level) / among, confidence.least).student(above.tolist())
    if low is not None and low > 0 and above.mean() >= SLIGHT_NATS and len(above) >= MIN_TEXTS:
        difference = shown(float(above.mean()), *confidence.student(above.tolist()), "+z.2f")
        mean = float(finite(values).mean())
        before = mean - above.mean()
        text = f"tail NLL {mean:z.2f} at {length} tokens, {before:z.2f} at {best}, {difference}"
        yield Sign(length, text, sure=True, slight=True)


def _lost(hits: _Rows, length: int, confidence: Confidence) -> Iterator[Sign]:
    """Passkeys that are found at a shorter length and no more at this one."""
    shorter = {at: row for at, row in hits.items() if at < length}
    if length not in hits or not shorter:
        return
    best = max(shorter, key=lambda at: np.nanmean(shorter[at]))
    now, before = finite(hits[length]), finite(shorter[best])
    if now.mean() < MIN_ACCURACY <= before.mean():
        late, early = (confidence.wilson(int(answers.sum()), len(answers)) for answers in (now, before))
        counts = [f"{int(answers.sum())} of {len(answers)}" for answers in (now, before)]
        text = f"passkeys {counts[0]} at {length} tokens, {counts[1]} at {best}"
        yield Sign(length, text, sure=late[1] < early[0])


def times_of_m(stated: StatedWindow | None, *lengths: int) -> str:
    """Lengths as multiples of the trained length M, such as '2 to 3x M'; empty where M is in doubt."""
    if stated is None or stated.is_doubtful:
        return ""
    multiples = [length / stated.stated for length in lengths]
    ends = dict.fromkeys(f"{times:.2g}" if times < 10 else f"{times:.0f}" for times in multiples)
    return f"{' to '.join(ends)}x M"
