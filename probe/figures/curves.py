"""Scores by length: those of a run with its failures, of several runs, and of an evaluation."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import xarray as xr

from probe.figures import figure_data as fig
from probe.statistics import confidence_of, finite, known_mean
from probe.thresholds.failure import (
    MIN_ACCURACY,
    NATS_ABOVE,
    NLL,
    PASSKEY,
    Failure,
    MeasuredFailures,
    PredictedFailure,
)

MEAN = "mean, 95% interval"
_REPEATS = {"window": "text", "sample": "prompt"}
_NAMED = 4  # methods in a sentence, at most


def curves_chart(
    evaluation: xr.Dataset,
    measured: MeasuredFailures,
    trained: int,
    predicted: Mapping[str, PredictedFailure] | None = None,
) -> fig.Chart:
    """Loss, and passkeys found, by prompt length with 95% intervals; failures marked on the lines of what failed.

    predicted: by method the failure length (`length`, its `ends` and the `longest` length) that `mesa-lens predict`
    computed of the loss; marked by ticks.
    """
    level = measured.level + NATS_ABOVE
    panels = [
        _score_panel(
            evaluation["tail_nll"].assign_attrs(evaluation.attrs, long_name="NLL", units="nats/token"),
            "Loss of the same last tokens (lower is better)",
            [
                fig.Rule(level, _rule_text(f"above {level:z.2f}", NLL in measured.evaluated_by), fig.RED),
                *_truncation(measured),
            ],
            trained,
            [  # here also those that fail by one score at some lengths and by the other at others
                failure
                for failure in measured.failures
                if failure.by_nll == failure.length or failure.by_passkey != failure.length
            ],
            predicted or {},
        )
    ]
    if "passkey" in evaluation:
        limit = _rule_text(f"below {MIN_ACCURACY:g}", PASSKEY in measured.evaluated_by)
        panels.append(
            _score_panel(
                evaluation["passkey"].assign_attrs(evaluation.attrs, long_name="passkeys found", units="share"),
                "Retrieval: passkeys found (higher is better)",
                [fig.Rule(MIN_ACCURACY, limit, fig.RED)],
                trained,
                [failure for failure in measured.failures if failure.by_passkey == failure.length],
                {},
            )
        )
    drawn = evaluation["method"].values.tolist()
    failing = fig.grouped((failure.method, str(failure)) for failure in measured.failures if failure.method in drawn)
    if failing:
        panels[0] = replace(panels[0], seen=f"{panels[0].seen} Measured failure, in tokens: {failing}")
    return fig.Chart(f"Measured by prompt length; {MEAN}", tuple(panels))


def parted(chart: fig.Chart) -> list[fig.Chart]:
    """A chart a panel, for pages."""
    title = f"{{}}, by prompt length; {MEAN}"
    return [fig.Chart(title.format(panel.title), (replace(panel, title=""),)) for panel in chart.panels]


def overlaid(charts: Sequence[tuple[str, str, fig.Chart]]) -> fig.Chart:
    """Curves of several runs, (name, model, chart from `curves_chart`), in one chart, a panel a measure.

    Methods keep their colours, runs differ by dash; the legend names method and run. Losses a token are overlaid for
    runs of one model only: another model counts other tokens.
    """
    models = {model for _, model, _ in charts}
    groups: dict[tuple[str, str], list[tuple[int, str, fig.Panel]]] = {}
    for number, (name, model, chart) in enumerate(charts):
        for panel in chart.panels:
            by_token = len(models) > 1 and "/token" in panel.y_title
            groups.setdefault((panel.y_title, model if by_token else ""), []).append((number, name, panel))
    panels = tuple(_overlay(model, runs) for (_, model), runs in groups.items())
    return fig.Chart("Measured by prompt length; red: each run's limit", panels)


def _rule_text(limit: str, is_evaluated: bool) -> str:
    return f"fails {limit}" if is_evaluated else f"{limit}, not evaluated"


def _truncation(measured: MeasuredFailures) -> list[fig.Rule]:
    """The loss of truncation: the reference on the last M tokens alone, the same at every length beyond M."""
    if measured.stated.is_wrong or measured.lengths[-1] <= measured.level_length or not np.isfinite(measured.level):
        return []
    return [fig.Rule(measured.level, f"truncation to M {measured.level:z.2f}", fig.GREY, "dot", right=True)]


def _score_panel(
    scores: xr.DataArray,
    title: str,
    rules: Sequence[fig.Rule],
    trained: int,
    failures: Sequence[Failure],
    predicted: Mapping[str, PredictedFailure],
) -> fig.Panel:
    """Mean scores (method, length, prompt) over length; failures lie on their method's line."""
    scores = scores.sortby("length")
    repeats, shares = str(scores.dims[-1]), scores.attrs["units"] == "share"
    confidence, counts = confidence_of(scores.attrs), np.isfinite(scores.values).sum(-1)
    most, least = int(counts.max()), int(counts[counts > 0].min())
    count = str(most) if least == most else f"{least} to {most}"
    lines = []
    for method in scores["method"].values.tolist():
        row = scores.sel({"method": method}).dropna("length", how="all")  # refined lengths are one method's
        if not row.sizes["length"]:  # not measured yet
            continue
        values = [finite(one) for one in row.values]
        ends = [
            confidence.wilson(one.sum(), len(one)) if shares else confidence.student(one.tolist()) for one in values
        ]
        x, interval = row.length.values.astype(float), np.array(ends, float).reshape(-1, 2).T
        lines.append(
            fig.Line(method, x, known_mean(row.values), *fig.style(method), interval=(interval[0], interval[1]))
        )
    by_method = {line.label: line for line in lines if len(line.x)}
    points = []
    for failure in failures:
        if failure.length is not None and failure.method in by_method:
            line = by_method[failure.method]
            ends = failure.after or line.x[0], failure.high or failure.longest
            hover = f"{failure.method}: measured failure {failure}"
            points.append(_mark(line, "measured failure", failure.length, ends, hover))
    for method, row in predicted.items():
        if row.length is not None and method in by_method:
            low, high = (row.longest if end is None else end for end in row.ends)
            hover = f"{method}: failure predicted at {row.length} [{low}, {high}]"
            points.append(_mark(by_method[method], "predicted failure", row.length, (low, high), hover, "tick"))
    measured = [{*line.x.astype(int).tolist()} for line in lines]
    lengths = sorted(set.intersection(*measured) | {max(map(max, measured))})
    return fig.Panel(
        title=title,
        x_title=f"prompt length (tokens); {count} {_REPEATS[repeats]}{'s' * (most > 1)} each",
        y_title=fig.value_title(scores),
        lines=tuple(lines),
        y_range=y_range(lines, [rule.at for rule in rules]),
        points=tuple(points),
        rules=(fig.trained_rule(trained), *rules),
        x_ticks=fig.log_ticks(lengths),
        log_x=True,
        seen=seen_lines(lines, "the share of passkeys found is" if shares else "the mean NLL is"),
    )


