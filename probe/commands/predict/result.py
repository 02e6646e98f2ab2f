"""What `mesa-lens predict` computed, as its prediction.json holds it. Excess: loss over lm-infinite's. No torch."""

import math
from dataclasses import field
from pathlib import Path
from typing import Literal

from pydantic.dataclasses import dataclass

from probe.commands import Findings, RunFacts
from probe.eval_tasks.sources import TextSource
from probe.files import JsonObject
from probe.store.result_file import Number, ResultFile
from probe.thresholds.failure import PredictedFailure
from probe.thresholds.stated_window import NATS_ABOVE

NOT_COVERED = "not covered, since no key is at a distance of M or more"
"""What is said of a method that only its cost inside M is known of; what more keys cost is not predicted."""
Interval = tuple[Number, Number]
"""The ends of a 95% interval over texts; NaN where there is none."""


@dataclass(frozen=True)
class Estimate:
    """A value of all texts with its interval."""

    value: Number
    ends: Interval

    def __str__(self) -> str:
        """Such as '0.6 [0.4, 0.7]'."""
        return f"{self.value:z.1f} [{self.ends[0]:z.1f}, {self.ends[1]:z.1f}]"


@dataclass(frozen=True)
class AtLength:
    """A method's loss in the last M/4 tokens of a prompt, nats/token."""

    length: int
    """Tokens of the prompt."""
    excess: Number
    excess_ends: Interval
    nll: Estimate

    @property
    def with_ends(self) -> tuple[float, float, float]:
        """The excess and its interval."""
        return self.excess, *self.excess_ends


@dataclass(frozen=True)
class FailureEstimate:
    """From which prompt on, in tokens, a method fails; None: not up to the longest."""

    length: int | None
    ends: tuple[int | None, int | None]
    """95% interval, over texts and the gaps' misfit."""


@dataclass(frozen=True)
class MethodPrediction:
    """A method: what is predicted of it, or the refusal, and what was measured."""

    config: JsonObject
    refusal: str
    """Why nothing is predicted; else empty."""
    cost_inside: Number = math.nan
    """Its loss at M less Origin's, nats/token; NaN where that was not needed."""
    has_far_keys: bool = False
    """Whether it gives any distance of M or more."""
    predicted: list[AtLength] = field(default_factory=list)
    """At each of the run's lengths; empty where nothing is predicted."""
    failure: FailureEstimate | None = None
    """None where nothing is predicted."""
    measured: list[AtLength] = field(default_factory=list)
    """At each of the run's lengths; empty where it was not measured."""
    measured_failure: int | None = None
    """The first of the lengths from which on it fails; None: none."""

    @property
    def not_covered(self) -> bool:
        """Whether no distance reaches M, so that the law knows only the cost inside M; earlier files included."""
        return not self.has_far_keys and not math.isnan(self.cost_inside)


@dataclass(frozen=True)
class Misfit:
    """The law less the measured loss of the gaps that it was fitted to."""

    rms: Number
    """Root mean square over the gaps, over no gap and over masking."""
    too_large: bool
    """Whether nothing predicted is to be relied on."""
    units: str
    gaps: int
    """Number of gaps."""
    largest_cost: Number
    """What the costliest gap costs."""

    def __str__(self) -> str:
        """As a sentence."""
        text = (
            f"Misfit of the law to the {self.gaps} position gaps that it was fitted to: {self.rms:z.2f} {self.units} "
            f"(rms; the costliest gap costs {self.largest_cost:z.2f})"
        )
        return f"{text}: too large, do not rely on what is predicted." if self.too_large else f"{text}."


@dataclass(frozen=True)
class Curve:
    """Origin's excess, nats/token, at some positions from M - 1 on."""

    position: list[int]
    value: list[Number]
    ends: tuple[list[Number], list[Number]]
    """95% interval over texts: the low ends, the high ends."""


@dataclass(frozen=True)
class GapCost:
    """What it costs, nats/token, that keys before token `boundary` are `gap` tokens further from later queries."""

    boundary: int
    gap: int
    predicted: Number
    over_no_gap: Number
    """Measured, less the loss without a gap."""
    over_masked: Number
    """Measured, less the loss with the same keys masked."""


