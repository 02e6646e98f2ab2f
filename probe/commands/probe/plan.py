"""A probe run's plan, checked against the model's config, its stages and their tasks; needs no weights."""

import copy
import json
import math
from collections.abc import Collection, Mapping, Sequence, Sized
from dataclasses import asdict, dataclass, fields, replace
from datetime import UTC, datetime
from functools import cached_property, partial
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import xarray as xr

import mesa
from mesa.decoder import check_layers
from mesa.errors import Failed, Refused
from mesa.fingerprints import identity, version
from mesa.methods import Method
from mesa.models import Loaded, bytes_a_number, chosen_dtype, origin, tokenizer_of
from mesa.settings import requested_names
from mesa.support import is_rotary, layers_text
from probe.capture.memory import check_prompts, pass_flops, peak_bytes, prompt_bytes, scores_bytes
from probe.capture.spec import OF_LAYERS, Selection
from probe.commands import commands, resume_command
from probe.commands.probe import ProbeRequest
from probe.eval_tasks.base import EvalKey, PromptSpec
from probe.eval_tasks.retrieval import repeated_word, word_ids
from probe.eval_tasks.score import labelled_windows
from probe.eval_tasks.sources import check_there
from probe.eval_tasks.tasks import PASSKEY, TAIL, tail_tokens
from probe.evaluation import EvalPlan, Evaluation, eval_tasks, measure_with, scores_of, unfit_length
from probe.experiment.estimate import Speed, Work, work_of
from probe.experiment.journal import Journal, JournalRows, known_rows, recorded
from probe.experiment.pool import Key, MeasureTask, Task
from probe.experiment.run import Experiment, PlanWorker
from probe.files import JsonObject
from probe.request import EvalRequest, MethodsRequest, reference_method, say, warn_skipped
from probe.run_folder import SHIPPED_TEXT, RunFolder
from probe.store import store
from probe.store.reader import complete_passes, partial_path, store_of
from probe.store.store import Template
from probe.thresholds.failure import measured_failure
from probe.thresholds.scored_states import ScoredStates
from probe.thresholds.search import CrossingRule, check_positions
from probe.thresholds.state_distance import STATE_DISTANCE

REPEATED = "repeated"
"""Name of the paper's prompt: one word, repeated."""

_COPIES = 16
"""Copies of a layer's values that a report holds at a time, besides one a method: the search's, in both its threads."""

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
    longest: int | None = None
    """Of a run in stages: the longest length that may be measured, in tokens; None: all of `lengths` are."""
    speed: Speed | None = None
    """The model's, where it was measured."""

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
        if self.request.refine is not None or self.longest:
            return self.request.refine or 0
        return HALVINGS if self.request.samples and pass_flops(self.config, max(self.lengths)) <= CHEAP else 0

    @property
    def prompts(self) -> list[str]:
        """Names of the prompts."""
        return [REPEATED, *(f"text-{index}" for index in range(self.texts))]

    @property
    def texts(self) -> int:
        """Text prompts whose hidden states are stored."""
        return _texts(self.request, self.longest)

    @property
    def kept_bytes(self) -> int:
        """Size of the store on disk."""
        numbers = self.kept.values * len(self.kept.layers) * len(self.methods) * len(self.prompts)
        return numbers * np.dtype(self.request.spec.dtype).itemsize

    @property
    def largest_pass(self) -> tuple[int, str, int]:
        """Estimate of the memory of the largest pass, captured or measured, besides the weights.

        With the option that sets its length, and the length.
        """
        config, number = self.config, bytes_a_number(self.config, self.request.load)
        longest = max(self.lengths) if self.request.samples else 0
        captured, measured = peak_bytes(config, self.length, number, 0), prompt_bytes(config, longest, number)
        scores = [scores_bytes(config, length, self.request.executor) for length in (self.length, longest)]
        return max((captured + scores[0], "--length", self.length), (measured + scores[1], "--lengths", longest))

    @property
    def pass_bytes(self) -> int:
        """The memory of the `largest_pass`."""
        return self.largest_pass[0]

    @property
    def host_bytes(self) -> int:
        """Estimate of the memory for captured values: those of one pass, and what the report holds.

        That is one layer at a time, once under every method (its colour scale) and in the copies of the search.
        """
        layer = 4 * len(self.kept.positions) * len(next(iter(self.kept.axes.values()))["dim"])
        return 4 * self.kept.values * len(self.kept.layers) + layer * (len(self.methods) + _COPIES)


