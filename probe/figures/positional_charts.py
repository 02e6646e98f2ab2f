"""Positional vectors as charts: likeness to in-window ones, first components, how much is positional."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import xarray as xr

from probe.figures.anatomy_charts import value_range
from probe.figures.marks import Chart, Line, Panel, Rule, trained_rule
from probe.figures.mechanism import at_length
from probe.figures.mechanism_charts import moved_aside, ticks_of
from probe.figures.styles import RED, style
from probe.store.results import Anatomy, Row, having

_COMPONENTS = (("#0072B2", "solid", "circle"), ("#D55E00", "dash", "square"))
"""Looks of the first and the second component."""


def cosine_chart(found: Anatomy, layer: int, methods: Sequence[str]) -> Chart | None:
    """Over position: the largest cosine of one half's positional vector to an in-window one of the other half's."""
    own = _own(found, methods, layer)
    if own is None:
        return None
    position, trained = own["position"].values, found.summary["trained_length"]
    smoothing = max(1, int((position < trained).sum()) // 16)
    means = _smoothed(own["cosine"].where(own["position"] > 0), trained, smoothing)
    lines = tuple(
        Line(
            _named(found, name, layer),
            position.astype(float),
            means.sel({"method": name}).values,
            *style(name, found.summary["methods"]),
        )
        for name in own["method"].values.tolist()
    )
    x_title = f"position (tokens), means of {smoothing * int(position[1] - position[0])}"
    panel = Panel(f"layer {layer}", x_title, "largest cosine", lines, (), (_rule(found),), value_range(lines))
    title = "Positional vectors: how like the most alike one inside M, of other texts"
    return Chart(f"{title}. {_place(found)}", (panel,))


def component_chart(found: Anatomy, layer: int, methods: Sequence[str]) -> Chart | None:
    """Over position: the first two components of each method's positional vectors; a panel a method."""
    own = _own(found, methods, layer)
    if own is None:
        return None
    scores = own["score"].isel(component=slice(len(_COMPONENTS)))
    low, high = (float(each) for each in scores.quantile([0.02, 0.98]))
    y_range = low - 0.15 * (high - low), high + 0.15 * (high - low)
    panels = []
    for name in own["method"].values.tolist():
        each = scores.sel({"method": name})
        x = each["position"].values.astype(float)
        lines = tuple(
            Line(f"component {at + 1}", x, each.isel(component=at).values.astype(float), *look)
            for at, look in enumerate(_COMPONENTS)
        )
        row, reliability = _judged(found, name, layer)
        told = " and ".join(f"{share:.0%}" for share in row["components"][: len(lines)])
        x_title = f"position (reliability {reliability:z.2f})"
        panels.append(Panel(f"{name}: {told}", x_title, "activation", lines, (), (_rule(found),), y_range))
    title = f"Positional vectors, layer {layer}: the first two components, with their shares of the variance inside M"
    return Chart(f"{title}. {_place(found)}", tuple(panels))


def share_chart(found: Anatomy, methods: Sequence[str]) -> Chart | None:
    """By layer: how much of the states' variance is positional, inside and beyond M, and how reliable vectors are."""
    own = _own(found, methods)
    if own is None:
        return None
    layers, names = own["layer"].values.tolist(), own["method"].values.tolist()
    ticks = tuple(layers[at] for at in ticks_of(len(layers), last=False))
    panels = []
    for band in own["band"].values.tolist():
        lines = [_by_layer(100 * own["share"].sel(band=band), n, names) for n in range(len(names))]
        title = f"positional share, {band} M"
        panels.append(Panel(title, "layer", "% of variance", tuple(lines), (), (), value_range(lines), ticks))
    y_range = min(panel.y_range[0] for panel in panels), max(panel.y_range[1] for panel in panels)
    panels = [replace(panel, y_range=y_range) for panel in panels]
    lowest = own["reliability"].min("band")
    lines = tuple(_by_layer(lowest, n, names) for n in range(len(names)))
    least = found.summary["vectors"]["reliable"]
    rule = Rule(least, f"reliable from {least:g}", RED)
    panels.append(
        Panel("reliability, the lower of both", "layer", "reliability", lines, (), (rule,), (-0.05, 1.05), ticks)
    )
    return Chart(f"Positional vectors by layer. {_place(found)}", tuple(panels))


def _own(found: Anatomy, methods: Sequence[str], layer: int | None = None) -> xr.Dataset | None:
    """The methods' arrays, at the layer; None where there are none."""
    if found.vectors is None:
        return None
    names = [name for name in methods if name in found.vectors["method"].values]
    if not names or (layer is not None and layer not in found.vectors["layer"].values):
        return None
    own = found.vectors.sel({"method": names})
    return own if layer is None else own.sel(layer=layer)


def _smoothed(values: xr.DataArray, trained: int, width: int) -> xr.DataArray:
    """Running means, inside and beyond M each by itself, so that a break at M stands there."""
    inside = values["position"] < trained
    parts = (values.isel(position=side.values) for side in (inside, ~inside))
    return xr.concat([part.rolling(position=width, min_periods=1, center=True).mean() for part in parts], "position")


def _named(found: Anatomy, method: str, layer: int) -> str:
    """The method with how far to trust its vectors at the layer."""
    _, reliability = _judged(found, method, layer)
    return f"{method} ({found.summary['vectors']['texts'][method]} texts, reliability {reliability:z.2f})"


def _judged(found: Anatomy, method: str, layer: int) -> tuple[Row, float]:
    """What the summary says of a layer's vectors, and their reliability, the lower of inside and beyond M."""
    (row,) = having(found.summary["vectors"]["layers"], method=method, layer=layer)
    return row, min(each or 0.0 for each in row["reliability"].values())


def _by_layer(values: xr.DataArray, number_: int, methods: Sequence[str]) -> Line:
    method = methods[number_]
    own = values.sel({"method": method})
    x = own["layer"].values + moved_aside(number_, len(methods))
    texts = tuple(
        f"{method}, layer {layer}: {value:.4g}" for layer, value in zip(own["layer"].values, own.values, strict=True)
    )
    return Line(method, x, own.values.astype(float), *style(method, methods), texts=texts)


def _rule(found: Anatomy) -> Rule:
    return trained_rule(found.summary["trained_length"])


def _place(found: Anatomy) -> str:
    return at_length(found.summary, found.summary["vectors"]["length"])
