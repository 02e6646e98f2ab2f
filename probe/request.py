"""The requests of the commands: every parameter with its type, default, limits and help. Loads no torch."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from mesa.checkpoints.place import placed
from mesa.methods import Method
from mesa.settings import check_names, fitting_methods
from mesa.support import check_config, length_choice
from mesa.support import trained_length as stated_length
from probe.capture.spec import CaptureSpec
from probe.options import (
    Count,
    CountOrZero,
    InputPath,
    JoinedNames,
    Lengths,
    Names,
    Number,
    RangeText,
    Repeated,
    Seed,
    Split,
    Text,
    Tokens,
    Window,
    check,
    option,
    options_in,
)

METHODS = "origin,rerope,dynamic-ntk,mesa"
"""The methods that a probe compares by default."""
_MODEL, _METHODS, _DATA = "model", "methods", "data"
_HARNESS = "lm-evaluation-harness, in place of --task"
_LENGTHS = "tokens, e.g. 256,512 or 1k:16k:1k"
_STORED = ("methods", "settings", "lengths")
"""Results are stored by method and length, with each method's parameters."""
_TEXT = "text for NLL, and for tasks that hide a needle in essays: a file, folder or hub dataset"

Kind = Literal["weave", "clamp", "smallest"]
Measure = Literal["nll", "passkey"]
Way = Literal["only", "without"]
Part = Literal["heads", "retrieval", "tokens"]


@dataclass(frozen=True)
class LoadOptions:
    """The options of `mesa.load`."""

    revision: Text | None = option(None, "branch, tag or commit on the hub", group=_MODEL)
    dtype: Text | None = option(
        None,
        "precision of the weights: float32, float16, bfloat16 or float64",
        group=_MODEL,
        unset="float32 on a CPU, else the checkpoint's",
    )
    device: Text = option("cpu", "where the model runs, e.g. cpu or cuda:0", group=_MODEL)
    device_map: Text | None = option(
        None, "spread the model over several devices, as in transformers, e.g. auto; instead of --device", group=_MODEL
    )
    trust_remote_code: bool = option(False, "allow Python code that comes with the checkpoint to run", group=_MODEL)


@dataclass(frozen=True)
class ModelOptions:
    """A model, with the options of `mesa.load`. trained_length: M in tokens; None: what the config states."""

    model: Text = option(
        "default",
        "default, nope, alibi (all shipped), smollm2 (after `mesa-lens fetch smollm2`), a local folder, a .gguf file, "
        "or a hub id",
        group=_MODEL,
    )
    load: Mapping[str, Any] = options_in(LoadOptions, build=dict, default=dict)
    trained_length: Window | None = option(
        None, "M, the length in tokens that the model was trained on", group=_MODEL, unset="from the model's config"
    )

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
        config = config_of(self.model, **self.source)
        check_config(config)
        return config

    def checked_model(self) -> tuple[Any, int]:
        """The model's config and M. Raises as `checked_config`, and Refused where nothing states M."""
        config = self.checked_config()
        if self.trained_length is not None:
            return config, self.trained_length
        length = stated_length(config)
        tell_length_choice(length_choice(config))
        return config, length

    def check_names(self) -> None:
        """Raises, before torch is loaded, for a model that is not there."""
        placed(self.model, **self.source)


@dataclass(frozen=True)
class ModelRequest(ModelOptions):
    """A model and methods by name; methods: None: those of `default_methods` that the model can have."""

    methods: JoinedNames | None = option(
        None,
        "names separated by commas, or all; `mesa-lens methods` lists them",
        group=_METHODS,
        unset="{default_methods}, without those that do not work on this model",
    )
    default_methods: ClassVar[str] = "all"
    not_compared: ClassVar[tuple[str, ...]] = ()

    def check_names(self) -> None:
        """Also for methods, and parameters of them, that are not known."""
        check_names(self.methods or self.default_methods, getattr(self, "settings", ()))
        super().check_names()

    """Fields that a resumed run may change: no result depends on them, or what is stored names their values."""

    @property
    def identity(self) -> dict[str, Any]:
        """By name every field but `not_compared`, those of `load` one by one: a resumed run must have the same."""
        fields = {name: value for name, value in asdict(self).items() if name not in (*self.not_compared, "load")}
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

    settings: Repeated = option(
        (),
        "change a parameter of a method, e.g. rerope.window=512; may be repeated",
        key="set",
        metavar="METHOD.PARAMETER=VALUE",
        repeated=True,
        group=_METHODS,
    )
    seed: Seed = option(0, "random seed; passages of text are spaced evenly whatever the seed")
    executor: Text = option(
        "fused", "how attention is computed: fused, or dense (plain; O(T^2) memory)", group=_METHODS
    )

    def checked_methods(self, config: Any, trained_length: int) -> dict[str, Method]:
        """Those of `fitting_methods`; what is left out is named on stderr."""
        from mesa.engine.plug import check_executor

        check_executor(self.executor)
        methods, left_out = self.fitting_methods(config, trained_length, self.settings)
        tell_left_out(left_out)
        return methods