def _mark(
    line: fig.Line, text: str, length: int, ends: tuple[float, float], hover: str, symbol: str = "diamond"
) -> fig.Point:
    """A length marked on a line."""
    y = float(np.interp(np.log(length), np.log(line.x), line.y))
    return fig.Point(text, length, y, line.colour, symbol, hover, ends)


def seen_lines(lines: Sequence[fig.Line], name: str) -> str:
    """The means at the longest length; of many methods the lowest and the highest."""
    longest = max((line.x[-1] for line in lines if len(line.x)), default=0)
    ends = sorted((float(line.y[-1]), line.label) for line in lines if len(line.x) and line.x[-1] == longest)
    parts = [f"{value:z.2f} under {label}" for value, label in ends]
    if len(parts) > _NAMED:
        parts = [f"lowest, {parts[0]}", f"highest, {parts[-1]}"]
    return f"At {longest:.0f} tokens {name} {', '.join(parts)}."


def _overlay(model: str, runs: Sequence[tuple[int, str, fig.Panel]]) -> fig.Panel:
    """One panel of those of several runs, (number, name, panel); model: of them all, where panels differ by it."""
    first = runs[0][2]
    lines = [
        replace(
            line, label=f"{line.label}, {name}", dash=fig.DASHES[number % len(fig.DASHES)], symbol=_symbol(number, line)
        )
        for number, name, panel in runs
        for line in panel.lines
    ]
    points = [replace(point, hover=f"{point.hover}, {name}") for _, name, panel in runs for point in panel.points]
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
        x_ticks=fig.log_ticks(sorted({tick for _, _, panel in runs for tick in panel.x_ticks})),
        seen=" ".join(f"{name}: {panel.seen}" for _, name, panel in runs),
    )


def _symbol(number: int, line: fig.Line) -> str:
    """The marker of the number-th run's line: its method's, until dashes repeat."""
    return line.symbol if number < len(fig.DASHES) else fig.nth(number)[2]


def y_range(lines: Sequence[fig.Line], levels: Sequence[float] = ()) -> tuple[float, float]:
    """Ends of an axis for means, levels and interval ends.

    These up to twice the means' span away, so that those of two samples hide no curve.
    """
    means = np.concatenate([line.y[np.isfinite(line.y)] for line in lines])
    span = 2 * max(float(np.ptp(means)), 1)
    ends = np.concatenate([end for line in lines for end in line.interval or ()])
    values = [*means, *levels, *np.clip(ends[np.isfinite(ends)], means.min() - span, means.max() + span)]
    pad = 0.06 * (max(values) - min(values) or 1)
    return min(values) - pad, max(values) + 2 * pad
