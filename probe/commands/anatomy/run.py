"""`mesa-lens anatomy` from its request to its report: what heads do, plan, tasks, worker, summary."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import xarray as xr
from torch import Tensor
from transformers import PreTrainedModel

import mesa
from mesa.decoder import check_layers
from mesa.engine.attention import rows
from mesa.engine.schedule import Schedule
from mesa.engine.structure import new_cache
from mesa.errors import Failed, Refused
from mesa.fingerprints import ids_fingerprint
from mesa.methods import Method
from mesa.models import bytes_a_number, tokenizer_of
from mesa.outside import with_cache, with_last_logits
from mesa.support import attending_layers, headed_layers
from probe.capture.memory import check_prompts, peak_bytes, prompt_bytes, scores_bytes
from probe.capture.spec import CaptureSpec
from probe.commands.anatomy import AnatomyRequest, result
from probe.commands.anatomy.page import RETRIEVES, headline, write_anatomy
from probe.eval_tasks.base import PromptSpec
from probe.eval_tasks.retrieval import Prompt, TooShortError
from probe.eval_tasks.score import documents_of, logits_bytes, nll
from probe.eval_tasks.sources import TextSource
from probe.eval_tasks.tasks import PASSKEY, TAIL
from probe.eval_tasks.token_texts import token_texts
from probe.evaluation import PROMPTS
from probe.experiment.estimate import estimated
from probe.experiment.journal import Journal, JournalRows
from probe.experiment.pool import MeasureTask, Task
from probe.experiment.run import (
    CommandResult,
    Experiment,
    MethodsPlan,
    PlanWorker,
    run,
    say_left_out,
    settings_of,
    summary_of,
)
from probe.figures.section import as_text
from probe.files import JsonObject
from probe.options import parse_ranges
from probe.request import warn_skipped
from probe.statistics import half_width, wilson
from probe.store.result_file import having

# What heads do under a method: distances, entropy, sinks, and retrieval (Wu et al. 2025)
# Weights are exact, computed from what the engine hands to the executor, for sampled queries only: memory grows with
# the length, not with its square.

FIRST = 4
"""Keys (tokens) at the start of a prompt that are a part by themselves."""
MASS_PARTS = ("first", "near", "window", "beyond")
"""Disjoint parts of the keys: the first 4; of the others those at distance <= N, those < M, and those of M or more."""
QUERIES, STRONGEST = 32, 12
"""Queries whose attention is stored token by token, and how many keys of each."""
OFFSETS = (0, 1)
"""Tokens after the one that is emitted, of the keys that `retrieval_scores` counts."""
HeadMeasure = Callable[[Schedule, Tensor, Tensor, float], Mapping[str, Tensor]]
"""Statistics (head, ...) by name, of some heads of one layer: from schedule, queries, keys and scale."""


def head_statistics(
    model: PreTrainedModel,
    ids: Sequence[int],
    method: Method,
    *,
    near: int | None = None,
    queries: Sequence[int] | None = None,
    executor: str = "fused",
) -> xr.Dataset:
    """What every head attends to in a prompt (token ids) under `method`.

    `mass` (layer, head, query, part): attention by true distance t - i in the disjoint `MASS_PARTS`; sums to 1, to less
    with attention sinks (gpt_oss). `entropy` (nats), `mean_distance` (tokens), `sink` and `previous` (shares on token 0
    and on the token before): (layer, head, query). `by_span` averages over queries. near: N in tokens, M / 8 if None.
    queries: token positions; `sampled_queries` if None. Raises Refused for an N out of range.
    """
    length, trained = len(ids), method.trained_length
    near = max(1, trained // 8) if near is None else near
    if not 1 <= near < trained:
        raise Refused(f"near={near} is not between 1 and the trained length {trained}")
    chosen = sampled_queries(length, trained) if queries is None else sorted(queries)
    distance = np.array(chosen)[:, None] - np.arange(length)
    later = np.broadcast_to(np.arange(length) >= FIRST, distance.shape)
    beyond_near, beyond = distance > near, distance >= trained
    parts = [~later, later & ~beyond_near, later & beyond_near & ~beyond, later & beyond]
    in_part = torch.from_numpy(np.stack(parts, -1).astype(np.float64))  # (query, key, part)

    def measure(schedule: Schedule, query: Tensor, key: Tensor, scale: float) -> dict[str, Tensor]:
        return _statistics(rows(schedule, query, key, scale, chosen)[0].cpu(), chosen, in_part)

    data = recorded_attention(model, ids, method, measure, ("query", "part"), executor)
    return labelled(data, {"part": MASS_PARTS}, chosen, trained)


def _statistics(weights: Tensor, chosen: Sequence[int], parts: Tensor) -> dict[str, Tensor]:
    """Statistics (head, query, ...) of weights (head, query, key)."""
    weights = weights.double()
    distance = torch.tensor(chosen)[:, None] - torch.arange(weights.shape[-1])
    return {
        "mass": torch.einsum("hqk,qkp->hqp", weights, parts),
        "entropy": torch.special.entr(weights).sum(-1),
        "mean_distance": (weights * distance).sum(-1),
        "sink": weights[..., 0],
        "previous": (weights * (distance == 1)).sum(-1),
    }


def sampled_queries(length: int, trained_length: int, count: int = 48) -> list[int]:
    """At most `count` token positions: half of them in the second half of the window, half from M on.

    All are within the window where the prompt is. Raises Refused for fewer than 2 tokens or queries.
    """
    if min(length, count) < 2:
        raise Refused(f"length={length} and count={count}: both must be at least 2")
    within = min(length, trained_length)
    spans = [(within // 2, within - 1), (trained_length, length - 1)][: 1 + (length > trained_length)]
    return sorted({int(at) for span in spans for at in np.linspace(*span, count // len(spans)).round()})


@torch.no_grad()
def recorded_attention(
    model: PreTrainedModel, ids: Sequence[int], method: Method, measure: HeadMeasure, axes: Sequence[str] = ("query",),
    executor: str = "fused",
) -> xr.Dataset:  # fmt: skip
    """What `measure` gives in one pass over `ids` under `method`, (layer, head, *axes), of the layers with attention.

    `measure` is called once for every layer and group of its heads with a common schedule. Raises RuntimeError where a
    head was not measured exactly once.
    """
    by_head: dict[tuple[int, int], dict[str, np.ndarray]] = {}
    seen: list[tuple[int, int]] = []

    def observer(layer: int, heads: Sequence[int], *arguments: Any) -> None:
        values = measure(*arguments)
        for row, head in enumerate(heads):
            seen.append((layer, head))
            by_head[layer, head] = {name: value[row].cpu().numpy() for name, value in values.items()}

    with mesa.applied(model, method, executor=executor) as attachment:
        attachment.observer = observer
        model(torch.tensor([list(ids)], device=model.device), use_cache=False, **with_last_logits(model, 1))
    layers, heads = attachment.layers, model.config.num_attention_heads
    expected = [(layer, head) for layer in layers for head in range(heads)]
    if len(seen) > len(expected) and {*seen} == {*expected}:
        raise Refused(
            f"layers of this {model.config.model_type} model attend several times in a pass, so that what a head "
            "attends to cannot be told; `mesa-lens locate` finds heads that matter"
        )
    if sorted(seen) != expected:
        raise Failed(f"{method.name}: seen were (layer, head) {sorted(seen)}, not each of {layers} x {heads} once")
    values = {name: np.stack([by_head[key][name] for key in expected]) for name in by_head[expected[0]]}
    dims = ("layer", "head", *axes)
    arrays = {name: value.reshape(len(layers), heads, *value.shape[1:]) for name, value in values.items()}
    labels = {"layer": layers, "head": range(heads)}
    return xr.Dataset({name: (dims[: value.ndim], value) for name, value in arrays.items()}, labels)


def labelled(
    data: xr.Dataset, dims: Mapping[str, Sequence[str]], chosen: Sequence[int], trained_length: int
) -> xr.Dataset:
    """`recorded_attention` (layer, head, query, *dims) with the queries' positions and spans, and labels of dims."""
    spans = [result.SPANS[token >= trained_length] for token in chosen]
    labels = {"query": list(chosen), "span": ("query", spans)}
    return data.assign_coords({**labels, **{name: list(x) for name, x in dims.items()}})