@dataclass(frozen=True)
class ProbeRequest(MethodsRequest):
    """What a probe runs; `probe.plan.plan` fills in what depends on the model. Lengths in tokens.

    refine: further lengths measured of a method that fails, by bisection.
    """

    default_methods: ClassVar[str] = METHODS
    not_compared: ClassVar[tuple[str, ...]] = ("methods", "settings", "texts")
    length: Tokens | None = option(None, "tokens of the prompts whose hidden states are stored", unset="4 times M")
    word: Text = option("hello", "the word that the main prompt repeats", key="prompt")
    text: InputPath | None = option(
        None,
        "a text or .jsonl file to take text prompts from",
        unset="the shipped text",
        only=lambda request: request.texts or request.samples,
        only_text="with --texts or --samples above 0",
    )
    texts: CountOrZero = option(2, "text prompts to store as well as the repeated word")
    spec: CaptureSpec = options_in(CaptureSpec, build=CaptureSpec, default=CaptureSpec)
    samples: CountOrZero = option(
        20, "texts, and passkey prompts, at each length; 0 skips this measurement", group="measured failure"
    )
    lengths: Lengths | None = option(
        None,
        _LENGTHS,
        group="measured failure",
        unset="0.5, 1, 1.5, 2, 3, 4, 6, 8 times M, up to --length, where a prompt fits",
        only=lambda request: request.samples,
        only_text="with --samples above 0",
    )
    refine: CountOrZero | None = option(
        None,
        "narrow the failure length of each method that fails by N further lengths, halving the interval each time",
        group="measured failure",
        metavar="N",
        unset="1 where a forward pass takes at most 100 GFLOP, as on the shipped model, else 0",
    )


@dataclass(frozen=True)
class RuleOptions:
    """What onsets are read by."""

    rule: Literal["drift", "paper"] = option(
        "drift", "read onsets from drift of whole layers, or from thresholds of single dims as in the paper"
    )


@dataclass(frozen=True)
class EvalRequest(MethodsRequest):
    """What an evaluation runs; lengths in tokens. The rest as in `probe.tasks.base.Setting`."""

    not_compared: ClassVar[tuple[str, ...]] = (*_STORED, "tasks", "batch")
    tasks: Names = option(("passkey", "nll"), "names separated by commas; --list-tasks explains them", key="task")
    lengths: Lengths | None = option(None, _LENGTHS, unset="1, 2, 4, 8 times M, where a prompt fits")
    samples: Count = option(100, "prompts at each length")
    text: Text | None = option(None, _TEXT, group=_DATA, unset="the shipped one")
    data: Text | None = option(
        None, "documents with summaries: a .jsonl file, dataset folder or hub dataset", group=_DATA
    )
    depth: Annotated[Number, Field(ge=0, le=1)] | None = option(
        None, "where in the prompt the passkey stands, 0 (start) to 1 (end)", group=_DATA, unset="drawn uniformly"
    )
    new_tokens: Tokens = option(128, "most tokens to generate for a summary", group=_DATA)
    batch: Count = option(8, "prompts decoded at once; halved when memory runs out")


@dataclass(frozen=True)
class HarnessOptions:
    """Tasks of lm-eval."""

    list_tasks: bool = option(False, "print the tasks and stop")
    harness: Names | None = option(None, "lm-eval tasks, e.g. longbench_qasper,niah_single_1", group=_HARNESS)
    include_path: InputPath | None = option(None, "folder with further task definitions", group=_HARNESS)
    limit: Tokens | None = option(None, "documents of each task", group=_HARNESS, unset="all")


def _tried(*kinds: Kind) -> dict[str, Any]:
    """What an option says that only these kinds of trial read."""
    return {"only": lambda request: {*kinds} & {*request.kinds}, "only_text": f"with --try {' or '.join(kinds)}"}