def plan(request: ProbeRequest, longest: int | None = None) -> ProbePlan:
    """Checks the request against the model's config. Raises Refused or FileNotFoundError, naming the value.

    longest: plans a run in stages, which measures lengths up to this one.
    """
    config, trained_length = request.checked_model()
    length = 4 * trained_length if request.length is None else request.length
    length = min(length, longest or length)
    rule = CrossingRule.scaled(trained_length)
    if length <= trained_length + rule.sustained:
        named = "--lengths" if longest and request.lengths else "--length"
        raise Refused(
            f"{named} {length} is not far enough beyond the trained length {trained_length}; shorter prompts are "
            f"measured by `{_eval_command(request, length)}`"
        )
    if request.refine and not request.samples:
        raise Refused(f"--refine {request.refine} with --samples 0: it measures further lengths")
    if request.text is not None:
        check_there(str(request.text))
    check_prompts(length, 1 + _texts(request, longest), "--length")
    if request.lengths is not None:
        request = replace(request, lengths=tuple(sorted({*request.lengths})))
    if longest:
        lengths = position_lengths(trained_length, longest)
    elif request.lengths is not None:
        lengths = request.lengths
    else:
        lengths = _default_lengths(request, trained_length, length)
    if request.texts in (None, _default_texts(longest)):
        request, length = _stored_by_default(request, config, trained_length, length, longest)
    if request.samples:
        if not longest or request.lengths is not None:
            check_lengths(request.lengths or lengths, trained_length)
        check_prompts(max(lengths), request.samples)
    kept = request.spec.resolve(config, length)
    if others := [hook for hook in request.spec.hooks if hook not in OF_LAYERS]:
        from mesa.engine.bridge import check_adapted  # with transformer-lens, which plans do without

        check_adapted(config, f"hook {others[0]!r}", f"capture {' or '.join(OF_LAYERS)}")
    read = slice(None if request.spec.positions else trained_length + rule.sustained + 1)  # of a long prompt enough
    check_positions(kept.positions[read], trained_length, rule)
    methods = request.checked_methods(config, trained_length)
    planned = ProbePlan(request, methods, trained_length, length, lengths, kept, config, longest)
    if planned.kept_bytes > STORE_BYTES:
        gib = planned.kept_bytes / 2**30
        say(f"the store takes about {gib:z.1f} GiB; --layers, --positions or --store-dtype float16 make it smaller")
    return planned


def _eval_command(request: ProbeRequest, length: int) -> str:
    """The command that measures prompts of a length up to M."""
    requested = EvalRequest(
        request.model, request.load, request.trained_length, lengths=(length,), samples=request.samples or 1
    )
    return resume_command("eval", Path("runs/eval"), recorded(requested)) if "eval" in commands() else "mesa-lens eval"


def position_lengths(trained: int, longest: int) -> tuple[int, ...]:
    """Where the buckets of the loss by position end: every M/4 tokens, and at `longest`."""
    step = max(8, tail_tokens(trained))
    return (*(length for length in range(step, longest, step)), longest)


def _default_texts(longest: int | None) -> int:
    """Text prompts whose hidden states are stored by default; longest: of a run in stages."""
    return 0 if longest else 2


def _texts(request: ProbeRequest, longest: int | None) -> int:
    """Text prompts whose hidden states are stored."""
    return _default_texts(longest) if request.texts is None else request.texts


STORE_BYTES = 2**31
"""The largest store that is written without an option that asks for it."""
STAGED_BYTES = 2**28
"""The same of a run in stages, whose report is to be written within the time."""


