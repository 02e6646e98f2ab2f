"""The report of a run: sections of a page, exports, figures as files, and one HTML file that opens offline."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple, cast

import numpy as np
import xarray as xr
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from mesa.errors import Occupied, Refused
from mesa.plan import Plan
from mesa.progress import Bar
from probe.commands import RunFacts, tell
from probe.commands.probe.verdict import (
    SUMMARY,
    Summary,
    crossing_table,
    crossings_at_restarts,
    difference_table,
    drift_table,
    facts_of,
    findings_in,
    interval_table,
    listed,
    onset_title,
    run_summary,
    threshold_doubt,
    verdict,
)
from probe.experiment.journal import REQUEST
from probe.figures import states
from probe.figures.curves import curves_chart, parted
from probe.figures.export import (
    SIDE_BY_SIDE,
    Export,
    file_name,
    grids,
    labelled_numbers,
    npz_bytes,
    page,
    pooled_name,
    rendered,
    safe_name,
)
from probe.figures.figure_data import Chart, Drawable, Heatmaps, Raster
from probe.figures.heatmap import default_regions, difference, heatmap_grid, layer_limits, pool, regions, survey
from probe.figures.section import Section, Table, figures_of, page as section_page, tables_of
from probe.figures.static import pictures
from probe.files import check_ours, is_ours, write
from probe.glossary import TERMS
from probe.request import reference_method
from probe.run_folder import REPORTED
from probe.statistics import shown
from probe.store.cache import DERIVED, Derived, load, save
from probe.store.reader import StoredRun, check_labels, check_pairs, open_run, store_mark
from probe.store.result_file import NOT_RECORDED, having
from probe.thresholds.analysis import Analysis, analyse, distance_by_length, plans_of, summarize
from probe.thresholds.failure import MeasuredFailures, PredictedFailure, measured_failure
from probe.thresholds.onset import MIN_EVALUATED_DIMS, TOP, DriftOnset, ThresholdOnset, drift_onsets
from probe.thresholds.result import Control, Evidence, NotEvaluated
from probe.thresholds.search import smooth

Figures = Mapping[str, Drawable]
_PROVENANCE = (
    "model model_revision model_type left_out source_dtype quantization tokenizer_note created executor word "
    "first_token text seed as_trained states_from"
)


class Drawn(NamedTuple):
    """Sections with figures, without heatmaps, the headline prompt's first; none of what was not evaluated."""

    thresholds: Sequence[Section] = ()
    curves: Sequence[Section] = ()
    drift: Sequence[Section] = ()
    map: Sequence[Section] = ()
    distance: Sequence[Section] = ()


def title(summary: Summary) -> str:
    """The report's heading."""
    return f"{summary.model}: where it fails beyond M = {summary.trained_length} tokens"


def sections(summary: Summary, run: StoredRun, drawn: Drawn, differences: Figures, raw: Figures) -> list[Section]:
    """The full report. differences, raw: heatmaps less the reference's, and as they are."""
    curves = [chart for curve in figures_of(drawn.curves).values() for chart in parted(cast(Chart, curve))]
    words = Section("Words", parts=[Section(term, [meaning]) for term, meaning in TERMS.items()])
    return [
        Section("", [summary.verdict.about], {f"curves-{number}": chart for number, chart in enumerate(curves)}),
        Section(figures={"verdict": Markup(summary.verdict.html())}),
        scores(summary),
        *drawn.map,
        *inside(run.folder),
        _drift(summary, drawn.drift),
        *drawn.distance,
        *(_of_states(summary, drawn, differences, raw) if raw else ()),
        Section("How each number is made", parts=[Section(term, [text]) for term, text in _definitions(summary)]),
        words,
        _provenance(summary, run),
    ]


def _of_states(summary: Summary, drawn: Drawn, differences: Figures, raw: Figures) -> Iterator[Section]:
    """What is read from hidden states dim by dim, and these."""
    yield _thresholds(summary, drawn.thresholds)
    yield onsets(summary)
    yield control(summary)
    yield _states(summary, differences, raw)


def scores(summary: Evidence) -> Section:
    """Scores by length with their intervals, and their differences to the reference, folded."""
    note = (
        f"Lengths are in tokens, NLL in nats a token; M = {summary.trained_length}. The "
        f"{onset_title(summary.onset_by)} is read on prompt {summary.prompt} by the rule “{summary.onset_by}”; it does "
        f"not predict failure. Descriptive: {summary.reference}'s own, which follows M by construction."
    )
    tables = [interval_table(summary), difference_table(summary)]
    return Section("Scores by length", [note], tables=[table for table in tables if table], folded=True)


def inside(folder: Path) -> Iterator[Section]:
    """What other commands, such as `mesa-lens locate`, wrote into the run's folder, with links to their reports."""
    for inside_of in tell("inside").values():
        yield from inside_of(folder)


def provenance(run: StoredRun) -> dict[str, object]:
    """Where a store's numbers come from: model, prompt, seed."""
    attrs = run.hidden.attrs
    return {name: attrs[name] for name in _PROVENANCE.split() if name in attrs}


