"""Watches a model's states while it reads and generates, and warns where they leave the in-window distribution."""

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from transformers import StoppingCriteria

import mesa
from mesa.decoder import decoder_of, layers_of, removed
from mesa.errors import Refused
from mesa.models import Loaded
from mesa.outside import cache_in
from mesa.progress import Bar
from mesa.support import trained_length as stated_length
from probe.eval_tasks.retrieval import first_ids
from probe.eval_tasks.score import heldout_ids, text_windows
from probe.eval_tasks.tasks import tail_prompts
from probe.statistics import tally
from probe.thresholds.state_distance import StateReference, text_distances


@dataclass
class StateWatch(StoppingCriteria):
    """What `watch` gives: the distance of each window of M/4 states in a layer, over the mean one within M.

    All is of the latest prompt. distances: by row of the batch, (position after the window, ratio). detections: (row,
    position, ratio) of those that are below `limit` or above 1 / `limit`. false_detection_rate: their share among the
    `windows` within M that it was fitted on, each by those of other prompts. As a stopping criterion it ends a row at
    its first detection.
    """

    reference: StateReference
    inside: float
    window: int
    limit: float
    false_detection_rate: float
    windows: int
    distances: list[list[tuple[int, float]]] = field(default_factory=list)
    detections: list[tuple[int, int, float]] = field(default_factory=list)
    _pending: Any = None
    _read: int = 0

    def begin(self, before: int, mask: Any = None) -> None:
        """Notes a pass after `before` cached tokens: without any, a prompt begins. Refused for a padded one."""
        if isinstance(mask, torch.Tensor) and mask.ndim == 2 and not mask.all():
            raise Refused("prompts of a batch are padded, whose states have no distance; watch prompts of one length")
        if not before:
            self.distances, self.detections, self._pending, self._read = [], [], None, 0

    def read(self, states: np.ndarray) -> None:
        """Takes the states of new tokens (row, token, dim); each full window is evaluated once."""
        states = states if self._pending is None else np.concatenate([self._pending, states], axis=1)
        self.distances = self.distances or [[] for _ in states]
        while states.shape[1] >= self.window:
            now, states, self._read = states[:, : self.window], states[:, self.window :], self._read + self.window
            if self._read == self.window:  # the first tokens' states have not settled
                continue
            for row, ratio in enumerate(self.reference.distances(now).mean(1) / self.inside):
                self.distances[row].append((self._read, float(ratio)))
                if self.limit <= ratio <= 1 / self.limit:
                    continue
                if not any(row == detected for detected, _, _ in self.detections):
                    within = f"crossed by {tally(self.false_detection_rate * self.windows, self.windows)} within M"
                    warnings.warn(
                        f"states of row {row} are at {ratio:z.2f} of their in-window distance after {self._read} "
                        f"tokens (limit {self.limit:g}; {within})",
                        stacklevel=2,
                    )
                self.detections.append((row, self._read, float(ratio)))
        self._pending = states

    def __call__(self, input_ids: torch.Tensor, scores: Any, **kwargs: Any) -> Any:
        """Which rows have a detection: `generate` ends them."""
        rows = {row for row, _, _ in self.detections}
        return torch.tensor([row in rows for row in range(len(input_ids))], device=input_ids.device)


@contextmanager
def watch(
    loaded: Loaded,
    texts: Sequence[str] | None = None,
    *,
    layer: int = 0,
    limit: float = 0.6,
    trained_length: int | None = None,
    samples: int = 24,
) -> Iterator[StateWatch]:
    """Watches the states of a layer for as long as it lasts, of one prompt and what is generated after it.

    The in-window distribution is that of `samples` prompts of M tokens under the unmodified model, from M/4 on. States
    that collapse or grow are a symptom, not a failure; no loss is needed. A new prompt begins a new watch; rows of a
    batch are of one length, and beam search, which exchanges them, is not followed.

    Args:
        loaded: What `mesa.load` returns, without a method; attach one inside.
        texts: In-window texts. Default: the shipped held-out ones.
        layer: Whose output is watched; default 0.
        limit: The ratio to the mean in-window distance below which, and over which inverted, it warns; default 0.6,
            down to which the shipped model's loss is level.
        trained_length: M, tokens. Default: what the config states.
        samples: Prompts that the distribution is fitted on; default 24.

    Yields:
        A `StateWatch`; pass it as `stopping_criteria=[it]` to end at the first detection.

    Raises:
        Refused: The layer is not there, M is below 16, the texts are too short, or, in a pass, a prompt is padded.

    Examples:
        >>> loaded = mesa.load()
        >>> prompt = loaded.tokenizer(probe.heldout()[0][:6000], return_tensors="pt")
        >>> import warnings
        >>> with warnings.catch_warnings(), probe.watch(loaded) as watching:
        ...     warnings.simplefilter("ignore")
        ...     output = loaded.model.generate(**prompt, max_new_tokens=100, stopping_criteria=[watching])
        >>> watching.false_detection_rate, watching.detections[0][1] > loaded.model.config.max_position_embeddings
        (0.0, True)
    """
    model, M = loaded.model, trained_length or stated_length(loaded.model.config)
    layers, window = layers_of(model), M // 4
    if not 0 <= layer < len(layers):
        raise Refused(f"layer {layer} is not there; this model has layers 0-{len(layers) - 1}")
    if M < 16:
        raise Refused(f"trained_length={M} is below 16; windows of M/4 states are too short to compare")
    if not 0 < limit < 1:
        raise Refused(f"limit={limit} is not between 0 and 1: the ratio to the in-window distance that warns")
    prompts = tail_prompts(
        text_windows(heldout_ids(loaded.tokenizer, texts), M, samples, window), first_ids(loaded.tokenizer), M
    )
    kept: list[np.ndarray] = []

    def states(module: Any, args: Any, output: Any) -> np.ndarray:
        return (output[0] if isinstance(output, tuple) else output).detach().float().cpu().numpy()

    hook = layers[layer].register_forward_hook(lambda *each: kept.append(states(*each)[0, window:]))
    with torch.no_grad(), removed([hook]), mesa.applied(model, mesa.Origin(trained_length=M)):
        for ids in Bar(prompts, desc="fitting the in-window distribution", unit="prompt", leave=False):
            decoder_of(model)(input_ids=torch.tensor(ids[None], device=model.device), use_cache=False)
    inside = np.stack(kept)
    distances = text_distances(inside, [inside])[0]
    by_window = distances[:, -(distances.shape[1] // window * window) :].reshape(-1, window).mean(1)
    ratios = by_window / (mean := float(by_window.mean()))
    false = float(((ratios < limit) | (ratios > 1 / limit)).mean())
    watching = StateWatch(StateReference.fit(inside), mean, window, limit, false, len(ratios))

    def begin(module: Any, args: Any, options: Any) -> None:
        cached = cache_in(options)
        watching.begin(0 if cached is None else int(cached.get_seq_length()), options.get("attention_mask"))

    hooks = [
        decoder_of(model).register_forward_pre_hook(begin, with_kwargs=True),
        layers[layer].register_forward_hook(lambda *each: watching.read(states(*each))),
    ]
    with removed(hooks):
        yield watching
