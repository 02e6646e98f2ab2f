"""What a readout found, as its summary.json holds it. No torch."""

from dataclasses import field
from pathlib import Path
from typing import Literal

from pydantic.dataclasses import dataclass

from probe.store.result_file import Interval, Number, ResultFile, RunSummary


@dataclass(frozen=True, kw_only=True)
class LensRead:
    """What the lens reads of a layer's states, a mean over texts."""

    method: str
    length: int
    """Tokens of a prompt."""
    layer: int
    n: int
    """Number of texts."""
    loss: Interval
    """Of the next token, nats/token."""
    excess: Interval
    """The loss less that at M in the same layer under the same method."""
    is_above: bool
    """Whether the excess is above 0 beyond chance, all layers, lengths and methods considered."""
    rank: Number
    """Median place of the next token, from 1; mean over texts."""
    probability: Number
    """Of the next token."""
    entropy: Number
    """In nats."""
    kl: Number
    """Of the last layer's distribution from this layer's, in nats."""


@dataclass(frozen=True, kw_only=True)
class ProbeRead:
    """What linear probes read in a layer's states, of texts that they were not trained on.

    A score is the share of labels that are right (classes), or the share of the variance explained (numbers).
    """

    probe: str
    """What is probed."""
    method: str
    length: int
    layer: int
    n: int
    """Number of test texts with labels; of documents, where all labels of a document are the same."""
    tokens: int
    """Labels in these."""
    strength: Number
    """C or alpha of the probe trained at this length, chosen on the training texts."""
    chance: Number
    """The score of the training texts' most frequent label, or mean; of each token type's where types are few."""
    inside: Interval
    """At M."""
    transfer: Interval
    """At this length, by the probe trained at M."""
    refit: Interval
    """At this length, by a probe trained there."""
    by_reference: Interval
    """At this length, by the reference's probe trained at M."""
    control: Interval
    """`inside` of random labels by token type; by text where types are few."""
    control_refit: Interval
    """`refit` of these."""
    selectivity: Interval
    """inside - control."""
    moved: Interval
    """refit - transfer; in a difference of scores each counts as `chance` or 0 at least."""
    lost: Interval
    """inside - refit."""
    returned: Interval
    """by_reference - the same under the reference: whether the method puts the states back. NaN for the reference."""
    is_read: bool
    """Whether `inside` is above control and chance beyond chance, and the model's own loss tells that it is trained."""
    is_moved: bool
    is_lost: bool
    is_returned: bool


@dataclass(frozen=True, kw_only=True)
class DistanceRead:
    """How far a layer's states on test texts lie from the in-window distribution (`probe.state_distance`)."""

    method: str
    length: int
    layer: int
    n: int
    """Number of test texts; of their documents, where these are four or more, as texts of one count once."""
    distance: Number
    """Mean squared Mahalanobis distance a component, to the reference's states at M on training texts."""
    inside: Number
    """The same at M."""
    ratio: Interval
    """distance / inside: below 1 where states collapse, above where they grow."""
    direction: str
    """collapse, growth, or level where the interval holds 1."""


@dataclass(frozen=True, kw_only=True)
class AnswerRead:
    """Of `passkey-digit`: how many test prompts the model answers, and what probes read where it does not."""

    method: str
    length: int
    layer: int
    n: int
    """Number of test prompts."""
    answered: Interval
    """The share whose passkey greedy decoding says."""
    wrong: int
    """Prompts without the right answer."""
    transfer: Interval
    """The share of these whose first digit the probe trained at M reads; NaN where none is wrong."""
    refit: Interval
    """By a probe trained at this length."""


@dataclass(frozen=True)
class Probed:
    """What is probed, and of which labels."""

    kind: str
    """classes or numbers."""
    values: int
    """Distinct labels."""
    note: str


@dataclass(frozen=True)
class Readout(RunSummary):
    """The summary of `mesa-lens readout`."""

    reference: str
    hook: str
    lengths: list[int]
    layers: list[int]
    tokens: int
    """Last tokens of each text that are read."""
    training: int
    """Texts to train on."""
    test: int
    loss: Interval
    """The model's own loss at M under the reference, nats/token."""
    frequencies: Number
    """The loss of token frequencies of the training texts."""
    is_trained: bool
    """Whether `loss` is below that of frequencies; without, nothing is claimed."""
    tasks_left: int
    probed: dict[str, Probed]
    lens: list[LensRead]
    probes: list[ProbeRead]
    distances: list[DistanceRead] = field(default_factory=list)
    answers: list[AnswerRead] = field(default_factory=list)
    version: Literal[1] = 1

    def leaves(self, method: str, length: int) -> int | None:
        """The first layer from which on, up to the last, the lens' loss is above that at M; None: the last is not."""
        first = None
        rows = [row for row in self.lens if (row.method, row.length) == (method, length)]
        for row in sorted(rows, key=lambda row: row.layer):
            first = (row.layer if first is None else first) if row.is_above else None
        return first

    def best_layer(self, probe: str) -> int | None:
        """The layer where the probe reads most above its control at M, under the reference; None: in none it reads."""
        rows = [row for row in self.probes if (row.probe, row.method) == (probe, self.reference) and row.is_read]
        return max(rows, key=lambda row: row.selectivity.mean).layer if rows else None


PASSKEY_DIGIT = "passkey-digit"
"""What is probed where prompts with a passkey are read, not texts."""
TABLES = ("lens", "probes", "distances", "answers")
"""The tables next to a summary, as csv."""
READOUT = ResultFile(Path("readout", "summary.json"), Readout)