def _drift(summary: Summary, prompts: Sequence[Section]) -> Section:
    if isinstance(summary.drift, str):
        return Section("Drift", [f"Drift could not be evaluated: {summary.drift}."])
    text = (
        f"{TERMS['dim']} Here: how far a layer's states are from what they did inside the window, all dims together, "
        f"where {summary.reference}'s drift begins or is strongest, and in the first layer. Red: the limit."
    )
    return Section("Drift", [text], parts=prompts)


def _thresholds(summary: Summary, best: Sequence[Section]) -> Section:
    by_prompt = listed([f"{count} on {prompt}" for prompt, count in summary.qualified.items()])
    text = f"{TERMS['threshold dim']} Of {summary.searched} (layer, dim) pairs: {by_prompt}."
    if best:
        text += (
            " The best dims' values over position, at the first captured layer and at the layer where the threshold is "
            f"observed. Black dashed: M. Red dashed: the threshold, {summary.reference}'s value at M. Red dotted: the "
            "limit that a crossing passes. Diamonds: crossings."
        )
    return Section("Observed thresholds, dim by dim", [text], parts=best)


def onsets(summary: Evidence) -> Section:
    """Every method's threshold onset from each prompt."""
    counts = ", ".join(f"{count} on {prompt}" for prompt, count in summary.qualified.items())
    rows = tuple((row.method, *map(str, row.threshold_onset_by_prompt.values())) for row in summary.methods)
    table = Table("", ("method", *summary.qualified), rows, "thresholds-onsets")
    about = f"Threshold dims, of {summary.searched} (layer, dim) pairs: {counts}."
    return Section("Threshold onsets, from each prompt", [about], tables=[table])


def control(summary: Evidence) -> Section:
    """What the same search gives inside M; or why that is not known."""
    inside, doubt = summary.control, [text] if (text := threshold_doubt(summary)) else []
    if isinstance(inside, str):
        return Section("Negative control", doubt)
    text = (
        f"The same search put at {len(inside.place)} positions inside the window, where the model works: each is "
        "taken for M, on positions up to M only. “At M” is the search at M with as many positions before and beyond. "
        f"An onset takes {inside.least} dims or more; every one found here is false. {summary.reference}'s own says "
        "only that dims qualify. The places overlap: their shares say how often, not how surely."
    )
    return Section("Negative control", [*doubt, text], tables=[_shares(summary, inside), _places(summary, inside)])


def _shares(summary: Evidence, control: Control) -> Table:
    """Threshold dims at the places inside the window and at M, as shares, a row a prompt."""
    head = (
        "prompt",
        "threshold dims at a place: least, median, most",
        "at M with as many positions",
        "at M with all",
        "places with no fewer than at M",
        *(f"false onsets, {row.method}" for row in summary.methods),
    )
    rows = [
        (
            prompt,
            *(_spread(counts, control.searched) for counts in (row.qualified, row.matched)),
            f"{summary.qualified[prompt] / control.searched:.1%}",
            f"{row.as_many:.0%}",
            *(f"{row.false_onsets[of.method]:.0%}" for of in summary.methods),
        )
        for prompt, row in control.prompts.items()
    ]
    return Table("", head, tuple(rows), "thresholds-control")


def _spread(counts: Sequence[int], searched: int) -> str:
    return " ".join(f"{count / searched:.1%}" for count in (min(counts), median(counts), max(counts)))


def _places(summary: Evidence, control: Control) -> Table:
    """Threshold dims, and where methods have false onsets, at each place of the first prompt."""
    row = control.prompts[summary.prompt]
    rows = {"threshold dims there": row.qualified, "at M with as many": row.matched}
    rows |= {f"false onset of {of.method} at": row.detected[of.method] for of in summary.methods}
    cells = ((name, *("–" if at is None else str(at) for at in values)) for name, values in rows.items())
    head = (f"position ({summary.prompt})", *map(str, control.place))
    return Table("", head, tuple(cells), "thresholds-control-places")


def _states(summary: Summary, differences: Figures, raw: Figures) -> Section:
    text = (
        f"Prompt {summary.prompt}. The methods share one colour scale a layer, whose end (limit) stands at its left. "
        "Large panels are pooled: a cell shows the value farthest from 0 in its block, with its sign. One pixel a "
        "cell: figures/heatmap-METHOD.png."
    )
    if not differences:
        return Section("Hidden states", [text], raw)
    text += f" Shown minus {summary.reference}, at the layer where its drift begins or is strongest."
    folded = Section("Raw values of every method, all layers", figures=raw, folded=True)
    return Section("Hidden states", [text], differences, parts=[folded])


