"""The measured failure length of each method with its interval, from its scores by length."""

import math
from typing import Annotated

import numpy as np
import xarray as xr
from pydantic.dataclasses import dataclass

from mesa.errors import Refused
from probe.statistics import ONE_LOOK, Confidence, confidence_of, finite, half_width, known_mean
from probe.store.result_file import InWords, formerly
from probe.thresholds.stated_window import MIN_ACCURACY, NATS_ABOVE, NOT_EVALUATED, StatedWindow, stated_window

CHANCE_NATS = 0.1
"""A tail NLL inside the window no further than this below ln(vocabulary) is chance."""
NLL, PASSKEY = RULES = ("tail NLL", "passkey")
"""What can fail."""


@dataclass(frozen=True)
class Failure(InWords):
    """From which measured length on, in tokens, a method fails at every one; None if it does not at the longest.

    by_nll: its tail NLL is more than `NATS_ABOVE` nats/token above `Measured.level`.
    by_passkey: its passkey accuracy is below `MIN_ACCURACY`. length: by one or the other at each.
    after, high: the failure lies after `after` and at most at `high`, of what lies between measured lengths and of the
    prompts (95%): `low` is the first measured length from which on it may fail, `after` the one before it (0: none),
    `high` the first from which on it clearly fails at every one. None: none up to the longest length. sampled:
    whether that is over prompts; else there are too few, and `after` and `high` are of the measured lengths alone.
    dips: shorter lengths at which it fails though it does not at a longer one. before: the measured length before.
    evaluated_by, chance: those of `RULES` that failure is evaluated by, and those that are at chance inside the window.
    longest: the longest length it was measured at. unevaluated: those that were measured, and decide nothing.
    """

    method: str
    by_nll: int | None
    by_passkey: int | None
    length: int | None
    after: int | None
    low: int | None
    high: int | None
    sampled: bool
    dips: tuple[int, ...]
    before: int | None
    evaluated_by: Annotated[tuple[str, ...], formerly("judged_by", "evaluated_by")]
    chance: tuple[str, ...]
    longest: int
    unevaluated: Annotated[tuple[str, ...], formerly("unjudged", "unevaluated")] = ()

    @property
    def holds(self) -> bool:
        """Whether it does not fail, of a model that is not at chance and whose M is not stated wrongly."""
        return self.length is None and bool(self.evaluated_by) and not self.unevaluated

    @property
    def begins(self) -> str:
        """Where failure begins, of a method that fails: 'between 512 and 768 tokens', 'by 768 tokens'."""
        if self.high is None:
            return f"after {self.after} tokens, if ever" if self.after else f"by {self.longest} tokens, if ever"
        return f"between {self.after} and {self.high} tokens" if self.after else f"by {self.high} tokens"

    def __str__(self) -> str:
        """The interval in tokens, such as '(512, 768]', or 'none up to 2048'; where prompts leave both open, both.

        Where the shortest length may fail, nothing is known below it: 'by 768'.
        """
        none = f"none up to {self.longest}"
        if self.length is None:
            open_ = f", or after {self.after}" if self.after else " (earlier not ruled out)"
            text = none if self.after is None else f"{none}{open_}"
        else:
            text = f"by {self.high or self.longest}{'' if self.high else ', or none'}"
            if self.after:
                text = f"({self.after}, {self.high}]" if self.high else f"after {self.after}, or {none}"
            text += "" if self.sampled else " on one prompt"
        if self.dips:
            text += f"; dips at {', '.join(map(str, self.dips))}"
        if not self.evaluated_by and not self.chance:
            return NOT_EVALUATED
        unevaluated = self.unevaluated or self.chance  # earlier files hold the latter only
        if self.length is not None or not unevaluated:
            return text
        if self.evaluated_by:
            return f"not evaluated by {' and '.join(unevaluated)}; {text} by {self.evaluated_by[0]}"
        return "not evaluated: at chance inside M"


@dataclass(frozen=True)
class PredictedFailure:
    """What `mesa-lens predict` computed: the failure length in tokens and its 95% ends; None: none up to `longest`."""

    length: int | None
    ends: tuple[int | None, int | None]
    longest: int

    def __str__(self) -> str:
        """The length with its interval."""
        none = f"none up to {self.longest}"
        low, high = (end or none for end in self.ends)
        return f"{self.length} [{low}, {high}]" if self.length else none


