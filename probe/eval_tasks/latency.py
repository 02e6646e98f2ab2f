"""Latency and memory by length: prefill, decoding, and peak memory above the loaded model."""

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import psutil
import torch
from transformers import DynamicCache

from mesa.device import is_accelerator, now
from mesa.finite import states_checked
from mesa.models import Loaded
from mesa.outside import with_cache, with_last_logits
from probe.eval_tasks.base import EvalTask, Metric, PromptSpec, Score

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
        model, places = loaded.model, devices(loaded.model)
        tokens = torch.tensor(ids, device=model.device)[None]
        given = with_cache(model, DynamicCache(config=model.config))
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
