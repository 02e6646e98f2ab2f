"""Where a training stands: kept beside the checkpoint, so that the same command goes on to the same weights."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from research.shipped_models.config import TrainConfig

STATE = "training-state.pt"
"""The file in the folder of an unfinished training."""


@dataclass
class Training:
    """Model, optimizers and stream of rows, after `step` steps. Nothing else is drawn from once the model is made."""

    model: Any
    optimizers: list[torch.optim.Optimizer]
    rng: np.random.Generator
    step: int = 0
    seen: int = 0
    seconds: float = 0.0
    log: list[dict[str, Any]] = field(default_factory=list)

    def save(self, out: Path, config: TrainConfig) -> None:
        """Writes the state to `out`, whole or not at all."""
        state = {
            "config": asdict(config),
            "model": self.model.state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
            "rng": self.rng.bit_generator.state,
            **{name: getattr(self, name) for name in ("step", "seen", "seconds", "log")},
        }
        unfinished = out / f".{STATE}.partial"
        try:
            torch.save(state, unfinished)
            os.replace(unfinished, out / STATE)
        finally:
            unfinished.unlink(missing_ok=True)

    def restore(self, out: Path, config: TrainConfig) -> None:
        """Goes on from what `save` wrote to `out`. Raises ValueError for the state of another config."""
        state = torch.load(out / STATE, map_location=self.model.device)
        given, begun = asdict(config), state["config"]
        other = [f"{name} {begun.get(name)}, not {value}" for name, value in given.items() if begun.get(name) != value]
        if other:
            raise ValueError(f"--out {out} was begun with {', '.join(other)}; give the same, or name another folder")
        self.model.load_state_dict(state["model"])
        for optimizer, each in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(each)
        self.rng.bit_generator.state = state["rng"]
        for name in ("step", "seen", "seconds", "log"):
            setattr(self, name, state[name])
