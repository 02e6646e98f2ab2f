"""Tasks: retrieval (passkey, RULER's single needle, LongEval's lines), likelihood, latency."""

import ctypes
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

import numpy as np
import psutil
import torch

from mesa.device import is_accelerator, now, states_checked
from mesa.engine.structure import new_cache
from mesa.errors import Refused
from mesa.models import Loaded
from mesa.outside import with_cache, with_last_logits
from probe.eval_tasks import retrieval
from probe.eval_tasks.base import EvalTask, Metric, PromptSpec, Score, in_batches
from probe.eval_tasks.retrieval import Prompt, first_ids
from probe.eval_tasks.score import nll, retrieval_hits, text_windows

Build = Callable[[Any, int, np.random.Generator, PromptSpec], Prompt]
"""Called with tokenizer, length, random generator and setting."""


@dataclass(frozen=True)
class RetrievalTask(EvalTask):
    """A task whose answer stands in its prompt; scores 1 where greedy decoding begins with it."""

    name: str
    about: str
    build: Build
    metrics: tuple[Metric, ...] = (Metric("accuracy", "share found", binary=True),)
    reads_depth: bool = True
    reads_documents: bool = False
    batched: ClassVar[bool] = True

    def prepare(self, tokenizer: Any, length: int, setting: PromptSpec, samples: int) -> Sequence[Prompt]:
        """The prompts; the same for every method. Raises Refused for a length that they cannot have."""
        key = [len(self.name)] if self.name == "passkey" else self.name.encode()  # so that measured failures stay
        rng = np.random.default_rng([setting.seed, length, *key])
        prompts = [self.build(tokenizer, length, rng, setting) for _ in range(samples)]
        for prompt in prompts:
            if len(prompt.ids) != length:
                raise Refused(
                    f"{self.name}: this tokenizer cannot make a prompt of {length} tokens, it is off by "
                    f"{len(prompt.ids) - length:+d}; choose other --lengths"
                )
        return prompts

    def measure(self, loaded: Loaded, length: int, prepared: Sequence[Prompt], setting: PromptSpec) -> Iterator[Score]:
        """One score a prompt, `setting.batch` prompts at a time."""

        def run(batch: Sequence[Prompt]) -> list[bool]:
            return retrieval_hits(loaded.model, loaded.tokenizer, batch)

        for number, prompt, hit, seconds in in_batches(prepared, setting.batch, run):
            yield Score(length, number, "accuracy", float(hit), seconds, prompt.key_position / length)


def _passkey(
    tokenizer: Any, length: int, rng: np.random.Generator, setting: PromptSpec, *, enhanced: str | None = None
) -> Prompt:
    return retrieval.passkey(tokenizer, length, rng, depth=setting.depth, enhanced=enhanced)


def _niah(tokenizer: Any, length: int, rng: np.random.Generator, setting: PromptSpec, *, haystack: str) -> Prompt:
    fillers = {
        "repeat": lambda: retrieval.repeated_sentences(tokenizer),
        "essay": lambda: retrieval.text_filler(setting.documents, rng),
        "noise": lambda: retrieval.random_sentences(tokenizer, rng),
    }
    return retrieval.needle(tokenizer, length, rng, filler=fillers[haystack](), depth=setting.depth)


_QUESTION = "passkey, enhanced: 'Q: what is the passkey in below text? ... A:'"
_ANSWER = "passkey, enhanced: 'Q: ... A: the passkey is'"

RETRIEVAL = (
    RetrievalTask("passkey", "the paper's passkey prompt", _passkey),
    RetrievalTask("passkey-question", _QUESTION, partial(_passkey, enhanced="question")),
    RetrievalTask("passkey-answer", _ANSWER, partial(_passkey, enhanced="answer")),
    RetrievalTask("niah-repeat", "RULER's single needle in repeated sentences", partial(_niah, haystack="repeat")),
    RetrievalTask(
        "niah-essay", "RULER's single needle in running text", partial(_niah, haystack="essay"), reads_documents=True
    ),
    RetrievalTask("niah-noise", "RULER's single needle in random words", partial(_niah, haystack="noise")),
    RetrievalTask("lines", "LongEval's lines", lambda *args: retrieval.lines(*args[:-1]), reads_depth=False),
)
PASSKEY = RETRIEVAL[0]
"""The task of every measured failure."""


NLL = Metric("nll", "nats/token")


