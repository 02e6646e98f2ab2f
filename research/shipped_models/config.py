"""What decides the trained weights: the recipes, and how row length and learning rate go with progress."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from probe.options import MAX_TOKENS, REQUIRED, Folder, Seed, Text, Whole, option

LENGTHS = (48, 64, 96, 128, 192, 256)
"""Lengths of the curriculum (tokens), the last one the trained window M."""
ARCHITECTURES = ("llama", "nope", "alibi")
"""Rotary embeddings; none at all (a Llama whose rotation is the identity); ALiBi (MPT's architecture)."""


@dataclass(frozen=True)
class TrainConfig:
    """Everything that decides the trained weights, apart from the interpreter's library and the torch version.

    curriculum: the part of the tokens over which rows grow. basics: the part that is read first, with more to copy.
    """

    architecture: str = "llama"
    tokens: int = 32_000_000
    tokens_per_step: int = 3072
    trained_length: int = 256
    vocabulary: int = 2048
    hidden: int = 256
    intermediate: int = 640
    layers: int = 4
    heads: int = 8
    learning_rate: float = 4e-3
    warmup_steps: int = 200
    weight_decay: float = 0.1
    curriculum: float = 0.4
    basics: float = 0.1
    seed: int = 0

    def __post_init__(self) -> None:
        """Raises ValueError for an unknown architecture."""
        if self.architecture not in ARCHITECTURES:
            raise ValueError(f"architecture={self.architecture!r} is unknown; known: {', '.join(ARCHITECTURES)}")

    @property
    def steps(self) -> int:
        """Steps of the whole training."""
        return self.tokens // self.tokens_per_step


RECIPES = {
    "default": TrainConfig(),
    "nope": TrainConfig(architecture="nope", tokens=16_000_000),
    "alibi": TrainConfig(architecture="alibi", tokens=16_000_000),
}
"""The shipped model and its siblings, by name; these read half as much: by then it had learnt its tasks."""


def length_at(progress: float, config: TrainConfig) -> int:
    """Length (tokens) of the rows at `progress` (0 to 1) of the training."""
    if progress >= config.curriculum:
        return config.trained_length
    return LENGTHS[int(progress / config.curriculum * (len(LENGTHS) - 1))]


def learning_rate_at(step: int, config: TrainConfig) -> float:
    """Linear warm-up, then a cosine to 2% of the peak."""
    warm = min(1.0, (step + 1) / config.warmup_steps)
    return config.learning_rate * warm * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * step / config.steps)))


LEAST = 3072
"""Tokens of one step of `research.shipped_models.train`."""


_TOKENS = ", ".join(f"{name} {recipe.tokens / 1e6:g} million" for name, recipe in RECIPES.items())


@dataclass(frozen=True)
class TrainOptions:
    """What is trained, and where it goes."""

    out: Folder = option(REQUIRED, "folder for checkpoint, tokenizer and card; an interrupted training continues in it")
    recipe: Literal["default", "nope", "alibi"] = option(
        "default", "the shipped model, or a sibling without positions (nope) or with ALiBi (alibi)"
    )
    tokens: Annotated[Whole, Field(ge=LEAST, le=MAX_TOKENS)] | None = option(
        None, "training tokens", unset=f"the recipe's: {_TOKENS}"
    )
    seed: Seed = option(0, "of all that is drawn")
    estimate: bool = option(False, "print the steps and time it takes, and stop")
    device: Text = option("cpu", "e.g. cpu or cuda:0")
