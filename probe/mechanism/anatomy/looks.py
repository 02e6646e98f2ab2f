"""What each part of an anatomy measures of one prompt under one method, ready for JSON."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import xarray as xr
from transformer_lens.model_bridge import TransformerBridge

from probe.mechanism.anatomy.frequencies import unmet_share
from probe.mechanism.anatomy.heads import head_statistics
from probe.mechanism.anatomy.lens import logit_lens
from probe.mechanism.anatomy.queries import by_span
from probe.mechanism.anatomy.request import AnatomyPlan, Cell
from probe.mechanism.anatomy.retrieval import retrieval_scores

_SAMPLE = 256
"""Tokens of a bucket that the logit lens reads."""
_DIGITS = 7


def look(bridge: TransformerBridge, made: AnatomyPlan, cell: Cell) -> dict[str, Any]:
    """What a cell measures, ready for JSON. Raises RuntimeError for what is not finite."""
    part, name, length, number = cell
    looks: dict[str, Callable[[], dict[str, Any]]] = {
        "heads": lambda: _spans(made, head_statistics(model, [ids], method)),
        "frequencies": lambda: _spans(made, unmet_share(model, [ids], method)),
        "lens": lambda: _lens(bridge, made, ids, name),
        "retrieval": lambda: _plain(
            {"score": retrieval_scores(model, [made.passkeys[length][number]], method)[0].sel(layer=made.layers)}
        ),
    }
    model: Any = bridge.original_model
    method = made.methods[name]
    ids = [] if part == "retrieval" else made.texts[length][number].tolist()
    return looks[part]()


def _spans(made: AnatomyPlan, data: xr.Dataset) -> dict[str, Any]:
    """Means inside and beyond M, (span, layer, head, ...), of one prompt."""
    means = by_span(data).isel(prompt=0).sel(layer=made.layers)
    values = {str(name): each.transpose("span", "layer", "head", ...) for name, each in means.data_vars.items()}
    return {"spans": means["span"].values.tolist(), **_plain(values)}


def _lens(bridge: TransformerBridge, made: AnatomyPlan, ids: list[int], name: str) -> dict[str, Any]:
    ends = buckets(len(ids), made.trained_length)
    options = {"sample": _SAMPLE, "executor": made.request.executor}
    found = logit_lens(bridge, [ids], made.methods[name], ends, made.layers, **options)
    return {"ends": found["bucket"].values.tolist(), **_plain({"nll": found.isel(prompt=0)})}


def buckets(length: int, trained_length: int) -> list[int]:
    """Where the lens' buckets of predicted tokens end: M/2, M, 2 M, 4 M, ... and the length itself."""
    ends, end = {length}, max(2, trained_length // 2)
    while end < length:
        ends.add(end)
        end *= 2
    return sorted(ends)


def _plain(values: dict[str, xr.DataArray]) -> dict[str, Any]:
    for name, each in values.items():
        if not np.isfinite(each.values).all():
            raise RuntimeError(f"{name} is not finite; try a wider --dtype (float32, float64)")
    return {name: np.round(each.values.astype(float), _DIGITS).tolist() for name, each in values.items()}
