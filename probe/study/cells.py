"""What a study does with a model: one prompt's hidden states, the lengths predicted from them, one measured failure."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import xarray as xr
from transformer_lens.model_bridge import TransformerBridge

import mesa
from mesa.methods import Method
from mesa.models import Loaded
from probe.capture.capture import capture
from probe.capture.spec import Kept
from probe.evaluation.by_length import tail_tokens
from probe.tasks import score
from probe.tasks.retrieval import first_ids
from probe.thresholds.failure import LEAST_ACCURACY, NATS_ABOVE
from probe.thresholds.predict import best, predict
from probe.thresholds.search import CrossingRule, search

HOOK = "resid_post"
MEASURED_SEEDS = 1000
"""Added to a study's seed for passkey prompts that measure, so that none of them is one that predicts."""

Report = Callable[[], object]


def study_prompts(
    loaded: Loaded, prompt: str, documents: Sequence[np.ndarray], length: int, seeds: int, windows: int
) -> list[list[list[int]]]:
    """Token ids by seed and window, each of `length` tokens; a repeated word has one window.

    repeated: a lower-case word of one token, another for every seed. text: runs of held-out text, no two seeds' the
    same. passkey: the paper's prompts. Raises ValueError where the vocabulary or the text has too little.
    """
    first = list(first_ids(loaded.tokenizer))
    room = length - len(first)
    if prompt == "repeated":
        vocabulary: dict[str, int] = loaded.tokenizer.get_vocab()
        words = sorted(token for name, token in vocabulary.items() if re.fullmatch("[Ġ▁][a-z]{3,}", name))
        if len(words) < seeds:
            raise ValueError(f"seeds={seeds} need as many words of one token; this vocabulary has {len(words)}")
        chosen = np.random.default_rng(0).permutation(words)[:seeds]
        return [[[*first, *[int(word)] * room]] for word in chosen]
    if prompt == "text":
        runs = seeded_windows(documents, room, seeds, windows)
        return [[[*first, *run.tolist()] for run in mine] for mine in runs]
    made = (score.prompts("passkey", loaded.tokenizer, length, windows, seed) for seed in range(seeds))
    return [[list(each.ids) for each in mine] for mine in made]


def seeded_windows(documents: Sequence[np.ndarray], tokens: int, seeds: int, count: int) -> list[list[np.ndarray]]:
    """`count` runs of `tokens` tokens for every seed; ValueError if the documents hold too few."""
    runs = score.text_windows(documents, tokens, seeds * count)
    if len(runs) < seeds * count:
        raise ValueError(
            f"the text holds {len(runs)} runs of {tokens} tokens, {seeds} seeds with {count} each are asked for"
        )
    return [runs[seed::seeds] for seed in range(seeds)]


def states(
    bridge: TransformerBridge, prompts: Sequence[Sequence[int]], method: Method, kept: Kept, report: Report
) -> list[np.ndarray]:
    """Hidden states (layer, position, dim) of the first prompt and, where there are several, their mean."""
    first, total = None, np.zeros(())
    for ids in prompts:
        values = capture(bridge, ids, method, [HOOK], kept)[HOOK]
        first = values if first is None else first
        total = total + values
        report()
    if first is None:
        raise ValueError("there are no prompts to capture")
    return [first] if len(prompts) == 1 else [first, total / len(prompts)]


def predicted_lengths(
    reference: np.ndarray, values: np.ndarray | None, kept: Kept, trained: int, rule: CrossingRule, tops: Sequence[int]
) -> tuple[list[int | None], int]:
    """Predicted failure length of a method for every number of dims in `tops`, and how many dims qualify.

    `values` are the method's states (layer, position, dim), `reference` Origin's; None: it is Origin itself. A method
    that fails nowhere up to L has L + 1; None: no dim qualifies, or it is beyond all of them inside the window.
    """
    names, each = ["origin"], [reference]
    if values is not None:
        names, each = ["origin", "method"], [reference, values]
    coords = {"method": names, "layer": list(kept.layers), "position": list(kept.positions), "dim": list(kept.dims)}
    found = search(xr.DataArray(np.stack(each), coords, list(coords), name=HOOK), trained, rule)
    mine = found.sel({"method": names[-1:]})
    lengths: list[int | None] = []
    for top in tops:
        (made,) = predict(mine, top)
        censored = made.captured + 1 if made.judged else None
        lengths.append(censored if made.length is None else made.length)
    return lengths, len(best(found, len(kept.dims)))


@dataclass(frozen=True)
class Trial:
    """What one seed measures with: text windows, the tail's tokens, passkey prompts a length, and the in-window level.

    level: Origin's tail NLL at M. judged: whether Origin finds passkeys there; if not, they say nothing about length.
    """

    loaded: Loaded
    windows: Sequence[np.ndarray]
    prompts: Mapping[int, Any]
    tail: int
    level: float
    judged: bool

    @classmethod
    def of(
        cls, loaded: Loaded, origin: Method, windows: Sequence[np.ndarray], lengths: Sequence[int], seed: int
    ) -> Trial:
        """The trial of `seed`, with as many passkey prompts a length as there are windows."""
        made = {
            length: score.prompts("passkey", loaded.tokenizer, length, len(windows), MEASURED_SEEDS + seed)
            for length in lengths
        }
        trial = cls(loaded, windows, made, tail_tokens(origin.trained_length), 0.0, False)
        with mesa.applied(loaded.model, origin):
            nll, accuracy = trial._nll(origin.trained_length), trial._accuracy(origin.trained_length)
        return cls(loaded, windows, made, trial.tail, nll, accuracy >= LEAST_ACCURACY)

    def failures(self, method: Method) -> tuple[int | None, int | None]:
        """The first lengths (tokens) at which the method fails by tail NLL and by passkey; None: at none of them.

        The rules are those of `probe.thresholds.failure`. Longer lengths than the first failing one are not run.
        """
        by_nll = by_passkey = None
        with mesa.applied(self.loaded.model, method):
            for length in sorted(self.prompts):
                if by_nll is None and self._nll(length) > self.level + NATS_ABOVE:
                    by_nll = length
                if self.judged and by_passkey is None and self._accuracy(length) < LEAST_ACCURACY:
                    by_passkey = length
        return by_nll, by_passkey

    def _nll(self, length: int) -> float:
        first = first_ids(self.loaded.tokenizer)
        return float(np.mean(score.tail_nll(self.loaded.model, self.windows, first, length, self.tail, _nothing)))

    def _accuracy(self, length: int) -> float:
        hits = score.retrieval_hits(self.loaded.model, self.loaded.tokenizer, self.prompts[length], _nothing)
        return float(np.mean(hits))


def _nothing() -> None:
    pass
