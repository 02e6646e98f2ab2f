"""What `mesa-lens anatomy` measured: maps of heads, the logit lens, positional vectors."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import xarray as xr

from probe.figures.figure_data import (
    Chart,
    Line,
    Panel,
    Rule,
    Scale,
    TileMap,
    axis_range,
    offset,
    same_range,
    spaced_ticks,
    tile_block,
    trained_rule,
)
from probe.figures.locate import at_length
from probe.figures.styles import GREY, RED, style
from probe.store.results import Anatomy, Row, having, number, ranged

INSIDE, BEYOND = "inside M", "beyond M"
_NATS = "NLL (nats/token)"
_COMPONENTS = (("#0072B2", "solid", "circle"), ("#D55E00", "dash", "square"))
"""Looks of the first and the second component."""


@dataclass(frozen=True)
class Statistic:
    """A number of every head: its table and column in the summary, and how it is written; whole: a scale up to 1."""

    table: str
    column: str
    title: str
    unit: str
    digits: int | None = None
    whole: bool = False


STATISTICS = {
    "retrieval": Statistic(
        "retrieval",
        "best",
        "Retrieval score: how often a head attends most to the passkey's token, or to the one after it",
        "score",
        whole=True,
    ),
    "unmet": Statistic(
        "frequencies",
        "attention",
        "Unmet phases: share of attention scores from rotary phases not met inside M",
        "share",
    ),
    "first": Statistic("heads", "mass_first", "Attention to the first 4 keys", "share"),
    "near": Statistic("heads", "mass_near", "Attention to keys at most N tokens away, without the first 4", "share"),
    "window": Statistic(
        "heads", "mass_window", "Attention to keys from N to M tokens away, without the first 4", "share"
    ),
    "beyond": Statistic(
        "heads", "mass_beyond", "Attention to keys M or more tokens away, without the first 4", "share"
    ),
    "distance": Statistic("heads", "mean_distance", "Mean attention distance", "tokens", 0),
    "entropy": Statistic("heads", "entropy", "Entropy of attention", "nats", 1),
    "sink": Statistic("heads", "sink", "Attention on token 0", "share"),
}
"""The maps, by name."""


def head_map(anatomy: Anatomy, name: str, method: str, length: int) -> TileMap | None:
    """Layers x heads: a statistic of the reference inside and beyond M, and beside it the method's; None if not run.

    One colour scale for all methods at the length.
    """
    summary, statistic = anatomy.summary, STATISTICS[name]
    rows = having(summary[statistic.table], length=length)
    if not having(rows, method=method) or (name == "beyond" and length <= summary["trained_length"]):
        return None
    subsets = _blocks(summary, rows, statistic, method, length)
    coloured = [row for row in rows if row.get("span") != INSIDE] if length > summary["trained_length"] else rows
    largest = 1.0 if statistic.whole else max(row[statistic.column][0] for row in coloured)
    scale = Scale(0.0, _round_above(largest), statistic.digits)
    heads = [str(head) for head in range(1 + max(row["head"] for subset in subsets.values() for row in subset))]
    blocks = []
    for title, subset in subsets.items():
        triples = {(row["layer"], row["head"]): map(number, row[statistic.column]) for row in subset}
        blocks.append(tile_block(title, heads, summary["layers"], triples, scale))
    prompts = max(row["n"] for subset in subsets.values() for row in subset)
    title = f"{statistic.title}. {at_length(summary, length)}, {prompts} prompt{'s' * (prompts > 1)}"
    return TileMap(title, statistic.unit, "layer", tuple(map(str, summary["layers"])), tuple(blocks))


def lens_chart(anatomy: Anatomy, length: int, methods: Sequence[str], layer: int | None = None) -> Chart | None:
    """The logit lens: NLL by layer at the end, what methods lower it by, and NLL by position; None if not run.

    layer: after which NLL by position is read; None: the last.
    """
    summary = anatomy.summary
    rows = having(summary["lens"], length=length)
    by_method = {name: subset for name in methods if (subset := having(rows, method=name))}
    if not by_method:
        return None
    layers, trained, count = summary["layers"], summary["trained_length"], len(by_method)
    begin, end = (max(row[side] for row in rows) for side in ("begin", "end"))
    lines = [
        _nll_line(name, having(subset, end=end), "layer", by_method, offset(n, count))
        for n, (name, subset) in enumerate(by_method.items())
    ]
    panels = [_layer_panel(f"tokens {begin} to {end}: read after each layer", _NATS, lines, layers)]
    lower = [row for row in having(summary["lens_differs"], length=length) if row["method"] in by_method]
    if lower:
        names = [row["method"] for row in lower]
        lines = [_lowered(row, layers, n, names) for n, row in enumerate(lower)]
        title = f"the same: lower than {summary['reference']} by"
        rules = (Rule(0, "", GREY, dash="dot"),)
        panels.append(_layer_panel(title, "nats/token, paired by prompt", lines, layers, rules))
    layer = max(layers) if layer is None else layer
    lines = [
        _nll_line(name, sorted(having(subset, layer=layer), key=lambda row: row["end"]), "end", by_method, band=True)
        for name, subset in by_method.items()
    ]
    panels.append(
        Panel(
            f"after layer {layer}: by position",
            "tokens up to (position)",
            _NATS,
            tuple(lines),
            axis_range(lines),
            rules=(trained_rule(trained),) if length > trained else (),
            x_ticks=tuple(sorted({row["end"] for row in rows})),
            log_x=True,
        )
    )
    title = "Logit lens: the next token read from the states after each layer"
    return Chart(f"{title}. {at_length(summary, length)}", tuple(panels))


def cosine_chart(anatomy: Anatomy, layer: int, methods: Sequence[str]) -> Chart | None:
    """Over position: the largest cosine of one half's positional vector to an in-window one of the other half's."""
    vectors = _vectors(anatomy, methods, layer)
    if vectors is None:
        return None
    position, trained = vectors["position"].values, anatomy.summary["trained_length"]
    width = max(1, int((position < trained).sum()) // 16)
    means = _running_means(vectors["cosine"].where(vectors["position"] > 0), trained, width)
    lines = []
    for name in vectors["method"].values.tolist():
        _, reliability = _reliability(anatomy, name, layer)
        label = f"{name} ({anatomy.summary['vectors']['texts'][name]} texts, reliability {reliability:z.2f})"
        look = style(name, anatomy.summary["methods"])
        lines.append(Line(label, position.astype(float), means.sel({"method": name}).values, *look))
    x_title = f"position (tokens), means of {width * int(position[1] - position[0])}"
    rules = (trained_rule(trained),)
    panel = Panel(f"layer {layer}", x_title, "largest cosine", tuple(lines), axis_range(lines), rules=rules)
    title = "Positional vectors: cosine to the most similar one inside M, from other texts"
    return Chart(f"{title}. {_vectors_at(anatomy)}", (panel,))


def component_chart(anatomy: Anatomy, layer: int, methods: Sequence[str]) -> Chart | None:
    """Over position: the first two components of each method's positional vectors; a panel a method."""
    vectors = _vectors(anatomy, methods, layer)
    if vectors is None:
        return None
    scores = vectors["score"].isel(component=slice(len(_COMPONENTS)))
    low, high = (float(end) for end in scores.quantile([0.02, 0.98]))
    pad, rules = 0.15 * (high - low), (trained_rule(anatomy.summary["trained_length"]),)
    x = vectors["position"].values.astype(float)
    panels = []
    for name in vectors["method"].values.tolist():
        values = scores.sel({"method": name}).transpose("component", ...).values.astype(float)
        lines = tuple(
            Line(f"component {number_}", x, y, *look)
            for number_, (y, look) in enumerate(zip(values, _COMPONENTS, strict=False), 1)
        )
        row, reliability = _reliability(anatomy, name, layer)
        shares = " and ".join(f"{share:.0%}" for share in row["components"][: len(lines)])
        x_title = f"position (reliability {reliability:z.2f})"
        y_range = low - pad, high + pad
        panels.append(Panel(f"{name}: {shares}", x_title, "activation", lines, y_range, rules=rules))
    title = f"Positional vectors, layer {layer}: the first two components, with their shares of the variance inside M"
    return Chart(f"{title}. {_vectors_at(anatomy)}", tuple(panels))


