"""Figures drawn by plotly."""

import math
from collections.abc import Iterable, Sequence
from textwrap import wrap
from typing import Any

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from probe.figures import figure_data as fig

_FONT = {"family": "Helvetica, Arial, sans-serif", "size": 13, "color": "#222222"}
_AXIS = {
    "automargin": True,
    "gridcolor": "#EBF0F8",
    "linecolor": "#EBF0F8",
    "ticks": "",
    "title": {"standoff": 15},
    "zerolinecolor": "#EBF0F8",
    "zerolinewidth": 2,
}
_TEMPLATE = {  # the part of `plotly_white` that is used: the full one would put 7 kB into every figure
    "data": {"heatmap": [{"type": "heatmap", "colorbar": {"outlinewidth": 0, "ticks": ""}}]},
    "layout": {
        "autotypenumbers": "strict",
        "hoverlabel": {"align": "left"},
        "hovermode": "closest",
        "paper_bgcolor": "white",
        "plot_bgcolor": "white",
        "title": {"x": 0.05},
        "xaxis": _AXIS,
        "yaxis": _AXIS,
    },
}
_ENTRY, _TITLE = 42, 36  # characters in a line of the legend or of a note, which has room on a phone, and of a title
_SYMBOLS = {"diamond": ("diamond-open", 15), "tick": ("line-ns-open", 20)}  # of points, and their size
_TITLE_LINE, _LEGEND_LINE, _PLOT = 19, 21, 340  # pixels of height
_KEY, _LETTER, _LEGEND_WIDTH = 50, 6.5, 280  # pixels of width: a legend's symbols, a letter, room below a panel
ROOM_BELOW = 111
"""Pixels below a chart's plot: labels, their title, and a line of the legend."""
_MARKER, _LEAST_MARKER = 8, 6  # pixels: of a line's markers, and below which plotly treats them alike
_MARKERS = 9  # of a line with too many values for one at each
_LEAST, _TOP, _BELOW, _NOTE = 190, 90, 145, 18  # pixels: least height of heatmaps, margins, a line of the note
_BETWEEN, _BETWEEN_TITLED, _BETWEEN_PANELS = 12, 34, 60  # pixels between rows of heatmaps, and of panels
_GROUND = "#D0D0D0"  # grey on a dark page too, in addition to colours that stay as they are


def draw(figure: fig.Drawable) -> go.Figure:
    """The plotly figure of what `probe.figures.figure_data` holds."""
    return _draw_chart(figure) if isinstance(figure, fig.Chart) else _draw_heatmaps(figure)


