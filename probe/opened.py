"""A run opened for a notebook: verdict, drift, thresholds, heatmaps, curves, and what was located and looked at."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict
from functools import cached_property
from typing import Any

import xarray as xr

from probe.attention.sentences import anatomy_findings
from probe.evaluation.summary import Table, plain_table
from probe.figures.anatomy_export import anatomy_export
from probe.figures.export import Export, curves_export, drift_export, heatmap_export, safe_name, threshold_export
from probe.figures.heatmap import block_size, default_regions, describe, less, side_by_side, survey
from probe.figures.mechanism_export import located_export, located_tables
from probe.figures.shown import Shown
from probe.interventions.sentences import located_findings
from probe.report import whole_summary
from probe.store import reader
from probe.store.results import find_located, headline, read_anatomy, read_located, run_summary
from probe.store.select import check_labels, hook_values, one_prompt
from probe.thresholds.analysis import Analysis, analyse
from probe.thresholds.calls import drift_calls
from probe.thresholds.findings import ranges
from probe.thresholds.predict import best, crossing_texts
from probe.verdict.cells import position
from probe.verdict.shown import Verdict
from probe.verdict.verdict import verdict

_CELLS = 100_000
"""Values of a heatmap that a notebook keeps."""
_WHOLE = 25_000_000
"""Values of hidden states that are held in memory at once."""
_NONE = "–"


class Run(reader.Run):
    """An opened run: `hidden` and `evaluation` as stored, and a method for each part of its report.

    Each returns labelled data that shows itself in a notebook, and is a text in a terminal.
    """

    @cached_property
    def summary(self) -> dict[str, Any]:
        """summary.json where it is this store's, else the same worked out anew."""
        return run_summary(self.folder) or whole_summary(self.analysis())

    def analysis(self, hook: str | None = None) -> Analysis:
        """`analyse` of the run, worked out once a hook (default: the run's first)."""
        if hook not in self._analyses:
            self._analyses[hook] = analyse(self, hook)
        return self._analyses[hook]

    def verdict(self) -> Verdict:
        """Methods ranked, what broke, where, what mended it, how sure: as in summary.json, with what was located."""
        return Verdict(verdict(self.summary, find_located(self.folder)))

    def drift(self, prompt: str | None = None, layers: Sequence[int] | None = None, hook: str | None = None) -> Shown:
        """`find_drift` of a prompt (default: the first); drawn are `layers`, by default where drift begins.

        Raises ValueError for a prompt that is not judged, and where too few positions were captured.
        """
        drifts = self.analysis(hook).drifts
        if isinstance(drifts, str):
            raise ValueError(f"drift of {self.folder} is not judged: {drifts}")
        name = next(iter(drifts)) if prompt is None else prompt
        if name not in drifts:
            raise ValueError(f"drift of prompt {name!r} is not judged; judged: {', '.join(drifts)}")
        return Shown(drifts[name], _drift_words(drifts[name], name), drift_export(drifts[name], name, layers))

    def thresholds(
        self,
        pairs: Sequence[tuple[int, int]] | None = None,
        top: int = 4,
        prompt: str | None = None,
        hook: str | None = None,
    ) -> Shown:
        """`search` of a prompt (default: the first); drawn are the (layer, dim) `pairs`, by default the `top` best."""
        analysis = self.analysis(hook)
        hidden = one_prompt(analysis.hidden, prompt)
        name = str(hidden["prompt"].item())
        found = analysis.found.sel(prompt=name)
        pairs = best(found, top) if pairs is None else list(pairs)
        if not pairs:
            return Shown(found, f"no dim of {found.attrs['searched']} is observable on prompt {name}", Export({}, {}))
        export = threshold_export(hidden, found, pairs)
        predicted = "; ".join(f"{each.method} {each}" for each in analysis.predictions[name])
        return Shown(found, f"{_pair_table(found, pairs)}\npredicted failure: {predicted}", export)

    def heatmap(
        self,
        minus: str | None = None,
        methods: Sequence[str] | None = None,
        layers: Sequence[int] | None = None,
        dims: Sequence[int] | None = None,
        positions: Sequence[tuple[int, int]] | None = None,
        prompt: str | None = None,
        hook: str | None = None,
    ) -> Shown:
        """Hidden states (method, layer, dim, position) in memory, less those under `minus`; default: all there is.

        positions: half-open (start, stop), side by side; default: around M, and the last M. Only what is asked for is
        read; of more than 25 million values, layer by layer, the one farthest from 0 of each block is kept.
        """
        hidden = one_prompt(hook_values(self, hook), prompt)
        for name, labels in {"layer": layers, "dim": dims}.items():
            if labels is not None:
                check_labels(hidden, name, labels)
                hidden = hidden.sel({name: list(labels)})
        bounds = default_regions(hidden["position"].values, self.trained_length) if positions is None else positions
        shown = hidden["method"].values.tolist() if methods is None else methods
        panel, limits = side_by_side(hidden, bounds, shown, minus), None
        if large := panel.size > _WHOLE:
            panel, limits = survey(panel, [[name for name in shown if name != minus]], _CELLS, minus=minus)
        else:
            panel = less(panel, minus)
        told = f"{describe(panel)}; methods {', '.join(panel['method'].values)}"
        if large:
            block = f"{block_size(panel, 'dim')} dims x {block_size(panel, 'position')} positions"
            told += f"; each value is the farthest from 0 of {block}: ask for fewer layers, dims or positions"
        return Shown(panel, told, heatmap_export(panel, self.trained_length, limits, _CELLS))

    def curves(self) -> Shown:
        """Scores by length, with measured and predicted failures; ValueError for a run that measured none."""
        analysis = self.analysis()
        if self.evaluation is None or analysis.measured is None:
            raise ValueError(f"{self.path} holds no scores by length; probe with --samples above 0")
        predicted = {each.method: str(each) for each in analysis.headline}
        rows = tuple((each.method, str(each), predicted[each.method]) for each in analysis.measured.failures)
        export = curves_export(self.evaluation, analysis.measured, self.trained_length, analysis.headline)
        table = Table("", ("method", "measured failure", "predicted"), rows)
        return Shown(self.evaluation, plain_table(table), export)

    def located(self) -> Shown:
        """What `mesa-lens locate` wrote into the folder, as tables by name; FileNotFoundError where it was not run."""
        summary = read_located(self.folder)
        told = "\n\n".join(f"{heading}: {' '.join(told)}" for heading, told in located_findings(summary))
        shown = headline(summary)
        if shown is None:
            tables = located_tables(summary, {})
            return Shown(tables, told, Export({}, tables))
        export = located_export(summary)
        main = f"locate-map-{safe_name(shown['method'])}-{shown['length']}-{shown['measure']}"
        return Shown(export.numbers, told, export, main)

    def anatomy(self) -> Shown:
        """What `mesa-lens anatomy` wrote into the folder, as tables by name; FileNotFoundError where it was not run."""
        found = read_anatomy(self.folder)
        export = anatomy_export(found)
        return Shown(export.numbers, "\n\n".join(anatomy_findings(found.summary)), export)

    def __repr__(self) -> str:
        """What was run on what, and which methods tell more."""
        states = ", ".join(f"{size} {name}s" for name, size in self.hidden.sizes.items())
        model = self.hidden.attrs.get("model")
        parts = "verdict(), drift(), thresholds(), heatmap(), curves(), located(), anatomy()"
        return f"run {self.folder} of {model}, M = {self.trained_length}: {states}\n{parts}"

    @cached_property
    def _analyses(self) -> dict[str | None, Analysis]:
        return {}


