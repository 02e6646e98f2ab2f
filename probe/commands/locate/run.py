"""`mesa-lens locate` from its request to its report: plan, the search for heads, tasks, worker, summary."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import astuple, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from transformer_lens.model_bridge import TransformerBridge

from mesa.decoder import check_layers
from mesa.engine.bridge import LayerHooks, check_adapted, hooked
from mesa.errors import Failed, Refused
from mesa.fingerprints import ids_fingerprint
from mesa.methods import Method, Origin
from mesa.models import bytes_a_number, tokenizer_of
from mesa.support import headed_layers
from probe.capture.memory import check_prompts, peak_bytes, scores_bytes
from probe.capture.spec import CaptureSpec
from probe.commands.locate import LocateRequest
from probe.commands.locate.interventions import (
    BASELINE,
    CONTROLS,
    JOURNALED,
    PATCHED,
    RULES,
    Clamp,
    Gradients,
    Head,
    Heads,
    Item,
    PatchedHeads,
    Plain,
    RunPair,
    blocks,
    by_layer,
    clamped_dims,
    clamps,
    items,
    patches,
)
from probe.commands.locate.page import places, write_located
from probe.commands.locate.result import (
    CLAMP,
    GRADIENTS,
    LOCATED,
    PATCH,
    SMALLEST,
    SUFFICIENT,
    Effect,
    InsideCost,
    Located,
    Loss,
    SmallestSet,
)
from probe.eval_tasks.base import PromptSpec
from probe.eval_tasks.retrieval import repeated_word, word_ids
from probe.eval_tasks.score import documents_of, logits_bytes
from probe.eval_tasks.sources import TextSource
from probe.eval_tasks.tasks import tail_tokens
from probe.evaluation import PROMPTS
from probe.experiment.estimate import Estimate, estimated
from probe.experiment.journal import Journal, JournalRows
from probe.experiment.pool import LOCAL, Key, MeasureTask, Runner, Task
from probe.experiment.run import CommandResult, Experiment, MethodsPlan, PlanWorker, run, settings_of, summary_of
from probe.figures.section import as_text
from probe.files import JsonObject
from probe.options import head_name, parse_heads, parse_ranges
from probe.statistics import Ends, fieller, student
from probe.thresholds.search import CrossingRule, check_positions

ORIGIN = "origin"
ItemGroup = tuple[str, int]
"""A measure, and a length in tokens."""
MIN_EXCESS_LOSS = 0.01
"""Nats/token; a smaller one counts as none."""
DIMS, CHOSEN = "dims", "chosen"
"""Kinds of tasks in addition to interventions on one item: dims to clamp, and the choice of a search's round."""
BATCH = 64
"""Interventions in one task of a remote worker, which computes the plain runs of the item once for all of them."""
RANDOM_SETS = 20
MAX_HEADS = 32
"""Heads at which a search ends that has not recovered `SUFFICIENT`."""
_DRAWS = 2000
_MANY_HEADS = 64  # up to which all are tried where none are named
_PATCH_KEY = ("kind", "way", "layer", "head")
_CLAMP_KEY = ("kind", "way", "rule", "which", "span", "layer")
_SET = ("share", "low", "high", "random_low", "random", "random_high")


# Losses and shares: paired over items, with intervals


class Share(NamedTuple):
    """A share of the excess loss, with its 95% interval; NaN where there is none."""

    share: float
    low: float
    high: float


@dataclass(frozen=True)
class LossGap:
    """Mean losses of both runs (nats/token), and the 95% interval of their difference."""

    baseline: float
    patched: float
    low: float
    high: float

    @property
    def size(self) -> float:
        """Baseline minus patched, nats/token."""
        return self.baseline - self.patched

    @property
    def significant(self) -> bool:
        """Whether the baseline is significantly worse, by `MIN_EXCESS_LOSS` or more, so that shares are defined."""
        return self.low > 0 and self.size >= MIN_EXCESS_LOSS