def by_span(data: xr.Dataset) -> xr.Dataset:
    """Means over the queries inside M and beyond M (dim `span`, those that there are).

    Intervals are to be taken over prompts: queries of one prompt are not independent.
    """
    return data.groupby("span").mean("query").sel(span=[span for span in result.SPANS if span in data["span"]])


def token_values(
    model: PreTrainedModel, ids: np.ndarray, method: Method, executor: str = "fused"
) -> dict[str, xr.DataArray]:
    """Every token of a text (token ids) under `method`, as `mesa-lens anatomy --parts tokens` stores it.

    `nll` (token), in nats, of all but the first. `weight` and `key` (layer, head, query, strongest): of
    `sampled_queries`, the 12 largest attention weights, and the positions that they are on.
    """
    queries = sampled_queries(len(ids), method.trained_length, QUERIES)
    with mesa.applied(model, method, executor=executor):
        losses = nll(model, ids, len(ids) - 1).double().numpy()

    def measure(schedule: Schedule, query: Tensor, key: Tensor, scale: float) -> dict[str, Tensor]:
        weights = rows(schedule, query, key, scale, queries)[0]
        top = weights.topk(min(STRONGEST, weights.shape[-1]))
        return {"weight": top.values.float(), "key": schedule.first_key + top.indices}

    strongest = recorded_attention(model, ids.tolist(), method, measure, ("query", "strongest"), executor)
    return {"nll": xr.DataArray(losses, dims="token"), **{str(name): array for name, array in strongest.items()}}