def share_chart(anatomy: Anatomy, methods: Sequence[str]) -> Chart | None:
    """By layer: how much of the states' variance is positional, inside and beyond M, and how reliable vectors are."""
    vectors = _vectors(anatomy, methods)
    if vectors is None:
        return None
    layers, names = vectors["layer"].values.tolist(), vectors["method"].values.tolist()
    panels = []
    for band in vectors["band"].values.tolist():
        lines = _by_layer(100 * vectors["share"].sel(band=band), names)
        panels.append(_layer_panel(f"positional share, {band} M", "% of variance", lines, layers))
    lines = _by_layer(vectors["reliability"].min("band"), names)
    least = anatomy.summary["vectors"]["reliable"]
    rules = (Rule(least, f"reliable from {least:g}", RED),)
    ticks = tuple(layers[at] for at in spaced_ticks(len(layers)))
    title = "reliability, the lower of both"
    reliability = Panel(title, "layer", "reliability", tuple(lines), (-0.05, 1.05), rules=rules, x_ticks=ticks)
    return Chart(f"Positional vectors by layer. {_vectors_at(anatomy)}", (*same_range(panels), reliability))


def _blocks(
    summary: Mapping[str, Any], rows: Sequence[Row], statistic: Statistic, method: str, length: int
) -> dict[str, list[Row]]:
    """Rows of the blocks by title, the reference's first; those without rows are left out."""
    reference, trained = summary["reference"], summary["trained_length"]
    blocks: dict[str, list[Row]] = {}
    if statistic.table == "retrieval":  # answers stand at the end: none of these rows is both inside and beyond
        lengths = [row["length"] for row in having(summary["retrieval"], method=reference)]
        within = max((inside for inside in lengths if inside <= trained), default=None)
        if length > trained:
            inside = having(summary["retrieval"], method=reference, length=within)
            blocks[f"{reference} at {within} tokens, head"] = inside
        blocks |= {f"{name} at {length} tokens, head": having(rows, method=name) for name in (reference, method)}
    else:
        spans = [(reference, INSIDE), (reference, BEYOND), (method, BEYOND)]
        if length <= trained:
            spans = [(reference, INSIDE), (method, INSIDE)]
        blocks = {f"{name} {span}, head": having(rows, method=name, span=span) for name, span in spans}
    return {title: subset for title, subset in blocks.items() if subset}