class PairedLosses:
    """Losses (item, block) of the baseline and of the patched run, for interventions on the same items.

    Intervals: 95% percentile intervals over resampled items, and over blocks of scored tokens within each item; at
    least as wide as Student's over items (of shares: Fieller's), since resampling few items is too narrow. One item
    alone has its blocks' interval, and none (NaN) where it is one block.
    """

    def __init__(self, baseline: Sequence[Sequence[float]], patched: Sequence[Sequence[float]]) -> None:
        self.baseline, self.patched = np.asarray(baseline, float), np.asarray(patched, float)
        if self.baseline.shape != self.patched.shape or self.baseline.ndim != 2 or not self.baseline.size:
            raise Refused(f"losses of shapes {self.baseline.shape} and {self.patched.shape} are not paired by block")
        self._weights = _weights(*self.baseline.shape)

    @property
    def gap(self) -> LossGap:
        """The excess loss of the baseline."""
        lost = self.baseline - self.patched
        low, high = _widened(self._ends(self._resampled(lost)), student(_units(lost)))
        return LossGap(float(self.baseline.mean()), float(self.patched.mean()), low, high)

    def share(self, losses: Sequence[Sequence[float]], *, again: bool = False) -> Share:
        """The share of the excess loss that an intervention recovers or, with `again`, loses again.

        (baseline - losses) / excess, with `again` (losses - patched) / excess: a ratio of means over the same items and
        blocks. An interval that an excess near 0 makes unbounded is NaN, and so is the share where the excess is below
        `MIN_EXCESS_LOSS`.
        """
        array = np.asarray(losses, float)
        moved, lost = array - self.patched if again else self.baseline - array, self.baseline - self.patched
        if lost.mean() < MIN_EXCESS_LOSS:
            return Share(np.nan, np.nan, np.nan)
        above, below = self._resampled(moved), self._resampled(lost)
        value, by_items = float(moved.mean() / lost.mean()), fieller(_units(moved), _units(lost))
        if (below <= 0).mean() > 0.025 or by_items[0] is None:
            return Share(value, np.nan, np.nan)
        return Share(value, *_widened(self._ends(above[below > 0] / below[below > 0]), by_items))

    def _ends(self, resampled: np.ndarray) -> tuple[float, float]:
        """Low and high end of an interval."""
        if self.baseline.size == 1:
            return np.nan, np.nan
        low, high = np.quantile(resampled, [0.025, 0.975])
        return float(low), float(high)

    def _resampled(self, values: np.ndarray) -> np.ndarray:
        return self._weights @ values.ravel()


def _units(values: np.ndarray) -> Any:
    """What is independent in values (item, block): the means of items, or of one item its blocks."""
    return values.mean(1) if len(values) > 1 else values[0]


def _widened(ends: tuple[float, float], least: Ends) -> tuple[float, float]:
    """The smallest interval that contains both, where there is a second."""
    return ends if least[0] is None else (min(ends[0], least[0]), max(ends[1], least[1]))


@cache
def _weights(items: int, blocks: int) -> np.ndarray:
    """Weights (draw, item * block) of resampled items and resampled blocks within them; one block stays."""
    rng = np.random.default_rng(0)
    weights = np.zeros((_DRAWS, items, blocks))
    chosen = rng.integers(0, items, (_DRAWS, items))
    for draw, drawn in enumerate(chosen):
        for item in drawn:
            weights[draw, item] += np.bincount(rng.integers(0, blocks, blocks), minlength=blocks)
    return weights.reshape(_DRAWS, -1) / (items * blocks)


# Plan: what a request is, once it is checked


class LocateKey(NamedTuple):
    """What a row of the journal is of. item: its number, -1 for what is of all; tried: the key of the intervention."""

    measure: str
    length: int
    method: str
    item: int
    tried: tuple[str | int, ...]

    @classmethod
    def of(cls, key: Key) -> LocateKey:
        """Of a flat key, as the journal has it."""
        measure, length, method, item, *tried = (*key, -1) if len(key) == len(("kind", "length", "method")) else key
        return cls(str(measure), int(length), str(method), int(item), tuple(tried))

    @property
    def group(self) -> ItemGroup:
        """The items that it belongs to."""
        return self.measure, self.length


@dataclass(frozen=True)
class LocatePlan(MethodsPlan):
    """A checked request: methods ('origin' first), items by (measure, length), layers and (layer, head) pairs."""

    request: LocateRequest
    config: Any
    methods: dict[str, Method]
    items: dict[ItemGroup, list[Item]]
    layers: list[int]
    heads: list[tuple[int, int]]
    documents: tuple[np.ndarray, ...]
    text_source: TextSource

    @property
    def compared(self) -> list[str]:
        """The methods but Origin."""
        return [name for name in self.methods if name != ORIGIN]

    @property
    def estimated(self) -> list[Head]:
        """All heads of the layers, which gradients estimate at once."""
        return [(layer, head) for layer in self.layers for head in range(self.config.num_attention_heads)]

    @property
    def settings(self) -> JsonObject:
        """Everything that the losses of a task depend on in addition to its key and its method, as JSON."""
        longest = max(length for _, length in self.items)
        return settings_of(self, longest, prompts=PROMPTS) | {"documents": ids_fingerprint(self.documents)}


def plan(request: LocateRequest) -> LocatePlan:
    """Checks the request and builds every item. Raises Refused or FileNotFoundError, naming the value."""
    _check_samples(request)
    config, trained = request.checked_model()
    methods: dict[str, Method] = {ORIGIN: Origin(trained_length=trained), **_compared(request, config, trained)}
    layers, heads = _layers_and_heads(request, config)
    _check_places(request, config, heads)
    tokenizer = tokenizer_of(request.model, **request.source)
    word_ids(tokenizer, request.word)
    documents, text_source = documents_of(tokenizer, request.text)
    lengths = sorted({*(request.lengths or (4 * trained,))})
    if lengths[0] <= trained:
        raise Refused(f"--lengths {lengths[0]} is not beyond the trained length {trained}; nothing fails there")
    check_prompts(lengths[-1], request.samples)
    for length in lengths if CLAMP in request.kinds else ():
        check_positions(range(length), trained, CrossingRule.scaled(trained))
    setting = PromptSpec(trained, tuple(lengths), request.samples, request.seed, documents)
    prompts = {
        (measure, length): items(measure, tokenizer, length, setting)
        for length in lengths
        for measure in request.measures
    }
    return LocatePlan(request, config, methods, prompts, layers, heads, documents, text_source)