def _draw_heatmaps(maps: fig.Heatmaps) -> go.Figure:
    """One figure of all traces and axes at once: plotly takes ten times as long to add them one by one."""
    rows, columns = len(maps.cells), len(maps.columns)
    between = _BETWEEN_TITLED if any(cell.title for row in maps.cells[1:] for cell in row) else _BETWEEN
    inner = max(_LEAST, rows * maps.height + (rows - 1) * between)
    across = _domains(maps.columns, min(0.02, 0.3 / columns))
    down = _domains([1.0] * rows, between / inner)[::-1]
    note = [line for text in maps.note for line in wrap(text, _ENTRY)]
    below = _BELOW + _NOTE * len(note)
    shapes: list[dict[str, Any]] = []
    edge = {"x": 0, "xanchor": "left", "showarrow": False, "align": "left"}
    notes = [
        {**edge, "xref": "paper", "y": 0, "yref": "paper", "yanchor": "bottom", "yshift": 40 - below}
        | {"text": fig.escaped(maps.colour_title), "font": {"size": 12}}  # plotly loses a horizontal scale's own title
    ]
    if note:
        anchor = {"xref": "paper", "y": 0, "yref": "paper", "yanchor": "top", "yshift": -65}
        notes.append(
            {**edge, **anchor, "text": "<br>".join(map(fig.escaped, note)), "font": {"size": 12, "color": fig.GREY}}
        )
    traces: list[dict[str, Any]] = []
    axes: dict[str, Any] = {}
    for at, cell in enumerate(cell for row in maps.cells for cell in row):
        row, column = divmod(at, columns)
        axis, left, lowest = _axis_name(at), _axis_name(row * columns), _axis_name((rows - 1) * columns + column)
        traces += [{**trace, "xaxis": f"x{axis}", "yaxis": f"y{axis}"} for trace in _traces(cell, maps, at == 0)]
        titles = fig.escaped(cell.x_title) if row == rows - 1 else "", fig.escaped(cell.y_title) if column == 0 else ""
        x = _axis(titles[0], cell.x_ticks, cell.ends[:2], 2 if columns > 2 else 8)
        y = _axis(titles[1], cell.y_ticks, cell.ends[2:], 4)
        if cell.y.dtype.kind == "U":  # one row a text
            y |= {"type": "category", "tickvals": list((cell.y_ticks or {}).values())}
        inside = {"matches": f"x{lowest}", "showticklabels": False} if row < rows - 1 else {}
        axes[f"xaxis{axis}"] = x | {"anchor": f"y{axis}", "domain": across[column]} | inside
        inside = {"matches": f"y{left}", "showticklabels": False} if column else {}
        axes[f"yaxis{axis}"] = y | {"anchor": f"x{axis}", "domain": down[row]} | inside
        anchor = {"xref": f"x{axis} domain", "y": 1, "yref": f"y{axis} domain", "yanchor": "bottom"}
        if cell.title:
            notes.append({**edge, **anchor, "text": fig.escaped(cell.title), "font": {"size": 13}})
        if cell.m is not None and cell.ends[0] < cell.m < cell.ends[1]:
            ends = {"x0": cell.m, "x1": cell.m, "y0": 0, "y1": 1, "xref": f"x{axis}", "yref": f"y{axis} domain"}
            for look in ({"color": "white", "width": 3}, {"color": fig.BLACK, "width": 1.5, "dash": "dash"}):
                shapes.append({**ends, "type": "line", "line": look})
    layout = {
        "template": _TEMPLATE,
        "font": _FONT,
        "title": {"text": fig.escaped(maps.title), "x": 0.01, "y": 1, "yanchor": "top", "pad": {"t": 16}},
        "shapes": shapes,
        "annotations": notes,
        "plot_bgcolor": _GROUND,
        "height": inner + _TOP + below,
        "margin": {"t": _TOP, "b": below, "l": 80, "r": 30},
        "showlegend": False,
    }
    return go.Figure(traces, layout | axes)


def _domains(sizes: Sequence[float], gap: float) -> list[list[float]]:
    """Ends of parts that share [0, 1] as `sizes` do, `gap` apart."""
    parts = np.asarray(sizes) / sum(sizes) * (1 - gap * (len(sizes) - 1))
    starts = parts.cumsum() - parts + gap * np.arange(len(sizes))
    return np.stack([starts, np.minimum(1, starts + parts)], axis=1).tolist()


def _axis_name(number: int) -> str:
    """What plotly adds to the name of the axes of the number-th heatmap."""
    return str(number + 1) if number else ""


def _axis(title: str, ticks: Any, ends: tuple[float, float], most: int) -> dict[str, Any]:
    """An axis of a heatmap: labels at `ticks`, else `most` of plotly's own."""
    labels = {"nticks": most} if ticks is None else {
        "tickvals": list(ticks), "ticktext": [fig.escaped(text) for text in ticks.values()]
    }  # fmt: skip
    look = {"showgrid": False, "zeroline": False, "tickfont": {"size": 11}}
    return {**look, **labels, "title": {"text": title.replace("\n", "<br>"), "font": {"size": 12}}, "range": list(ends)}


