"""The whole path of a probe run: check, capture, measure, store, analyse, report."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from mesa.engine.plug import check_executor
from mesa.methods import Method
from mesa.models import (
    Loaded,
    bytes_a_number,
    check_placement,
    chosen_dtype,
    config_of,
    load,
    origin,
)
from mesa.settings import make_methods
from mesa.support import check_config, check_method
from mesa.support import trained_length as stated_length
from probe.capture.bridge import bridge_to
from probe.capture.capture import capture
from probe.capture.memory import check_memory, peak_bytes, prompt_bytes
from probe.capture.spec import CaptureSpec, Kept
from probe.evaluation.by_length import check_lengths, default_lengths, evaluate
from probe.inputs import check_values, prepare
from probe.report import write_report
from probe.store import store
from probe.thresholds.analysis import table
from probe.thresholds.search import CrossingRule, check_positions

REPEATED = "repeated"
"""Name of the paper's prompt: one word, repeated."""

_PACKAGES = ("mesa-lens", "torch", "transformers", "transformer-lens", "numpy", "xarray", "zarr")


@dataclass(frozen=True)
class ProbeRequest:
    """What a run is asked for; `plan` fills in what depends on the model. Lengths in tokens."""

    model: str = "default"
    load: Mapping[str, Any] = field(default_factory=dict)
    methods: str = "origin,rerope,dynamic-ntk,mesa"
    settings: tuple[str, ...] = ()
    trained_length: int | None = None
    length: int | None = None
    word: str = "hello"
    text: Path | None = None
    texts: int = 2
    spec: CaptureSpec = field(default_factory=CaptureSpec)
    samples: int = 20
    lengths: tuple[int, ...] | None = None
    seed: int = 0
    executor: str = "fused"


@dataclass(frozen=True)
class ProbePlan:
    """A request, checked against the model's config: nothing here needs the weights."""

    request: ProbeRequest
    methods: dict[str, Method]
    trained_length: int
    length: int
    lengths: tuple[int, ...]
    kept: Kept
    config: Any

    @property
    def prompts(self) -> list[str]:
        """Names of the prompts."""
        return [REPEATED, *(f"text-{index}" for index in range(self.request.texts))]

    @property
    def kept_bytes(self) -> int:
        """Size of the store on disk."""
        numbers = self.kept.values * len(self.request.spec.hooks) * len(self.methods) * len(self.prompts)
        return numbers * np.dtype(self.request.spec.dtype).itemsize

    @property
    def pass_bytes(self) -> int:
        """Estimate of the memory of the largest pass, captured or measured, beside the weights; where the model is."""
        each = bytes_a_number(self.config, self.request.load)
        captured = peak_bytes(self.config, self.length, each, 0)
        longest = max(self.lengths) if self.request.samples else 0
        scores = self.config.num_attention_heads * max(self.length, longest) ** 2  # of one layer
        dense = 3 * 4 * scores if self.request.executor == "dense" else 0
        return max(captured, prompt_bytes(self.config, longest, each)) + dense

    @property
    def host_bytes(self) -> int:
        """Estimate of the memory for captured values: a prompt's under one method, or the report's, under all."""
        one = 4 * self.kept.values
        around = min(len(self.kept.positions), 2 * self.trained_length) / len(self.kept.positions)
        return max(one * len(self.request.spec.hooks), 7 * one, int(2 * around * len(self.methods) * one))


def plan(request: ProbeRequest) -> ProbePlan:
    """Checks the request against the model's config. Raises ValueError or FileNotFoundError, naming the value."""
    check_placement(request.load)
    config = config_of(request.model, **{key: request.load.get(key) for key in ("revision", "trust_remote_code")})
    check_config(config)
    trained_length = request.trained_length or stated_length(config)
    length = request.length or 4 * trained_length
    rule = CrossingRule.scaled(trained_length)
    if length <= trained_length + rule.sustained:
        raise ValueError(
            f"--length {length} is not far enough beyond the trained length {trained_length}; "
            f"take e.g. {4 * trained_length}"
        )
    check_executor(request.executor)
    if request.texts < 0 or request.samples < 0:
        raise ValueError(f"--texts {request.texts} and --samples {request.samples} must not be negative")
    if request.text is not None and not request.text.is_file():
        raise FileNotFoundError(f"--text {request.text} is not a file")
    lengths = request.lengths or tuple(default_lengths(trained_length, length))
    if request.samples:
        check_lengths(lengths, trained_length)
    kept = request.spec.resolve(config, length)
    if request.spec.positions is not None:
        check_positions(kept.positions, trained_length, rule)
    methods = make_methods(request.methods, trained_length, request.settings)
    for method in methods.values():
        check_method(config, method)
    return ProbePlan(
        request,
        methods,
        trained_length,
        length,
        lengths,
        kept,
        config,
    )