def _definitions(summary: Summary) -> Iterator[tuple[str, str]]:
    """How each number is made, by what it is of."""
    reference, rule = summary.reference, summary.rule
    measured = "Not measured in this run."
    if summary.failure_rule:
        rule_text = summary.failure_rule[:1].upper() + summary.failure_rule[1:]
        measured = (
            f"{rule_text}. Measured lengths: {', '.join(map(str, summary.measured_lengths))}. "
            "(a, b]: the failure lies after a, the longest measured length below all those at which it may fail, and "
            "at most at b, the first from which on it clearly fails at every one, by 95% intervals over prompts; a "
            "length at which a method fails though it does not at a longer one is a dip. A model whose tail NLL at M "
            "is that of a guess, or which finds no passkey there, or so few that Wilson's interval ends below one "
            "half, is at chance; failure is not evaluated by that, nor by passkeys of which fewer than half are found "
            "there."
        )
    yield "Measured failure", measured
    if not isinstance(summary.drift, str):
        drift = summary.drift.rule
        yield (
            "Drift",
            "The rule “drift”. For every dim, its level (median) and its range (the "
            f"{100 * drift.quantile:.0f}% quantile of the distance from it) are read at positions "
            f"{drift.warm_up} to {summary.trained_length - drift.held_out}, after states have settled and before "
            f"positions that few training texts reach; a range is at least that of {reference}. A value's distance is "
            "counted from the span of its level and of its in-window trends in ln(position) and in position. A layer "
            f"drifts from the first run of {drift.run} positions beyond M whose mean squared distance, in ranges "
            f"and over all dims, exceeds {drift.factor} times the largest inside the window, and "
            f"{drift.factor}, if there are more such runs than chance explains and one lies further out than a random "
            "walk with the in-window steps would come. Where a method begins "
            f"to count positions again, states settle again and are not evaluated for {drift.warm_up} tokens. The "
            "interval is over resampled dims. False detections: the share of pretended windows, shorter than M, at "
            "which the same rule detects drift although the model works there.",
        )
    yield (
        "Threshold and crossing",
        f"Values are means over the last {rule.smoothing} token(s). The threshold of a (layer, dim) pair is "
        f"{reference}'s value at position M; its side is the one on which the median of {reference}'s values beyond M "
        f"lies. The limit lies {rule.margin:g} in-window spreads beyond the threshold, on that side. A method crosses "
        "at the first position from M on from which its value stays beyond the limit, for "
        f"{rule.sustained} consecutive captured positions. The spread is a 3.29th of the distance between the 5% and "
        f"95% quantiles of {reference}'s values at positions {rule.warm_up} to M, and at least {rule.floor} of the "
        "layer's typical magnitude (median over dims of "
        "the median absolute value).",
    )
    yield (
        "Score",
        "How far the median beyond M lies from the threshold, minus what the in-window slope would add if it went on, "
        "in in-window spreads.",
    )
    yield (
        "Threshold dim",
        f"Score at least {rule.minimum_score}; on at least {100 * rule.share:.0f}% of the in-window positions "
        "not beyond the limit, and after the crossing beyond it on as many.",
    )
    yield (
        "Drift onset, threshold onset",
        "Drift onset: where the first layer drifts. Threshold onset (the rule “paper”): median crossing over the best "
        f"{TOP} threshold dims (each dim at its best layer only), leaving out those where the method is beyond the "
        "limit already inside the window; “none up to” when not more than half of them cross. The dims are chosen on "
        f"{reference}: its own crossing is a description. With fewer than {MIN_EVALUATED_DIMS} dims there is no "
        "threshold onset. Neither is a failure length (docs/findings.md); `mesa-lens predict` computes one.",
    )
    yield (
        "Tail NLL, passkey accuracy",
        "Mean negative log-likelihood of the same last tokens at every length, only the context before them grows; "
        "share of prompts whose hidden number is returned.",
    )


def _provenance(summary: Summary, run: StoredRun) -> Section:
    rows = [*provenance(run).items(), ("texts", summary.text_source or NOT_RECORDED)]
    rows += [("hook", summary.hook), ("captured length", summary.captured_length)]
    for method, config in summary.method_configs.items():
        rows.append((method, ", ".join(f"{key}={value}" for key, value in config.items() if key != "name")))
    rows += summary.versions.items()
    table = Table("", ("what", "value"), tuple((name, str(value)) for name, value in rows))
    return Section("Provenance", tables=[table])


_EVALUATED = ("threshold", "limit", "side", "spread", "score", "threshold_dim", "rank", "crossing", "inside")


def threshold_section(
    hidden: xr.DataArray, search: xr.Dataset, pairs: Sequence[tuple[int, int]], plans: Mapping[str, Plan] | None = None
) -> Section:
    """Charts of (layer, dim) pairs over position with their thresholds, and where each method crosses the limits.

    plans: of the passes by method, for what is said of restarts.
    """
    stem = file_name("threshold", hidden)
    figures = {
        f"{stem}-layer{layer}-dim{dim}": states.threshold_chart(hidden, search, layer, dim) for layer, dim in pairs
    }
    said = crossings_at_restarts(search, plans or {})
    return Section(sentences=said, figures=figures, tables=[crossing_table(hidden, search, pairs)])


