"""What the requests of all commands share: model, methods, seed, and notes on them to stderr. Loads no torch."""

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import Field

from mesa.checkpoints.place import place_with_options
from mesa.errors import Refused
from mesa.methods import Method
from mesa.settings import check_names, fitting_methods, read_configs
from mesa.support import (
    as_trained_text,
    check_acts,
    check_config,
    check_method,
    length_choice,
    trained_length as stated_length,
    windows_of,
)
from probe.options import (
    Count,
    JoinedNames,
    Lengths,
    Names,
    Number,
    Repeated,
    Seed,
    Text,
    TextName,
    Window,
    check,
    option,
    options_in,
)

METHODS = "origin,rerope,dynamic-ntk,mesa"
"""The methods that a probe compares by default."""
MODEL_GROUP, METHODS_GROUP, DATA_GROUP = "model", "methods", "data"
LENGTHS_HELP = "tokens, e.g. 256,512 or 1k:16k:1k"
STORED = ("methods", "method_settings", "lengths")
"""Results are stored by method and length, with each method's parameters."""
TEXT_HELP = "a file, folder or hub dataset"


@dataclass(frozen=True)
class SourceOptions:
    """The options of `mesa.load` with which config and tokenizer are read."""

    revision: Text | None = option(None, "branch, tag or commit on the hub", group=MODEL_GROUP)
    trust_remote_code: bool = option(
        False, "allow Python code that comes with the checkpoint to run", group=MODEL_GROUP
    )


@dataclass(frozen=True)
class LoadOptions(SourceOptions):
    """The options of `mesa.load`."""

    dtype: Text | None = option(
        None,
        "precision of the weights: float32, float16, bfloat16 or float64",
        group=MODEL_GROUP,
        unset="float32 on a CPU, else the checkpoint's",
    )
    device: Text = option("cpu", "where the model runs, e.g. cpu or cuda:0", group=MODEL_GROUP)
    device_map: Text | None = option(
        None,
        "spread the model over several devices, as in transformers, e.g. auto; instead of --device",
        group=MODEL_GROUP,
    )


@dataclass(frozen=True)
class ModelOptions:
    """A model, with the options of `mesa.load`. trained_length: M in tokens; None: what the config states."""

    model: Text = option(
        "default",
        "default, nope, alibi (all shipped), smollm2, gemma3-270m (after `mesa-lens fetch`), a local folder, a .gguf "
        "file, or a hub id",
        group=MODEL_GROUP,
    )
    load: Mapping[str, Any] = options_in(LoadOptions, build=dict, default=dict)
    trained_length: Window | None = option(
        None,
        "M, the length in tokens that the model was trained on",
        group=MODEL_GROUP,
        unset="from the model's config",
    )
    converts: ClassVar[bool] = True
    """Whether a GGUF file is converted before its config is read: its weights are loaded next."""

    @property
    def source(self) -> dict[str, Any]:
        """The options with which config and tokenizer are read."""
        return {key: self.load.get(key) for key in ("revision", "trust_remote_code")}

    def checked_config(self) -> Any:
        """The model's config.

        Raises Refused for an option out of its limits and for a model that is not supported, FileNotFoundError for
        one that is not there.
        """
        from mesa.models import check_placement, config_of

        check(self)
        check_placement(self.load)
        config = config_of(self.model, convert=self.converts, **self.source)
        check_config(config)
        return config

    def checked_model(self) -> tuple[Any, int]:
        """The model's config and M. Raises as `checked_config`, and Refused where nothing states M."""
        config = self.checked_config()
        if self.trained_length is not None:
            return config, self.trained_length
        length = stated_length(config)
        say_once(length_choice(config))
        return config, length

    def trained_length_by(self, config: Any) -> str:
        """What states M: the config, or the option, with what the config says instead."""
        try:
            by_config = stated_length(config)
        except Refused:
            return "--trained-length; its config states none"
        is_stated = self.trained_length not in (None, by_config)
        return f"--trained-length; its config says {by_config}" if is_stated else "its config"

    @staticmethod
    def as_trained(config: Any, trained_length: int) -> str:
        """Which layers stay as trained under every method, and why; empty for none."""
        return as_trained_text(windows_of(config), trained_length)

    def check_names(self) -> None:
        """Raises, before torch is loaded, for a model that is not there."""
        place_with_options(self.model, **self.source)


@dataclass(frozen=True)
class ModelRequest(ModelOptions):
    """A model and methods by name; methods: None: those of `default_methods` that the model can have."""

    methods: JoinedNames | None = option(
        None,
        "names separated by commas, or all; `mesa-lens methods` lists them",
        group=METHODS_GROUP,
        unset="{default_methods}, without those that do not work on this model",
    )
    default_methods: ClassVar[str] = "all"
    not_compared: ClassVar[tuple[str, ...]] = ()
    """Fields that a resumed run may change: no result depends on them, or what is stored names their values."""

    def check_names(self) -> None:
        """Also for methods, and parameters of them, that are not known."""
        check_names(self.methods or self.default_methods, getattr(self, "method_settings", ()))
        super().check_names()

    @property
    def identity(self) -> dict[str, Any]:
        """By name every field but `not_compared`, those of `load` one by one: a resumed run must have the same."""
        fields = {name: value for name, value in asdict(self).items() if name not in (*self.not_compared, "load")}
        fields = {name: str(value) if isinstance(value, Path) else value for name, value in fields.items()}
        return {**fields, **{name: value for name, value in self.load.items() if value is not None}}

    def fitting_methods(
        self, config: Any, trained_length: int, settings: Sequence[str] = ()
    ) -> tuple[dict[str, Method], dict[str, str]]:
        """The methods by name; and, of 'all' or a default set, why some are left out, see `mesa.settings`."""
        names, by_default = self.methods or self.default_methods, self.methods is None
        return fitting_methods(names, trained_length, settings, config, by_default=by_default)