def _check_samples(request: LocateRequest) -> None:
    """Raises Refused where one sample does not do."""
    reasons = {SMALLEST: "the smallest set is chosen on one half of them", "passkey": "one answer has no interval"}
    for name, reason in reasons.items() if request.samples < 2 else ():
        if name in (*request.kinds, *request.measures):
            raise Refused(f"--samples {request.samples}: {reason}, give at least 2")


def _compared(request: LocateRequest, config: Any, trained: int) -> dict[str, Method]:
    methods = request.checked_methods(config, trained)
    methods.pop(ORIGIN, None)
    if not methods:
        raise Refused(f"--methods {request.methods} names nothing to compare with Origin; try rerope,mesa")
    for name, method in methods.items():
        if method.layers is not None or method.heads is not None:
            raise Refused(
                f"--set, or the run in --out, gives {name} its layers or heads, which are varied here; leave them out, "
                f"or {name}"
            )
    return methods


def _layers_and_heads(request: LocateRequest, config: Any) -> tuple[list[int], list[tuple[int, int]]]:
    """The layers, and the (layer, head) pairs, to try."""
    chosen = parse_ranges(request.layers, "--layers")
    layers = list(CaptureSpec(layers=chosen).resolve(config, 1).layers)
    layers = headed_layers(config, None if chosen is None else layers)
    heads, named = config.num_attention_heads, request.heads
    if named is None:
        named = "all" if len(layers) * heads <= _MANY_HEADS else "none"
    if named == "none":
        return layers, []
    if pairs := parse_heads(named):
        depth = config.num_hidden_layers
        if missing := [head_name(*pair) for pair in pairs if pair[0] >= depth or pair[1] >= heads]:
            raise Refused(f"--heads {missing[0]} is not there: the model has {depth} layers of {heads} heads")
        headed_layers(config, [layer for layer, _ in pairs])
        return layers, sorted({*pairs})
    of_heads = parse_ranges(named, "--heads")
    headed = list(CaptureSpec(layers=of_heads).resolve(config, 1).layers)
    headed = headed_layers(config, None if of_heads is None else headed)
    return layers, [(layer, head) for layer in headed if layer in layers or request.heads for head in range(heads)]


def _check_places(request: LocateRequest, config: Any, heads: list[tuple[int, int]]) -> None:
    """Raises Refused for a search without heads, gradients without their hooks, or dims without controls."""
    if GRADIENTS in request.kinds:
        check_adapted(config, f"--try {GRADIENTS}", f"take {PATCH}")
    if SMALLEST in request.kinds and not heads:
        raise Refused("--try smallest has no heads to choose from; name the layers of some with --heads")
    if CLAMP in request.kinds and 2 * request.dims > config.hidden_size:
        raise Refused(
            f"--dims {request.dims} leaves too few of the {config.hidden_size} dims to draw as many controls from; "
            f"give at most {config.hidden_size // 2}"
        )


def task_bytes(plan: LocatePlan, kind: str, length: int) -> int:
    """Estimate of the memory besides the weights of a task: the states of both runs, one pass, and its logits."""
    config, depth = plan.config, plan.config.num_hidden_layers
    number_bytes = bytes_a_number(config, plan.request.load)
    streams = {
        CLAMP: 6 * depth,  # the search for threshold dims
        GRADIENTS: 4 * depth + 64,  # both runs' states, heads' changes, layers' inputs, and a layer's own values
        SMALLEST: plan.request.samples * (depth + 2),  # every item's baseline at once
    }.get(kind, 2 * (depth + 1))
    logits = logits_bytes(config.vocab_size, tail_tokens(plan.trained_length), number_bytes)
    kept = streams * length * config.hidden_size * number_bytes + scores_bytes(config, length, plan.request.executor)
    return peak_bytes(config, length, number_bytes, kept + logits)


# Tasks: what can run now, by the journal's rows


def tasks(plan: LocatePlan, rows: JournalRows, *, batch: int = 1, foresee: bool = False) -> list[Task]:
    """The tasks that can run now; none once the run is finished. Their inputs are one row of the journal each.

    Plain runs come first. Once a group has those of Origin and a method, and the excess loss is significant, patches
    follow, and the search for threshold dims; once these are there, clamps; then head searches, round by round.
    foresee: also what follows from plain runs that are missing, as if every excess loss were significant, and all
    clamps that there may be.
    """
    result, kinds = list[Task](), plan.request.kinds
    groups = sorted(plan.items, key=lambda group: group[1])
    for place in (
        (*group, name, n) for group in groups for n in range(len(plan.items[group])) for name in plan.methods
    ):
        plain = Plain(BASELINE if place[2] == ORIGIN else PATCHED)
        result += _on_item(plan, rows, "run", place, [plain], batch)
    tried = {group: significant_methods(plan, rows, group) for group in groups}
    if foresee:
        for group, names in tried.items():
            names += [name for name in plan.compared if not has_runs(plan, rows, group, name)]
    tried = {group: names for group, names in tried.items() if names}
    if GRADIENTS in kinds:
        for group, names in tried.items():
            for place in ((*group, name, n) for n in range(len(plan.items[group])) for name in names):
                result += _on_item(plan, rows, GRADIENTS, place, [Gradients()], 1)
    if PATCH in kinds:
        patched = list(patches(plan.layers, plan.heads, plan.request.ways))
        for group, names in tried.items():
            for place in ((*group, name, n) for n in range(len(plan.items[group])) for name in names):
                result += _on_item(plan, rows, PATCH, place, patched, batch)
    if CLAMP in kinds:
        for length in sorted({length for _, length in tried}):
            if not any(LocateKey.of(key).group == (DIMS, length) for key in rows):
                needs, key = task_bytes(plan, CLAMP, length), (DIMS, length, plan.compared[0])
                result.append(Task(DIMS, key, needs, inputs=(DIMS,), weight=2 * length, length=length))
        for group in tried:
            result += _clamped(plan, rows, group, batch, foresee)
    if SMALLEST in kinds:
        for group, names in tried.items():
            result += [task for name in names for task in _search(plan, rows, group, name)]
    return result


