"""What was found in a run, as its summary.json holds it: onsets, failures, scores by length, negative control."""

from dataclasses import field
from math import nan
from typing import Annotated

from pydantic.dataclasses import dataclass

from probe.eval_tasks.sources import TextSource
from probe.files import JsonObject
from probe.store.result_file import Number, formerly
from probe.thresholds.drift import DriftRule
from probe.thresholds.failure import Failure
from probe.thresholds.onset import DriftOnset, ThresholdOnset
from probe.thresholds.search import CrossingRule
from probe.thresholds.stated_window import StatedWindow

MEAN = "text-mean"
"""Label of the mean over the prompts of text."""


@dataclass(frozen=True)
class Difference:
    """A mean difference over the same prompts with its paired 95% interval, NaN where there is none."""

    mean: Number
    low: Number
    high: Number


@dataclass(frozen=True)
class Scores:
    """A method's scores at one length: tail NLL in nats/token, passkey accuracy; NaN where it was not measured."""

    tail_nll: Number = nan
    passkey: Number = nan
    tail_nll_interval: tuple[Number, Number] = (nan, nan)
    """95%, over texts."""
    passkey_interval: tuple[Number, Number] = (nan, nan)
    """95%, over prompts."""
    tail_nll_difference: Difference | None = None
    """To the reference on the same texts; None of the reference itself."""
    passkey_difference: Difference | None = None


@dataclass(frozen=True)
class LongestScores(Scores):
    """The scores at the longest measured length."""

    length: int = 0
    """In tokens."""
    tail_nll_to_truncation: Annotated[Difference | None, formerly("tail_nll_to_crop", "tail_nll_to_truncation")] = None
    """Less the reference's at `Level.length`, of the same tokens; None within M, and where M is stated wrongly."""
    less: dict[str, Difference] = field(default_factory=dict)
    """Tail NLL less each other method's."""


@dataclass(frozen=True)
class NotEvaluated:
    """An onset that cannot be told, and why."""

    method: str
    text: str
    length: None = None

    def __str__(self) -> str:
        """Why."""
        return self.text


@dataclass(frozen=True)
class MethodResult:
    """What was found of one method."""

    method: str
    drift_onset: DriftOnset | NotEvaluated
    """On the first prompt."""
    threshold_onset: ThresholdOnset | NotEvaluated
    """On the first prompt."""
    threshold_onset_by_prompt: dict[str, str]
    """In words."""
    measured: Failure | None = None
    """None: nothing was measured by length."""
    scores: dict[int, Scores] = field(default_factory=dict)
    """By length, those of the table."""
    longest: LongestScores | None = None


@dataclass(frozen=True)
class Level:
    """What failures are measured against."""

    tail_nll: Number
    """The reference's, nats/token."""
    length: int
    """At n tokens."""
    guess: float | None
    """Tail NLL of a guess, ln(vocabulary); None: unknown."""
    passkeys: int | None
    """How many the reference finds; None: not asked for."""
    prompts: dict[str, int]
    """Texts (`window`) and passkeys (`sample`) at each length."""


@dataclass(frozen=True)
class LevelByStages(Level):
    """Of a run in stages: lengths and methods have unequal numbers of prompts; `prompts` are those of the level."""

    fewest: dict[str, int]
    """Prompts of the length and method with the fewest."""
    most: dict[str, int]
    looks: list[int]
    """At how many prompts intervals are looked at; each holds for all looks together with 95%."""
    by_position: str
    """Where the reference's loss is high in one pass over the longest length, in words."""


@dataclass(frozen=True)
class DriftDim:
    """A dim that carries the reference's drift."""

    layer: int
    dim: int
    share: Number
    """Of its layer's drift."""
    centre: Number
    """Median inside the window."""
    range: Number


@dataclass(frozen=True)
class PromptDrift:
    """Drift on one prompt."""

    methods: list[DriftOnset]
    dims: list[DriftDim]


@dataclass(frozen=True)
class DriftResult:
    """The rule that drift was read by, and what it gave by prompt."""

    rule: DriftRule
    prompts: dict[str, PromptDrift]


@dataclass(frozen=True)
class ThresholdDim:
    """A threshold dim of the first prompt."""

    layer: int
    dim: int
    score: Number
    threshold: Number
    """The reference's value at M."""
    limit: Number


@dataclass(frozen=True)
class PromptControl:
    """What the negative control found on one prompt; lists have an entry a place."""

    qualified: list[int]
    """Threshold dims at a place inside M."""
    matched: list[int]
    """Threshold dims at M, with as many positions."""
    as_many: float
    """Share of the places with as many threshold dims as M, or more."""
    detected: Annotated[dict[str, list[int | None]], formerly("called", "detected")]
    """Onsets by method: all of them false."""
    false_onsets: dict[str, float]
    """Share of the places with an onset, by method."""


@dataclass(frozen=True)
class Control:
    """The negative control: the same search at places inside M, where nothing breaks."""

    searched: int
    top: int
    least: int
    place: list[int]
    prompts: dict[str, PromptControl]


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """Everything that a verdict rests on: what was read from a run, and the settings."""

    model: str | None
    model_revision: str | None
    trained_length: int
    """M, in tokens."""
    captured_length: int
    hook: str
    prompt: str
    """The first one, which drift and thresholds are of."""
    word: str | None
    reference: str
    rule: CrossingRule
    """The rule by which thresholds were read."""
    onset_by: str
    """The rule of the onsets that are shown: drift or paper."""
    pass_length: int
    follows_length: list[str]
    """Methods whose positions or frequencies follow the prompt's length."""
    drift: DriftResult | str
    """By layer and method; a text says why it could not be evaluated."""
    searched: int
    """How many (layer, dim) pairs were searched."""
    qualified: dict[str, int]
    """Threshold dims by prompt."""
    best: list[ThresholdDim]
    methods: list[MethodResult]
    control: Control | str
    """The negative control; a text says why it could not be made."""
    failure_rule: str | None
    evaluated_by: Annotated[list[str], formerly("judged_by", "evaluated_by")]
    at_chance: list[str]
    level: LevelByStages | Level | None
    """What failures are measured against; None: nothing was measured by length."""
    stated_window: StatedWindow | None
    measured_lengths: list[int]
    method_configs: dict[str, JsonObject]
    versions: dict[str, str]
    created: str | None
    trained_length_by: str = ""
    """What states M; empty in runs of earlier releases."""
    as_trained: str = ""
    """Layers that stay as trained under every method, and why; empty: none, or not recorded."""
    quantization: str | None = None
    """Of weights that were quantized."""
    tokenizer_note: str | None = None
    """That the tokenizer may not be the model's own."""
    text_source: TextSource | None = None
    """What text prompts and NLL are of; None: not recorded, by an earlier version."""

    def onset_of(self, method: MethodResult) -> DriftOnset | ThresholdOnset | NotEvaluated:
        """The onset of a method by the rule that is shown."""
        return method.threshold_onset if self.onset_by == "paper" else method.drift_onset