@dataclass(frozen=True)
class MethodsRequest(ModelRequest):
    """The same with parameters of methods (as `mesa.settings` reads them), the seed of prompts, and the executor."""

    method_settings: Repeated = option(
        (),
        "change a parameter of a method, e.g. rerope.window=512; may be repeated",
        key="set",
        metavar="METHOD.PARAMETER=VALUE",
        repeated=True,
        group=METHODS_GROUP,
    )
    seed: Seed = option(0, "random seed; passages of text are spaced evenly whatever the seed")
    executor: Text = option(
        "fused", "how attention is computed: fused, or dense (to compare with; O(T^2) memory)", group=METHODS_GROUP
    )

    def checked_methods(self, config: Any, trained_length: int) -> dict[str, Method]:
        """Those of `fitting_methods`; what is left out is named on stderr."""
        from mesa.engine.attention import check_executor

        check_executor(self.executor)
        methods, left_out = self.fitting_methods(config, trained_length, self.method_settings)
        warn_skipped(left_out)
        say_once(self.as_trained(config, trained_length))
        return methods


@dataclass(frozen=True)
class ConfigsRequest(MethodsRequest):
    """The same with methods that have parameters, each in its own row: several configs of a method in one run."""

    configs: Repeated = option(
        (),
        "add a method with these parameters in its own row, e.g. leaky-rerope:k=2,log_n=false; may be repeated",
        key="config",
        metavar="METHOD:PARAMETER=VALUE,...",
        repeated=True,
        group=METHODS_GROUP,
    )

    def checked_methods(self, config: Any, trained_length: int) -> dict[str, Method]:
        """Then `configs`, by their texts."""
        configs = read_configs(self.configs, trained_length)
        for method in configs.values():
            check_method(config, method)
            check_acts(config, method)
        return super().checked_methods(config, trained_length) | configs


def reference_method(methods: Sequence[str]) -> str:
    """The method that others are compared with, and that thresholds are read from: Origin, or the first."""
    return "origin" if "origin" in methods else methods[0]


said = set[str]()
"""What this command has said on stderr; each command clears it."""
_noted: ContextVar[list[str] | None] = ContextVar("noted", default=None)


@contextmanager
def noted() -> Iterator[list[str]]:
    """What plans made inside would say: a list in place of stderr, for plans that are only tried."""
    notes = list[str]()
    token = _noted.set(notes)
    try:
        yield notes
    finally:
        _noted.reset(token)


def say(note: str) -> None:
    """A line on stderr about what a plan chose by itself; inside `noted` it goes into the list."""
    if (notes := _noted.get()) is not None:
        notes.append(note)
    else:
        said.add(note)
        sys.stderr.write(f"{note}\n")


def say_once(note: str) -> None:
    """The same of what was taken from a config, if anything needs saying, once."""
    if note and note not in said:
        say(note)


def warn_skipped(left_out: Mapping[str, str]) -> None:
    """Says why something of a default set is left out."""
    for reason in left_out.values():
        say(f"left out: {reason}")


@dataclass(frozen=True)
class EvalRequest(MethodsRequest):
    """What `run_evaluation` scores: a model, methods, tasks and lengths in tokens.

    Its fields are the options of `mesa-lens eval`; docs/commands.md lists them with their defaults
    (`method_settings` is --set, `tasks` --task).

    Examples:
        >>> request = probe.EvalRequest(tasks=("passkey",), methods="origin,mesa", lengths=(256, 512), samples=10)
        >>> request.tasks, request.batch
        (('passkey',), 8)
    """

    not_compared: ClassVar[tuple[str, ...]] = (*STORED, "tasks", "batch")
    tasks: Names = option(("passkey", "nll"), "names separated by commas; --list-tasks explains them", key="task")
    lengths: Lengths | None = option(None, LENGTHS_HELP, unset="1, 2, 4, 8x M, where a prompt fits")
    samples: Count = option(100, "prompts at each length")
    text: TextName | None = option(
        None,
        f"text for NLL, and for tasks that hide a needle in essays: {TEXT_HELP}",
        group=DATA_GROUP,
        unset="the shipped one",
    )
    depth: Annotated[Number, Field(ge=0, le=1)] | None = option(
        None, "where in the prompt the passkey stands, 0 (start) to 1 (end)", group=DATA_GROUP, unset="drawn uniformly"
    )
    batch: Count = option(8, "prompts decoded at once; halved when memory runs out")