def remaining(plan: LocatePlan, rows: JournalRows) -> int:
    """The rows that the journal lacks, as far as can be foreseen.

    At most these: clamps as if every layer had dims. What follows a search's next round counts as one.
    """
    foreseen = tasks(plan, rows, foresee=True)
    searches = {LocateKey.of(task.key)[:3] for task in foreseen if task.kind in (SMALLEST, CHOSEN)}
    return sum(len(task.inputs) for task in foreseen if task.kind != CHOSEN) + len(searches)


def significant_methods(plan: LocatePlan, rows: JournalRows, group: ItemGroup) -> list[str]:
    """The methods with a significant excess loss of Origin, of those whose plain runs are all there."""
    there = [name for name in plan.compared if has_runs(plan, rows, group, name)]
    return [name for name in there if paired(plan, rows, group, name).gap.significant]


def no_gap(plan: LocatePlan, rows: JournalRows) -> str:
    """Why a run that has all its rows has no loss to recover; empty where it has, or is not finished."""
    if tasks(plan, rows) or any(significant_methods(plan, rows, group) for group in plan.items):
        return ""
    gaps = {(name, *group): paired(plan, rows, group, name).gap for group in plan.items for name in plan.compared}
    intervals = [
        f"{name} {measure} at {length}: [{gap.low:+z.3f}, {gap.high:+z.3f}]"
        for (name, measure, length), gap in gaps.items()
    ]
    return (
        f"no method is significantly better than Origin, by {MIN_EXCESS_LOSS} nats/token or more; Origin's excess "
        f"loss: {', '.join(intervals)}; take longer --lengths, other --methods or more --samples"
    )


def known_clamps(plan: LocatePlan, rows: JournalRows, group: ItemGroup, foresee: bool = False) -> list[Clamp]:
    """The clamps of a group's items; before the dims of its length are known none, with `foresee` as if all layers had
    some.

    The dims of a length are those that its first run found, whatever layers and methods are tried now, so that rows of
    one key hold the same dims.
    """
    layers = range(plan.config.num_hidden_layers) if foresee else ()
    every = [(layer, (0,), ((0,),) * CONTROLS) for layer in layers]
    rules = [row["rules"] for key, row in rows.items() if LocateKey.of(key).group == (DIMS, group[1])]
    tried = clamps(next(iter(rules), dict.fromkeys(RULES, every)), plan.layers)
    return [clamp for clamp in tried if group[0] == "nll" or not clamp.inside]  # a passkey's last M tokens lack the key


def _clamped(plan: LocatePlan, rows: JournalRows, group: ItemGroup, batch: int, foresee: bool) -> Iterator[Task]:
    """Origin's runs with clamped dims, which serve all methods."""
    tried = known_clamps(plan, rows, group, foresee)
    inside = [Plain(BASELINE, inside=True)] if any(clamp.inside for clamp in tried) else []
    for number in range(len(plan.items[group])):
        yield from _on_item(plan, rows, CLAMP, (*group, ORIGIN, number), [*inside, *tried], batch)


def _search(plan: LocatePlan, rows: JournalRows, group: ItemGroup, name: str) -> Iterator[Task]:
    """The next round of a search for a smallest set or, once its losses are there, the choice that follows."""
    if not has_runs(plan, rows, group, name):
        step = next(rounds(plan, rows, group, name))
    else:
        step = next_round(plan, rows, group, name) if is_searchable(plan, rows, group, name) else None
    if step is None:
        return
    sets = dict.fromkeys((number, PatchedHeads.of(heads)) for heads in step.sets for number in step.numbers)
    missing = [(number, tried) for number, tried in sets if (*group, name, number, *tried.key) not in rows]
    for number, tried in missing:
        yield from _on_item(plan, rows, SMALLEST, (*group, name, number), [tried], 1)
    if not missing:
        choice = (tuple(step.chosen), tuple(step.candidates))
        yield Task(CHOSEN, step.chosen_key(group, name), inputs=(choice,))


