"""What the figures show, worked out once: lines, points, rules and texts that any renderer can draw."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import xarray as xr

from probe.figures.heatmap import layer_limits, region_names
from probe.figures.styles import BLACK, DASHES, RED, nth, rank, style
from probe.thresholds.calls import Call
from probe.thresholds.failure import LEAST_ACCURACY, NATS_ABOVE, Measured
from probe.thresholds.predict import Prediction, excluded
from probe.thresholds.search import smooth

_MARKED = 64  # values


@dataclass(frozen=True)
class Line:
    """A line; NaN parts it. dash: solid, dash, dot, dashdot, or none for markers alone. symbol: of its markers.

    interval: (low, high) of y, drawn at each value, or as a band. texts: what hovering tells of each value; tokens:
    what it tells beside. faint: of a method that is left out of what is judged, for the reason in `label`.
    """

    label: str
    x: np.ndarray
    y: np.ndarray
    colour: str
    dash: str
    symbol: str
    interval: tuple[np.ndarray, np.ndarray] | None = None
    band: bool = False
    texts: tuple[str, ...] = ()
    tokens: tuple[str, ...] = ()
    faint: bool = False

    @property
    def crowded(self) -> bool:
        """Whether a marker at every value would hide the line."""
        return len(self.x) > _MARKED


@dataclass(frozen=True)
class Point:
    """One marked place; `text` tells it in the legend, unless a line says the same, and on hovering."""

    text: str
    x: float
    y: float
    colour: str


@dataclass(frozen=True)
class Rule:
    """A straight line across the panel, at `at` on the y axis, or on the x axis if `vertical`."""

    at: float
    text: str
    colour: str
    dash: str = "dash"
    vertical: bool = False


@dataclass(frozen=True)
class Panel:
    """One pair of axes. x_ticks: where ticks stand, under `x_labels` if given. log_x: x is drawn as powers of two.

    x_range: the ends of the x axis; None: those of what is drawn.
    """

    title: str
    x_title: str
    y_title: str
    lines: tuple[Line, ...]
    points: tuple[Point, ...]
    rules: tuple[Rule, ...]
    y_range: tuple[float, float]
    x_ticks: tuple[int, ...] = ()
    log_x: bool = False
    x_labels: tuple[str, ...] = ()
    x_range: tuple[float, float] | None = None

    @property
    def in_order(self) -> list[Line]:
        """The lines as every legend lists them, by method; those of one method as they are."""
        return sorted(self.lines, key=lambda line: rank(line.colour))


@dataclass(frozen=True)
class Chart:
    """Panels side by side under one legend, which lists each text once."""

    title: str
    panels: tuple[Panel, ...]


@dataclass(frozen=True)
class Grid:
    """Heatmaps in rows (layers) and columns (method and region), coloured from -limit to limit of their row."""

    title: str
    colour_title: str
    limits: tuple[float, ...]
    cells: tuple[tuple[xr.DataArray, ...], ...]
    row_titles: tuple[str, ...]
    group_titles: tuple[str, ...]
    region_titles: tuple[str, ...]
    trained_length: int


@dataclass(frozen=True)
class Raster:
    """`values` (layer, dim, position) of one method, from `regions`: a picture of one pixel a cell, without axes."""

    values: xr.DataArray
    limits: xr.DataArray


def value_name(values: xr.DataArray) -> str:
    """Name of what an array holds."""
    return str(values.attrs.get("long_name", values.name))


def value_title(values: xr.DataArray) -> str:
    """Name and unit of what an array holds."""
    return f"{value_name(values)} ({values.attrs.get('units', 'activation')})"


def token_texts(values: xr.DataArray, gaps: np.ndarray | None = None) -> tuple[str, ...]:
    """The token at each position, as hovering tells it, with a blank at `gaps`; none of a word that is repeated."""
    if "token" not in values.coords or values["token"].ndim != 1:
        return ()
    tokens = values["token"].values
    if len(set(tokens[1:].tolist())) < 2:
        return ()
    told = np.array([f"token {token!r}" for token in tokens.tolist()], dtype=object)
    return tuple(told if gaps is None else np.insert(told, gaps, ""))


def threshold_chart(hidden: xr.DataArray, found: xr.Dataset, layer: int, dim: int) -> Chart:
    """One dim's value over position at the first captured layer and at `layer`, where its threshold is observed.

    hidden (method, layer, position, dim) and found (from `search`) are of one prompt. Values are smoothed as in the
    search. Both panels span the same range of values, so that their motions compare.
    """
    smoothing, trained = found.attrs["smoothing"], found.attrs["trained_length"]
    layers = sorted({int(hidden["layer"].values[0]), layer})
    values = smooth(hidden.sel(layer=layers, dim=dim).load(), smoothing)
    at = found.sel(layer=layer, dim=dim)
    late = values.sel(position=slice(max(found.attrs["burn_in"], int(values["position"][0])), None))
    ranges = [list(np.quantile(late.sel(layer=each), [0.005, 0.995])) for each in layers]
    ranges[-1] = [min(ranges[-1][0], float(at["limit"])), max(ranges[-1][1], float(at["limit"]))]
    span = 1.15 * max(high - low for low, high in ranges) or 1.0
    average = "" if smoothing == 1 else f", mean of the last {smoothing}"
    panels = []
    for each, (low, high) in zip(layers, ranges, strict=True):
        observing = each == layer
        panels.append(
            Panel(
                title=f"layer {each}, dim {dim}",
                x_title=f"position (tokens){average}",
                y_title=value_title(hidden),
                lines=tuple(_value_line(values.sel({"layer": each, "method": m}), at) for m in hidden["method"].values),
                points=_crossings(values.sel(layer=each), at) if observing else (),
                rules=(trained_rule(trained), *(_threshold_rules(at) if observing else ())),
                y_range=((low + high - span) / 2, (low + high + span) / 2),
            )
        )
    prompt = f", prompt {found['prompt'].item()}" if "prompt" in found.coords else ""
    seen = "" if bool(at["observable"]) else ", not observable"
    title = f"{value_name(hidden)}, dim {dim}, layer {layer}{prompt}: {_threshold_text(at)}{seen}"
    return Chart(title, tuple(panels))


def curves_chart(
    evaluation: xr.Dataset, measured: Measured, trained: int, predictions: Sequence[Call | Prediction]
) -> Chart:
    """Tail NLL and passkey accuracy over length, each method's predicted failure length marked on its line."""
    nll_limit = measured.level + NATS_ABOVE
    nll_rule = Rule(nll_limit, f"fails above {nll_limit:z.2f}", RED)
    panels = [_score_panel(evaluation["tail_nll"], "window", "tail NLL by length", trained, nll_rule, predictions)]
    if "passkey" in evaluation:
        hit_rule = Rule(LEAST_ACCURACY, f"fails below {LEAST_ACCURACY:g}", RED)
        found = evaluation["passkey"].assign_attrs(long_name="passkey accuracy", units="share found")
        panels.append(_score_panel(found, "sample", "passkey accuracy by length", trained, hit_rule, predictions))
    return Chart("Measured by length; diamonds: predicted failure", tuple(panels))