def threshold_export(hidden: xr.DataArray, search: xr.Dataset, pairs: Sequence[tuple[int, int]]) -> Export:
    """Charts of dims with their thresholds, and their numbers, as files.

    Args:
        hidden: One prompt's hidden states (method, layer, position, dim).
        search: One prompt's `search` of them.
        pairs: The (layer, dim) pairs.

    Returns:
        An `Export`: a chart a pair; table `thresholds` by pair and method, and table `values` by pair, method and
        position: the value, and the mean over the last `smoothing` positions.

    Raises:
        Refused: No pair is named, or one was not captured.

    Examples:
        >>> run = probe.open_run("runs/example")
        >>> hidden = probe.hook_values(run).sel(prompt="repeated")
        >>> crossings = probe.search(hidden, 256, probe.CrossingRule.scaled(256))
        >>> list(probe.threshold_export(hidden, crossings, [(2, 8)]).figures)
        ['threshold-resid_post-repeated-layer2-dim8']
    """
    pairs = list(dict.fromkeys(pairs))
    if not pairs:
        raise Refused("name a (layer, dim) pair to export thresholds of")
    check_pairs(hidden, pairs)
    stem = file_name("threshold", hidden)
    layers, dims = (xr.DataArray(list(labels), dims="row") for labels in zip(*pairs, strict=True))
    evaluated = search[list(_EVALUATED)].sel(layer=layers, dim=dims)
    parts = [hidden.sel(layer=layer, dim=dim).load() for layer, dim in pairs]
    values = xr.concat(parts, dim="row", coords="different", compat="equals").rename("value")
    smoothed = smooth(values, search.attrs["smoothing"])
    attrs = {**hidden.attrs, **search.attrs}
    series = xr.Dataset({"value": values, "smoothed": smoothed}).assign_attrs(attrs)
    figures = figures_of([threshold_section(hidden, search, pairs)])
    return Export(figures, {file_name("thresholds", hidden): evaluated.assign_attrs(attrs), f"{stem}-values": series})


def drift_section(
    drift: xr.Dataset, prompt: str, layers: Sequence[int] | None = None, methods: Sequence[str] | None = None
) -> Section:
    """How far states are from their in-window range by position, and every method's onset on the prompt."""
    chart = states.drift_chart(drift, None if layers is None else list(layers), prompt, methods)
    name, onsets = states.drift_name(drift, prompt), drift_onsets(_chosen(drift, methods))
    return Section(figures={name: chart}, tables=[drift_table(onsets, prompt, f"{name}-onsets")])


def map_section(drift: xr.Dataset, prompt: str, methods: Sequence[str] | None = None) -> Section:
    """All layers' distances from their in-window range as a map."""
    chart = states.drift_map(_chosen(drift, methods), prompt)
    return Section("Where inside drift shows", figures={f"{states.drift_name(drift, prompt)}-map": chart})


def drift_export(
    drift: xr.Dataset, prompt: str, layers: Sequence[int] | None = None, methods: Sequence[str] | None = None
) -> Export:
    """The charts of drift, and their numbers, as files.

    Args:
        drift: One prompt's `find_drift`.
        prompt: The prompt's name, for file names.
        layers: Those in the chart and the tables. Default: where drift begins in the chart, all in the tables.
        methods: Those in the chart and the tables. Default: all.

    Returns:
        An `Export`: a chart and a map; table `levels` by method, layer and run (mean square distance in ranges),
        table `dims` by method, layer and dim (level, range, share of the drift), and table `onsets`, as text.

    Raises:
        Refused: A layer or method is not in `drift`.

    Examples:
        >>> run = probe.open_run("runs/example")
        >>> drift = probe.find_drift(probe.hook_values(run).sel(prompt="repeated"), run.trained_length)
        >>> list(probe.drift_export(drift, "repeated").figures)
        ['drift-resid_post-repeated', 'drift-resid_post-repeated-map']
    """
    check_labels(drift, "layer", layers or ())
    check_labels(drift, "method", methods or ())
    sections = [drift_section(drift, prompt, layers, methods), map_section(drift, prompt, methods)]
    by_layer = ["limit", "first", "low", "high", "before", "false_positive_rate"]
    numbers = {"levels": ["level", "warm_up", *by_layer], "dims": ["centre", "range", "share"]}
    values = _chosen(drift, methods, layers)
    exact = {f"{states.drift_name(drift, prompt)}-{name}": values[names] for name, names in numbers.items()}
    return Export(figures_of(sections), exact | tables_of(sections))


def distance_section(
    distances: Sequence[xr.Dataset], layers: Sequence[int] | None = None, methods: Sequence[str] | None = None
) -> Section:
    """How far states on text are from the in-window distribution: by length, and by position of stored texts.

    layers: a dataset without any of these is left out; default: `states.distance_layers`.
    """
    text = (
        "On text, states lie closer to the centre of their in-window distribution where attention spreads over more "
        "keys than within M (collapse), or further out (growth): squared Mahalanobis distance, fitted on other texts, "
        "over the method's own within M. A symptom, not a failure."
    )
    figures, tables = dict[str, Chart](), list[Table]()
    for distance in distances:
        chosen = _layers_in(distance, layers) if layers else states.distance_layers(distance)
        if not chosen:
            continue
        by_length = "length" in distance.dims
        name = f"state-distance-{'by-length-' if by_length else ''}{distance.attrs['hook']}"
        figures[name] = states.distance_chart(distance, chosen, methods)
        tables.append((_length_table if by_length else _end_table)(_chosen(distance, methods, chosen), name))
    return Section("States on text", [text], figures=figures, tables=tables)


