"""A probe run, checked against the model's config; needs no weights."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence, Sized
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from functools import cached_property
from importlib.metadata import version
from typing import Any

import numpy as np

from mesa.errors import Refused
from mesa.methods import Method
from mesa.models import bytes_a_number, chosen_dtype, origin, tokenizer_of
from probe.capture.memory import check_prompts, pass_flops, peak_bytes, prompt_bytes
from probe.capture.spec import Selection
from probe.commands.eval import by_length
from probe.commands.eval.by_length import check_lengths, default_lengths
from probe.commands.eval.plan import EvalPlan, unfit_length
from probe.commands.eval.request import EvalRequest
from probe.commands.probe.request import ProbeRequest
from probe.eval_tasks.base import PromptSpec
from probe.eval_tasks.retrieval import repeated_word, word_ids
from probe.eval_tasks.retrieval_tasks import PASSKEY
from probe.eval_tasks.sources import check_there
from probe.files import JsonObject
from probe.identity import SHIPPED_TEXT
from probe.request import MethodsRequest, warn_skipped
from probe.store.store import Template
from probe.thresholds.search import CrossingRule, check_positions

REPEATED = "repeated"
"""Name of the paper's prompt: one word, repeated."""

_COPIES = 16
"""Copies of a layer's values that a report holds at a time, beside one a method: the search's, in both its threads."""

HALVINGS = 1
CHEAP = 1e11
"""Operations of a pass at the longest measured length up to which further lengths are measured by default."""

_PACKAGES = ("mesa-lens", "torch", "transformers", "transformer-lens", "numpy", "xarray", "zarr")


@dataclass(frozen=True)
class ProbePlan:
    """A request with what depends on the model's config; needs no weights."""

    request: ProbeRequest
    methods: dict[str, Method]
    trained_length: int
    length: int
    lengths: tuple[int, ...]
    kept: Selection
    config: Any

    @cached_property
    def first_token(self) -> str:
        """What is put before the repeated word where the tokenizer puts nothing; else empty."""
        return repeated_word(tokenizer_of(self.request.model, **self.request.source), self.request.word, 2)[1]

    @cached_property
    def period(self) -> int:
        """Tokens of the repeated word."""
        return len(word_ids(tokenizer_of(self.request.model, **self.request.source), self.request.word))

    @property
    def refine(self) -> int:
        """Further lengths of a method that fails: as requested, else by what a pass of the longest length takes."""
        if self.request.refine is not None:
            return self.request.refine
        return HALVINGS if self.request.samples and pass_flops(self.config, max(self.lengths)) <= CHEAP else 0

    @property
    def prompts(self) -> list[str]:
        """Names of the prompts."""
        return [REPEATED, *(f"text-{index}" for index in range(self.request.texts))]

    @property
    def kept_bytes(self) -> int:
        """Size of the store on disk."""
        numbers = self.kept.values * len(self.kept.layers) * len(self.methods) * len(self.prompts)
        return numbers * np.dtype(self.request.spec.dtype).itemsize

    @property
    def pass_bytes(self) -> int:
        """Estimate of the memory of the largest pass, captured or measured, beside the weights; where the model is."""
        number = bytes_a_number(self.config, self.request.load)
        captured = peak_bytes(self.config, self.length, number, 0)
        longest = max(self.lengths) if self.request.samples else 0
        scores = self.config.num_attention_heads * max(self.length, longest) ** 2  # of one layer
        dense = 3 * 4 * scores if self.request.executor == "dense" else 0
        return max(captured, prompt_bytes(self.config, longest, number)) + dense

    @property
    def host_bytes(self) -> int:
        """Estimate of the memory for captured values: those of one pass, and what the report holds.

        That is one layer at a time, once under every method (its colour scale) and in the copies of the search.
        """
        layer = 4 * len(self.kept.positions) * len(next(iter(self.kept.axes.values()))["dim"])
        return 4 * self.kept.values * len(self.kept.layers) + layer * (len(self.methods) + _COPIES)


def plan(request: ProbeRequest) -> ProbePlan:
    """Checks the request against the model's config. Raises Refused or FileNotFoundError, naming the value."""
    config, trained_length = request.checked_model()
    length = 4 * trained_length if request.length is None else request.length
    rule = CrossingRule.scaled(trained_length)
    if length <= trained_length + rule.sustained:
        raise Refused(
            f"--length {length} is not far enough beyond the trained length {trained_length}; "
            f"take e.g. {4 * trained_length}"
        )
    if request.refine and not request.samples:
        raise Refused(f"--refine {request.refine} with --samples 0: it measures further lengths")
    if request.text is not None:
        check_there(str(request.text))
    check_prompts(length, 1 + request.texts, "--length")
    lengths = _default_lengths(request, trained_length, length) if request.lengths is None else request.lengths
    if request.samples:
        check_lengths(lengths, trained_length)
        check_prompts(max(lengths), request.samples)
    kept = request.spec.resolve(config, length)
    check_positions(kept.positions, trained_length, rule)
    methods = request.checked_methods(config, trained_length)
    return ProbePlan(request, methods, trained_length, length, lengths, kept, config)