def overlaid(charts: Sequence[tuple[str, str, Chart]]) -> Chart:
    """Curves of several runs, (name, model, chart from `curves_chart`) each, in one chart, a panel a measure.

    Methods keep their colours, runs differ by dash; the legend names method and run. Losses a token are overlaid for
    runs of one model only: another model counts other tokens.
    """
    models = {model for _, model, _ in charts}
    together: dict[tuple[str, str], list[tuple[int, str, Panel]]] = {}
    for number, (name, model, chart) in enumerate(charts):
        for panel in chart.panels:
            by_token = len(models) > 1 and "/token" in panel.y_title
            together.setdefault((panel.y_title, model if by_token else ""), []).append((number, name, panel))
    panels = tuple(_overlay(model, runs) for (_, model), runs in together.items())
    return Chart("Measured by length; diamonds: predicted failure; red: each run's limit", panels)


def _overlay(model: str, runs: Sequence[tuple[int, str, Panel]]) -> Panel:
    """One panel of those of several runs, (number, name, panel) each; model: of them all, where panels differ by it."""
    first = runs[0][2]
    lines = [
        replace(line, label=f"{line.label}, {name}", dash=DASHES[number % len(DASHES)], symbol=_symbol(number, line))
        for number, name, panel in runs
        for line in panel.lines
    ]
    points = [replace(point, text=f"{point.text}, {name}") for _, name, panel in runs for point in panel.points]
    rules = list(dict.fromkeys(rule for _, _, panel in runs for rule in panel.rules))
    several = sum(not rule.vertical for rule in rules) > 1  # their texts would cover each other
    counts = dict.fromkeys(panel.x_title for _, _, panel in runs)
    return replace(
        first,
        title=f"{first.title}, {model}" if model else first.title,
        x_title=first.x_title if len(counts) == 1 else f"{first.x_title.partition(';')[0]}; means",
        lines=tuple(lines),
        points=tuple(points),
        rules=tuple(replace(rule, text="") if several and not rule.vertical else rule for rule in rules),
        y_range=(min(panel.y_range[0] for _, _, panel in runs), max(panel.y_range[1] for _, _, panel in runs)),
        x_ticks=apart(sorted({tick for _, _, panel in runs for tick in panel.x_ticks})),
    )