def _on_item(
    plan: LocatePlan, rows: JournalRows, kind: str, place: Key, interventions: Iterable[Any], batch: int
) -> Iterator[Task]:
    """Tasks of the missing interventions on one item, up to `batch` in each."""
    missing = [tried for tried in interventions if (*place, *tried.key) not in rows]
    depth, length = plan.config.num_hidden_layers, int(place[1])
    for part in (tuple(missing[begin : begin + batch]) for begin in range(0, len(missing), batch)):
        tokens = sum(
            round(getattr(tried, "passes", 1) * length * (depth - (tried.layer or 0)) / depth) for tried in part
        )
        yield Task(
            kind, (*place, *part[0].key), task_bytes(plan, kind, length), inputs=part, weight=tokens, length=length
        )


# Search: the smallest set of heads, round by round


@dataclass(frozen=True)
class Round:
    """Head sets whose losses a search needs next, on the items of these numbers; then `chosen` is settled."""

    sets: Sequence[Heads]
    numbers: Sequence[int]
    candidates: Sequence[Head] = ()
    chosen: Sequence[Head] = ()

    def keys(self, group: ItemGroup, name: str) -> list[Key]:
        """The losses that it needs, in the journal's words."""
        return [set_key(group, name, number, heads) for heads in self.sets for number in self.numbers]

    def chosen_key(self, group: ItemGroup, name: str) -> Key:
        """The name of its choice in the journal."""
        return (*group, name, -1, CHOSEN, ids_fingerprint(self.candidates)[-8:], len(self.chosen))


def set_key(group: ItemGroup, name: str, number: int, heads: Heads) -> Key:
    """The name in the journal of one item's loss with the method in a set of heads."""
    return (*group, name, number, *PatchedHeads.of(heads).key)


def losses_at(rows: JournalRows, keys: Iterable[Key]) -> list[list[float]]:
    """Losses (item, block), of these rows."""
    return [rows[key]["nll"] for key in keys]


def paired(
    plan: LocatePlan, rows: JournalRows, group: ItemGroup, name: str, numbers: Sequence[int] | None = None
) -> PairedLosses:
    """Origin's and a method's losses on a group's items (or those of `numbers`), whose plain runs must be there."""
    numbers = range(len(plan.items[group])) if numbers is None else numbers
    baseline, patched = (losses_at(rows, [(*group, of, number, "run") for number in numbers]) for of in (ORIGIN, name))
    return PairedLosses(baseline, patched)


def has_runs(plan: LocatePlan, rows: JournalRows, group: ItemGroup, name: str) -> bool:
    """Whether the plain runs of Origin and a method are there for all of a group's items."""
    numbers = range(len(plan.items[group]))
    return all((*group, of, number, "run") in rows for number in numbers for of in (ORIGIN, name))


def is_searchable(plan: LocatePlan, rows: JournalRows, group: ItemGroup, name: str) -> bool:
    """Whether each half of the items has an excess loss of which sets can recover a share; not of one item."""
    numbers = halves(len(plan.items[group]))
    return len(numbers[1]) > 0 and all(
        paired(plan, rows, group, name, half).gap.size >= MIN_EXCESS_LOSS for half in numbers
    )


def next_round(plan: LocatePlan, rows: JournalRows, group: ItemGroup, name: str) -> Round | None:
    """The first round that the journal lacks a loss or the choice of; None where the search is done."""
    for step in rounds(plan, rows, group, name):
        choice = [step.chosen_key(group, name)] if step.chosen else []
        if any(key not in rows for key in (*step.keys(group, name), *choice)):
            return step
    return None


def rounds(plan: LocatePlan, rows: JournalRows, group: ItemGroup, name: str) -> Iterator[Round]:
    """The rounds of a search; the journal must hold the losses of one before the next is taken.

    Candidates, heads and their number follow from the items of even number alone: of all candidates the one that
    lowers the loss most is taken, until it is low enough or `MAX_HEADS` are.
    """
    choosing, scoring = halves(len(plan.items[group]))

    def loss(heads: Heads) -> float:
        return float(np.mean(losses_at(rows, [set_key(group, name, number, heads) for number in choosing])))

    alone = {head: by_layer([head]) for head in plan.heads}
    yield Round([*alone.values()], choosing)
    candidates = sorted(sorted(alone, key=lambda head: loss(alone[head]))[: plan.request.candidates])
    target = target_loss(paired(plan, rows, group, name, choosing).gap)
    chosen, remaining = list[Head](), list(candidates)
    while remaining and len(chosen) < MAX_HEADS:
        extended = {head: by_layer([*chosen, head]) for head in remaining}
        yield Round([*extended.values()], choosing)
        best = min(remaining, key=lambda head: loss(extended[head]))
        remaining.remove(best)
        chosen.append(best)
        yield Round([extended[best], *random_sets(candidates, len(chosen))], scoring, candidates, [*chosen])
        if loss(extended[best]) <= target:
            break
    if rest := complement(plan, chosen):
        yield Round([rest], scoring)  # a set that is sufficient need not be necessary


def complement(plan: LocatePlan, heads: Sequence[Head]) -> Heads:
    """All other heads of the model's layers that have some."""
    layers, chosen = headed_layers(plan.config, None), {tuple(head) for head in heads}
    every = ((layer, head) for layer in layers for head in range(plan.config.num_attention_heads))
    return by_layer(head for head in every if head not in chosen)