def _layers_in(distance: xr.Dataset, layers: Sequence[int]) -> list[int]:
    """Those of the layers that a dataset has."""
    return [layer for layer in layers if layer in distance["layer"]]


def _length_table(distance: xr.Dataset, name: str) -> Table:
    """By method and layer the ratio at the longest length that it has, and the length at which states leave."""
    rows = list[tuple[str, ...]]()
    for method in distance["method"].values.tolist():
        for layer in distance["layer"].values.tolist():
            at = distance.sel({"method": method, "layer": layer})
            there = at["length"][at["ratio"].notnull()].values
            if len(there) < 2:
                continue
            last = at.sel(length=there[-1])
            ends = shown(*(float(last[key]) for key in ("ratio", "low", "high")), form="z.2f")
            leaves, limit = float(at["leaves"]), float(at["limit"])
            moved = "growth" if last["ratio"] > 1 else "collapse"
            if np.isnan(limit) or np.isnan(float(last["low"])):
                states_do = "open: too few texts"
            elif np.isfinite(leaves):
                states_do = f"{moved} from {leaves:.0f} tokens on"
            else:
                states_do = "level" if last["low"] <= 1 <= last["high"] else f"{moved} within the limit"
            cells = (f"{float(at['inside']):z.2f}", str(there[-1]), ends, "-" if np.isnan(limit) else f"{limit:z.2f}")
            rows.append((method, str(layer), *cells, states_do))
    columns = ("method", "layer", "distance at M", "length", "over that at M", "limit", "states")
    return Table("of the same last tokens, by length", columns, tuple(rows), f"{name}-last")


def _end_table(distance: xr.Dataset, name: str) -> Table:
    """The ratio in the last window by method and layer."""
    last, layers = distance.isel(window=-1), distance["layer"].values.tolist()
    keys = ("ratio", "low", "high")

    def cells(at: xr.Dataset) -> list[str]:
        return [shown(*(float(at[key][row]) for key in keys), form="z.2f") for row in range(len(layers))]

    methods_there = last["method"].values.tolist()
    rows = tuple((method, *cells(last.sel({"method": method}))) for method in methods_there)
    title = f"at positions {int(last['window'])} to {int(last['window']) + distance.attrs['run'] - 1}"
    return Table(title, ("method", *(f"layer {layer}" for layer in layers)), rows, f"{name}-last")


def distance_export(
    distances: Sequence[xr.Dataset], layers: Sequence[int] | None = None, methods: Sequence[str] | None = None
) -> Export:
    """The charts of `distance_section` and their numbers; Refused for a layer or method that is in none."""
    for layer in layers or ():
        if all(layer not in distance["layer"] for distance in distances):
            check_labels(distances[0], "layer", [layer])
    check_labels(distances[0], "method", methods or ())
    if not any(_chosen(distance, methods)["ratio"].notnull().any() for distance in distances):
        of = ", ".join(methods or distances[0]["method"].values.tolist())
        raise Refused(f"no distance of {of} is measured yet; the same `mesa-lens probe` continues")
    section = distance_section(distances, layers, methods)
    drawn = [distance for distance in distances if not layers or _layers_in(distance, layers)]
    numbers = (_chosen(distance, methods, _layers_in(distance, layers) if layers else None) for distance in drawn)
    values = dict(zip(section.figures, numbers, strict=True))
    return Export(figures_of([section]), values | tables_of([section]))


def curves_export(
    evaluation: xr.Dataset,
    measured: MeasuredFailures,
    trained_length: int,
    onsets: Sequence[DriftOnset | ThresholdOnset | NotEvaluated] = (),
    predicted: Mapping[str, PredictedFailure] | None = None,
) -> Export:
    """The chart of scores by length, and its numbers, as files.

    Args:
        evaluation: Scores, as `Run.evaluation`.
        measured: What `measured_failure` returns for them.
        trained_length: M, tokens.
        onsets: Onsets in hidden states, of one rule, for the table. Default: none.
        predicted: Predicted failures by method, drawn as ticks. Default: none.

    Returns:
        An `Export`: figure `curves`; tables of every sample of each score, and `failures`.

    Raises:
        Refused: `tail_nll` holds no number.

    Examples:
        >>> run = probe.open_run("runs/example")
        >>> measured = probe.measured_failure(run.evaluation, run.trained_length)
        >>> export = probe.curves_export(run.evaluation, measured, run.trained_length)
        >>> [name for name, content in export.files("csv")]
        ['curves-tail_nll.csv', 'curves-passkey.csv', 'failures.csv']
    """
    names = [name for name in ("tail_nll", "passkey") if name in evaluation and np.isfinite(evaluation[name]).any()]
    if "tail_nll" not in names:
        of = ", ".join(evaluation["method"].values.tolist())
        raise Refused(f"the loss of {of} is not measured yet; the same `mesa-lens probe` continues")
    chart = curves_chart(evaluation[names], measured, trained_length, predicted)
    attrs = {**evaluation.attrs, "trained_length": trained_length}
    samples = {f"curves-{name}": evaluation[[name]].assign_attrs(attrs) for name in names}
    failures = _failures(evaluation["method"].values.tolist(), measured, onsets, predicted or {})
    return Export({"curves": chart}, {**samples, "failures": failures.assign_attrs(attrs, rule=measured.rule)})