@dataclass(frozen=True)
class Likelihood(EvalTask):
    """Mean negative log-likelihood of the last M/4 tokens of a text, the same tokens at every length."""

    name: str = "nll"
    about: str = "NLL of the same last M/4 tokens, by how many tokens they see"
    metrics: tuple[Metric, ...] = (NLL,)
    reads_documents: bool = True

    def tokens(self, length: int, setting: PromptSpec) -> int:
        """As for Task, of the runs that the texts hold."""
        is_held = sum(map(len, setting.documents)) >= max(setting.lengths)
        return length * (len(self._windows(setting, setting.samples)) if is_held else setting.samples)

    def least_samples(self, setting: PromptSpec) -> int:
        """As for Task: the texts may hold fewer runs than asked for."""
        return 1

    def logits(self, length: int, setting: PromptSpec) -> int:
        """As for Task: those of the scored tokens."""
        return tail_tokens(setting.trained_length)

    def prepare(self, tokenizer: Any, length: int, setting: PromptSpec, samples: int) -> Sequence[np.ndarray]:
        """Token ids of runs of text, the same for every length and method; the first special token included."""
        self._check_least(length, 2 * tail_tokens(setting.trained_length))
        return tail_prompts(self._windows(setting, samples), first_ids(tokenizer), length)

    def measure(self, loaded: Loaded, length: int, prepared: Sequence[Any], setting: PromptSpec) -> Iterator[Score]:
        """One score a run of text; text and method decide it, nothing is drawn."""
        tail = tail_tokens(setting.trained_length)
        for sample, ids in enumerate(prepared):
            started = time.perf_counter()
            value = float(nll(loaded.model, ids, tail, reduction="mean"))
            yield Score(length, sample, "nll", value, time.perf_counter() - started)

    def _windows(self, setting: PromptSpec, samples: int) -> list[np.ndarray]:
        tail = tail_tokens(setting.trained_length)
        return text_windows(setting.documents, max(setting.lengths), samples, tail)

    def _check_least(self, length: int, least: int) -> None:
        if length < least:
            raise Refused(f"{self.name}: length={length} is below {least} tokens; ask for at least {least}")


@dataclass(frozen=True)
class PositionLikelihood(Likelihood):
    """The same by position: of the tokens from each length to the next, in one pass over the longest."""

    name: str = "nll-position"
    about: str = "NLL by position in one pass: from the length before up to each length"

    def passes(self, setting: PromptSpec) -> tuple[int, ...]:
        """The longest length alone."""
        return (max(setting.lengths),)

    def scored(self, length: int, setting: PromptSpec) -> tuple[int, ...]:
        """Every length: it ends a bucket."""
        return setting.lengths

    def at_lengths(self, scores: Sequence[Score], setting: PromptSpec) -> list[Score]:
        """As for Task: a bucket that other lengths divide is the mean of its parts, by their tokens."""
        ends, lengths = sorted({score.length for score in scores}), sorted(setting.lengths)
        if {*ends} == {*lengths} or not {*lengths} <= {*ends}:
            return [*scores]
        tokens = {end: end - begin for begin, end in zip([1, *ends[:-1]], ends, strict=True)}
        merged = []
        for sample in dict.fromkeys(score.sample for score in scores):
            of = {score.length: score for score in scores if score.sample == sample}
            for begin, end in zip([0, *lengths[:-1]], lengths, strict=True):
                parts = [part for part in ends if begin < part <= end]
                value = np.average([of[part].value for part in parts], weights=[tokens[part] for part in parts])
                merged.append(replace(of[end], value=float(value)))
        return merged

    def tokens(self, length: int, setting: PromptSpec) -> int:
        """As for Task: its runs may overlap."""
        return length * setting.samples

    def logits(self, length: int, setting: PromptSpec) -> int:
        """As for Task: of all tokens."""
        return length

    def prepare(self, tokenizer: Any, length: int, setting: PromptSpec, samples: int) -> Sequence[np.ndarray]:
        """As for `Likelihood`, of the longest length."""
        self._check_least(min(setting.lengths), 8)
        first = np.array(first_ids(tokenizer), np.int64)
        windows = text_windows(setting.documents, max(setting.lengths) - len(first), samples)
        return [np.concatenate([first, window]) for window in windows]

    def measure(self, loaded: Loaded, length: int, prepared: Sequence[Any], setting: PromptSpec) -> Iterator[Score]:
        """One score a run of text and bucket of positions."""
        ends = sorted(setting.lengths)
        for sample, ids in enumerate(prepared):
            started = time.perf_counter()
            losses = nll(loaded.model, ids, len(ids) - 1).numpy()
            seconds = time.perf_counter() - started
            for begin, end in zip([1, *ends[:-1]], ends, strict=True):
                yield Score(end, sample, "nll", float(losses[begin - 1 : end - 1].mean()), seconds)