def _stored_by_default(
    request: ProbeRequest, config: Any, trained_length: int, length: int, longest: int | None
) -> tuple[ProbeRequest, int]:
    """The request, and the tokens that hidden states are stored of, so that a store by default is below `STORE_BYTES`.

    Where it would be above, prompts are shorter, then no text is stored, then fewer layers, evenly spaced; stderr says
    so. As it is where an option says what to keep.
    """
    spec, depth = request.spec, config.num_hidden_layers
    chosen = (request.length, spec.layers, spec.positions, spec.dims)
    if chosen != (None,) * len(chosen):
        return request, length
    by_default, most = _default_texts(longest), STAGED_BYTES if longest else STORE_BYTES
    methods = len(requested_names(request.methods or request.default_methods)) + len(request.configs)

    def size(tokens: int, texts: int) -> int:
        """Bytes of a layer."""
        return spec.resolve(config, tokens).values * np.dtype(spec.dtype).itemsize * methods * (1 + texts)

    lengths = [length, *(int(times * trained_length) for times in (2, 1.5) if times * trained_length < length)]
    sizes = [
        (tokens, texts, min(depth, most // size(tokens, texts)))
        for tokens in lengths
        for texts in dict.fromkeys((by_default, 0))
    ]
    tokens, texts, layers = next((kept for kept in sizes if kept[-1] == depth), sizes[-1])
    if (tokens, texts, layers) == (length, by_default, depth):
        return request, length
    kept = sorted({int(layer) for layer in np.linspace(0, depth - 1, max(2, layers)).round()})
    spec = spec if len(kept) == depth else replace(spec, layers=tuple((layer, layer + 1) for layer in kept))
    of_texts = f" and {_counted({'text': range(texts)})[0]}" if texts else ""
    say(
        f"so that the store takes about {most / 2**30:g} GiB, hidden states are of the repeated word{of_texts}, "
        f"{tokens} tokens each, in {layers_text(kept)}; --length, --texts and --layers choose others"
    )
    return replace(request, length=tokens, texts=texts, spec=spec), tokens


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
        in_time = f"--minutes 5 --lengths {','.join(str(times * trained_length) for times in (1, 2, 4))}"
        raise Refused(
            f"{short[trained_length]}; at M = {trained_length} give {in_time}, which measures failure by loss alone, "
            "or --samples 0: none is measured"
        )
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
        tasks=TASKS,
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
        **({"as_trained": text} if (text := request.as_trained(plan.config, plan.trained_length)) else {}),
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
        "lengths": json.dumps((request.lengths or plan.lengths) if request.samples else []),
        "refine": plan.refine,
        **({"stages": 1, "longest": plan.longest} if plan.longest else {}),
        "versions": json.dumps({package: version(package) for package in _PACKAGES}),
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
    }


JOURNAL = "measured.jsonl"
TASKS = (TAIL.name, PASSKEY.name)
MULTIPLES = (0.5, 1, 1.5, 2, 3, 4, 6, 8)
"""Lengths measured by default, in trained windows."""


def default_lengths(trained_length: int, longest: int) -> list[int]:
    """`MULTIPLES` of M that hold a tail and its context, up to `longest` tokens, and `longest` if none is beyond M."""
    lengths = [int(trained_length * multiple) for multiple in MULTIPLES if trained_length * multiple <= longest]
    lengths += [longest] if lengths[-1:] == [trained_length] and longest > trained_length else []
    return [length for length in lengths if length >= 2 * tail_tokens(trained_length)]


def check_lengths(lengths: Sequence[int], trained_length: int) -> None:
    """Refused for a length that leaves less context than the tail itself."""
    least = 2 * tail_tokens(trained_length)
    if min(lengths) < least:
        raise Refused(f"--lengths {min(lengths)} is too short for a tail of {least // 2} tokens; measure from {least}")
    if trained_length not in lengths:
        raise Refused(f"--lengths leaves out the trained length {trained_length}, the in-window level; include it")


def failure_scores(plan: EvalPlan, rows: JournalRows, further: Mapping[str, Sequence[int]] | None = None) -> xr.Dataset:
    """`tail_nll` (method, length, window) in nats a token and `passkey` (method, length, sample), 1 where found.

    rows: all of the plan's, and of each method at the lengths `further`, where other methods have NaN. The tail is M/4
    tokens, the same targets at every length. With `state_distance` (method, length, window, layer) where it was read.
    """
    setting, further = plan.setting, further or {}
    measured = {name: {*setting.lengths, *further.get(name, ())} for name in plan.methods}
    lengths = sorted(set().union(*measured.values()))
    nll, hits = (_values(rows, task, measured, lengths) for task in TASKS)
    return xr.Dataset(
        {
            "tail_nll": (("method", "length", "window"), nll, {"long_name": "tail NLL", "units": "nats/token"}),
            "passkey": (("method", "length", "sample"), hits, {"long_name": "passkey found", "units": "1"}),
            **scored_distances(setting, rows, list(plan.methods), lengths, nll.shape[-1]),
        },
        coords={"method": list(plan.methods), "length": lengths},
        attrs={
            "tail": tail_tokens(setting.trained_length),
            "seed": setting.seed,
            "trained_length": setting.trained_length,
            "vocabulary": plan.config.vocab_size,
            "rotary": is_rotary(plan.config.model_type),
        },
    )


def scored_distances(
    setting: PromptSpec, rows: JournalRows, methods: Sequence[str], lengths: Sequence[int], windows: int
) -> dict[str, xr.DataArray]:
    """`state_distance` (method, length, window, layer) of the rows of the tail likelihood; NaN where none was read.

    Its attribute `documents` has the number of each window's.
    """
    read = {
        (row, column, score.sample): score.distances
        for row, name in enumerate(methods)
        for column, length in enumerate(lengths)
        for score in scores_of(rows.get((TAIL.name, name, length), {"scores": []}))
        if score.distances and score.sample < windows
    }
    layers = sorted(set[int]().union(*read.values()))
    if not layers:
        return {}
    values = np.full((len(methods), len(lengths), windows, len(layers)), np.nan)
    for place, distances in read.items():
        values[place] = [distances.get(layer, np.nan) for layer in layers]
    tail = tail_tokens(setting.trained_length)
    there = labelled_windows(setting.documents, max(setting.lengths), setting.samples, tail)
    attrs: dict[str, Any] = {"long_name": "squared distance of states to the in-window distribution", "units": "1"}
    attrs["documents"] = [document for _, document in there]
    return {
        STATE_DISTANCE: xr.DataArray(values, {"layer": layers}, ("method", "length", "window", "layer"), attrs=attrs)
    }


def _values(rows: JournalRows, task: str, measured: Mapping[str, set[int]], lengths: Sequence[int]) -> np.ndarray:
    """A task's scores (method, length, sample); NaN at the lengths that a method lacks."""
    samples = {
        (row, column): [score.value for score in scores_of(rows[task, name, length])]
        for row, (name, method_lengths) in enumerate(measured.items())
        for column, length in enumerate(lengths)
        if length in method_lengths
    }
    values = np.full((len(measured), len(lengths), len(next(iter(samples.values())))), np.nan)
    for index, cell in samples.items():
        values[index] = cell
    return values


_TRIED = 64  # tokens
_FINEST = 16
"""No length is measured between two that are at most M / 16 apart."""


class FailureByLength(Evaluation):
    """Tail likelihood and passkey at the plan's lengths, then at `rounds` further ones of each method that fails.

    not_compared: settings in which a resumed run may differ. shorter: what to do where a prompt is too long for memory.
    """

    title, journal, written = "measuring failure", JOURNAL, ()
    shorter = "shorten --lengths"

    def __init__(self, plan: EvalPlan, rounds: int, not_compared: Sequence[str] = ()) -> None:
        super().__init__(plan)
        self.rounds, self.not_compared = rounds, not_compared

    @property
    def settings(self) -> JsonObject:
        """As for Experiment."""
        return {name: value for name, value in super().settings.items() if name not in self.not_compared}

    @property
    def request(self) -> dict[str, list[str]] | None:
        """Nothing: the store has the probe's."""
        return None

    def tasks(self, rows: JournalRows) -> Sequence[Task]:
        """The plan's, then those of the next further length."""
        if missing := super().tasks(rows):
            return missing
        further = further_lengths(self.plan, rows, self.rounds)
        keys = [
            EvalKey(task, name, length) for name, lengths in further.items() for length in lengths for task in TASKS
        ]
        return eval_tasks(self.plan, [key for key in keys if key not in rows])

    def scores(self, rows: JournalRows) -> xr.Dataset:
        """The scores by length of all rows."""
        return failure_scores(self.plan, rows, further_lengths(self.plan, rows, self.rounds))

    def remaining(self, rows: JournalRows) -> None:
        """The store tells which lengths there are to be."""
        return

    def record(self, journal: Journal, task: Task, value: Any) -> None:
        """Adds a row. Raises RuntimeError where the task did not fit in memory, Refused for a NaN."""
        name, method, length = task.key
        if value is None:
            raise Failed(f"{name} under {method} does not fit in memory at {length} tokens; {self.shorter}")
        if any(math.isnan(score["value"]) for score in value["scores"]):
            raise Refused(
                f"the tail NLL under {method} at {length} tokens is not a number; run the model with a wider "
                "--dtype (float32, float64)"
            )
        journal.add(task.key, value)


def further_lengths(plan: EvalPlan, rows: JournalRows, rounds: int) -> dict[str, list[int]]:
    """By method the lengths of up to `rounds` bisections; the last ones may have no rows yet.

    Each is half-way between the length at which the method begins to fail and the measured one before it.
    """
    further: dict[str, list[int]] = {}
    for _ in range(rounds):
        for name, length in _between(plan, rows, further).items():
            further.setdefault(name, []).append(length)
        if any((task, name, further[name][-1]) not in rows for name in further for task in TASKS):
            break
    return further


def _between(plan: EvalPlan, rows: JournalRows, further: Mapping[str, Sequence[int]]) -> dict[str, int]:
    """By method the next length to measure."""
    scores, trained = failure_scores(plan, rows, further), plan.setting.trained_length
    failures = measured_failure(scores, trained, reference_method(list(plan.methods))).failures
    return {
        failure.method: (failure.before + failure.length) // 2
        for failure in failures
        if failure.length and failure.before and failure.length - failure.before > max(1, trained // _FINEST)
    }


class StateKey(NamedTuple):
    """What a captured pass is of."""

    method: str
    prompt: str


class HiddenStates(Experiment):
    """A pass a method and prompt, whose hidden states go to the store at `path`."""

    title, unit = "capturing hidden states", "token"

    def __init__(self, plan: ProbePlan, path: Path) -> None:
        self.plan, self.path = plan, path

    def tasks(self, rows: JournalRows) -> Sequence[Task]:
        """The passes that the store lacks."""
        done = complete_passes(partial_path(self.path))
        return pass_tasks(self.plan, done)

    def method(self, key: Key) -> Method | None:
        """As for Experiment."""
        return self.plan.methods.get(StateKey(*map(str, key)).method)

    def record(self, journal: Journal | None, task: Task, value: Mapping[str, Sequence[np.ndarray]]) -> None:
        """Writes a pass to the store."""
        method, prompt = StateKey(*map(str, task.key))
        for hook, layers in value.items():
            for layer, states in zip(self.plan.kept.layers, layers, strict=True):
                store.write(self.path, hook, method, prompt, layer, states)


def pass_tasks(plan: ProbePlan, done: Collection[tuple[str, str]] = ()) -> list[Task]:
    """Tasks that capture the passes, by method and prompt, that are not done."""
    size = 4 * plan.kept.values * len(plan.kept.layers)
    need, tokens = plan.pass_bytes + size, plan.length
    left = [key for key in product(plan.methods, plan.prompts) if key not in done]
    return [Task("capture", key, need, result_bytes=size, weight=tokens, length=tokens) for key in left]


@dataclass(frozen=True)
class ProbeWorker(PlanWorker):
    """The plans of a run and of its evaluation (without config), the prompts' tokens, and the model."""

    evaluation: EvalPlan
    tokens: Mapping[str, list[int]]

    def start(self, memory_bytes: int | None = None) -> MeasureTask:
        """Loads the model and tries every method; a task gives its journal row, or hidden states by hook.

        Capture wraps the model: nothing can be measured after it. Raises Refused for values that the store cannot
        hold, and hooks that the model lacks.
        """
        loaded = self.source.loaded()
        check_layers(loaded.model)
        self._try_values(loaded.model)
        if {*self.plan.request.spec.hooks} - {*OF_LAYERS}:
            self._try_hooks(loaded)
        reader = ScoredStates if max(self.plan.lengths) > self.plan.trained_length else None
        measure, bridge = measure_with(self.evaluation, loaded, memory_bytes, reader), None

        def result(task: Task) -> object:
            nonlocal bridge
            if task.kind != "capture":
                return measure(task)
            from mesa.engine.bridge import hooked  # with transformer-lens, which plans do without

            bridge = bridge or hooked(loaded.model, loaded.tokenizer)
            return self._states(bridge, *map(str, task.key))

        return result

    @torch.no_grad()
    def _try_values(self, model: Any) -> None:
        """Raises Refused where a short pass under a method has values that the store cannot hold."""
        plan, request, kept = self.plan, self.plan.request, self.plan.kept
        tried = kept.axes.get("resid_post")
        for name, method in plan.methods.items():
            ids = torch.tensor([self.tokens[plan.prompts[0]][:_TRIED]], device=model.device)
            with mesa.applied(model, method, executor=request.executor):
                states = model(ids, use_cache=False, output_hidden_states=True).hidden_states
            for layer in kept.layers if tried else ():
                values = states[layer + 1][0][:, list(tried["dim"])].float().cpu().numpy()
                store.check_values(values, np.dtype(request.spec.dtype), f"layer {layer} under {name}")

    def _try_hooks(self, loaded: Loaded) -> None:
        """Raises Refused where a short pass lacks a hook, or has values there that the store cannot hold.

        TransformerLens changes the modules that it wraps, and the tokenizer: copies.
        """
        from mesa.engine.bridge import hooked, sharing_weights  # with transformer-lens, which plans do without
        from probe.capture.capture import capture

        request, ids = self.plan.request, self.tokens[self.plan.prompts[0]][:_TRIED]
        with torch.no_grad():
            tried = hooked(sharing_weights(loaded.model), copy.deepcopy(loaded.tokenizer))
        kept = replace(request.spec, positions=None).resolve(loaded.model.config, len(ids))
        for name, method in self.plan.methods.items():
            for hook, rows in capture(tried, ids, method, kept, executor=request.executor).items():
                for layer, values in zip(kept.layers, rows, strict=True):
                    store.check_values(values, np.dtype(request.spec.dtype), f"{hook} of layer {layer} under {name}")

    def _states(self, bridge: Any, method: str, prompt: str) -> dict[str, np.ndarray]:
        from probe.capture.capture import capture  # with transformer-lens, which plans do without

        request, plan = self.plan.request, self.plan
        return capture(bridge, self.tokens[prompt], plan.methods[method], plan.kept, executor=request.executor)


def check_folder(plan: ProbePlan, out: Path) -> None:
    """Raises FileExistsError where the folder `out` is not a run's, is another command's, or of another model."""
    known = {**provenance(plan), **identity(plan.request.model, plan.config)}
    RunFolder(out).check(known, {}, partial(chosen_dtype, plan.config), ("journal.jsonl",))


def work(plan: ProbePlan, out: Path | None = None) -> Work:
    """The tasks of a run, measured and captured, with their methods; out: a folder, for those left there.

    Raises FileExistsError for the folder of another run, as that run would.
    """
    rows, captured = dict[Any, Any](), set[tuple[str, str]]()
    if out is not None:
        check_folder(plan, out)
        if path := store.find_store(store_of(out), template(plan)):
            rows, captured = known_rows(out / JOURNAL), complete_passes(path)
    failure, states = FailureByLength(evaluation_plan(plan, ()), plan.refine), HiddenStates(plan, Path())
    measured = failure.tasks(rows) if plan.request.samples else ()
    return [*work_of(failure, measured), *work_of(states, pass_tasks(plan, captured))]