def needle_positions(prompt: Prompt) -> np.ndarray:
    """Whether each prompt token belongs to the answer where it stands in the context, (position,).

    That is every place at or after `key_position` that reads as the answer's tokens do; a passkey's sentence has two.
    """
    ids, answer = np.array(prompt.ids), np.array(prompt.answer_ids)
    needle = np.zeros(len(ids), bool)
    for begin in range(prompt.key_position, len(ids) - len(answer) + 1):
        if (ids[begin : begin + len(answer)] == answer).all():
            needle[begin : begin + len(answer)] = True
    if not needle.any():
        raise Refused(
            f"the answer {prompt.answer!r} (tokens {list(prompt.answer_ids)}) does not stand in the prompt from "
            f"position {prompt.key_position} on; build the prompt with the model's own tokenizer"
        )
    return needle


@torch.no_grad()
def retrieval_scores(model: PreTrainedModel, prompt: Prompt, method: Method, executor: str = "fused") -> xr.DataArray:
    """How often each head retrieves: (layer, head, offset), the share of the answer's tokens.

    A head retrieves a token when the key it attends to most stands `offset` tokens, 0 or 1, after a place in the needle
    (`needle_positions`) that holds the very token that is emitted. Offset 0 is the paper's score. It misses heads that
    read the token from the one after it, where an earlier layer has moved it: offset 1 counts those. Tokens are decoded
    one by one with a cache; the right answer is emitted whatever the model predicts (teacher-forced). Raises Refused
    for a prompt whose answer does not stand after `key_position`, RuntimeError for logits that are not finite.
    """
    needle, tokens, cache = needle_positions(prompt), list(prompt.ids), new_cache(model)
    layers = attending_layers(model.config)
    top = np.zeros((len(layers), model.config.num_attention_heads), int)
    hits = np.zeros((*top.shape, len(OFFSETS)))

    def observer(
        layer: int, heads: Sequence[int], schedule: Schedule, query: Tensor, key: Tensor, scale: float
    ) -> None:
        weights = rows(schedule, query, key, scale, [len(tokens) - 1])[0, :, 0]
        top[layers.index(layer), heads] = schedule.first_key + weights.argmax(-1).cpu().numpy()

    with mesa.applied(model, method, executor=executor) as attachment:
        attachment.observer = observer
        for emitted in prompt.answer_ids:
            top[:] = -1
            ids = torch.tensor([tokens[cache.get_seq_length() :]], device=model.device)
            if model(ids, **with_cache(model, cache), **with_last_logits(model, 1)).logits.isnan().any():
                raise Failed(
                    f"{method.name}: logits are not finite; run the model with a wider --dtype (float32, float64)"
                )
            if (top < 0).any():
                raise Failed(f"{method.name}: not every head of every layer was seen")
            holds = np.flatnonzero(needle & (np.array(prompt.ids) == emitted))
            for number, offset in enumerate(OFFSETS):
                hits[..., number] += np.isin(top - offset, holds)
            tokens.append(emitted)
    labels = {"layer": layers, "head": range(top.shape[1]), "offset": list(OFFSETS)}
    return xr.DataArray(hits / len(prompt.answer_ids), labels, ("layer", "head", "offset"))