def _symbol(number: int, line: Line) -> str:
    """The marker of the number-th run's line: its method's, until dashes repeat."""
    return line.symbol if number < len(DASHES) else nth(number)[2]


def heatmap_grid(panel: xr.DataArray, trained_length: int, limits: xr.DataArray | None = None) -> Grid:
    """A grid of `panel` ([method,] layer, dim, position), from `regions` or `pool`: one row a layer.

    Methods stand side by side. Without `limits` the colour scales are the panel's own `layer_limits`.
    """
    panel = panel.transpose(..., "layer", "dim", "position")
    each = [panel.sel({"method": m}) for m in panel["method"].values] if "method" in panel.dims else [panel]
    numbers = np.unique(panel["region"].values)
    cells = tuple(
        tuple(one.isel(layer=row, position=one["region"].values == number) for one in each for number in numbers)
        for row in range(panel.sizes["layer"])
    )
    limits = layer_limits(panel) if limits is None else limits
    prompt = f", prompt {panel['prompt'].item()}" if "prompt" in panel.coords else ""
    return Grid(
        title=f"{value_name(panel)} by dim and position{prompt} (dashed: M = {trained_length})",
        colour_title=value_title(panel),
        limits=tuple(limits.values.tolist()),
        cells=cells,
        row_titles=tuple(
            f"layer {layer}: dim (limit {limit:.2g})"
            for layer, limit in zip(panel["layer"].values, limits.values, strict=True)
        ),
        group_titles=tuple(str(one["method"].item()) if "method" in one.coords else "" for one in each),
        region_titles=tuple(region_names(panel)),
        trained_length=trained_length,
    )


def trained_rule(trained: int) -> Rule:
    """The line that marks the trained window M, in tokens."""
    return Rule(trained, f"M = {trained}", BLACK, vertical=True)


def _threshold_rules(at: xr.Dataset) -> tuple[Rule, ...]:
    threshold, limit = float(at["threshold"]), float(at["limit"])
    drawn = Rule(threshold, "", RED)
    return (drawn,) if limit == threshold else (drawn, Rule(limit, "", RED, dash="dot"))