def tail_tokens(trained_length: int) -> int:
    """Tokens over which the tail likelihood is taken: a quarter of the trained window."""
    return max(1, trained_length // 4)


def tail_prompts(windows: Sequence[np.ndarray], first: Sequence[int] | np.ndarray, length: int) -> list[np.ndarray]:
    """The windows cut to `length` tokens at their start, `first` included: the same last tokens at every length."""
    return [np.array([*first, *window[len(window) - (length - len(first)) :]]) for window in windows]


TAIL = Likelihood()
"""The task of every measured failure."""


LIKELIHOOD = (TAIL, PositionLikelihood())


_SAMPLED_SECONDS = 0.005


@dataclass(frozen=True)
class Latency(EvalTask):
    """The paper's figure of memory and latency. Random tokens; the first run of a cell is not counted."""

    name: str = "latency"
    about: str = "seconds of a prefill and of a decoded token, peak memory above the model"
    metrics: tuple[Metric, ...] = (Metric("prefill", "s"), Metric("decode", "s/token"), Metric("peak_memory", "MiB"))
    is_timed: ClassVar[bool] = True
    decoded: int = 8
    most: int = 3
    """Samples a cell, if more are asked for: runs differ by little and take long."""

    def tokens(self, length: int, setting: PromptSpec) -> int:
        """As for Task, with the run that is not counted."""
        return length * (self.least_samples(setting) + 1)

    def least_samples(self, setting: PromptSpec) -> int:
        """As for Task: no more than `most`."""
        return min(setting.samples, self.most)

    def prepare(self, tokenizer: Any, length: int, setting: PromptSpec, samples: int) -> Sequence[np.ndarray]:
        """Random token ids."""
        rng = np.random.default_rng([setting.seed, length])
        return [rng.integers(0, len(tokenizer), length) for _ in range(min(samples, self.most))]

    def measure(
        self, loaded: Loaded, length: int, prepared: Sequence[np.ndarray], setting: PromptSpec
    ) -> Iterator[Score]:
        """Three scores a run. Peak memory is the device's own record, or the process's resident size, sampled.

        Raises what `states_checked` raises, of the run that is not counted.
        """
        with states_checked(loaded.model):
            self._run(loaded, prepared[0])
        for sample, ids in enumerate(prepared):
            for metric, value in zip(self.metrics, self._run(loaded, ids), strict=True):
                yield Score(length, sample, metric.name, value)

    @torch.no_grad()
    def _run(self, loaded: Loaded, ids: np.ndarray) -> tuple[float, float, float]:
        model: Any = loaded.model
        places = devices(model)
        rows = model.get_input_embeddings().weight.shape[0]  # a tokenizer may have more tokens
        tokens = torch.tensor(ids % rows, device=model.device)[None]
        given = with_cache(model, new_cache(model))
        with watched_peak(places) as peak:
            begin = _now(places)
            model(tokens, **given, **with_last_logits(model, 1))
            prefilled = _now(places)
            for _ in range(self.decoded):
                model(tokens[:, :1], **given, **with_last_logits(model, 1))
            end = _now(places)
        return prefilled - begin, (end - prefilled) / self.decoded, peak.bytes / 2**20


def _give_back() -> None:
    """Has glibc return freed memory to the system, so that using it again shows."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if trim is not None:
        trim(0)


def devices(model: torch.nn.Module) -> tuple[torch.device, ...]:
    """Where a model lies: one device, or the several that a device map puts it on."""
    unique = dict.fromkeys(parameter.device for parameter in model.parameters())
    return tuple(device for device in unique if device.type != "meta")  # meta: offloaded until needed


def _now(places: Sequence[torch.device]) -> float:
    return max(map(now, places))


@dataclass
class Peak:
    """Peak memory above what was in use at the start, in bytes."""

    bytes: int = 0


@contextmanager
def watched_peak(places: Sequence[torch.device]) -> Iterator[Peak]:
    """The peak of what runs inside: of the accelerators in sum, else of the process. Peaks do not nest on those."""
    peak, devices = Peak(), [device for device in places if is_accelerator(device)]
    if devices:
        for device in devices:
            torch.accelerator.reset_peak_memory_stats(device)
        base = sum(map(torch.accelerator.memory_allocated, devices))
        yield peak
        peak.bytes = sum(map(torch.accelerator.max_memory_allocated, devices)) - base
        return
    _give_back()
    process, done = psutil.Process(), threading.Event()
    base = process.memory_info().rss

    def watch() -> None:
        while not done.wait(_SAMPLED_SECONDS):
            peak.bytes = max(peak.bytes, process.memory_info().rss - base)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield peak
    finally:
        done.set()
        thread.join()