# The run: plan, tasks, worker, and the summary of what was measured

PARTS = ("heads", "retrieval", "tokens")
"""What is measured, in this order."""
_PASSKEYS = 2  # version of what retrieval reads; 1 had answers beyond the length


class AnatomyKey(NamedTuple):
    """What a row of the journal is of; length in tokens, prompt: its number."""

    part: str
    method: str
    length: int
    prompt: int


@dataclass(frozen=True)
class AnatomyPlan(MethodsPlan):
    """A checked request: methods, lengths in rising order, and prompts by length; without passkeys none is read.

    words: the tokens of the first text of the longest length, as texts.
    """

    request: AnatomyRequest
    config: Any
    methods: dict[str, Method]
    lengths: list[int]
    layers: list[int]
    texts: dict[int, Sequence[Any]]
    passkeys: dict[int, Sequence[Prompt]]
    documents: str
    text_source: TextSource
    words: tuple[str, ...] = ()

    @property
    def keys(self) -> Iterator[AnatomyKey]:
        """The rows of the journal, in the order in which they are measured."""
        longest = self.lengths[-1]
        tokens = {longest: self.texts[longest][:1]} if "tokens" in self.request.parts else {}
        texts = self.texts if "heads" in self.request.parts else {}
        for part, by_length in zip(PARTS, (texts, self.passkeys, tokens), strict=True):
            for length, prompts in by_length.items():
                for name in self.methods:
                    yield from (AnatomyKey(part, name, length, number) for number in range(len(prompts)))

    @property
    def settings(self) -> JsonObject:
        """Everything that a row depends on in addition to its key and its method, as JSON."""
        versions = {"prompts": PROMPTS, "passkeys": _PASSKEYS}
        return settings_of(self, self.lengths[-1], **versions) | {"documents": self.documents}


def plan(request: AnatomyRequest) -> AnatomyPlan:
    """Checks the request and builds every prompt. Raises Refused or FileNotFoundError, naming the value.

    Where no length is passed and passkeys do not fit into the default ones, retrieval is left out, with a note on
    stderr.
    """
    config, trained = request.checked_model()
    methods = request.checked_methods(config, trained)
    chosen = parse_ranges(request.layers, "--layers")
    named = CaptureSpec(layers=chosen).resolve(config, 1).layers
    layers = headed_layers(config, None if chosen is None else list(named))
    lengths = sorted(set(request.lengths or (trained, 4 * trained)))
    check_prompts(lengths[-1], request.samples)
    tokenizer = tokenizer_of(request.model, **request.source)
    documents, text_source = documents_of(tokenizer, request.text)
    setting = PromptSpec(trained, tuple(lengths), request.samples, request.seed, documents)
    texts: dict[int, Sequence[Any]] = {}
    passkeys: dict[int, Sequence[Prompt]] = {}
    if {"heads", "tokens"} & {*request.parts}:
        texts = {length: TAIL.prepare(tokenizer, length, setting, request.samples) for length in lengths}
    if "retrieval" in request.parts:
        try:
            passkeys = {length: _passkeys(tokenizer, length, setting) for length in lengths}
        except Refused as error:
            if request.lengths is not None or not texts:
                raise
            warn_skipped({"retrieval": f"retrieval: {error}"})
    words: tuple[str, ...] = ()
    if "tokens" in request.parts:
        words = tuple(token_texts(tokenizer, texts[lengths[-1]][0]))
    return AnatomyPlan(
        request, config, methods, lengths, layers, texts, passkeys, ids_fingerprint(documents), text_source, words
    )