def random_sets(candidates: Sequence[Head], size: int) -> list[Heads]:
    """`RANDOM_SETS` sets of `size` heads; seeded by the size."""
    rng = np.random.default_rng(size)
    draws = (rng.choice(len(candidates), size, replace=False) for _ in range(RANDOM_SETS))
    return [by_layer([candidates[index] for index in sorted(draw)]) for draw in draws]


def target_loss(gap: LossGap) -> float:
    """The loss at which `SUFFICIENT` of the excess loss is recovered."""
    return gap.baseline - SUFFICIENT * gap.size


def halves(items: int) -> tuple[range, range]:
    """The numbers of the items that sets are chosen on, and of those that they are scored on."""
    return range(0, items, 2), range(1, items, 2)


# The run: the worker, and the summary of what was measured


class LocateWorker(PlanWorker):
    """A plan (without its config) and its model, as plain data."""

    def start(self, memory_bytes: int | None = None) -> MeasureTask:
        """Loads the model; a task gives rows of the journal with their keys."""
        loaded = self.source.loaded()
        check_layers(loaded.model)
        bridge = hooked(loaded.model, loaded.tokenizer)
        return RunCache(replace(self.plan, config=loaded.model.config), bridge, loaded.tokenizer).measure


class RunCache:
    """Measures tasks; keeps the runs that interventions start from: of one item or, in a head search, of a group."""

    def __init__(self, plan: LocatePlan, bridge: TransformerBridge | LayerHooks, tokenizer: Any) -> None:
        self.plan, self._bridge, self._tokenizer = plan, bridge, tokenizer
        self._pairs: dict[tuple[int, str, bool], RunPair] = {}
        self._scope: tuple[Any, ...] = ()

    @torch.no_grad()
    def measure(self, task: Task) -> list[tuple[Key, JsonObject]]:
        """The rows of a task."""
        if task.kind == DIMS:
            return [(task.key, {"rules": self._dims(LocateKey.of(task.key).length)})]
        if task.kind == CHOSEN:
            ((chosen, candidates),) = task.inputs
            return [(task.key, {"heads": chosen, "candidates": candidates})]
        row = LocateKey.of(task.key)
        if task.kind == GRADIENTS:
            recovered = task.inputs[0].run(self._pair(row.group, row.method, row.item))
            _check_finite(recovered, task.key)
            return [(task.key, {"recovered": recovered.tolist()})]
        is_search = task.kind == SMALLEST
        return [
            ((*row[:4], *tried.key), {"nll": self._losses(row.group, row.method, row.item, tried, is_search)})
            for tried in task.inputs
        ]

    def _losses(self, group: ItemGroup, name: str, number: int, intervention: Any, is_search: bool) -> list[float]:
        """Losses by block of one item; name: the method, Origin for what serves all. RuntimeError if not finite."""
        pair = self._pair(group, name, number, inside=getattr(intervention, "inside", False), is_search=is_search)
        losses = blocks(group[0], intervention.run(pair).losses.double().cpu().numpy())
        _check_finite(losses, (*group, name, number, *intervention.key))
        return losses

    def _dims(self, length: int) -> dict[str, list[Any]]:
        plan, request = self.plan, self.plan.request
        methods = [plan.methods[ORIGIN], plan.methods[plan.compared[0]]]
        ids, _ = repeated_word(self._tokenizer, request.word, length)
        period = len(word_ids(self._tokenizer, request.word))
        return clamped_dims(self._bridge, ids, methods, request.dims, period=period, executor=request.executor)

    def _pair(
        self, group: ItemGroup, name: str, number: int, *, inside: bool = False, is_search: bool = False
    ) -> RunPair:
        """The runs of an item, with the baseline of the item's other pairs; inside: Origin's on its last M tokens."""
        plan, method = self.plan, self.plan.compared[0] if name == ORIGIN else name
        scope = (group, method, is_search) if is_search else (group, number, is_search)
        if self._scope != scope:
            self._pairs, self._scope = {}, scope
        key = (number, method, inside)
        if key not in self._pairs:
            item, origin = plan.items[group][number], plan.methods[ORIGIN]
            if inside:
                item = replace(item, ids=item.ids[-origin.trained_length :])
            methods = {BASELINE: origin, PATCHED: origin if inside else plan.methods[method]}
            pair = RunPair(self._bridge, item, methods, plan.request.executor)
            for (other, _, cut), known in self._pairs.items():
                if not inside and not cut and other == number and BASELINE in known.outcomes:
                    pair.outcomes[BASELINE] = known.outcomes[BASELINE]
            self._pairs[key] = pair
        return self._pairs[key]


def _check_finite(losses: Any, key: Key) -> None:
    """Raises Failed, naming the task."""
    if not np.isfinite(losses).all():
        raise Failed(f"the losses of {key} are not finite; try a wider --dtype (float32, float64)")


