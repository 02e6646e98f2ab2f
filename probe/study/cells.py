"""What a study does with a model: one prompt's hidden states, the lengths predicted from them, one measured failure."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import xarray as xr
from transformer_lens.model_bridge import TransformerBridge

import mesa
from mesa.methods import Method
from mesa.models import Loaded
from probe.capture.capture import capture
from probe.capture.spec import Kept
from probe.tasks import score
from probe.tasks.base import Setting, Task
from probe.tasks.finding import PASSKEY
from probe.tasks.likelihood import TAIL, tail_prompts
from probe.tasks.repeated import repeated_ids
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
        return [[repeated_ids(loaded.tokenizer, [int(word)], length)[0]] for word in chosen]
    if prompt == "text":
        runs = seeded_windows(documents, room, seeds, windows)
        return [[[*first, *run.tolist()] for run in mine] for mine in runs]
    settings = (Setting(length, (length,), seed=seed) for seed in range(seeds))
    made = (PASSKEY.prepare(loaded.tokenizer, length, setting, windows) for setting in settings)
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
    """What one seed measures with: the evaluation's tasks, their prompts by length, and the in-window level.

    level: Origin's tail NLL at M. judged: whether Origin finds passkeys there; if not, they say nothing about length.
    """

    loaded: Loaded
    setting: Setting
    texts: Mapping[int, Sequence[Any]]
    passkeys: Mapping[int, Sequence[Any]]
    level: float = 0.0
    judged: bool = False

    @classmethod
    def of(
        cls, loaded: Loaded, origin: Method, windows: Sequence[np.ndarray], lengths: Sequence[int], seed: int
    ) -> Trial:
        """The trial of `seed`, with as many passkey prompts a length as there are windows."""
        trained, first, count = origin.trained_length, first_ids(loaded.tokenizer), len(windows)
        setting = Setting(trained, tuple(lengths), count, MEASURED_SEEDS + seed)
        texts = {length: tail_prompts(windows, first, length) for length in lengths}
        passkeys = {length: PASSKEY.prepare(loaded.tokenizer, length, setting, count) for length in lengths}
        trial = cls(loaded, setting, texts, passkeys)
        with mesa.applied(loaded.model, origin):
            level, accuracy = trial._mean(TAIL, texts, trained), trial._mean(PASSKEY, passkeys, trained)
        return replace(trial, level=level, judged=accuracy >= LEAST_ACCURACY)

    def failures(self, method: Method) -> tuple[int | None, int | None]:
        """The first lengths (tokens) at which the method fails by tail NLL and by passkey; None: at none of them.

        The rules are those of `probe.thresholds.failure`. Longer lengths than the first failing one are not run: so
        there is a loop here and no evaluation cells, which are of all lengths.
        """
        by_nll = by_passkey = None
        with mesa.applied(self.loaded.model, method):
            for length in sorted(self.setting.lengths):
                if by_nll is None and self._mean(TAIL, self.texts, length) > self.level + NATS_ABOVE:
                    by_nll = length
                if self.judged and by_passkey is None and self._mean(PASSKEY, self.passkeys, length) < LEAST_ACCURACY:
                    by_passkey = length
        return by_nll, by_passkey

    def _mean(self, task: Task, prompts: Mapping[int, Sequence[Any]], length: int) -> float:
        scores = task.measure(self.loaded, length, prompts[length], self.setting)
        return float(np.mean([score.value for score in scores]))
