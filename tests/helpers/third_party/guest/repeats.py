"""A task: the loss of a second copy of random tokens."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch

from mesa.models import Loaded
from probe.eval_tasks.base import EvalTask, Metric, PromptSpec, Score


class Repeats(EvalTask):
    """Half of a prompt, again."""

    name, about, metrics = "repeats", "loss of a second copy of random tokens", (Metric("loss", "nats/token"),)

    def prepare(self, tokenizer: Any, length: int, setting: PromptSpec, samples: int) -> Sequence[torch.Tensor]:
        rng = np.random.default_rng([setting.seed, length])
        halves = rng.integers(5, len(tokenizer), (samples, length // 2))
        return [torch.tensor(np.resize(half, length))[None] for half in halves]

    @torch.no_grad()
    def measure(self, loaded: Loaded, length: int, prepared: Sequence[Any], setting: PromptSpec) -> Iterator[Score]:
        for number, ids in enumerate(prepared):
            logits = loaded.model(ids).logits[0, length // 2 - 1 : -1].float()
            yield Score(length, number, "loss", float(torch.nn.functional.cross_entropy(logits, ids[0, length // 2 :])))


REPEATS = Repeats()