@dataclass(frozen=True)
class Locate(Experiment):
    """A plan. batch: interventions a task."""

    plan: LocatePlan
    batch: int = 1
    title, unit, remedy = "locating", "token", "shorten --lengths or leave clamp and gradients out of --try"
    worker_class = LocateWorker
    folder, written, needed = (
        LOCATED.command,
        (LOCATED.path.name, "report.html"),
        ("nll", "rules", "heads", "recovered"),
    )

    def tasks(self, rows: JournalRows) -> Sequence[Task]:
        """The tasks that can run now."""
        return tasks(self.plan, rows, batch=self.batch)

    def all_tasks(self, rows: JournalRows) -> Sequence[Task]:
        """As for Experiment: as if every excess loss were significant; without a search's later rounds."""
        return tasks(self.plan, rows, batch=self.batch, foresee=True)

    def remaining(self, rows: JournalRows) -> int:
        """The rows that the journal lacks, as far as can be foreseen."""
        return remaining(self.plan, rows)

    def refusal(self, rows: JournalRows) -> str:
        """As for Experiment: why there is no loss to recover."""
        return no_gap(self.plan, rows)

    def method(self, key: Key) -> Method | None:
        """As for Experiment."""
        return self.plan.methods.get(LocateKey.of(key).method)

    def record(self, journal: Journal, task: Task, value: Any) -> None:
        """Journals a task's rows."""
        for key, row in value:
            journal.add(key, row)


def locate(
    plan: LocatePlan, out: Path, *, overwrite: bool = False, until: float | None = None, runner: Runner = LOCAL
) -> tuple[Journal, list[Task]]:
    """The journal of the folder `out` with every row of the plan, unless `until` came before; and the lost tasks.

    Raises what `run` raises.
    """
    return run(Locate(plan, 1 if runner.is_local else BATCH), out, overwrite=overwrite, until=until, runner=runner)


def summarize(plan: LocatePlan, journal: Journal) -> Located:
    """The summary of a plan; shares only where the excess loss is significant.

    What is there for some items alone is scored on these; `items` says on how many. refusal: why a finished run has
    no loss to recover; else empty.
    """
    rows, gaps, effects, smallest, inside = journal.rows, list[Loss](), list[Effect](), list[SmallestSet](), []
    for group in sorted(plan.items, key=lambda group: group[1]):
        inside += _inside(plan, rows, group)
        for name in (name for name in plan.compared if has_runs(plan, rows, group, name)):
            gap, (measure, length) = paired(plan, rows, group, name).gap, group
            loss = Loss(name, length, measure, *astuple(gap), significant=gap.significant, items=len(plan.items[group]))
            gaps.append(loss)
            if gap.significant:
                effects += [*_effects(plan, rows, group, loss), *_estimates(plan, rows, group, loss)]
                smallest += _smallest(plan, rows, group, loss)
    return Located(
        **summary_of(plan),
        layers=sorted({*plan.layers} | {row.layer for row in effects if row.layer is not None}),
        heads=plan.config.num_attention_heads,
        tasks_left=remaining(plan, rows),
        refusal=no_gap(plan, rows),
        loss_gaps=gaps,
        effects=effects,
        smallest=smallest,
        inside=inside,
    )


def _effects(plan: LocatePlan, rows: JournalRows, group: ItemGroup, loss: Loss) -> list[Effect]:
    """The loss that each patch of a method, and each clamp of Origin, recovers or loses again."""
    name = loss.method
    numbers_of: dict[tuple[Any, ...], list[int]] = {}
    for key in map(LocateKey.of, rows):
        is_effect = key.group == group and key.method in (name, ORIGIN) and key.tried[:1] in ((JOURNALED,), (CLAMP,))
        if is_effect and "inside" not in key.tried and key.item < len(plan.items[group]):
            numbers_of.setdefault((key.method, *key.tried), []).append(key.item)
    effects, losses_of = [], dict[tuple[int, ...], PairedLosses]()
    for (method, *parts), unordered in numbers_of.items():
        numbers = tuple(sorted(unordered))
        if numbers not in losses_of:
            losses_of[numbers] = paired(plan, rows, group, name, numbers)
        entry: dict[str, Any] = dict(zip(_CLAMP_KEY if parts[0] == CLAMP else _PATCH_KEY, parts, strict=True))
        entry |= {"kind": PATCH} if parts[0] == JOURNALED else {}
        entry.pop("span", None)
        losses = losses_at(rows, [(*group, method, number, *parts) for number in numbers])
        share = losses_of[numbers].share(losses, again=entry["way"] == "without")
        place = {key: None if entry.get(key, -1) == -1 else entry[key] for key in ("layer", "head")}
        measures = {"loss": float(np.mean(losses)), **share._asdict(), "items": len(numbers)}
        effects.append(Effect(**loss.labels, **entry | place, **measures))
    return effects