def _passkeys(tokenizer: Any, length: int, setting: PromptSpec) -> Sequence[Prompt]:
    """Prompts that end early enough for the answer's tokens to be predicted within `length`: at M, all inside M."""
    room = 0
    while True:
        try:
            prompts = PASSKEY.prepare(tokenizer, length - room, setting, setting.samples)
        except TooShortError as error:
            raise TooShortError(length, error.needed + room) from None
        needed = max(len(prompt.answer_ids) for prompt in prompts) - 1
        if needed <= room:
            for prompt in prompts:
                needle_positions(prompt)
            return prompts
        room = needed


def pass_bytes(plan: AnatomyPlan, part: str, length: int) -> int:
    """Estimate of the memory of one pass in addition to the weights.

    Retrieval decodes with a cache, tokens have logits at every position.
    """
    number_bytes = bytes_a_number(plan.config, plan.request.load)
    extra: dict[str, int] = {"heads": 0, "retrieval": prompt_bytes(plan.config, length, number_bytes)}
    logits = logits_bytes(plan.config.vocab_size, length, number_bytes)
    scores = scores_bytes(plan.config, length, plan.request.executor)
    return peak_bytes(plan.config, length, number_bytes, extra.get(part, logits) + scores)


_DIGITS = 7


class AnatomyWorker(PlanWorker):
    """A plan and its model, as plain data."""

    def start(self, memory_bytes: int | None = None) -> MeasureTask:
        """Loads the model; a task gives its journal row."""
        model = self.source.loaded().model
        check_layers(model)
        return partial(measure, self.plan, model)


@torch.no_grad()
def measure(plan: AnatomyPlan, model: PreTrainedModel, task: Task) -> JsonObject:
    """The row of one prompt: statistics by span, retrieval scores, or every token. RuntimeError if not finite."""
    part, name, length, number = AnatomyKey(*task.key)  # type: ignore[arg-type]
    method, executor = plan.methods[name], plan.request.executor
    if part == "tokens":
        row, values = {}, token_values(model, plan.texts[length][number], method, executor)
    elif part == "retrieval":
        row, values = {}, {"score": retrieval_scores(model, plan.passkeys[length][number], method, executor)}
    else:
        ids = plan.texts[length][number].tolist()
        means = by_span(head_statistics(model, ids, method, executor=executor))
        means = means.transpose("span", "layer", "head", ...)
        row, values = {"spans": means["span"].values.tolist()}, {str(key): array for key, array in means.items()}
    for key, array in values.items():
        if not np.isfinite(array.values).all():
            raise Failed(f"{key} is not finite; try a wider --dtype (float32, float64)")
        kept = array.sel(layer=plan.layers) if "layer" in array.dims else array
        row[key] = np.round(kept.values.astype(float), _DIGITS).tolist()
    return row


@dataclass(frozen=True)
class AnatomyExperiment(Experiment):
    """A plan."""

    plan: AnatomyPlan
    title, unit, remedy = "anatomy", "token", "shorten --lengths"
    worker_class, columns = AnatomyWorker, AnatomyKey
    folder, written, needed = (
        result.ANATOMY.command,
        (result.ANATOMY.path.name, result.TOKENS.path.name, "report.html", *(f"{name}.csv" for name in result.TABLES)),
        ("spans", "score", "nll"),
    )

    def tasks(self, rows: JournalRows) -> list[Task]:
        """The parts of prompts that the journal lacks."""
        missing = [key for key in self.plan.keys if key not in rows]
        return [
            Task(key.part, key, pass_bytes(self.plan, key.part, key.length), weight=key.length, length=key.length)
            for key in missing
        ]


