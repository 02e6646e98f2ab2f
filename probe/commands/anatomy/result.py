"""What an anatomy run found, as its summary.json and tokens.json hold it. No torch."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic.dataclasses import dataclass

from probe.store.result_file import Interval, OfHead, ResultFile, RunSummary, formerly

SPANS = INSIDE, BEYOND = "inside M", "beyond M"
"""Where queries stand."""


@dataclass(frozen=True, kw_only=True)
class MeasuredAttention:
    """The attention of a method's queries on one side of M, over prompts. Shares are of a query's attention, 0 to 1."""

    method: str
    length: int
    """Tokens of a prompt."""
    n: int
    """Number of prompts."""
    span: str
    """Of `SPANS`: where the queries stand."""
    mass_first: Interval
    """Share on the first 4 keys."""
    mass_near: Interval
    """Share on keys at most N tokens away, without the first 4."""
    mass_window: Interval
    """Share on keys from N to M tokens away, without the first 4."""
    mass_beyond: Interval
    """Share on keys M or more tokens away, without the first 4."""
    entropy: Interval
    """In nats."""
    mean_distance: Interval
    """In tokens."""
    sink: Interval
    """Share on token 0."""
    previous: Interval
    """Share on the token before."""


@dataclass(frozen=True, kw_only=True)
class HeadMeasured(MeasuredAttention, OfHead):
    """The same of one head."""

    layer: int
    head: int


@dataclass(frozen=True)
class Retrieval(OfHead):
    """How often a head attends most to the passkey's token (offset 0), or to that after it (1): a share of tokens."""

    method: str
    length: int
    n: int
    layer: int
    head: int
    offset_0: Interval
    offset_1: Interval
    best_offset: int
    best: Interval

    def at(self, offset: int) -> Interval:
        """The score at an offset."""
        return self.offset_1 if offset else self.offset_0


@dataclass(frozen=True)
class RetrievalHead(OfHead):
    """A head that retrieves inside M under the reference, at one length beyond M (see `retrieval_heads`)."""

    length: int
    layer: int
    head: int
    offset: int
    inside: Interval
    beyond: dict[str, Interval]
    """By method."""
    lost: bool
    kept: bool
    recovered_by: Annotated[list[str], formerly("restored", "recovered_by")]
    """Methods; earlier files: restored."""


@dataclass(frozen=True)
class Anatomy(RunSummary):
    """The summary of `mesa-lens anatomy`."""

    lengths: list[int]
    layers: list[int]
    reference: str
    tasks_left: int
    heads: list[HeadMeasured]
    all_heads: list[MeasuredAttention]
    """Means over all heads."""
    retrieval: list[Retrieval]
    retrieval_heads: list[RetrievalHead]
    version: Literal[1] = 1


@dataclass(frozen=True)
class Captured:
    """A text under one method."""

    nll: list[float]
    """Of every token but the first, nats."""
    weight: list[list[list[list[float]]]]
    """(layer, head, query, key): the largest attention weights of a query."""
    key: list[list[list[list[int]]]]
    """The positions of these keys."""


@dataclass(frozen=True)
class Tokens:
    """One text, token by token, as `mesa-lens anatomy --parts tokens` captured it."""

    trained_length: int
    reference: str
    layers: list[int]
    model: str
    tokens: list[str]
    queries: list[int]
    """Positions of the queries whose attention was kept."""
    methods: dict[str, Captured]
    version: Literal[1] = 1


TABLES = ("heads", "all_heads", "retrieval", "retrieval_heads")
"""The tables next to a summary, as csv."""
ANATOMY = ResultFile(Path("anatomy", "summary.json"), Anatomy)
TOKENS = ResultFile(Path("anatomy", "tokens.json"), Tokens, None, flags=" --parts tokens")
