"""Watches a model's states while it reads and generates, and warns where they leave the in-window distribution."""

import warnings
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import wraps
from typing import Any

import numpy as np
import torch
from transformers import GenerationMixin, StoppingCriteria

import mesa
from mesa.decoder import decoder_of, layers_of, removed, replaced
from mesa.errors import Refused
from mesa.models import Loaded
from mesa.outside import cache_in
from mesa.progress import Bar
from mesa.support import trained_length as stated_length
from probe.eval_tasks.retrieval import first_ids
from probe.eval_tasks.score import heldout_ids, text_windows
from probe.eval_tasks.tasks import tail_prompts
from probe.thresholds.state_distance import StateReference, text_distances


@dataclass
class StateWatch(StoppingCriteria):
    """What `watch` gives: the distance of each window of M/4 states in a layer, over the mean one within M.

    All is of the latest prompt. distances: by row of the batch, (position after the window, ratio). detections: (row,
    position, ratio) of those that are below `limit` or above 1 / `limit`. false_detection_rate: the
    expected share of prompts within M that have one: (k + 1) / (n + 1), where k of the n prompts of the fit have one,
    each compared with the others. As a stopping criterion it ends a row at its first detection.
    """

    reference: StateReference
    inside: float
    window: int
    limit: float
    false_detection_rate: float
    distances: list[list[tuple[int, float]]] = field(default_factory=list)
    detections: list[tuple[int, int, float]] = field(default_factory=list)
    _kept: list[np.ndarray] = field(default_factory=list)
    _first: int = 0
    _seen: int = 0
    _read: int = 0
    _rows: int = 0
    _ids: Any = None
    _cache: Any = None
    _warned: set[int] = field(default_factory=set)
    _ended: set[int] = field(default_factory=set)

    def begin(
        self, tokens: torch.Tensor, before: int, mask: Any = None, eos: Sequence[int] = (), cache: Any = None
    ) -> None:
        """Notes a pass over `tokens`, ids or embeddings, after `before` ones that `cache` holds.

        Without any a prompt begins, or goes on without a cache; where the cache was cropped, by a window at most, what
        was read after it is dropped; where it is another, watching begins at its length. Refused for a padded prompt.
        """
        if _is_padded(mask, before):
            raise Refused("prompts of a batch are padded, whose states have no distance; watch prompts of one length")
        ids = tokens if tokens.ndim == 2 else None
        is_same = self._cache is None or self._cache() is cache
        is_known = before > 0 and is_same and len(tokens) == self._rows and self._first <= before <= self._seen
        goes_on = not before and ids is not None and self._ids is not None and torch.equal(ids[:, :-1], self._ids)
        if not is_known:
            if not goes_on:
                self._warned, self._ended = set(), set()
            self._restart(len(tokens), before)
        elif before < self._seen:
            self._roll_back(before)
        if before and tokens.shape[1] > 1:  # another turn
            self._ended = set()
        self._ids, self._cache = None if before else ids, None if cache is None else weakref.ref(cache)
        if ids is not None and (goes_on or (before and ids.shape[1] == 1)):
            self._ended |= {row for row, token in enumerate(ids[:, -1].tolist()) if token in eos}

    def _restart(self, rows: int, before: int) -> None:
        """Watches `rows` from the first window that begins after `before` tokens."""
        self.distances, self.detections, self._kept = [[] for _ in range(rows)], [], []
        self._rows, self._first, self._seen, self._read = rows, before, before, self._window_from(before)

    def _roll_back(self, before: int) -> None:
        """Drops what was read after `before` tokens: a draft's that were rejected, or of a cropped cache."""
        self._kept = [np.concatenate(self._kept, axis=1)[:, : before - self._first]]
        self._seen = before
        self._read = max(min(self._read, before // self.window * self.window), self._window_from(self._first))
        self.distances = [[each for each in row if each[0] <= before] for row in self.distances]
        self.detections = [each for each in self.detections if each[1] <= before]
        self._warned &= {row for row, _, _ in self.detections}

    def _window_from(self, position: int) -> int:
        return -(-position // self.window) * self.window

    def read(self, states: np.ndarray) -> None:
        """Takes the states of new tokens (row, token, dim); each full window is evaluated once."""
        self._kept.append(states)
        self._seen += states.shape[1]
        if self._seen < self._read + self.window:
            return
        kept = np.concatenate(self._kept, axis=1)
        while self._seen >= self._read + self.window:
            now = kept[:, self._read - self._first :][:, : self.window]
            self._read += self.window
            if self._read > self.window:  # the first tokens' states have not settled
                self._evaluate(now)
        first = max(self._first, self._read - self.window)  # a window is kept: drafts are rejected across its end
        self._kept, self._first = [kept[:, first - self._first :].copy()], first

    def _evaluate(self, now: np.ndarray) -> None:
        ended = self._ended if len(self._ended) < self._rows else ()  # what goes on after every row's EOS is no padding
        rows = [row for row in range(self._rows) if row not in ended]
        if not np.isfinite(now[rows]).all():
            raise Refused(f"states before token {self._read} are not finite; they have no distance: check the model")
        for row, ratio in zip(rows, self.reference.distances(now[rows]).mean(1) / self.inside, strict=True):
            self.distances[row].append((self._read, float(ratio)))
            if self.limit <= ratio <= 1 / self.limit:
                continue
            if row not in self._warned:
                share = f"{self.false_detection_rate:z.0%} of prompts within M cross it"
                warnings.warn(
                    f"states of row {row} are at {ratio:z.2f} of their in-window distance after {self._read} "
                    f"tokens (limit {self.limit:.2g}; up to {share})",
                    stacklevel=3,
                )
                self._warned.add(row)
            self.detections.append((row, self._read, float(ratio)))

    def __call__(self, input_ids: torch.Tensor, scores: Any, **kwargs: Any) -> Any:
        """Which rows have a detection: `generate` ends them."""
        rows = {row for row, _, _ in self.detections}
        return torch.tensor([row in rows for row in range(len(input_ids))], device=input_ids.device)


def _is_padded(mask: Any, before: int) -> bool:
    """Whether a token has no attention: of a prepared mask (row, head, token, key), to itself, within a prompt."""
    if isinstance(mask, dict):
        mask = mask.get("full_attention", next(iter(mask.values()), None))
    if not isinstance(mask, torch.Tensor):
        return False
    if mask.ndim == 4 and not before:
        own = mask[:, 0].diagonal(dim1=-2, dim2=-1)
        return not bool((own if mask.dtype == torch.bool else own >= 0).all())
    return mask.ndim == 2 and not bool(mask.all())


@contextmanager
def watch(
    loaded: Loaded,
    texts: Sequence[str] | None = None,
    *,
    layer: int | None = None,
    limit: float | None = None,
    trained_length: int | None = None,
    samples: int = 24,
) -> Iterator[StateWatch]:
    """Watches a layer's states, of one prompt and what is generated after it.

    The in-window distribution is that of `samples` prompts of M tokens under the unmodified model, from M/4 on. States
    that collapse or grow are a symptom, not a failure. A new prompt begins a new watch, another cache one at its
    length. Rows of a batch are of one length, and left out after the EOS in use; beam search is not followed.

    Args:
        loaded: What `mesa.load` returns, without a method; attach one inside.
        texts: In-window texts. Default: the shipped held-out ones.
        layer: Whose output is watched; default 0.9 times the last one's number, rounded.
        limit: The ratio to the mean in-window distance below which, and over which inverted, it warns; default that
            of the window within M that lies farthest.
        trained_length: M, tokens. Default: what the config states.
        samples: Prompts that the distribution is fitted on; default 24.

    Yields:
        A `StateWatch`; pass it as `stopping_criteria=[it]` to end at the first detection.

    Raises:
        Refused: The layer is not there, M below 16, `samples` below 2, texts too short, or, in a pass, a prompt padded
            or states not finite.

    Examples:
        >>> loaded = mesa.load()
        >>> prompt = loaded.tokenizer(probe.heldout()[0][:6000], return_tensors="pt")
        >>> import warnings
        >>> with warnings.catch_warnings(), probe.watch(loaded) as watching:
        ...     warnings.simplefilter("ignore")
        ...     output = loaded.model.generate(**prompt, max_new_tokens=100, stopping_criteria=[watching])
        >>> watching.false_detection_rate, watching.detections[0][1] > 256
        (0.04, True)
    """
    model, M = loaded.model, trained_length or stated_length(loaded.model.config)
    layers, window = layers_of(model), M // 4
    layer = round(0.9 * (len(layers) - 1)) if layer is None else layer
    if not 0 <= layer < len(layers):
        raise Refused(f"layer {layer} is not there; this model has layers 0-{len(layers) - 1}")
    if M < 16:
        raise Refused(f"trained_length={M} is below 16; windows of M/4 states are too short to compare")
    if samples < 2:
        raise Refused(f"samples={samples} is below 2; each prompt's states are compared with those of others")
    if limit is not None and not 0 < limit < 1:
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
    by_window = distances[:, -(distances.shape[1] // window * window) :].reshape(len(distances), -1, window).mean(2)
    moved = np.abs(np.log(by_window / (mean := float(by_window.mean())))).max(1)
    farthest = moved.max() if limit is None else -np.log(limit)
    false = float(1 + (moved > farthest).sum()) / (1 + len(moved))
    watching = StateWatch(StateReference.fit(inside), mean, window, float(np.exp(-farthest)), false)
    inner = [part for part in model.modules() if isinstance(part, GenerationMixin)]  # PEFT's stands around
    generates: Any = inner[0] if inner else model
    processors = generates._get_logits_processor
    latest: Any = None

    @wraps(processors)
    def noting(generation_config: Any, *args: Any, **options: Any) -> Any:
        nonlocal latest
        latest = weakref.ref(generation_config)  # `generate`'s own, which ends with it
        return processors(generation_config, *args, **options)

    def begin(module: Any, args: Any, options: Any) -> None:
        ids, cached = args[0] if args else options.get("input_ids"), cache_in(options)
        tokens = options.get("inputs_embeds") if ids is None else ids
        if tokens is None:  # which the model refuses
            return
        before = 0 if cached is None else int(cached.get_seq_length())
        eos = ((latest and latest()) or model.generation_config).eos_token_id
        ends = [] if eos is None else np.atleast_1d(eos).tolist()
        watching.begin(tokens, before, options.get("attention_mask"), ends, cached)

    hooks = [
        decoder_of(model).register_forward_pre_hook(begin, with_kwargs=True),
        layers[layer].register_forward_hook(lambda *each: watching.read(states(*each))),
    ]
    with removed(hooks), replaced((generates, "_get_logits_processor", noting)):
        yield watching