_STATISTICS = ("entropy", "mean_distance", "sink", "previous")
_UNBOUNDED = ("entropy", "mean_distance")  # all other values are shares


def token_summary(plan: AnatomyPlan, journal: Journal) -> result.Tokens | None:
    """The loss and attention of every token of one text under each method; None where they were not captured."""
    length = plan.lengths[-1]
    rows = {name: journal.rows.get(("tokens", name, length, 0)) for name in plan.methods}
    if not plan.words or not any(rows.values()):
        return None
    return result.Tokens(
        trained_length=plan.trained_length,
        reference=plan.reference,
        layers=list(plan.layers),
        model=plan.request.model,
        tokens=list(plan.words),
        queries=sampled_queries(length, plan.trained_length, QUERIES),
        methods={name: result.Captured(**row) for name, row in rows.items() if row},
    )


def summarize(plan: AnatomyPlan, journal: Journal) -> result.Anatomy:
    """The summary of the journal's rows of a plan, of every part."""
    heads, all_heads, retrieval = (
        list[result.HeadMeasured](),
        list[result.MeasuredAttention](),
        list[result.Retrieval](),
    )
    for part in PARTS[:2]:
        for length in plan.lengths:
            for name in plan.methods:
                keys = ((part, name, length, number) for number in range(plan.request.samples))
                rows = [journal.rows[key] for key in keys if key in journal.rows]
                labels = {"method": name, "length": length, "n": len(rows)}
                if rows and part == "heads":
                    for span, here in _by_span(rows).items():
                        labels["span"] = span
                        means = {name: intervals(value.mean((1, 2)), _largest(name)) for name, value in here.items()}
                        all_heads.append(result.MeasuredAttention(**labels, **means))
                        heads += [result.HeadMeasured(**entry) for entry in _by_head(plan, labels, here)]
                elif rows:
                    retrieval += _retrieval(plan, labels, rows)
    return result.Anatomy(
        **summary_of(plan),
        lengths=list(plan.lengths),
        layers=list(plan.layers),
        reference=plan.reference,
        tasks_left=sum(key not in journal.rows for key in plan.keys),
        heads=heads,
        all_heads=all_heads,
        retrieval=retrieval,
        retrieval_heads=retrieval_heads(retrieval, plan.trained_length, plan.reference, list(plan.methods)),
    )


def _retrieval(plan: AnatomyPlan, labels: JsonObject, rows: Sequence[JsonObject]) -> list[result.Retrieval]:
    """An entry a head: its score at each offset, and at the better one."""
    scores = np.array([row["score"] for row in rows])
    entries = _by_head(plan, labels, {f"offset_{offset}": scores[..., offset] for offset in OFFSETS})
    for entry in entries:
        best = max(OFFSETS, key=lambda offset: entry[f"offset_{offset}"][0])
        entry |= {"best_offset": best, "best": entry[f"offset_{best}"]}
    return [result.Retrieval(**entry) for entry in entries]


def _by_span(rows: Sequence[JsonObject]) -> dict[str, dict[str, np.ndarray]]:
    """Statistics (prompt, layer, head) of a method and length, by where the queries stand."""
    mass = np.array([row["mass"] for row in rows])
    values = {f"mass_{name}": mass[..., at] for at, name in enumerate(MASS_PARTS)}
    values |= {name: np.array([row[name] for row in rows]) for name in _STATISTICS}
    return {span: {name: value[:, at] for name, value in values.items()} for at, span in enumerate(rows[0]["spans"])}