@dataclass(frozen=True)
class LocateRequest(MethodsRequest):
    """What is tried inside a model; lengths in tokens, 4 M if None. Each method is compared with Origin.

    layers: to go over. heads: 'all', 'none', or the layers whose heads are gone over; None: all, if they are at most
    64. ways: of weaves. dims: clamped in a layer. candidates: heads that the smallest set is chosen from. word: the
    repeated word whose threshold dims are clamped.
    """

    default_methods: ClassVar[str] = "rerope"
    not_compared: ClassVar[tuple[str, ...]] = (*_STORED, "kinds", "measures", "layers", "heads", "ways", "candidates")
    kinds: Annotated[tuple[Kind, ...], Split] = option(
        ("weave", "clamp"),
        "weave: the method in one layer or head; clamp: hidden dims set to in-window values; smallest: fewest heads "
        "that restore 90%",
        key="try",
    )
    measures: Annotated[tuple[Measure, ...], Split] = option(
        ("nll",), "the loss of text, or of a passkey's answer", key="measure"
    )
    lengths: Lengths | None = option(None, _LENGTHS, unset="4 times M")
    samples: Count = option(8, "prompts at each length")
    layers: RangeText = option("all", "layers to try, e.g. 0-10, both ends included")
    heads: RangeText | None = option(
        None,
        "try every head of these layers, e.g. 15-19, all or none",
        unset="all, if the model has at most 64 heads",
        **_tried("weave", "smallest"),
    )
    ways: Annotated[tuple[Way, ...], Split] = option(
        ("only", "without"), "only: the method in that layer or head alone; without: everywhere else", **_tried("weave")
    )
    dims: Count = option(10, "threshold dims to clamp in each layer", **_tried("clamp"))
    candidates: Count = option(
        64, "choose the smallest set among this many heads, those that restore most alone", **_tried("smallest")
    )
    word: Text = option("hello", "threshold dims are chosen on this word, repeated", key="prompt", **_tried("clamp"))
    text: Text | None = option(
        None,
        _TEXT,
        unset="the shipped one",
        only=lambda request: "nll" in request.measures,
        only_text="with --measure nll",
    )


@dataclass(frozen=True)
class AnatomyRequest(MethodsRequest):
    """What is measured of attention; lengths in tokens, M and 4 M if None.

    samples: prompts a length. layers: kept in every part.
    """

    default_methods: ClassVar[str] = METHODS
    not_compared: ClassVar[tuple[str, ...]] = (*_STORED, "parts")
    parts: Annotated[tuple[Part, ...], Split] = option(
        ("heads", "retrieval"),
        "heads: what each attends to; retrieval: which copy a passkey; tokens: the loss and attention of every token",
    )
    lengths: Lengths | None = option(None, _LENGTHS, unset="M and 4 times M")
    samples: Count = option(4, "prompts at each length")
    layers: RangeText = option("all", "layers to store, e.g. 0-10, both ends included")
    text: Text | None = option(
        None,
        _TEXT,
        unset="the shipped one",
        only=lambda request: {"heads", "tokens"} & {*request.parts},
        only_text="with --parts heads or tokens",
    )


@dataclass(frozen=True)
class PredictRequest(MethodsRequest):
    """What is predicted, and from how many texts; lengths in tokens, 1.25, 1.5, 2, 3, 4, 6, 8 M if None."""

    configs: Repeated = option(
        (),
        "add a method with these parameters as a row of its own, e.g. leaky-rerope:k=2,log_n=false; may be repeated",
        key="config",
        metavar="METHOD:PARAMETER=VALUE,...",
        repeated=True,
        group=_METHODS,
    )
    lengths: Lengths | None = option(None, _LENGTHS, unset="1.25, 1.5, 2, 3, 4, 6, 8 times M")
    samples: Count = option(16, "texts; every measurement uses the same ones")
    text: Text | None = option(None, "text to score: a file, folder or hub dataset", unset="the shipped one")
    check: bool = option(False, "measure every method as well, and compare with the prediction")
    not_compared: ClassVar[tuple[str, ...]] = (*_STORED, "configs", "check")


@cache
def tell_length_choice(choice: str) -> None:
    """Says on stderr, once, which of two lengths a config's M is."""
    if choice:
        sys.stderr.write(f"{choice}\n")


def tell_left_out(left_out: Mapping[str, str]) -> None:
    """Says on stderr why something of a default set is left out."""
    for reason in left_out.values():
        sys.stderr.write(f"left out: {reason}\n")
