"""Clamping dims of the baseline to their range inside the trained length: are those that leave it causes?"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import xarray as xr
from transformer_lens.model_bridge import TransformerBridge

from mesa.errors import Refused
from mesa.methods import Method
from probe.capture.capture import capture_states
from probe.commands.locate.passes import BASELINE, Edit, PassOutcome, RunPair
from probe.thresholds.drift import DriftRule, find_drift, resolution
from probe.thresholds.search import CrossingRule, search

WAYS = ("at-M", "range")
"""at-M: beyond M each dim keeps its value at the last position before M. range: it is cut to [5%, 95%] of its values in
the second half of the window.
"""
RULES = ("drift", "paper")
CONTROLS = 5
"""Sets of random dims."""
LayerDims = tuple[int, Sequence[int], Sequence[Sequence[int]]]
"""A layer, its dims by a rule, and `CONTROLS` sets of as many others."""


def clamped_dims(
    bridge: TransformerBridge, ids: Sequence[int], methods: Sequence[Method], top: int, *, executor: str = "fused"
) -> dict[str, list[LayerDims]]:
    """By rule, then layer: up to `top` dims that leave their range beyond M in a pass over `ids`, and control sets.

    methods: the reference, whose dims these are, and the method. drift: the drift dims, of the drifting layers those
    with the largest shares. paper: the threshold dims of `search`, those of highest rank. Control dims are others of
    the layer, drawn from those nearest in variance between M/4 and M. A layer without dims is left out.
    """
    passes = [capture_states(bridge, ids, method, executor=executor)["resid_post"] for method in methods]
    hidden = xr.concat(passes, "method")
    trained = methods[0].trained_length
    rule = DriftRule.scaled(trained, resolution(str(bridge.original_model.dtype).removeprefix("torch.")))
    plans = {method.name: method.plan(len(ids)) for method in methods}
    drift = find_drift(hidden, trained, rule, plans=plans, reference=methods[0].name).sel({"method": methods[0].name})
    rank = search(hidden, trained, CrossingRule.scaled(trained), methods[0].name)["rank"].values
    variance = hidden[0, :, trained // 4 : trained].var("position").values
    share = np.where(np.isfinite(drift["first"].values)[:, None], drift["share"].values, 0.0)

    def chosen(name: str, row: int) -> list[int]:
        if name == "drift":
            return [dim for dim in np.argsort(-share[row], kind="stable")[:top].tolist() if share[row, dim] > 0]
        ranked = np.flatnonzero(rank[row] > 0)
        return ranked[np.argsort(rank[row][ranked])][:top].tolist()

    layers = hidden["layer"].values.tolist()
    return {
        name: [
            (layer, dims, control_dims(variance[row], dims).tolist())
            for row, layer in enumerate(layers)
            if (dims := chosen(name, row))
        ]
        for name in RULES
    }


def control_dims(variance: np.ndarray, chosen: Sequence[int]) -> np.ndarray:
    """`CONTROLS` sets (set, dim) of other dims, each near one of `chosen` in `variance`; seeded.

    Raises Refused where the layer does not have twice as many dims.
    """
    if 2 * len(chosen) > len(variance):
        raise Refused(f"{len(chosen)} of {len(variance)} dims leave too few to draw controls from; take fewer")
    rng, sets = np.random.default_rng(0), []
    log_variance = np.log(variance + 1e-30)
    for _ in range(CONTROLS):
        free, drawn = [dim for dim in range(len(variance)) if dim not in set(chosen)], []
        for dim in chosen:
            nearest = np.argsort(np.abs(log_variance[free] - log_variance[dim]), kind="stable")[: min(5, len(free))]
            drawn.append(free.pop(int(rng.choice(nearest))))
        sets.append(drawn)
    return np.array(sets)


@dataclass(frozen=True)
class Clamp:
    """The baseline with some dims clamped. layer: None is all of `dims`.

    which: 'threshold', the dims by the rule, or 'random N'.
    inside: the control inside the window: items of M tokens, clamped from M/2 on as if that were M.
    """

    way: str
    rule: str
    which: str
    layer: int | None
    dims: tuple[tuple[int, tuple[int, ...]], ...]
    inside: bool = False

    @property
    def key(self) -> tuple[str | int, ...]:
        """Its name in the journal."""
        span = "inside" if self.inside else "beyond"
        return ("clamp", self.way, self.rule, self.which, span, -1 if self.layer is None else self.layer)

    def run(self, pair: RunPair) -> PassOutcome:
        """The outcome on one item."""
        trained = pair.methods[BASELINE].trained_length
        begin = trained // 2 if self.inside else trained
        edits = []
        for layer, dims in self.dims:
            at = list(dims)
            low, high = _bounds(pair.states_after(BASELINE, layer)[:begin, at], self.way)
            edits.append(Edit(("resid_post", layer), _clamping(begin, at, low, high)))
        return pair.run(BASELINE, self.dims[0][0], edits)


def _bounds(before: torch.Tensor, way: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Smallest and largest value allowed, by dim; `before` (position, dim) are the values inside."""
    if way == "at-M":
        return before[-1], before[-1]
    ends = torch.tensor([0.05, 0.95], dtype=torch.float32, device=before.device)
    low, high = before[len(before) // 2 :].float().quantile(ends, dim=0)
    return low.to(before), high.to(before)


def _clamping(begin: int, dims: list[int], low: torch.Tensor, high: torch.Tensor) -> Callable[..., torch.Tensor]:
    def change(states: torch.Tensor) -> torch.Tensor:
        states[begin:, dims] = states[begin:, dims].clamp(low, high)
        return states

    return change


def clamps(rules: Mapping[str, Sequence[LayerDims]], layers: Sequence[int]) -> Iterator[Clamp]:
    """Every clamp of each rule's dims and of their controls: in all layers that have any, also inside, and by layer."""
    for rule, by_layer in rules.items():
        sets = {"threshold": {layer: tuple(dims) for layer, dims, _ in by_layer}}
        for number in range(CONTROLS):
            sets[f"random {number}"] = {layer: tuple(controls[number]) for layer, _, controls in by_layer}
        for way in WAYS if by_layer else ():
            for which, dims in sets.items():
                every = tuple(dims.items())
                yield Clamp(way, rule, which, None, every)
                yield from (Clamp(way, rule, which, at, ((at, dims[at]),)) for at in dims if at in layers)
                yield Clamp(way, rule, which, None, every, inside=True)
