"""How far states of scored tokens lie from the in-window distribution, in the passes that score text anyway."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

import mesa
from mesa.decoder import decoder_of, layers_of, removed
from mesa.errors import Refused
from mesa.models import Loaded
from mesa.progress import Bar
from probe.eval_tasks.base import PromptSpec
from probe.eval_tasks.retrieval import first_ids
from probe.eval_tasks.score import labelled_windows
from probe.eval_tasks.tasks import tail_prompts, tail_tokens
from probe.thresholds.state_distance import StateReference

_LAYERS = (0.0, 0.3, 0.6, 0.9)
"""Depths of the layers that are read, 1 for the last one's."""
REFERENCE_TEXTS = 4
"""Texts that the distribution is fitted on."""
_STATES = 64
"""States of a pass that are read."""

PassStates = dict[int, np.ndarray]
"""By layer the states (token, dim) that are read of a pass."""


class ScoredStates:
    """The in-window distribution of four layers' states, and the distance of a pass's states to it.

    The distribution is fitted on the unmodified model's states at M, on up to four texts of the tail likelihood. A text
    is compared with texts of other documents, or with any other text where those are fewer than two. A decoder without
    a list of layers has no distances.
    """

    def __init__(self, loaded: Loaded, setting: PromptSpec, executor: str) -> None:
        trained, model = setting.trained_length, loaded.model
        self._decoder, self._tail = decoder_of(model), tail_tokens(trained)
        windows = labelled_windows(setting.documents, max(setting.lengths), setting.samples, self._tail)
        self._documents = [document for _, document in windows]
        self._fits = dict[tuple[int, ...], dict[int, StateReference] | None]()
        try:
            layers = layers_of(model)
        except Refused:
            layers = ()
        numbers = {round(depth * (len(layers) - 1)) for depth in _LAYERS} if layers else ()
        self._layers = {number: layers[number] for number in sorted(numbers)}
        chosen = np.linspace(0, len(windows) - 1, min(REFERENCE_TEXTS, len(windows))).round().astype(int).tolist()
        prompts = tail_prompts([windows[number][0] for number in chosen], first_ids(loaded.tokenizer), trained)
        if not self._layers or len(chosen) < 2:
            prompts = []
        unmodified = mesa.applied(model, mesa.Origin(trained_length=trained), executor=executor)
        with torch.no_grad(), unmodified, self.reading() as passes:
            for ids in Bar(prompts, desc="reading in-window states", unit="prompt", leave=False):
                self._decoder(input_ids=torch.tensor(ids, device=model.device)[None], use_cache=False)
        inside = zip(chosen, passes, strict=False)
        self._inside = {number: read for number, read in inside if all(np.isfinite(at).all() for at in read.values())}

    @contextmanager
    def reading(self) -> Iterator[list[PassStates]]:
        """The states of each pass run inside, filled in when it ends; passes of several prompts are left out."""
        passes = list[PassStates]()
        rows = -np.unique(np.linspace(1, self._tail, min(_STATES, self._tail)).round().astype(int))

        def keep(number: int, output: Any) -> None:
            states = output[0] if isinstance(output, tuple) else output
            if passes and states.ndim == 3 and len(states) == 1 and states.shape[1] >= self._tail:
                passes[-1][number] = states[0, rows.tolist()].detach().float().cpu().numpy()

        hooks = [self._decoder.register_forward_pre_hook(lambda *_: passes.append({}))]
        hooks += [
            layer.register_forward_hook(lambda module, args, output, number=number: keep(number, output))
            for number, layer in self._layers.items()
        ]
        with removed(hooks):
            yield passes
        passes[:] = [read for read in passes if len(read) == len(self._layers)]  # further slices of logits run no layer

    def distances(self, sample: int, read: PassStates) -> dict[int, float] | None:
        """By layer the mean squared distance of a pass over text number `sample`; None where nothing is to compare."""
        others = [number for number in self._inside if self._documents[number] != self._documents[sample]]
        if len(others) < 2:
            others = [number for number in self._inside if number != sample]
        if not all(np.isfinite(states).all() for states in read.values()):
            return None
        if (key := tuple(others)) not in self._fits:
            self._fits[key] = self._fitted(others)
        fits = self._fits[key]
        if fits is None:
            return None
        return {layer: round(float(fit.distances(read[layer]).mean()), 5) for layer, fit in fits.items()}

    def _fitted(self, texts: Sequence[int]) -> dict[int, StateReference] | None:
        """By layer the distribution of these texts' states; None where they are too few or do not vary."""
        if not texts:
            return None
        try:
            return {
                layer: StateReference.fit(np.stack([self._inside[text][layer] for text in texts]))
                for layer in self._layers
            }
        except Refused:
            return None