def _round_above(value: float) -> float:
    """The least of 1, 2, 4, 6, 8 and 10 times a power of ten that is not below `value`; 1 for 0."""
    if value <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(factor * power for factor in (1, 2, 4, 6, 8, 10) if factor * power >= value * (1 - 1e-9))


def _layer_panel(
    title: str, y_title: str, lines: Sequence[Line], layers: Sequence[int], rules: tuple[Rule, ...] = ()
) -> Panel:
    ticks = tuple(layers[at] for at in spaced_ticks(len(layers)))
    return Panel(title, "layer", y_title, tuple(lines), axis_range(lines, rules), rules=rules, x_ticks=ticks)


def _nll_line(
    method: str, rows: Sequence[Row], x_name: str, methods: Iterable[str], shift: float = 0.0, band: bool = False
) -> Line:
    x = np.array([row[x_name] + shift for row in rows], float)
    y, low, high = np.array([list(map(number, row["nll"])) for row in rows], float).T
    texts = tuple(
        f"{method}, layer {row['layer']}, tokens {row['begin']} to {row['end']}: {ranged(*row['nll'])} nats/token"
        for row in rows
    )
    interval = (low, high) if np.isfinite(low).any() else None
    return Line(method, x, y, *style(method, methods), interval, band, texts)


def _lowered(row: Row, layers: Sequence[int], index: int, methods: Sequence[str]) -> Line:
    y, low, high = np.array(row["by_layer"], float).T
    method = row["method"]
    texts = tuple(
        f"{method}, layer {layer}: lower by {ranged(*values)} nats/token"
        for layer, values in zip(layers, row["by_layer"], strict=True)
    )
    x = np.array(layers) + offset(index, len(methods))
    return Line(method, x, y, *style(method, methods), (low, high), texts=texts)


def _by_layer(values: xr.DataArray, methods: Sequence[str]) -> list[Line]:
    lines, layers = [], values["layer"].values
    for index, method in enumerate(methods):
        y = values.sel({"method": method}).values
        texts = tuple(f"{method}, layer {layer}: {value:.4g}" for layer, value in zip(layers, y, strict=True))
        x = layers + offset(index, len(methods))
        lines.append(Line(method, x, y.astype(float), *style(method, methods), texts=texts))
    return lines


def _vectors(anatomy: Anatomy, methods: Sequence[str], layer: int | None = None) -> xr.Dataset | None:
    """The methods' arrays, at the layer; None where there are none."""
    vectors = anatomy.vectors
    if vectors is None:
        return None
    names = [name for name in methods if name in vectors["method"].values]
    if not names or (layer is not None and layer not in vectors["layer"].values):
        return None
    vectors = vectors.sel({"method": names})
    return vectors if layer is None else vectors.sel(layer=layer)


def _running_means(values: xr.DataArray, trained: int, width: int) -> xr.DataArray:
    """Running means, inside and beyond M separately, so that a break at M stays there."""
    inside = values["position"] < trained
    parts = (values.isel(position=side.values) for side in (inside, ~inside))
    return xr.concat([part.rolling(position=width, min_periods=1, center=True).mean() for part in parts], "position")


def _reliability(anatomy: Anatomy, method: str, layer: int) -> tuple[Row, float]:
    """The summary's row of a layer's vectors, and their reliability, the lower of inside and beyond M."""
    (row,) = having(anatomy.summary["vectors"]["layers"], method=method, layer=layer)
    return row, min(value or 0.0 for value in row["reliability"].values())


def _vectors_at(anatomy: Anatomy) -> str:
    return at_length(anatomy.summary, anatomy.summary["vectors"]["length"])