@dataclass(frozen=True)
class FarKeyCosts:
    """What far keys of a prompt's first half cost at fixed length, over no move, nats/token."""

    few: bool | None
    """Whether one costs more than half of what all do; None where that cannot be told."""
    distance: Number
    """To the moved keys, in M."""
    one_key: Estimate
    keys: int
    all_keys: Estimate
    """With so many of them moved."""


@dataclass(frozen=True)
class FittedLaw:
    """The law of docs/law.md as it was fitted."""

    power: Estimate
    """p, of a far key's distance."""
    power_over_no_gap: Number
    power_over_masked: Number
    """p by either control alone."""
    scale_power: Estimate | None
    """q, of a factor on queries; None where no method has one."""
    needed_factors: Interval
    """95% of the factors on Z that single gaps would need."""
    origin_fails: int | None
    """In tokens; None: not up to the longest length."""
    excess: Curve
    gaps: list[GapCost]
    kind: FarKeyCosts | None = None
    """None where it was not measured."""


@dataclass(frozen=True)
class Agreement:
    """Predicted against measured excess of some methods, over n = `points` pairs of a method and a length."""

    methods: int
    points: int
    fails: int = 0
    """Methods that fail by measurement."""
    rms: Number = math.nan
    """nats/token."""
    bias: Number = math.nan
    """Predicted less measured, nats/token."""
    auc: Number = math.nan
    """Whether the predicted excess ranks pairs that fail above those that hold; NaN where all do the same."""
    exact: int = 0
    """Methods whose failure length is right."""
    within_one_step: int = 0
    """Within one of the lengths; none counts as the step after the longest."""


@dataclass(frozen=True)
class Prediction:
    """What `mesa-lens predict` computed."""

    model: str
    trained_length: int
    lengths: list[int]
    texts: int
    refusal: str
    """Why nothing is predicted of any method; else empty."""
    misfit: Misfit | None
    methods: dict[str, MethodPrediction]
    """By name, Origin's first."""
    law: FittedLaw | None = None
    """None, as the misfit, where nothing is predicted."""
    agreement: dict[str, Agreement] = field(default_factory=dict)
    """By which methods; empty unless they were measured too."""
    tasks_left: int = 0
    """Of a run that is not finished; nothing is predicted then."""
    origin: dict[str, str] | None = None
    """Of weights and tokenizer, as `mesa.models.origin` tells them; None: not recorded, by an earlier version."""
    text_source: TextSource | None = None
    """What was scored; None: not recorded, by an earlier version."""
    version: Literal[1] = 1

    @property
    def longest(self) -> int:
        """Tokens of the longest prompt."""
        return max(self.lengths)


PREDICTION = ResultFile(Path("predict", "prediction.json"), Prediction)
"""In the folder that `mesa-lens predict` writes to."""


def findings_of(prediction: Prediction | None, facts: RunFacts) -> Findings:
    """For a run's verdict: what was predicted of its model, M and parameters, by method, and what that rests on.

    The reference has none: its own losses are what the prediction rests on.
    """
    if prediction is None or (prediction.model, prediction.trained_length) != facts[:2]:
        return Findings({}, {}, [])
    configs = facts.method_configs
    same = {method: row for method, row in prediction.methods.items() if row.config == configs.get(method)}
    predicted = {
        method: PredictedFailure(row.failure.length, row.failure.ends, prediction.longest)
        for method, row in same.items()
        if method != facts.reference and row.failure is not None and not row.not_covered
    }
    uncovered = [method for method, row in same.items() if row.not_covered]
    if prediction.refusal:
        return Findings({}, predicted, [f"Predicted failure: none. By mesa-lens predict, {prediction.refusal}."])
    rests_on = (
        f"Predicted failure: the length from which on a method's loss is {NATS_ABOVE} nats/token above lm-infinite's. "
        f"Computed from the unmodified model's losses on {prediction.texts} texts and the method's distances, up to "
        f"{prediction.longest} tokens (docs/law.md). {prediction.misfit}"
    )
    notes = [rests_on] if predicted else []
    if uncovered:
        notes.append(f"Predicted failure of {', '.join(uncovered)}: {NOT_COVERED} up to {prediction.longest} tokens.")
    return Findings({}, predicted, notes)