def curves_of(run: StoredRun, evidence: Evidence | None, methods: Sequence[str] | None = None) -> Export:
    """A run's curves with failures, as measured and as `mesa-lens predict` computed them, and its tables of scores.

    evidence: of the run; None where positions that onsets need were not captured. Raises Refused for an unknown method.
    """
    evaluation, attrs, trained = run.evaluation, run.hidden.attrs, run.trained_length
    assert evaluation is not None
    check_labels(evaluation, "method", methods or ())
    reference = reference_method(run.hidden["method"].values.tolist())
    measured = measured_failure(evaluation, trained, reference)
    configs = json.loads(attrs.get("method_configs", "{}"))
    facts = RunFacts(attrs.get("model"), trained, configs, reference)
    predicted: dict[str, PredictedFailure] = {}
    for predicted_of in tell("predicted").values():
        predicted |= predicted_of(run.folder, facts)
    onsets = [evidence.onset_of(result) for result in evidence.methods] if evidence else []
    export = curves_export(_chosen(evaluation, methods), measured, trained, onsets, predicted)
    if evidence is None:
        return export
    return with_tables(export, evidence, methods, scores)


def with_tables(
    export: Export, evidence: Evidence, methods: Sequence[str] | None, *sections: Callable[[Evidence], Section]
) -> Export:
    """The export with the tables, as texts, of sections of the report, of these methods."""
    chosen = [result for result in evidence.methods if methods is None or result.method in methods]
    tables = tables_of([section(replace(evidence, methods=chosen)) for section in sections])
    return replace(export, numbers={**export.numbers, **tables})


def _chosen(values: xr.Dataset, methods: Sequence[str] | None, layers: Sequence[int] | None = None) -> xr.Dataset:
    """Of the values those of these methods and layers; None: of all."""
    values = values if methods is None else values.sel({"method": list(methods)})
    return values if layers is None else values.sel(layer=list(layers))


def _failures(
    methods: list[str],
    measured: MeasuredFailures,
    onsets: Sequence[DriftOnset | ThresholdOnset | NotEvaluated],
    predicted: Mapping[str, PredictedFailure],
) -> xr.Dataset:
    """Measured and predicted failure lengths and onsets by method, with the interval of the measured; NaN for none."""
    kind = "threshold_onset" if any(isinstance(onset, ThresholdOnset) for onset in onsets) else "drift_onset"
    methods = [method for method in methods if having(measured.failures, method=method)]
    rows = [having(measured.failures, method=method)[0] for method in methods]
    by_method = {onset.method: onset for onset in onsets}
    shown = {
        kind: [by_method.get(method, NotEvaluated(method, "not evaluated")) for method in methods],
        "predicted_failure": [predicted.get(method, NotEvaluated(method, "–")) for method in methods],
        "measured": rows,
    }
    columns = {name: [of.length for of in column] for name, column in shown.items()} | {
        "measured_after": [row.after for row in rows],
        "measured_high": [row.high for row in rows],
        "measured_by_nll": [row.by_nll for row in rows],
        "measured_by_passkey": [row.by_passkey for row in rows],
    }
    tokens = {name: ("method", np.array(column, dtype=float), {"units": "tokens"}) for name, column in columns.items()}
    texts = {f"{name}_text": ("method", list(map(str, column))) for name, column in shown.items()}
    return xr.Dataset({**tokens, **texts}, coords={"method": methods})


_THRESHOLDS = 4  # charts, of the best dims
_PLOTLY = "plotly.min.js"
_FIGURES = """
    heatmaps.png threshold-layer*-dim*.png threshold-layer*-dim*.svg curves.png curves.svg drift.png drift.svg
    drift-map.png drift-map.svg state-distance-*.png state-distance-*.svg
""".split()
_OF_PAGE = (".png", ".npz", "-pooled-*.npz", ".html")
"""Ends of the files that a heatmap has under the name of its page."""