def open_run(path: str | os.PathLike[str]) -> Run:
    """The run in a folder, or of a store; raises what `probe.store.reader.open_run` raises."""
    found = reader.open_run(path)
    return Run(found.path, found.hidden, found.evaluation, found.beside)


def _drift_words(found: xr.Dataset, prompt: str) -> str:
    rows = []
    for call in drift_calls(found):
        first = str(call) if call.length is None else position(asdict(call))
        alarms = _NONE if call.false_alarms is None else f"{call.false_alarms:.1%}"
        before = _NONE if call.before is None else str(call.before)
        rows.append((call.method, first, ranges(call.layers) or _NONE, before, alarms, ranges(call.untrusted) or _NONE))
    head = ("method", "drifts from", "in layers", "begun before M", "false alarms", "layers not judged")
    return plain_table(Table(f"drift of {found.attrs['hook']} on prompt {prompt}, in tokens", head, tuple(rows)))


def _pair_table(found: xr.Dataset, pairs: Sequence[tuple[int, int]]) -> str:
    """Score, threshold and where each method crosses it, by layer:dim."""
    rows = []
    for layer, dim in pairs:
        at = found.sel(layer=layer, dim=dim)
        crossings = crossing_texts(at).values
        rows.append((f"{layer}:{dim}", f"{float(at['score']):z.1f}", f"{float(at['threshold']):z.2f}", *crossings))
    head = ("layer:dim", "score", "threshold", *found["method"].values)
    title = (
        f"thresholds of {found.attrs['hook']} on prompt {found['prompt'].item()}, and where each method crosses them"
    )
    return plain_table(Table(title, head, tuple(rows)))