def _threshold_text(at: xr.Dataset) -> str:
    threshold, limit = float(at["threshold"]), float(at["limit"])
    return f"threshold {threshold:.3g}" + ("" if limit == threshold else f", passed beyond {limit:.3g}")


def _left_out(at: xr.Dataset, method: str) -> bool:
    return bool(excluded(at).sel({"method": method}))


def _crossing_text(at: xr.Dataset, method: str) -> str:
    if _left_out(at, method):
        share = float(at["inside"].sel({"method": method}))
        return f"{method}: excluded, beyond the threshold on {share:.0%} of positions inside M"
    crossing, earliest = (float(at[name].sel({"method": method})) for name in ("crossing", "earliest"))
    if np.isnan(crossing):
        return f"{method}: none up to {at.attrs['length']}"
    where = f"at {crossing:.0f}" if earliest == crossing else f"between {earliest:.0f} and {crossing:.0f}"
    return f"{method}: crosses {where}"


def _value_line(values: xr.DataArray, at: xr.Dataset) -> Line:
    """A method's values over position, parted where positions were not captured."""
    method = str(values["method"].item())
    position = values["position"].values
    gaps = np.flatnonzero(np.diff(position) != 1) + 1
    x = np.insert(position.astype(float), gaps, np.nan)
    y = np.insert(values.values.astype(float), gaps, np.nan)
    look, tokens = style(method, at["method"].values), token_texts(values, gaps)
    return Line(_crossing_text(at, method), x, y, *look, tokens=tokens, faint=_left_out(at, method))


def _crossings(values: xr.DataArray, at: xr.Dataset) -> tuple[Point, ...]:
    points = []
    for method in values["method"].values.tolist():
        crossing = float(at["crossing"].sel({"method": method}))
        if np.isfinite(crossing) and not _left_out(at, method):
            y = float(values.sel({"method": method, "position": int(crossing)}))
            points.append(Point(_crossing_text(at, method), crossing, y, style(method, at["method"].values)[0]))
    return tuple(points)


def _score_panel(
    scores: xr.DataArray, repeats: str, title: str, trained: int, rule: Rule, predictions: Sequence[Call | Prediction]
) -> Panel:
    """Mean scores over length; predicted failures lie on their method's line."""
    means = scores.mean(repeats, keep_attrs=True).sortby("length")
    lengths = means.dropna("length")["length"].values
    lines, points = [], []
    for method in means["method"].values.tolist():
        own = means.sel({"method": method}).dropna("length")  # refined lengths are one method's
        lines.append(
            Line(method, own["length"].values.astype(float), own.values, *style(method, means["method"].values))
        )
    for each in predictions:
        if each.length is not None and each.method in means["method"].values:
            own = means.sel({"method": each.method}).dropna("length")
            y = np.interp(np.log(each.length), np.log(own["length"]), own.values)
            points.append(
                Point(
                    f"{each.method} predicted: {each}",
                    each.length,
                    float(y),
                    style(each.method, means["method"].values)[0],
                )
            )
    drawn = np.array([*means.values.flat, rule.at])
    low, high = np.quantile(drawn[np.isfinite(drawn)], [0, 1]).tolist()
    pad = 0.12 * (high - low)
    return Panel(
        title=title,
        x_title=f"length (tokens); mean of {scores.sizes[repeats]}",
        y_title=value_title(scores),
        lines=tuple(lines),
        points=tuple(points),
        rules=(trained_rule(trained), rule),
        y_range=(low - pad, high + pad),
        x_ticks=apart([int(length) for length in lengths]),
        log_x=True,
    )


def apart(lengths: Sequence[int], least: float = 0.07) -> tuple[int, ...]:
    """The lengths, from the longest down, whose labels do not touch on a log axis; least: share of it between two."""
    kept = [lengths[-1]]
    for length in reversed(lengths):
        if kept[-1] >= length * (lengths[-1] / lengths[0]) ** least and length < kept[-1]:
            kept.append(length)
    return tuple(reversed(kept))
