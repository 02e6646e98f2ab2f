"""What `trained_counterpart/run.py` is asked for, checked against the model's config before any weights are loaded."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import numpy as np

from mesa.fingerprints import identity, ids_fingerprint
from mesa.methods import Method, Origin
from mesa.models import bytes_a_number, tokenizer_of
from probe.capture.memory import check_prompts, peak_bytes
from probe.mechanism.items import items
from probe.mechanism.passes import Item
from probe.request import MethodsRequest
from probe.tasks import sources
from probe.tasks.base import Setting
from probe.tasks.repeated import word_ids
from probe.tasks.score import heldout_ids
from probe.thresholds.search import CrossingRule, check_positions
from research.trained_counterpart.reading import shortest

KINDS = ("find", "hold")
FOUND, NEAREST, EVERY = "found", "nearest", "every"
SETS = (FOUND, NEAREST, EVERY)
"""Sets of heads that are held: those that play the part, those that follow the position best, and all of the model."""
_DENSE = 6  # copies of a layer's weights (head, query, key) that the dense executor and an edit hold at once


@dataclass(frozen=True)
class CounterpartRequest(MethodsRequest):
    """What is asked for; lengths in tokens, 2 M and 4 M if None. methods: the one that mends, for shares of the gap.

    kinds: of `KINDS`. samples: texts that heads are found on, and as many others on which holding is judged. nearest:
    heads held that follow the position best. draws: sets of random heads. word: the repeated one that shows crossings.
    """

    default_methods: ClassVar[str] = "rerope"
    kinds: tuple[str, ...] = KINDS
    lengths: tuple[int, ...] | None = None
    samples: int = 8
    nearest: int = 4
    draws: int = 10
    word: str = "hello"
    text: str | None = None


@dataclass(frozen=True)
class CounterpartPlan:
    """A request, checked: Origin, what mends, and items by length; heads are found on even ones, judged on odd."""

    request: CounterpartRequest
    config: Any
    origin: Method
    mending: Method
    items: dict[int, list[Item]]
    documents: str

    @property
    def trained_length(self) -> int:
        """M, in tokens."""
        return self.origin.trained_length

    @property
    def lengths(self) -> list[int]:
        """Rising."""
        return sorted(self.items)

    @property
    def finding(self) -> list[int]:
        """The numbers of the items that heads are found on."""
        return list(range(0, len(self.items[self.lengths[-1]]), 2))

    @property
    def judging(self) -> list[int]:
        """The numbers of those that holding them is judged on."""
        holds = "hold" in self.request.kinds
        return list(range(1, len(self.items[self.lengths[-1]]), 2)) if holds else []

    @property
    def runs(self) -> Iterator[str]:
        """What is run of every judged item: as trained, mended, every set held, and its random ones."""
        yield from (self.origin.name, self.mending.name)
        for name in SETS:
            yield name
            if name != EVERY:
                yield from random_names(name, self.request.draws)

    @property
    def settings(self) -> dict[str, Any]:
        """Everything that a cell depends on, beside its own name; ready for JSON."""
        asked = asdict(self.request)
        kept = ("model", "seed", "samples", "text", "word", "nearest", "draws", "kinds")
        return {
            **{name: asked[name] for name in kept},
            **{key: value for key, value in self.request.load.items() if value is not None},
            "trained_length": self.trained_length,
            "longest": self.lengths[-1],
            "method": self.mending.describe(),
            **identity(self.request.model, self.config),
            "documents": self.documents,
        }


def random_names(name: str, draws: int) -> list[str]:
    """What the random sets beside a set are called."""
    return [f"{name} random {draw}" for draw in range(draws)]


def plan(request: CounterpartRequest) -> CounterpartPlan:
    """Checks the request and builds every item. Raises ValueError or FileNotFoundError, naming the value."""
    unknown = [kind for kind in request.kinds if kind not in KINDS]
    if unknown or not request.kinds:
        raise ValueError(f"--try {','.join(unknown)!r} is not known; known: {', '.join(KINDS)}")
    config, trained = request.checked_model()
    methods = request.checked_methods(config, trained)
    mending = [method for name, method in methods.items() if name != "origin"]
    if len(mending) != 1:
        raise ValueError(f"--methods {request.methods!r} names {len(mending)} methods that mend; give one, e.g. rerope")
    lengths = tuple(sorted({*(request.lengths or (2 * trained, 4 * trained))}))
    if lengths[0] <= trained:
        raise ValueError(f"--lengths {lengths[0]} is not beyond the trained length {trained}; nothing is crossed there")
    if lengths[-1] < (least := shortest(trained)):
        raise ValueError(f"--lengths {lengths[-1]} ends before a crossing of M={trained} is told; take {least} or more")
    check_prompts(lengths[-1], 2 * request.samples)
    check_positions(range(lengths[-1]), trained, CrossingRule.scaled(trained))
    tokenizer = tokenizer_of(request.model, **request.source)
    word_ids(tokenizer, request.word)
    documents = tuple(heldout_ids(tokenizer, sources.texts(request.text)))
    count = 2 * request.samples if "hold" in request.kinds else 2 * request.samples - 1
    _check_room(documents, lengths[-1], count)
    setting = Setting(trained, lengths, count, request.seed, documents)
    made = {length: items("nll", tokenizer, length, setting) for length in lengths}
    return CounterpartPlan(
        request, config, Origin(trained_length=trained), mending[0], made, ids_fingerprint(documents)
    )


def _check_room(documents: tuple[np.ndarray, ...], length: int, count: int) -> None:
    """Raises ValueError where texts would overlap: judged texts must not be those that heads were found on."""
    room = sum(len(ids) // length for ids in documents) or sum(map(len, documents)) // length
    if room < count:
        raise ValueError(
            f"--samples asks for {count} texts of {length} tokens that do not overlap, the text has room for {room}; "
            "give fewer, shorter --lengths or a longer --text"
        )


def needed_bytes(made: CounterpartPlan) -> int:
    """Estimate of the memory beside the weights: one pass, and with holding the dense executor's weights."""
    config, longest = made.config, made.lengths[-1]
    each = bytes_a_number(config, made.request.load)
    dense = _DENSE * config.num_attention_heads * longest**2 * each
    streams = 4 * config.num_hidden_layers * longest * config.hidden_size * each
    return peak_bytes(config, longest, each, dense + streams if made.judging else 0)


def work(made: CounterpartPlan) -> dict[tuple[Method, int], float]:
    """Passes by method and length."""
    found = {(made.origin, made.lengths[-1]): float(len(made.finding))}
    passes = sum(1 for _ in made.runs)
    for length in made.lengths if made.judging else ():
        at = made.origin, length
        found[at] = found.get(at, 0.0) + passes * (len(made.judging) + 1)
    return found


def estimate(made: CounterpartPlan) -> str:
    """Passes and memory of a run, as text."""
    passes = sum(work(made).values())
    return (
        f"lengths {', '.join(map(str, made.lengths))}: heads found on {len(made.finding)} texts, held on "
        f"{len(made.judging)} others: {passes:,.0f} passes\n"
        f"memory beside the weights at {made.lengths[-1]} tokens: about {needed_bytes(made) / 2**20:,.0f} MiB"
    )
