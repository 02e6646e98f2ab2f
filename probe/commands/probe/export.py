"""Sections, figures and tables of what `mesa-lens probe` measured, for files, reports, notebooks and pages."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import xarray as xr

from mesa.errors import Refused
from mesa.plan import Plan
from probe.commands.predict.result import PREDICTION
from probe.commands.probe.rows import predicted_failures
from probe.commands.probe.sections import scores
from probe.commands.probe.tables import crossing_table, crossings_at_restarts, drift_table
from probe.figures.curves import curves_chart
from probe.figures.drift import drift_chart, drift_map, drift_name
from probe.figures.export import Export, file_name
from probe.figures.section import Section, figures_of, tables_of
from probe.figures.thresholds import threshold_chart
from probe.store.reader import StoredRun
from probe.store.result_file import having
from probe.store.select import check_labels, check_pairs, reference_method
from probe.thresholds.drift_onset import DriftOnset, drift_onsets
from probe.thresholds.failure import MeasuredFailures, PredictedFailure, measured_failure
from probe.thresholds.result import Evidence, NotJudged
from probe.thresholds.search import smooth
from probe.thresholds.threshold_onset import ThresholdOnset

_JUDGED = ("threshold", "limit", "side", "spread", "score", "threshold_dim", "rank", "crossing", "inside")


def threshold_section(
    hidden: xr.DataArray, search: xr.Dataset, pairs: Sequence[tuple[int, int]], plans: Mapping[str, Plan] | None = None
) -> Section:
    """Charts of (layer, dim) pairs over position with their thresholds, and where each method crosses the limits.

    plans: of the passes by method, for what is said of restarts.
    """
    stem = file_name("threshold", hidden)
    figures = {f"{stem}-layer{layer}-dim{dim}": threshold_chart(hidden, search, layer, dim) for layer, dim in pairs}
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
    judged = search[list(_JUDGED)].sel(layer=layers, dim=dims)
    parts = [hidden.sel(layer=layer, dim=dim).load() for layer, dim in pairs]
    values = xr.concat(parts, dim="row", coords="different", compat="equals").rename("value")
    smoothed = smooth(values, search.attrs["smoothing"])
    attrs = {**hidden.attrs, **search.attrs}
    series = xr.Dataset({"value": values, "smoothed": smoothed}).assign_attrs(attrs)
    figures = figures_of([threshold_section(hidden, search, pairs)])
    return Export(figures, {file_name("thresholds", hidden): judged.assign_attrs(attrs), f"{stem}-values": series})


def drift_section(
    drift: xr.Dataset, prompt: str, layers: Sequence[int] | None = None, methods: Sequence[str] | None = None
) -> Section:
    """How far states are from their in-window range by position, and every method's onset on the prompt."""
    chart = drift_chart(drift, None if layers is None else list(layers), prompt, methods)
    name, onsets = drift_name(drift, prompt), drift_onsets(_of_methods(drift, methods))
    return Section(figures={name: chart}, tables=[drift_table(onsets, prompt, f"{name}-onsets")])


def map_section(drift: xr.Dataset, prompt: str, methods: Sequence[str] | None = None) -> Section:
    """All layers' distances from their in-window range as a map."""
    chart = drift_map(_of_methods(drift, methods), prompt)
    return Section("Where inside drift shows", figures={f"{drift_name(drift, prompt)}-map": chart})


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
    values = _of_methods(drift, methods) if layers is None else _of_methods(drift, methods).sel(layer=list(layers))
    exact = {f"{drift_name(drift, prompt)}-{name}": values[names] for name, names in numbers.items()}
    return Export(figures_of(sections), exact | tables_of(sections))


def curves_export(
    evaluation: xr.Dataset,
    measured: MeasuredFailures,
    trained_length: int,
    onsets: Sequence[DriftOnset | ThresholdOnset | NotJudged] = (),
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
        Refused: A score holds no number.

    Examples:
        >>> run = probe.open_run("runs/example")
        >>> measured = probe.measured_failure(run.evaluation, run.trained_length)
        >>> export = probe.curves_export(run.evaluation, measured, run.trained_length)
        >>> [name for name, content in export.files("csv")]
        ['curves-tail_nll.csv', 'curves-passkey.csv', 'failures.csv']
    """
    names = [name for name in ("tail_nll", "passkey") if name in evaluation]
    for name in names:
        if not np.isfinite(evaluation[name]).any():
            raise Refused(f"{name} holds no number; measure again: `mesa-lens probe --overwrite`")
    chart = curves_chart(evaluation, measured, trained_length, predicted)
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
    prediction, configs = PREDICTION.find(run.folder), json.loads(attrs.get("method_configs", "{}"))
    predicted = predicted_failures(prediction, (attrs.get("model"), trained), configs, reference)
    onsets = [evidence.onset_of(result) for result in evidence.methods] if evidence else []
    export = curves_export(_of_methods(evaluation, methods), measured, trained, onsets, predicted)
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


def _of_methods(values: xr.Dataset, methods: Sequence[str] | None) -> xr.Dataset:
    return values if methods is None else values.sel({"method": list(methods)})


def _failures(
    methods: list[str],
    measured: MeasuredFailures,
    onsets: Sequence[DriftOnset | ThresholdOnset | NotJudged],
    predicted: Mapping[str, PredictedFailure],
) -> xr.Dataset:
    """Measured and predicted failure lengths and onsets by method, with the interval of the measured; NaN for none."""
    kind = "threshold_onset" if any(isinstance(onset, ThresholdOnset) for onset in onsets) else "drift_onset"
    rows = [having(measured.failures, method=method)[0] for method in methods]
    by_method = {onset.method: onset for onset in onsets}
    shown = {
        kind: [by_method.get(method, NotJudged(method, "not judged")) for method in methods],
        "predicted_failure": [predicted.get(method, NotJudged(method, "–")) for method in methods],
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
