"""What probe, evaluation and study are all asked for: a model and the methods to put on it; and the check of both."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from mesa.engine.apply import check_executor
from mesa.methods import Method
from mesa.models import check_placement, config_of
from mesa.settings import make_methods
from mesa.support import check_config, check_method, unfit
from mesa.support import trained_length as stated_length


@dataclass(frozen=True)
class ModelRequest:
    """A model, with the options of `mesa.load`, and methods by name. trained_length: M in tokens; None: as stated.

    force: go on with what other weights, tokenizer, config or versions began; the record says so.
    """

    model: str = "default"
    load: Mapping[str, Any] = field(default_factory=dict)
    methods: str = "all"
    trained_length: int | None = None
    force: bool = False

    @property
    def source(self) -> dict[str, Any]:
        """The options with which config and tokenizer are read."""
        return {key: self.load.get(key) for key in ("revision", "trust_remote_code")}

    def checked_model(self) -> tuple[Any, int]:
        """The model's config and M. Raises ValueError or FileNotFoundError for what cannot be loaded or supported."""
        check_placement(self.load)
        config = config_of(self.model, **self.source)
        check_config(config)
        if self.trained_length is not None and self.trained_length < 2:
            raise ValueError(f"--trained-length {self.trained_length} is below 2")
        return config, stated_length(config) if self.trained_length is None else self.trained_length


@dataclass(frozen=True)
class MethodsRequest(ModelRequest):
    """The same with parameters of methods (as `mesa.settings` reads them), the seed of prompts, and the executor."""

    settings: tuple[str, ...] = ()
    seed: int = 0
    executor: str = "fused"

    def checked_methods(self, config: Any, trained_length: int) -> dict[str, Method]:
        """The methods by name. Raises ValueError for one that cannot be made or that the model cannot have.

        Of 'all', those that the model cannot have are left out and named on stderr.
        """
        check_executor(self.executor)
        kept, named = {}, [each.strip() for each in self.methods.split(",")]
        for name, method in make_methods(self.methods, trained_length, self.settings).items():
            try:
                check_method(config, method)
                kept[name] = method
            except ValueError as error:
                if name in named or not unfit(config, type(method)):
                    raise
                sys.stderr.write(f"left out: {error}\n")
        return kept
