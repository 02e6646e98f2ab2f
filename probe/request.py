"""What probe, evaluation and study are all asked for: a model and the methods to put on it; and the check of both."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from mesa.engine.apply import check_executor
from mesa.methods import Method
from mesa.models import check_placement, config_of
from mesa.settings import fitting_methods
from mesa.support import check_config
from mesa.support import trained_length as stated_length


@dataclass(frozen=True)
class ModelRequest:
    """A model, with the options of `mesa.load`, and methods by name. trained_length: M in tokens; None: as stated.

    methods: None: those of `default_methods` that the model can have.
    force: go on with what other weights, tokenizer, config or versions began; the record says so.
    """

    model: str = "default"
    load: Mapping[str, Any] = field(default_factory=dict)
    methods: str | None = None
    trained_length: int | None = None
    force: bool = False
    default_methods: ClassVar[str] = "all"

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

    def fitting_methods(
        self, config: Any, trained_length: int, settings: Sequence[str] = ()
    ) -> tuple[dict[str, Method], dict[str, str]]:
        """The methods by name; and, of 'all' or a default set, why some are left out, see `mesa.settings`."""
        names, by_default = self.methods or self.default_methods, self.methods is None
        return fitting_methods(names, trained_length, settings, config, by_default=by_default)


@dataclass(frozen=True)
class MethodsRequest(ModelRequest):
    """The same with parameters of methods (as `mesa.settings` reads them), the seed of prompts, and the executor."""

    settings: tuple[str, ...] = ()
    seed: int = 0
    executor: str = "fused"

    def checked_methods(self, config: Any, trained_length: int) -> dict[str, Method]:
        """Those of `fitting_methods`; what is left out is named on stderr."""
        check_executor(self.executor)
        kept, left_out = self.fitting_methods(config, trained_length, self.settings)
        tell_left_out(left_out)
        return kept


def tell_left_out(left_out: Mapping[str, str]) -> None:
    """Says on stderr why something of a default set is left out."""
    for reason in left_out.values():
        sys.stderr.write(f"left out: {reason}\n")
