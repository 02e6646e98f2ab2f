"""Holding dims of the broken run where they were inside the window: are crossed thresholds causes?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import xarray as xr
from transformer_lens.model_bridge import TransformerBridge

from mesa.methods import Method
from probe.capture.capture import capture_states
from probe.mechanism.contrast import BROKEN, Contrast
from probe.mechanism.passes import Edit, Outcome
from probe.thresholds.drift import DriftRule, find_drift, of_plans, resolution
from probe.thresholds.search import CrossingRule, search

WAYS = ("at-M", "range")
"""at-M: beyond M each dim has the value that it had at the last position before M. range: it is cut to [5%, 95%] of its
values in the second half of the window.
"""
RULES = ("drift", "paper")
CONTROLS = 5
"""Sets of random dims."""

Dims = Mapping[int, Sequence[int]]
"""Dims by layer."""


def observable(
    bridge: TransformerBridge, ids: Sequence[int], methods: Sequence[Method], top: int, *, executor: str = "fused"
) -> dict[str, tuple[Dims, dict[int, np.ndarray]]]:
    """By rule: up to `top` dims a layer that leave their range beyond M in a pass over `ids`, and stand-ins for each.

    methods: the reference, whose dims these are, and the mended. drift: of the layers called, the dims with the largest
    shares. paper: the observable dims of `search`, those of highest rank. Stand-ins (set, dim) are other dims of the
    layer, at random among those nearest in variance between M/4 and M. A layer without observable dims is left out.
    """
    passes = [capture_states(bridge, ids, method, executor=executor)["resid_post"] for method in methods]
    hidden = xr.concat(passes, "method")
    trained = methods[0].trained_length
    rule = DriftRule.scaled(trained, resolution(str(bridge.original_model.dtype).removeprefix("torch.")))
    known = of_plans({method.name: method.plan(len(ids)) for method in methods})
    drift = find_drift(hidden, trained, rule, reference=methods[0].name, **known).sel({"method": methods[0].name})
    rank = search(hidden, trained, CrossingRule.scaled(trained), methods[0].name)["rank"].values
    variance = hidden[0, :, trained // 4 : trained].var("position").values
    called = np.isfinite(drift["first"].values)
    found: dict[str, tuple[Dims, dict[int, np.ndarray]]] = {}
    for name in RULES:
        dims: dict[int, Sequence[int]] = {}
        for row, layer in enumerate(hidden["layer"].values.tolist()):
            if name == "drift":
                share = drift["share"].values[row]
                chosen = [dim for dim in np.argsort(-share, kind="stable")[:top].tolist() if share[dim] > 0]
                dims[layer] = chosen if called[row] else []
            else:
                ranked = np.flatnonzero(rank[row] > 0)
                dims[layer] = ranked[np.argsort(rank[row][ranked])][:top].tolist()
        dims = {layer: chosen for layer, chosen in dims.items() if chosen}
        found[name] = dims, {layer: stand_ins(variance[layer], chosen) for layer, chosen in dims.items()}
    return found


def stand_ins(variance: np.ndarray, chosen: Sequence[int]) -> np.ndarray:
    """`CONTROLS` sets (set, dim) of as many dims that are not `chosen`, each like one of them in `variance`; seeded.

    Raises ValueError where the layer has not twice as many dims.
    """
    if 2 * len(chosen) > len(variance):
        raise ValueError(f"{len(chosen)} of {len(variance)} dims leave too few to choose stand-ins from; take fewer")
    rng, sets = np.random.default_rng(0), []
    for _ in range(CONTROLS):
        free = [dim for dim in range(len(variance)) if dim not in set(chosen)]
        mine = []
        for dim in chosen:
            distance = np.abs(np.log(variance[free] + 1e-30) - np.log(variance[dim] + 1e-30))
            near = np.argsort(distance, kind="stable")[: min(5, len(free))]
            mine.append(free.pop(int(rng.choice(near))))
        sets.append(mine)
    return np.array(sets)


@dataclass(frozen=True)
class Clamp:
    """The broken run with some dims held. layer: None is all of `dims`. which: 'observable' or 'random N'.

    inside: the control inside the window: items of M tokens, held from M/2 on as if that were M.
    """

    way: str
    rule: str
    which: str
    layer: int | None
    dims: tuple[tuple[int, tuple[int, ...]], ...]
    inside: bool = False

    @property
    def cell(self) -> tuple[str | int, ...]:
        """What the journal calls it."""
        span = "inside" if self.inside else "beyond"
        return ("clamp", self.way, self.rule, self.which, span, -1 if self.layer is None else self.layer)

    restores = True

    def run(self, contrast: Contrast) -> Outcome:
        """The outcome of this on one item."""
        trained = contrast.methods[BROKEN].trained_length
        known = trained // 2 if self.inside else trained
        edits = []
        for layer, dims in self.dims:
            own = contrast.donor(BROKEN, ("resid_post", layer))[:known, list(dims)]
            low, high = _bounds(own, self.way)
            edits.append(Edit(("resid_post", layer), _holding(known, dims, low, high)))
        return contrast.run(BROKEN, self.dims[0][0], edits)


def _bounds(own: torch.Tensor, way: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Least and largest value allowed, by dim; `own` (position, dim) are the values before."""
    if way == "at-M":
        return own[-1], own[-1]
    ends = torch.tensor([0.05, 0.95], dtype=torch.float32, device=own.device)
    low, high = own[len(own) // 2 :].float().quantile(ends, dim=0)
    return low.to(own), high.to(own)


def _holding(begin: int, dims: Sequence[int], low: torch.Tensor, high: torch.Tensor) -> Any:
    def change(states: torch.Tensor) -> torch.Tensor:
        states[begin:, list(dims)] = states[begin:, list(dims)].clamp(low, high)
        return states

    return change


def clamps(dims: Dims, controls: Mapping[int, np.ndarray], rule: str, layers: Sequence[int]) -> Iterator[Clamp]:
    """Every clamp by a rule's dims, with stand-ins: in all layers that have any, also inside, and each of `layers`."""
    own = {layer: tuple(chosen) for layer, chosen in dims.items()}
    if not own:
        return
    sets = {"observable": own}
    for number in range(CONTROLS):
        sets[f"random {number}"] = {layer: tuple(controls[layer][number].tolist()) for layer in own}
    for way in WAYS:
        for which, each in sets.items():
            for layer in (None, *(layer for layer in own if layer in layers)):
                mine = tuple(each.items()) if layer is None else ((layer, each[layer]),)
                yield Clamp(way, rule, which, layer, mine)
            yield Clamp(way, rule, which, None, tuple(each.items()), inside=True)