def _traces(cell: fig.Heatmap, maps: fig.Heatmaps, scale: bool) -> list[dict[str, Any]]:
    """A heatmap with its strokes, numbers and mark; scale: with the colour scale, along the figure's lower edge."""
    legend = {"orientation": "h", "x": 0, "xanchor": "left", "y": 0, "yref": "container", "yanchor": "bottom"}
    size = {"lenmode": "pixels", "len": 240, "thickness": 12}
    tiles = 0 if cell.muted is None else 1
    texts = None if cell.texts is None else np.vectorize(fig.escaped, otypes=[object])(cell.texts)
    colours = maps.colours if isinstance(maps.colours, str) else [list(stop) for stop in maps.colours]
    traces = [
        dict[str, Any](
            type="heatmap",
            z=cell.values.astype(np.float32),
            x=cell.x,
            y=cell.y,
            zmin=cell.low,
            zmax=cell.high,
            colorscale=colours,
            showscale=scale,
            colorbar=legend | size | {"tickvals": list(maps.ticks), "ticktext": list(maps.ticks.values())},
            customdata=texts,
            hovertemplate=f"{cell.template}<extra></extra>",
            hoverongaps=False,
            xgap=tiles,
            ygap=tiles,
        )
    ]
    if cell.muted is not None and cell.muted.any():
        traces.append(_hatching(cell.muted))
    if cell.numbers is not None and (cell.numbers != "").any():
        rows, columns = np.nonzero(cell.numbers != "")
        font = {"size": 12, "color": cell.number_colours[rows, columns].tolist()}
        texts = cell.numbers[rows, columns].tolist()
        look = {"type": "scatter", "mode": "text", "textfont": font, "hoverinfo": "skip"}
        traces.append(look | {"x": columns, "y": rows, "text": texts})
    if cell.mark is not None:
        marker = {"symbol": "circle-open", "size": 14, "color": cell.mark.colour, "line": {"width": 2.5}}
        hover = f"{fig.escaped(cell.mark.text)}<extra></extra>"
        look = {"type": "scatter", "mode": "markers", "marker": marker, "hovertemplate": hover}
        traces.append(look | {"x": [cell.mark.x], "y": [cell.mark.y]})
    return traces


def _hatching(muted: np.ndarray) -> dict[str, Any]:
    """Strokes over the muted values, as one broken line."""
    rows, columns = np.nonzero(muted)
    ends = np.array([(-0.5, 0.0, 0.0, -0.5), (-0.5, 0.5, 0.5, -0.5), (0.0, 0.5, 0.5, 0.0)])  # x, y of both ends
    blank = np.full((len(rows), len(ends)), np.nan)
    x, y = (
        np.stack([at[:, None] + ends[:, axis], at[:, None] + ends[:, axis + 2], blank], axis=-1).ravel()
        for axis, at in enumerate((columns, rows))
    )
    line = {"color": "rgba(128, 128, 128, 0.35)", "width": 1}
    return {"type": "scatter", "x": x, "y": y, "mode": "lines", "line": line, "hoverinfo": "skip"}


