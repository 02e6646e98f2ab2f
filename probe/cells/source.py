"""The model of a run, as each worker loads it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from mesa.fingerprints import identity
from mesa.models import Loaded, bytes_a_number, config_of, load


@dataclass(frozen=True)
class Source:
    """A model by name, the options of `mesa.load`, and the fingerprints that it has where the run was asked for.

    beside: other models that workers load.
    """

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)
    known: Mapping[str, str] = field(default_factory=dict)
    beside: tuple[Source, ...] = ()

    @classmethod
    def of(cls, name: str, options: Mapping[str, Any], config: Any, beside: tuple[Source, ...] = ()) -> Source:
        """The model that has this config here."""
        return cls(name, options, identity(name, config), beside)

    def loaded(self) -> Loaded:
        """The model."""
        return load(self.name, **self.options)

    def check(self) -> None:
        """Raises ValueError where this machine has another model, tokenizer or versions under the name."""
        chosen = {key: self.options.get(key) for key in ("revision", "trust_remote_code")}
        found = identity(self.name, config_of(self.name, **chosen))
        differing = [what for what, known in self.known.items() if found[what] != known]
        if differing:
            raise ValueError(
                f"a worker has other {', '.join(differing)} of {self.name} than this machine: "
                f"{found[differing[0]]} in place of {self.known[differing[0]]}; give all machines the same"
            )
        for each in self.beside:
            each.check()

    @property
    def on_gpu(self) -> bool:
        """Whether the model is asked onto GPUs."""
        return bool(self.options.get("device_map")) or not str(self.options.get("device") or "cpu").startswith("cpu")

    @property
    def weights_bytes(self) -> int:
        """Memory of all weights; loads none."""
        chosen = {key: self.options.get(key) for key in ("revision", "trust_remote_code")}
        config = config_of(self.name, **chosen)
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config, trust_remote_code=bool(chosen["trust_remote_code"]))
        own = sum(each.numel() for each in model.parameters()) * bytes_a_number(config, self.options)
        return own + sum(each.weights_bytes for each in self.beside)