def estimate(request: ProbeRequest) -> str:
    """Memory and disk that the run needs, as text; loads no weights."""
    made = plan(request)
    kept = made.kept
    return (
        f"model {request.model}, trained length M = {made.trained_length}, captured length {made.length} tokens\n"
        f"kept: {len(request.spec.hooks)} hook(s) x {len(made.methods)} method(s) x {len(made.prompts)} prompt(s) x "
        f"{len(kept.layers)} layer(s) x {len(kept.positions)} position(s) x {len(kept.dims)} dim(s)\n"
        f"memory for one pass, beside the weights: about {made.pass_bytes / 2**20:.0f} MiB; for captured values: about "
        f"{made.host_bytes / 2**20:.0f} MiB\n"
        f"disk: {made.kept_bytes / 2**20:.0f} MiB"
    )


def run_probe(request: ProbeRequest, out: Path, *, overwrite: bool = False) -> tuple[dict[str, Any], str]:
    """Runs it all into the folder `out`; returns the summary (as in summary.json) and its table as text.

    Everything that can be checked is checked before the weights are loaded. The store appears under its name only
    when it is whole. Raises FileExistsError for a store that is there already, unless `overwrite`.
    """
    made = plan(request)
    _check_memory(made)
    prepared = prepare(made)
    path = out / "store.zarr"
    store.create(
        path,
        methods=list(made.methods),
        prompts=made.prompts,
        layers=made.kept.layers,
        positions=made.kept.positions,
        dims=made.kept.dims,
        hooks=request.spec.hooks,
        dtype=request.spec.dtype,
        attrs=provenance(made),
        overwrite=overwrite,
    )
    try:
        _fill(made, prepared, path)
    except BaseException:
        store.discard(path)
        raise
    summary = write_report(out)
    heading = f"model {request.model}, trained length M = {made.trained_length} tokens, captured {made.length}\n\n"
    return summary, f"{heading}{table(summary)}\n\nwrote {out / 'report.html'}"


def _check_memory(made: ProbePlan) -> None:
    """MemoryError where captured values or a pass cannot fit; a device map places the model wherever there is room."""
    options = made.request.load
    device = options.get("device") or "cpu"
    if options.get("device_map") or not str(device).startswith("cpu"):
        check_memory(made.host_bytes, made.length)
        if not options.get("device_map"):
            check_memory(made.pass_bytes, made.length, device)
    else:
        check_memory(made.pass_bytes + made.host_bytes, made.length)


def _fill(made: ProbePlan, prepared: tuple[list[np.ndarray], dict[str, list[int]]], path: Path) -> None:
    request, (documents, tokens) = made.request, prepared
    loaded = load(request.model, **request.load)
    check_values(loaded, made, next(iter(tokens.values())))
    if request.samples:  # before the capture: the bridge wraps the model
        measured = evaluate(
            loaded, made.methods, made.lengths, request.samples, request.seed, documents, request.executor
        )
        store.write_evaluation(path, measured)
    _capture_all(loaded, made, tokens, path)
    store.finish(path)


def _capture_all(loaded: Loaded, made: ProbePlan, tokens: Mapping[str, list[int]], path: Path) -> None:
    bridge = bridge_to(loaded.model, loaded.tokenizer)
    hooks, kept = made.request.spec.hooks, made.kept
    with tqdm(total=len(made.methods) * len(tokens), desc="capturing hidden states", unit="pass") as bar:
        for name, method in made.methods.items():
            for prompt, ids in tokens.items():
                values = capture(bridge, ids, method, hooks, kept, executor=made.request.executor)
                for hook, layers in values.items():
                    for layer, states in zip(kept.layers, layers, strict=True):
                        store.write(path, hook, name, prompt, layer, states)
                bar.update()


def provenance(made: ProbePlan) -> dict[str, Any]:
    """The attributes that the plan's store is given: everything that its numbers depend on."""
    request = made.request
    return {
        "trained_length": made.trained_length,
        "length": made.length,
        "model": request.model,
        "model_type": made.config.model_type,
        **origin(request.model, made.config, request.load.get("revision")),
        "source_dtype": chosen_dtype(made.config, request.load),
        "method_configs": json.dumps({name: method.describe() for name, method in made.methods.items()}),
        "executor": request.executor,
        "spec": json.dumps(asdict(request.spec)),
        "word": request.word,
        "text": str(request.text or "shipped held-out text"),
        "lengths": json.dumps(made.lengths if request.samples else []),
        "samples": request.samples,
        "seed": request.seed,
        "versions": json.dumps({package: version(package) for package in _PACKAGES}),
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
    }