@dataclass(frozen=True)
class Maps:
    """The headline prompt's heatmaps at the default regions. panel: (method, layer, dim, position), not in memory.

    pooled: by the methods that are drawn together: each alone, as many as stand side by side, and all.
    """

    panel: xr.DataArray
    limits: xr.DataArray
    pooled: dict[tuple[str, ...], xr.DataArray]
    groups: list[tuple[str, ...]]

    @classmethod
    def of(cls, analysis: Analysis) -> Maps:
        """The heatmaps of a run, read once."""
        bounds = default_regions(analysis.hidden["position"].values, analysis.trained_length)
        panel = regions(analysis.hidden.sel(prompt=analysis.prompt), bounds)
        methods = tuple(panel["method"].values.tolist())
        groups = [methods[start : start + SIDE_BY_SIDE] for start in range(0, len(methods), SIDE_BY_SIDE)]
        selections = list(dict.fromkeys([methods, *groups, *((method,) for method in methods)]))
        *pooled, limits = survey(panel, selections)
        return cls(panel, limits, dict(zip(selections, pooled, strict=True)), groups)


def write_report(run_dir: str | os.PathLike[str], by: str | None = None) -> Summary:
    """Writes a run's report.html, summary.json, figures/ and derived/ again, in place of former ones once all is drawn.

    Args:
        run_dir: The run's folder.
        by: The rule to read onsets by, 'drift' or 'paper'; default the run's.

    Returns:
        The summary, as in summary.json.

    Raises:
        FileNotFoundError: No run is there.
        Refused: The store is damaged, or too few positions were captured.

    Examples:
        >>> summary = probe.write_report("runs/example", by="paper")
        >>> summary.onset_by
        'paper'
    """
    run = open_run(run_dir)
    return _written(run, by or _rule_of(run), lambda name: None)


def _rule_of(run: StoredRun) -> str:
    """The rule that the run's command stated, else 'drift'."""
    return (json.loads(run.hidden.attrs.get(REQUEST, "null")) or {}).get("rule", ["drift"])[0]


def update_report(folder: Path) -> Summary:
    """`write_report` after another command: what is known of the states stays, their figures too where all of it is."""
    run = open_run(folder)
    former = run_summary(folder, run)
    return _written(run, former.onset_by if former else _rule_of(run), partial(load, run))


def _written(run: StoredRun, by: str, known: Callable[[str], Derived | None]) -> Summary:
    """As `write_report`; known: gives what former searches of this store, by this code, found."""
    derived: dict[str, Derived] = {}

    def search(name: str, make: Callable[[], Any]) -> Any:
        result = known(name)
        if result is None:
            result = derived[name] = make()
        return result

    with Bar(total=1, desc="finding thresholds", unit="search") as bar:
        analysis = analyse(run, by=by, work=search)
        bar.update()
    folder = run.folder
    summary, former = full_summary(analysis), report_files(folder)
    maps, drawn = Maps.of(analysis) if analysis.has_states else None, drawn_sections(analysis, summary)
    is_drawn = maps is not None and not derived and (folder / "figures" / "heatmaps.png") in former
    unfinished = folder / ".report.partial"
    shutil.rmtree(unfinished, ignore_errors=True)  # of one that was killed
    try:
        unfinished.mkdir()
        figures = Drawn(curves=drawn.curves) if is_drawn else drawn
        write_figures(analysis, unfinished / "figures", None if is_drawn else maps, figures)
        write(unfinished / "report.html", render(analysis, summary, maps, drawn).encode())
        files = {file: folder / file.relative_to(unfinished) for file in unfinished.rglob("*") if file.is_file()}
        (folder / "figures").mkdir(exist_ok=True)
        for file, target in files.items():
            file.replace(target)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    SUMMARY.write(folder, summary)
    kept = {*files.values(), folder / SUMMARY.path, *(save(run, name, data) for name, data in derived.items())}
    for path in () if is_drawn else former - kept:
        path.unlink()
    return summary


def full_summary(analysis: Analysis) -> Summary:
    """The summary as summary.json has it: with the verdict, and the mark of the store that it is of."""
    evidence, run = summarize(analysis), analysis.run
    answer = verdict(evidence, findings_in(run.folder, facts_of(evidence)))
    return Summary(**vars(evidence), verdict=answer, store=store_mark(run.hidden.attrs))


def check_report(folder: Path) -> None:
    """Raises FileExistsError, naming it, for a file that `write_report` would replace and did not write."""
    check_ours(folder, REPORTED)
    names = (*_FIGURES, *(f"heatmap-*{end}" for end in _OF_PAGE))
    figures = [path for name in names for path in folder.glob(f"figures/{name}")]
    if figures and not (folder / "figures" / _PLOTLY).exists():  # which is written first, and stays
        raise Occupied(
            f"{figures[0]} is not a file that a run wrote, and this one would remove it; name another --out, or use "
            "--overwrite"
        )


def remove_report(folder: Path) -> None:
    """Removes what `write_report` wrote for a former run, and nothing else."""
    for path in report_files(folder):
        path.unlink()


def report_files(folder: Path) -> set[Path]:
    """What `write_report` wrote, but for what a heatmap's page loads."""
    pages = [page for page in folder.glob("figures/heatmap-*.html") if is_ours(page)]
    figures = (*_FIGURES, *(f"{page.stem}{end}" for page in pages for end in _OF_PAGE))
    derived = (f"{DERIVED}/*-{name}.npz" for name in ("thresholds", "control", "drift", "distance"))
    patterns = (*REPORTED, *(f"figures/{name}" for name in figures), *derived)
    return {path for pattern in patterns for path in folder.glob(pattern)}