def _estimates(plan: LocatePlan, rows: JournalRows, group: ItemGroup, loss: Loss) -> list[Effect]:
    """What gradients estimate that a method in each head alone recovers; intervals are over items alone."""
    name = loss.method
    numbers = [number for number in range(len(plan.items[group])) if (*group, name, number, GRADIENTS) in rows]
    if not numbers:
        return []
    pairs = paired(plan, rows, group, name, numbers)
    means = PairedLosses(*(losses.mean(1, keepdims=True) for losses in (pairs.baseline, pairs.patched)))
    recovered = np.array([rows[(*group, name, number, GRADIENTS)]["recovered"] for number in numbers])
    effects = []
    for layer, head in plan.estimated:
        losses = means.baseline - recovered[:, layer, head, None]
        share = means.share(losses.tolist())
        measures = {"loss": float(losses.mean()), **share._asdict(), "items": len(numbers)}
        effects.append(Effect(**loss.labels, kind=GRADIENTS, way="only", layer=layer, head=head, **measures))
    return effects


def _inside(plan: LocatePlan, rows: JournalRows, group: ItemGroup) -> list[InsideCost]:
    """What clamping costs inside the window: loss less that of the plain run, nats/token, with its interval."""
    plain = [n for n in range(len(plan.items[group])) if (*group, ORIGIN, n, "run-inside") in rows]
    known = [key for key in map(LocateKey.of, rows) if (key.group, key.method) == (group, ORIGIN)]
    clamps = {key.tried for key in known if key.tried[0] == CLAMP and "inside" in key.tried}
    costs = []
    for parts in sorted(clamps):
        numbers = [number for number in plain if (*group, ORIGIN, number, *parts) in rows]
        clamped, without = (
            losses_at(rows, [(*group, ORIGIN, number, *tried) for number in numbers])
            for tried in (parts, ("run-inside",))
        )
        cost = PairedLosses(clamped, without).gap
        way, rule, which = map(str, parts[1:4])
        costs.append(InsideCost(group[1], group[0], way, rule, which, cost.size, cost.low, cost.high))
    return costs


def _smallest(plan: LocatePlan, rows: JournalRows, group: ItemGroup, loss: Loss) -> list[SmallestSet]:
    """By candidates, most first: the greedy sets in order, and random ones, on the items that they were not chosen on.

    finished: whether the search ended, by its own half of the items. enough: the heads it ended with, if they recover
    `SUFFICIENT` of the other half too. Without heads: no search, since one half shows no loss.
    """
    name, sizes = loss.method, dict[str, int]()
    for key in map(LocateKey.of, rows):
        if (key.group, key.method, key.item) == (group, name, -1) and key.tried[:1] == (CHOSEN,):
            _, candidates, size = key.tried
            sizes[str(candidates)] = max(int(size), sizes.get(str(candidates), 0))
    if not sizes and SMALLEST not in plan.request.kinds:
        return []
    if not is_searchable(plan, rows, group, name):
        return [SmallestSet(**loss.labels)]
    choosing, scoring = halves(len(plan.items[group]))
    scored = paired(plan, rows, group, name, scoring)
    target = target_loss(paired(plan, rows, group, name, choosing).gap)

    def losses(heads: Heads, numbers: Sequence[int]) -> list[list[float]]:
        return losses_at(rows, [set_key(group, name, number, heads) for number in numbers])

    searches = []
    for candidates_key, last in sizes.items():
        row = rows[(*group, name, -1, CHOSEN, candidates_key, last)]
        heads, candidates = ([(layer, head) for layer, head in row[key]] for key in ("heads", "candidates"))
        steps = range(1, last + 1)
        shares = [scored.share(losses(by_layer(heads[:size]), scoring)) for size in steps]
        random = [
            [scored.share(losses(drawn, scoring)).share for drawn in random_sets(candidates, size)] for size in steps
        ]
        ends = np.quantile(np.array(random), [0.025, 0.5, 0.975], axis=1).tolist()
        others = complement(plan, heads)
        is_measured = bool(others) and all(set_key(group, name, number, others) in rows for number in scoring)
        reached = float(np.mean(losses(by_layer(heads), choosing))) <= target
        searches.append(
            SmallestSet(
                **loss.labels,
                heads=heads,
                rest=scored.share(losses(others, scoring)) if is_measured else (np.nan, np.nan, np.nan),
                candidates=len(candidates),
                **dict(zip(_SET, map(list, [*zip(*shares, strict=True), *ends]), strict=True)),
                finished=reached or last == min(len(candidates), MAX_HEADS),
                enough=last if reached and shares[-1].share >= SUFFICIENT else None,
            )
        )
    return sorted(searches, key=lambda search: -search.candidates)


__all__ = ["estimate", "plan", "run_and_report"]


def estimate(plan: LocatePlan, out: Path, *, overwrite: bool) -> Estimate:
    """What a plan takes; of a search the first round."""
    text, left = estimated(Locate, plan, out, overwrite=overwrite)
    later = "\nnot counted: the later rounds of the search for the smallest set" * (SMALLEST in plan.request.kinds)
    return text + later, left


def run_and_report(plan: LocatePlan, out: Path, **how: Any) -> CommandResult:
    """Measures what the folder `out` lacks of the plan, and writes its results and report. how: as `run` takes it."""
    journal, failed = locate(plan, out, **how)
    summary = summarize(plan, journal)
    text = as_text(places(summary))
    if journal.rows:
        LOCATED.write(out, summary)
        text += f"\n\nwrote {write_located(out, summary).parent}: report.html, summary.json, tables"
    return CommandResult(summary, text, len(failed), str(summary.tasks_left or ""), summary.refusal)