def _draw_chart(chart: fig.Chart) -> go.Figure:
    rows, columns = (len(chart.panels), 1) if chart.crosshair else (1, len(chart.panels))
    figure = make_subplots(
        rows,
        columns,
        figure=go.Figure(layout={"template": _TEMPLATE, "font": _FONT}),
        horizontal_spacing=min(0.12, 0.3 / columns),  # plotly takes no more than 1 / (columns - 1)
        vertical_spacing=_BETWEEN_PANELS / (_PLOT * rows),
        subplot_titles=["<br>".join(map(fig.escaped, wrap(panel.title, _TITLE))) for panel in chart.panels],
    )
    groups = {_entry(line.entry): _entry(line.label) for panel in chart.panels for line in panel.lines}
    listed: dict[str, None] = {}
    unlisted = {_entry(label) for label in chart.noted}
    lines = max(len(wrap(panel.title, _TITLE)) for panel in chart.panels)
    head = 65 + 25 * bool(lines) + _TITLE_LINE * max(0, lines - 1)
    for number, panel in enumerate(chart.panels):
        place: dict[str, Any] = {"row": 1 + number // columns, "col": 1 + number % columns}
        ordered = panel.drawn
        bands = [_band(line, line.interval) for line in ordered if line.band and line.interval is not None]
        for band in bands:
            figure.add_trace(band, **place)
        marks = [trace for point in panel.points for trace in _point(point, panel, chart.crosshair)]
        for trace in [*(_line(line, panel, chart.crosshair) for line in ordered), *marks]:
            name = str(trace.name)
            is_new = name not in {*listed, *unlisted}
            figure.add_trace(trace.update(legendgroup=groups.get(name, name), showlegend=is_new), **place)
            listed |= {name: None} if is_new else {}
        for rule in panel.rules:
            _add_rule(figure, rule, panel, place)
        _axes(figure, panel, place)
    below = ROOM_BELOW + _TITLE_LINE * any(panel.outside for panel in chart.panels if not chart.crosshair)
    below += _LEGEND_LINE * (_legend_lines(listed, columns) - 1)
    figure.update_layout(
        title={"text": fig.escaped(chart.title), "x": 0.01, "y": 0.98, "yanchor": "top"},
        height=_PLOT * rows + head + below,
        margin={"t": head, "b": below, "l": 80, "r": 30},
        legend={"orientation": "h", "y": -0.2 / rows, "yanchor": "top", "x": 0, "tracegroupgap": 0},
    )
    if chart.crosshair:
        _share_axis(figure, chart.panels)
    return figure


def _share_axis(figure: go.Figure, panels: Sequence[fig.Panel]) -> None:
    """One x axis, below the last panel: plotly's hover at one x reaches the panels of one axis alone."""
    last = _axis_name(len(panels) - 1)
    parts: Any = (*figure.layout.shapes, *figure.layout.annotations)
    for part in parts:
        if part.xref != "paper":
            part.xref = f"x{last}{part.xref.lstrip('x0123456789')}"
    figure.update_traces(xaxis=f"x{last}").update_yaxes(anchor=f"x{last}")
    for number in range(len(panels) - 1):
        figure.layout[f"xaxis{_axis_name(number)}"] = None
    title = fig.escaped(panels[-1].x_title)  # what lies outside of the y axes is in the text below
    figure.layout[f"xaxis{last}"].update(title_text=title, unifiedhovertitle={"text": f"{title}: %{{x}}"})
    figure.update_layout(hovermode="x unified", hoversubplots="axis")


def _legend_lines(entries: Iterable[str], panels: int) -> int:
    """How many lines a legend takes below so many panels."""
    lines, left = 0, 0.0
    for entry in entries:
        parts = entry.split("<br>")
        width = _KEY + _LETTER * max(map(len, parts))
        if width > left:
            lines, left = lines + len(parts), float(_LEGEND_WIDTH * panels)
        left -= width
    return lines


def _entry(text: str) -> str:
    """A text in lines, for the legend."""
    return "<br>".join(map(fig.escaped, wrap(text, _ENTRY)))


def _line(line: fig.Line, panel: fig.Panel, crosshair: bool = False) -> go.Scatter:
    symbol: str | None = line.symbol
    width = (1.5 if line.crowded else 2) * (fig.FAINT if line.faint else 1)
    mode, stroke = "lines+markers", {"color": line.colour, "dash": line.dash, "width": width}
    if line.dash == "none":
        mode, stroke = "markers", {"color": line.colour}
    elif line.symbol == "none":
        mode, symbol = "lines", None
    if crosshair:  # a line in a box that names the x
        hover = [f"{panel.title}, {line.label}: %{{y:.4g}}"]
    else:
        hover = [panel.title, line.entry, f"{panel.x_title}: %{{x}}", f"{panel.y_title}: %{{y:.4g}}"]
    hover += ["%{customdata}"] * bool(line.tokens)
    low, high = line.interval or (line.y, line.y)
    template = "%{text}" if line.texts else "<br>".join(map(fig.escaped, hover))
    return go.Scatter(
        x=line.x,
        y=line.y,
        name=_entry(line.entry),
        mode=mode,
        line=stroke,
        marker={"symbol": symbol, "size": _MARKER, "color": line.colour, "maxdisplayed": _MARKERS * line.crowded},
        customdata=list(map(fig.escaped, line.tokens)) or None,
        text=list(map(fig.escaped, line.texts)) or None,
        hovertemplate=f"{template}<extra></extra>",
        error_y=None if line.interval is None or line.band else _ends(high - line.y, line.y - low, 1, 3),
    )


def _ends(above: Any, below: Any, thickness: int, width: int) -> dict[str, Any]:
    """Bars of an interval."""
    return {
        "type": "data",
        "thickness": thickness,
        "width": width,
        "array": above,
        "arrayminus": below,
        "symmetric": False,
    }


def _band(line: fig.Line, interval: tuple[np.ndarray, np.ndarray]) -> go.Scatter:
    """The interval of a line as a closed area; the legend toggles it with its line."""
    known = np.isfinite(interval).all(axis=0)
    x, low, high = (values[known] for values in (line.x, *interval))
    area: dict[str, Any] = {"fill": "toself", "fillcolor": line.colour, "opacity": 0.15, "line": {"width": 0}}
    legend: dict[str, Any] = {"legendgroup": _entry(line.label), "showlegend": False, "hoverinfo": "skip"}
    ends = {"x": np.concatenate([x, x[::-1]]), "y": np.concatenate([low, high[::-1]])}
    return go.Scatter(**ends, **area, **legend, mode="lines")


def _point(point: fig.Point, panel: fig.Panel, crosshair: bool = False) -> tuple[go.Scatter, go.Scatter]:
    """A mark on a line, and what is not seen of it: markers that show its text.

    plotly shows the text of the nearest marker, of the smallest where several are there: else it would be the line's.
    """
    symbol, size = _SYMBOLS[point.symbol]
    place: dict[str, Any] = {"name": _entry(point.text), "mode": "markers"}
    low, high = point.ends or (point.x, point.x)
    hover = [point.hover or point.text]
    if not crosshair:
        hover += [f"{panel.x_title}: %{{x}}", f"{panel.y_title}: %{{y:.4g}}"]
    sizes = [size, _MARKER, _LEAST_MARKER]
    seen = go.Scatter(
        x=[point.x],
        y=[point.y],
        marker={"symbol": symbol, "size": size, "color": point.colour, "line": {"width": 3, "color": point.colour}},
        hoverinfo="skip",
        error_x=None if point.ends is None else _ends([high - point.x], [point.x - low], 3, 0),
        **place,
    )
    unseen = go.Scatter(
        x=[point.x] * len(sizes),
        y=[point.y] * len(sizes),
        marker={"size": sizes, "opacity": 0, "color": point.colour},
        hovertemplate=f"{'<br>'.join(map(fig.escaped, hover))}<extra></extra>",
        **place,
    )
    return seen, unseen


def _add_rule(figure: go.Figure, rule: fig.Rule, panel: fig.Panel, place: dict[str, Any]) -> None:
    line = {"color": rule.colour, "dash": rule.dash, "width": 1.5}
    (figure.add_vline if rule.vertical else figure.add_hline)(rule.at, line=line, **place)
    below = panel.is_below(rule)
    where: dict[str, Any] = {
        "x": int(rule.right),
        "xref": "x domain",
        "y": rule.at,
        "yanchor": "top" if below else "bottom",
    }
    if rule.vertical:  # an annotation on a logarithmic axis takes the logarithm, a line does not
        x = math.log10(rule.at) if panel.log_x else rule.at
        where = {"x": x, "y": 1, "yref": "y domain", "yanchor": "top"}
    text = {"text": fig.escaped(rule.text), "font": {"color": rule.colour}, "bgcolor": "rgba(255, 255, 255, 0.8)"}
    figure.add_annotation(**text, **where, xanchor="right" if rule.right else "left", showarrow=False, **place)


def _beside_rules(panel: fig.Panel) -> list[float] | None:
    """Ends of a logarithmic axis that leave room next to a rule at or beyond the lines' ends; None where none is there.

    Without it such a rule is drawn upon the labels of the y axis.
    """
    values = np.log10(np.concatenate([line.x[line.x > 0] for line in panel.lines] or [[]]))
    rules = np.log10([rule.at for rule in panel.rules if rule.vertical])
    if not values.size or not rules.size or values.min() < rules.min() <= rules.max() < values.max():
        return None
    low, high = min(values.min(), rules.min()), max(values.max(), rules.max())
    room = 0.06 * (high - low or 1)
    return [low - room, high + room]


def _axes(figure: go.Figure, panel: fig.Panel, place: dict[str, Any]) -> None:
    figure.update_yaxes(title_text=fig.escaped(panel.y_title), range=panel.y_range, zeroline=False, **place)
    below = "<br>".join(map(fig.escaped, filter(None, [panel.x_title, panel.outside])))
    x: dict[str, Any] = {"title_text": below, "title_standoff": 8, "zeroline": False}
    if panel.log_x or panel.x_ticks:
        labels = map(str, panel.x_ticks) if panel.log_x else panel.x_labels or map(str, panel.x_ticks)
        x |= {"tickvals": list(panel.x_ticks), "ticktext": list(map(fig.escaped, labels))}
        x |= {"type": "log"} if panel.log_x else {"tickangle": 0}
    if panel.log_x and (ends := _beside_rules(panel)):
        x["range"] = ends
    figure.update_xaxes(**x, **place)