def render(analysis: Analysis, summary: Summary, maps: Maps | None, drawn: Drawn) -> str:
    """The report's HTML: plotly.js inlined once, every text escaped. drawn: `drawn_sections`. maps: None: no states."""
    if maps is None:
        return section_page(title(summary), sections(summary, analysis.run, drawn, {}, {}))
    grids = [heatmap_grid(maps.pooled[group], analysis.trained_length, maps.limits) for group in maps.groups]
    differences = {f"less-{number}": grid for number, grid in enumerate(_differences(analysis, maps))}
    raw = {f"heatmaps-{number}": grid for number, grid in enumerate(grids)}
    return section_page(title(summary), sections(summary, analysis.run, drawn, differences, raw))


def write_figures(analysis: Analysis, folder: Path, maps: Maps | None, drawn: Drawn) -> None:
    """Writes into `folder`, for the headline prompt and on one colour scale a layer:

    heatmap-METHOD.png (one pixel a cell), .html (interactive, with plotly.min.js next to it) and, with labels,
    heatmap-METHOD[-pooled-DIMSxPOSITIONS].npz; heatmaps.png (all methods, with axes); threshold-layerL-dimD and curves
    as .png and .svg. maps: None: the charts alone.
    """
    folder.mkdir(parents=True, exist_ok=True)
    write(folder / _PLOTLY, get_plotlyjs().encode())
    if maps is not None:
        _write_heatmaps(analysis, folder, maps)
    charts = figures_of([section for shown in drawn for section in shown[:1]])
    of_prompt = file_name("", analysis.hidden.sel(prompt=analysis.prompt)) if maps else ""
    for name, chart in Bar(charts.items(), desc="drawing charts", unit="figure"):
        for form, content in pictures(chart, ("png", "svg")).items():
            write(folder / f"{name.replace(of_prompt, '')}.{form}", content)


def _write_heatmaps(analysis: Analysis, folder: Path, maps: Maps) -> None:
    methods: list[str] = maps.panel["method"].values.tolist()
    stems = {method: folder / f"heatmap-{safe_name(method)}" for method in methods}

    def write_raster(method: str) -> None:
        raster = Raster(maps.panel.sel({"method": method}), maps.limits)
        write(stems[method].with_name(f"{stems[method].name}.png"), rendered(raster, "png"))

    def grid(values: xr.DataArray) -> Heatmaps:
        return heatmap_grid(values, analysis.trained_length, maps.limits)

    with ThreadPoolExecutor(1) as pool:  # of the rest, which is Python's work
        rasters = pool.map(write_raster, methods)
        for method, stem in stems.items():
            pooled = maps.pooled[method,].isel({"method": 0})
            numbers = npz_bytes(labelled_numbers(pooled, analysis.trained_length))
            write(stem.with_name(f"{stem.name}{pooled_name(pooled)}.npz"), numbers)
            write(stem.with_name(f"{stem.name}.html"), page(grid(pooled), "directory"))
        write(folder / "heatmaps.png", rendered(grid(maps.pooled[tuple(methods)]), "png"))
        list(Bar(rasters, desc="drawing heatmaps", total=len(methods), unit="method"))


def drawn_sections(analysis: Analysis, summary: Summary) -> Drawn:
    """What the report draws of an analysis, heatmaps aside."""
    prompt, run = analysis.prompt, analysis.run
    curves = [] if run.evaluation is None else [Section(figures=cast(Figures, curves_of(run, summary).figures))]
    distances = [each for each in (distance_by_length(analysis.run), analysis.distance) if each is not None]
    distance = [distance_section(distances)] if distances else []
    if not analysis.has_states:
        return Drawn(curves=curves, distance=distance)
    hidden, search = analysis.hidden.sel(prompt=prompt), analysis.crossings.sel(prompt=prompt)
    drifts = {} if isinstance(analysis.drifts, str) else analysis.drifts
    pairs = analysis.best[:_THRESHOLDS]
    return Drawn(
        thresholds=[threshold_section(hidden, search, pairs, plans_of(run, hidden))] if pairs else [],
        curves=curves,
        drift=[drift_section(drift, name) for name, drift in drifts.items()],
        map=[map_section(drifts[prompt], prompt)] if drifts else [],
        distance=distance,
    )


def _differences(analysis: Analysis, maps: Maps) -> list[Heatmaps]:
    """Heatmaps less the reference's, at the layer where drift begins; none of a single method, or without drift."""
    if len(maps.panel["method"]) < 2 or isinstance(analysis.drifts, str):
        return []
    layer = states.drift_layers(analysis.drifts[analysis.prompt])[-1]
    less = difference(maps.panel.sel(layer=[layer]).load(), analysis.reference)
    return grids(pool(less), analysis.trained_length, layer_limits(less))