@dataclass(frozen=True)
class MeasuredFailures:
    """Failures by method and what they are measured against.

    level: the reference method's tail NLL at `level_length`, the longest measured length within the window.
    evaluated_by: those of `RULES` that say something about length: not a tail NLL that is chance there, nor passkeys
        that the reference finds in less than half of the prompts there.
    chance: those of `RULES` by which the reference is at chance there: tail NLL within `CHANCE_NATS` of
        ln(vocabulary), passkeys found in no prompt, or so few that Wilson's interval ends below `MIN_ACCURACY`.
    stated: whether the stated M fits; where it is too large nothing is evaluated, and nothing said to be at chance.
    """

    reference: str
    level: float
    level_length: int
    evaluated_by: tuple[str, ...]
    chance: tuple[str, ...]
    lengths: tuple[int, ...]
    failures: tuple[Failure, ...]
    stated: StatedWindow

    @property
    def rule(self) -> str:
        """What is called a failure, in words."""
        level = f"{self.level:z.2f} ({self.reference} at {self.level_length})"
        nll = f"tail NLL more than {NATS_ABOVE:g} nats/token above {level}"
        if NLL not in self.evaluated_by:
            nll += " (not evaluated: that is chance)"
        passkey = f"passkey accuracy below {MIN_ACCURACY:g}"
        if PASSKEY not in self.evaluated_by:
            passkey += f" (not evaluated: {self.reference} itself is below it at {self.level_length})"
        return f"{nll}, or {passkey}, there and at every longer length measured"


def measured_failure(evaluation: xr.Dataset, trained_length: int, reference: str = "origin") -> MeasuredFailures:
    """The length at which each method fails, from scores by length.

    A method fails from a length on where its tail NLL is 0.5 nats/token above the reference's within M, or it finds
    fewer than half of the passkeys, there and at every longer length measured.

    Args:
        evaluation: `tail_nll` (method, length, window) in nats/token and, if there, `passkey` (method, length, sample).
            NaN: not measured. The attribute `vocabulary`, in tokens, tells what chance is; `looks`, of a run in stages,
            at how many prompts its intervals were looked at.
        trained_length: M, tokens.
        reference: Default 'origin'.

    Returns:
        A `MeasuredFailures`: `failures`, one a method, each with `length` (None: none up to the longest) and `after`,
        the longest length before it that passes; `level`; `evaluated_by`.

    Raises:
        Refused: Nothing was measured within M, or not the reference.

    Examples:
        >>> run = probe.open_run("runs/example")
        >>> measured = probe.measured_failure(run.evaluation, run.trained_length)
        >>> [(failure.method, failure.length) for failure in measured.failures]  # measured at 256 and 768 tokens
        [('origin', 768), ('rerope', None)]
    """
    evaluation = evaluation.sortby("length")
    lengths = evaluation["length"].values.astype(int)
    methods = evaluation["method"].values.tolist()
    if reference not in methods:
        raise Refused(f"reference {reference!r} was not measured; measured methods: {', '.join(methods)}")
    scores = [evaluation[name].values for name in ("tail_nll", "passkey") if name in evaluation]
    measured, confidence = np.any(np.isfinite(scores[0]), axis=-1), confidence_of(evaluation.attrs)
    within = np.flatnonzero(measured[methods.index(reference)] & (lengths <= trained_length))
    if not within.size:
        raise Refused(f"no length within the trained window {trained_length} was measured, only {lengths.tolist()}")
    at = (methods.index(reference), int(within[-1]))
    level = float(finite(scores[0][at]).mean())
    vocabulary = evaluation.attrs.get("vocabulary")
    hits = finite(scores[1][at]) if len(scores) > 1 else np.empty(0)
    evaluated_by, chance = _evaluated(level, hits, vocabulary, confidence)
    guess = None if vocabulary is None else math.log(vocabulary) - CHANCE_NATS
    stated = stated_window(evaluation, trained_length, reference, guess=guess)
    unevaluated = tuple(rule for rule, _ in zip(RULES, scores, strict=False) if rule not in evaluated_by)
    if stated.is_wrong:
        evaluated_by = chance = unevaluated = ()
    fails = _fails(scores, at, evaluated_by)
    sampled = all(values.shape[-1] > 1 for values, rule in zip(scores, RULES, strict=False) if rule in evaluated_by)
    may, clearly = _bounds(scores, at, evaluated_by, confidence) if sampled else [np.any(fails, 0)] * 2
    failures = []
    for row, method in enumerate(methods):
        known = measured[row]
        if not known.any():  # in stages: not yet
            continue
        by_rule, of_lengths = [rule[row, known] for rule in fails], lengths[known]
        by_nll, by_passkey = [*(lasting(rule, of_lengths) for rule in by_rule), None][:2]  # None: not measured
        length, low, high = (
            lasting(rule, of_lengths) for rule in (np.any(by_rule, 0), may[row, known], clearly[row, known])
        )
        failures.append(
            Failure(
                method=method,
                by_nll=by_nll,
                by_passkey=by_passkey,
                length=length,
                after=None if low is None else int(max(of_lengths[of_lengths < low], default=0)),
                low=low,
                high=high,
                sampled=sampled,
                dips=dipping(np.any(by_rule, 0), of_lengths),
                before=max(of_lengths[of_lengths < (length or 0)].tolist(), default=None),
                evaluated_by=evaluated_by,
                chance=chance,
                longest=int(of_lengths[-1]),
                unevaluated=unevaluated,
            )
        )
    return MeasuredFailures(
        reference, level, int(lengths[at[1]]), evaluated_by, chance, tuple(lengths.tolist()), tuple(failures), stated
    )


