"""The model of a run, as each worker loads it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self

import torch

from mesa.errors import Refused
from mesa.fingerprints import identity
from mesa.models import Loaded, bytes_a_number, config_of, load, model_class


@dataclass(frozen=True)
class ModelSpec:
    """A model's name, the options of `mesa.load`, and its fingerprints on the machine that started the run."""

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)
    fingerprints: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, name: str, options: Mapping[str, object], config: Any) -> ModelSpec:
        """The model with this config, with the fingerprints of this machine."""
        return cls(name, options, identity(name, config))

    def loaded(self) -> Loaded:
        """Loads the model."""
        return load(self.name, **self.options)

    def check(self) -> None:
        """Raises Refused where this machine has another model, tokenizer or versions under the name."""
        local = identity(self.name, self._config)
        differing = [name for name, value in self.fingerprints.items() if local[name] != value]
        if differing:
            raise Refused(
                f"a worker has other {', '.join(differing)} of {self.name} than this machine: "
                f"{local[differing[0]]} in place of {self.fingerprints[differing[0]]}; give all machines the same"
            )

    @property
    def on_gpu(self) -> bool:
        """Whether the model is placed on GPUs."""
        return bool(self.options.get("device_map")) or not str(self.options.get("device") or "cpu").startswith("cpu")

    @property
    def weights_bytes(self) -> int:
        """Memory of all weights; loads none."""
        with torch.device("meta"):
            trusted = bool(self.options.get("trust_remote_code"))
            model = model_class().from_config(self._config, trust_remote_code=trusted)
        count = sum(parameter.numel() for parameter in model.parameters())
        return count * bytes_a_number(self._config, self.options)

    @property
    def _config(self) -> Any:
        return config_of(self.name, **{key: self.options.get(key) for key in ("revision", "trust_remote_code")})


@dataclass(frozen=True)
class PlanWorker:
    """What measures the tasks of a plan: the plan without its config, and the model that it is for, as plain data."""

    plan: Any
    source: ModelSpec

    @classmethod
    def of(cls, plan: Any, **more: Any) -> Self:
        """The worker of a plan. more: the fields of a subclass."""
        request = plan.request
        return cls(replace(plan, config=None), ModelSpec.of(request.model, request.load, plan.config), **more)

    def start(self, memory_bytes: int | None = None) -> Callable[[Any], Any]:
        """As for `Worker`."""
        raise NotImplementedError