def _by_head(plan: AnatomyPlan, labels: JsonObject, values: Mapping[str, np.ndarray]) -> list[JsonObject]:
    """An entry a layer and head, of values (prompt, layer, head)."""
    columns = {name: intervals(value, _largest(name), counts="offset" in name) for name, value in values.items()}
    return [
        {**labels, "layer": layer, "head": head, **{name: value[row][head] for name, value in columns.items()}}
        for row, layer in enumerate(plan.layers)
        for head in range(plan.config.num_attention_heads)
    ]


def intervals(values: np.ndarray, largest: float = np.inf, *, counts: bool = False) -> Any:
    """[mean, low, high] over the first axis, nested like the others: a 95% interval, None for one prompt.

    Student's, within 0 and `largest`. counts: values are shares of a few trials; where they are all equal their
    interval is Wilson's, since equal scores do not imply certainty.
    """
    mean, ends = values.mean(0), [np.full(values.shape[1:], None)] * 2
    if len(values) > 1:
        low, high = (np.clip(mean + sign * half_width(values), 0, largest) for sign in (-1, 1))
        if counts:
            same = (values == values[0]).all(0)
            lower, upper = np.vectorize(lambda share: wilson(share * len(values), len(values)))(values[0])
            low, high = np.where(same, lower, low), np.where(same, upper, high)
        ends = [end.round(6).astype(object) for end in (low, high)]
    return np.stack([mean.round(6).astype(object), *ends], -1).tolist()


def _largest(name: str) -> float:
    return np.inf if name in _UNBOUNDED else 1.0


def retrieval_heads(
    rows: Sequence[result.Retrieval], trained_length: int, reference: str, methods: Sequence[str]
) -> list[result.RetrievalHead]:
    """The heads that retrieve at the longest length up to M under the reference, with their scores beyond it.

    `inside`, and `beyond` by method, are at the offset that is better inside. `lost`: under the reference the score is
    less than half, and the intervals are disjoint. `kept`: its interval lies above half; neither: the prompts do not
    decide. `recovered_by`: the methods whose score is at least half of that inside, with an interval above the
    reference's.
    """
    scores = {(row.method, row.length, row.layer, row.head): row for row in rows}
    lengths = sorted({row.length for row in having(rows, method=reference)})
    inside = [length for length in lengths if length <= trained_length][-1:]
    heads = []
    for length in (length for length in lengths if length > trained_length and inside):
        for row in having(rows, method=reference, length=inside[0]):
            there = {method: scores.get((method, length, row.layer, row.head)) for method in methods}
            beyond = {method: other.at(row.best_offset) for method, other in there.items() if other}
            if row.best.mean < RETRIEVES or reference not in beyond:
                continue
            base, half = beyond[reference], row.best.mean / 2
            lost = base.mean < half and row.best.low > base.high
            recovered = [by for by, score in beyond.items() if lost and score.mean >= half and score.low > base.high]
            of_head = (length, row.layer, row.head, row.best_offset, row.best)
            heads.append(
                result.RetrievalHead(*of_head, beyond=beyond, lost=lost, kept=base.low >= half, recovered_by=recovered)
            )
    return heads


__all__ = ["estimate", "plan", "run_and_report"]
estimate = partial(estimated, AnatomyExperiment)
"""What a plan takes."""


def run_and_report(plan: AnatomyPlan, out: Path, **how: Any) -> CommandResult:
    """Measures what the folder `out` lacks of the plan, and writes its results and report. how: as `run` takes it."""
    journal, failed = run(AnatomyExperiment(plan), out, **how)
    say_left_out(out, journal.rows, plan.keys, {"method": "--methods", "part": "--parts"})
    summary = summarize(plan, journal)
    text = as_text(headline(summary))
    if journal.rows:
        result.ANATOMY.write(out, summary)
        if tokens := token_summary(plan, journal):
            result.TOKENS.write(out, tokens)
        text += f"\n\nwrote {write_anatomy(out, summary).parent}: report.html, summary.json, tables"
    return CommandResult(summary, text, len(failed), str(summary.tasks_left or ""))
