"""What a worker of a locate run does with a task: losses under interventions, threshold dims, attributions."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from transformer_lens.model_bridge import TransformerBridge

from probe.capture.bridge import bridge_to
from probe.experiment.model_spec import ModelSpec
from probe.experiment.task import Key, Measure, Task
from probe.interventions.clamp import threshold_dims
from probe.interventions.interventions import attribute
from probe.interventions.passes import BASELINE, METHOD, RunPair, blocks
from probe.interventions.request import ORIGIN, Group, LocatePlan
from probe.interventions.tasks import ATTRIBUTION, CHOSEN, DIMS, SEARCH
from probe.tasks.retrieval import repeated_word

Row = tuple[Key, dict[str, Any]]


@dataclass(frozen=True)
class LocateWorker:
    """A plan and its model, as plain data."""

    plan: LocatePlan
    source: ModelSpec

    @classmethod
    def of(cls, plan: LocatePlan) -> LocateWorker:
        """The worker of a plan."""
        return cls(replace(plan, config=None), ModelSpec.of(plan.request.model, plan.request.load, plan.config))

    def start(self, memory_bytes: int | None = None) -> Measure:
        """Loads the model; a task gives rows of the journal with their keys."""
        loaded = self.source.loaded()
        bridge = bridge_to(loaded.model, loaded.tokenizer)
        return RunCache(replace(self.plan, config=loaded.model.config), bridge, loaded.tokenizer).measure


class RunCache:
    """Measures tasks; keeps the runs that interventions start from: of one item or, in a head search, of a group."""

    def __init__(self, plan: LocatePlan, bridge: TransformerBridge, tokenizer: Any) -> None:
        self.plan, self._bridge, self._tokenizer = plan, bridge, tokenizer
        self._pairs: dict[tuple[int, str, bool], RunPair] = {}
        self._scope: tuple[Any, ...] = ()

    @torch.no_grad()
    def measure(self, task: Task) -> list[Row]:
        """The rows of a task."""
        if task.kind == DIMS:
            return [(task.key, {"rules": self._dims(int(task.key[1]))})]
        if task.kind == CHOSEN:
            ((chosen, candidates),) = task.inputs
            return [(task.key, {"heads": chosen, "candidates": candidates})]
        group, name, number = (str(task.key[0]), int(task.key[1])), str(task.key[2]), int(task.key[3])
        if task.kind == ATTRIBUTION:
            falls = attribute(self._pair(group, name, number), task.inputs)
            by_hook = {hook: [[*at.key, fall] for at, fall in falls.items() if at.hook == hook] for hook in task.inputs}
            return [((*task.key, hook), {"falls": rows}) for hook, rows in by_hook.items()]
        is_search = task.kind == SEARCH
        return [
            ((*task.key[:4], *tried.key), {"nll": self._losses(group, name, number, tried, is_search)})
            for tried in task.inputs
        ]

    def _losses(self, group: Group, name: str, number: int, intervention: Any, is_search: bool) -> list[float]:
        """Losses by block of one item; name: the method, Origin for what serves all. RuntimeError if not finite."""
        pair = self._pair(group, name, number, inside=getattr(intervention, "inside", False), is_search=is_search)
        losses = blocks(group[0], intervention.run(pair).losses.double().cpu().numpy())
        if not np.isfinite(losses).all():
            raise RuntimeError(
                f"the losses of {(*group, name, number, *intervention.key)} are not finite; try a wider --dtype "
                "(float32, float64)"
            )
        return losses

    def _dims(self, length: int) -> dict[str, list[Any]]:
        plan, request = self.plan, self.plan.request
        methods = [plan.methods[ORIGIN], plan.methods[plan.compared[0]]]
        ids, _ = repeated_word(self._tokenizer, request.word, length)
        return threshold_dims(self._bridge, ids, methods, request.dims, executor=request.executor)

    def _pair(self, group: Group, name: str, number: int, *, inside: bool = False, is_search: bool = False) -> RunPair:
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
            methods = {BASELINE: origin, METHOD: origin if inside else plan.methods[method]}
            pair = RunPair(self._bridge, item, methods, plan.request.executor)
            for (other, _, cut), known in self._pairs.items():
                if not inside and not cut and other == number and BASELINE in known.outcomes:
                    pair.outcomes[BASELINE] = known.outcomes[BASELINE]
            self._pairs[key] = pair
        return self._pairs[key]