def _default_lengths(request: ProbeRequest, trained_length: int, longest: int) -> tuple[int, ...]:
    """The default lengths that hold a passkey prompt; stderr names the others. Refused where M does not."""
    lengths = tuple(default_lengths(trained_length, longest))
    if not request.samples:
        return lengths
    tokenizer = tokenizer_of(request.model, **request.source)
    setting = PromptSpec(trained_length, lengths, request.samples, request.seed)
    inside = [length for length in lengths if length <= trained_length]
    short = {length: reason for length in inside if (reason := unfit_length([PASSKEY], tokenizer, length, setting))}
    if trained_length in short:
        raise Refused(f"{short[trained_length]}; at M = {trained_length} give --samples 0: no failure is measured")
    warn_skipped({str(length): reason for length, reason in short.items()})
    return tuple(length for length in lengths if length not in short)


def kept_text(plan: ProbePlan) -> str:
    """What is captured, and the host's memory and the disk that it takes, as text; loads no weights."""
    kept = plan.kept
    sizes = {"method": plan.methods, "prompt": plan.prompts, "layer": kept.layers}
    methods, prompts, layers = _counted(sizes)
    hooks = "; ".join(f"{hook}, {' x '.join(_counted(axes))}" for hook, axes in kept.axes.items())
    return (
        f"model {plan.request.model}, trained length M = {plan.trained_length}, captured length {plan.length} tokens\n"
        f"stores hidden states under {methods}, on {prompts}, in {layers}: {hooks}\n"
        f"memory for captured values: about {plan.host_bytes / 2**20:.0f} MiB; disk: {plan.kept_bytes / 2**20:.0f} MiB"
    )


def _counted(labels: Mapping[str, Sized]) -> list[str]:
    return [f"{len(of)} {name}{'s' * (len(of) != 1)}" for name, of in labels.items()]


def evaluation_plan(plan: ProbePlan, documents: Sequence[np.ndarray]) -> EvalPlan:
    """The evaluation that measures failure; the scores depend on its settings."""
    request = plan.request
    setting = PromptSpec(plan.trained_length, plan.lengths, request.samples, request.seed, tuple(documents))
    shared = {field.name: getattr(request, field.name) for field in fields(MethodsRequest)}
    eval_request = EvalRequest(
        **{**shared, "trained_length": plan.trained_length},
        tasks=by_length.TASKS,
        lengths=plan.lengths,
        samples=request.samples,
        text=None if request.text is None else str(request.text),
    )
    return EvalPlan(eval_request, plan.methods, setting, plan.config)


def template(plan: ProbePlan, known: Mapping[str, str] | None = None) -> Template:
    """Of the plan's store, with the fingerprints `known` and other attributes."""
    return Template(
        methods=list(plan.methods),
        prompts=plan.prompts,
        layers=plan.kept.layers,
        axes=plan.kept.axes,
        dtype=plan.request.spec.dtype,
        attrs={**provenance(plan), **(known or {})},
        not_compared=plan.request.not_compared,
    )


def provenance(plan: ProbePlan) -> JsonObject:
    """The attributes of the plan's store: everything that its numbers depend on."""
    request = plan.request
    _, left_out = request.fitting_methods(plan.config, plan.trained_length, request.method_settings)
    return {
        **request.identity,
        "trained_length": plan.trained_length,
        "trained_length_by": request.trained_length_by(plan.config),
        "length": plan.length,
        "model_type": plan.config.model_type,
        **origin(request.model, plan.config, request.load.get("revision")),
        "source_dtype": chosen_dtype(plan.config, request.load),
        "method_configs": json.dumps({name: method.describe() for name, method in plan.methods.items()}),
        **({"left_out": "; ".join(left_out.values())} if left_out else {}),
        "spec": json.dumps(asdict(request.spec)),
        **({"first_token": plan.first_token} if plan.first_token else {}),
        **({"period": plan.period} if plan.period > 1 else {}),
        "text": str(request.text or SHIPPED_TEXT),
        "lengths": json.dumps(plan.lengths if request.samples else []),
        "refine": plan.refine,
        "versions": json.dumps({package: version(package) for package in _PACKAGES}),
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
    }