def _evaluated(
    level: float, hits: np.ndarray, vocabulary: int | None, confidence: Confidence
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """What can be evaluated, and what is at chance, of the reference's scores inside the window."""
    evaluated_by, chance = [], []
    (chance if is_chance(level, vocabulary) else evaluated_by).append(NLL)
    if hits.size and hits.mean() >= MIN_ACCURACY:
        evaluated_by.append(PASSKEY)
    elif hits.size and confidence.wilson(int(hits.sum()), len(hits))[1] < MIN_ACCURACY:
        chance.append(PASSKEY)
    return tuple(evaluated_by), tuple(chance)


def is_chance(level: float, vocabulary: int | None) -> bool:
    """Whether a tail NLL is what guessing among n tokens gives; of an unknown number none is."""
    return vocabulary is not None and level >= math.log(vocabulary) - CHANCE_NATS


def _fails(scores: list[np.ndarray], at: tuple[int, int], evaluated_by: tuple[str, ...]) -> list[np.ndarray]:
    """Whether the mean fails, by tail NLL against the level on the same texts and by passkeys: (method, length)."""
    above = known_mean(scores[0] - scores[0][at])
    rules = [above > NATS_ABOVE, *(known_mean(hits) < MIN_ACCURACY for hits in scores[1:])]
    return [fails & (name in evaluated_by) for name, fails in zip(RULES, rules, strict=False)]


def decided(above: np.ndarray, confidence: Confidence) -> np.ndarray:
    """1 where the mean over the first axis is clearly above `NATS_ABOVE`, -1 where clearly not, 0 where none is told.

    above: tail NLL less the level's on the same texts (text, ...), nats/token. By Student's interval.
    """
    if len(above) < confidence.least:
        return np.zeros(above.shape[1:], int)
    middle, half = above.mean(0), half_width(above, confidence.level)
    return (middle - half > NATS_ABOVE).astype(int) - (middle + half <= NATS_ABOVE)


def _bounds(
    scores: list[np.ndarray], at: tuple[int, int], evaluated_by: tuple[str, ...], confidence: Confidence
) -> tuple[np.ndarray, np.ndarray]:
    """Whether it may fail, and whether it clearly does, (method, length): by 95% intervals of the prompts' scores.

    Student's of tail NLL less the level, window by window, and Wilson's of the passkeys found. A method may fail by
    passkeys that are not measured yet, of a run that looks at them several times.
    """
    may, clearly = np.zeros((2, *scores[0].shape[:2]), bool)
    looks = confidence != ONE_LOOK
    for cell in np.ndindex(may.shape):
        if NLL in evaluated_by and cell != at:
            decision = int(decided(finite(scores[0][cell] - scores[0][at]), confidence))
            may[cell], clearly[cell] = decision >= 0, decision > 0
        hits = finite(scores[1][cell]) if PASSKEY in evaluated_by else np.empty(0)
        if hits.size:
            low, high = confidence.wilson(hits.sum(), len(hits))
            may[cell] |= low < MIN_ACCURACY and not (looks and cell == at)
            clearly[cell] |= high < MIN_ACCURACY
        elif PASSKEY in evaluated_by:
            may[cell] |= looks
    return may, clearly


def lasting(fails: np.ndarray, lengths: np.ndarray) -> int | None:
    """The first of `lengths` from which on all fail; None if it holds at the last."""
    holds = np.flatnonzero(~fails)
    first = holds[-1] + 1 if holds.size else 0
    return int(lengths[first]) if first < len(lengths) else None


def dipping(fails: np.ndarray, lengths: np.ndarray) -> tuple[int, ...]:
    """Those of `lengths` that fail before one that does not."""
    return tuple(lengths[fails & (lengths < (lasting(fails, lengths) or np.inf))].tolist())
