"""An opened run, as notebook, dashboard and export read it: its verdict, and a method for each part of its report."""

from __future__ import annotations

import json
import os
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, cast

import plotly.graph_objects as go
import xarray as xr

from mesa.errors import Refused
from probe.commands import command
from probe.commands.probe import report
from probe.commands.probe.verdict import (
    Summary,
    Verdict,
    crossing_table,
    drift_table,
    facts_of,
    findings_in,
    onset_title,
    run_summary,
    verdict,
)
from probe.figures import heatmap
from probe.figures.export import Export, heatmap_export
from probe.figures.figure_data import Drawable
from probe.figures.interactive import draw
from probe.figures.section import Table, plain_table
from probe.figures.static import picture
from probe.store import reader
from probe.store.cache import cached
from probe.store.reader import check_labels, hook_values, labelled, one_prompt
from probe.thresholds.analysis import Analysis, analyse, distance_by_length, summarize
from probe.thresholds.onset import best, drift_onsets

if TYPE_CHECKING:
    from probe.commands.anatomy.page import HTML

PLOTLY = "application/vnd.plotly.v1+json"
"""The MIME type of interactive figures in JupyterLab, VS Code and Colab."""
_DPI = 110  # of the picture where a figure cannot be interactive
_CELLS = 100_000  # values of a heatmap in a notebook
_WHOLE = 25_000_000  # values of hidden states in memory at once


@dataclass(frozen=True, repr=False)
class Result:
    """Labelled `data` (by name where there are several), a summary as text, and its `export`.

    In a notebook it is drawn as its main figure, in a terminal it prints its text. `main`: the main figure's name,
    default the first.
    """

    data: xr.Dataset | xr.DataArray | Mapping[str, xr.Dataset]
    text: str
    export: Export
    main: str | None = None

    def __post_init__(self) -> None:
        """Lets `sel(method=...)` choose from the data."""
        data = self.data
        tables = {key: labelled(value) for key, value in data.items()} if type(data) is dict else labelled(data)
        object.__setattr__(self, "data", tables)

    @property
    def names(self) -> list[str]:
        """The names of its figures, the main one first."""
        return sorted(self.export.figures, key=lambda name: name != self.main)

    def figure(self, name: str | None = None) -> go.Figure:
        """The plotly figure of that name (default: the main one); Refused for an unknown name."""
        return draw(self._drawable(name))

    def save(self, folder: str | os.PathLike[str], formats: str | Iterable[str] = "png") -> list[Path]:
        """Writes figures (html, png, svg, pdf) and numbers (npz, csv) into the folder; returns the files' paths."""
        forms = formats.split(",") if isinstance(formats, str) else formats
        return self.export.save(Path(folder), [form.strip() for form in forms])

    def __repr__(self) -> str:
        """The text, and the names of the figures."""
        figures = f"\n\nfigures: {', '.join(self.names)}" if self.names else ""
        return self.text + figures

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, object]:
        """The main figure, interactive and as a picture; the text alone where there is no figure."""
        if not self.names:
            return {"text/plain": repr(self)}
        figure = self._drawable(None)
        interactive = json.loads(cast(str, draw(figure).to_json()))
        return {"text/plain": repr(self), "image/png": picture(figure, "png", _DPI), PLOTLY: interactive}

    def _drawable(self, name: str | None) -> Drawable:
        if not self.names:
            raise Refused("there is no figure: nothing could be drawn")
        name = self.names[0] if name is None else name
        if name not in self.export.figures:
            raise Refused(f"unknown figure {name!r}; choose from {', '.join(self.names)}")
        return cast(Drawable, self.export.figures[name])


class Run(reader.StoredRun):
    """An opened run: hidden states, scores by length, and a method for each part of its report.

    `open_run` makes one. `hidden` and `evaluation` are xarray Datasets; `evaluation` is None where nothing was measured
    by length. Each part but `verdict` and `tokens` is a `Result`: `data` (xarray), `figure(name)`, `names` of figures,
    and `save(folder, formats)`. A notebook draws it, a terminal prints its text.

    Examples:
        >>> run = probe.open_run("runs/example")
        >>> dict(run.hidden["resid_post"].sizes)
        {'method': 2, 'prompt': 1, 'layer': 4, 'position': 512, 'dim': 256}
        >>> run.evaluation["tail_nll"].mean("window").sel(method="origin").round(2).values  # at 256 and 768 tokens
        array([2.19, 3.46])
    """

    @property
    def summary(self) -> Summary:
        """summary.json where it is of this store, else computed."""
        return run_summary(self.folder, self) or report.full_summary(self.analysis())

    def analysis(self, hook: str | None = None) -> Analysis:
        """`analyse` of the run, computed once a hook.

        Args:
            hook: Default: the run's first.

        Returns:
            An `Analysis`.
        """
        if "dim" not in (values := hook_values(self, hook)).dims:
            raise Refused(f"hook {values.name!r} has no dims, which thresholds and drift are of; see it as a heatmap")
        if hook not in self._analyses:
            self._analyses[hook] = analyse(self, hook, work=partial(cached, self))
        return self._analyses[hook]

    def verdict(self) -> Verdict:
        """Methods ranked, what fails, what fixes it, where inside, how sure: as in summary.json, with located heads."""
        return verdict(summary := self.summary, findings_in(self.folder, facts_of(summary)))

    def drift(
        self,
        prompt: str | None = None,
        layers: Sequence[int] | None = None,
        hook: str | None = None,
        methods: Sequence[str] | None = None,
    ) -> Result:
        """Drift of one prompt's hidden states, see `find_drift`.

        Args:
            prompt: Default: the first.
            layers: Those drawn. Default: where drift begins.
            hook: Default: the run's first.
            methods: Those in figures and files. Default: all.

        Returns:
            A `Result`.

        Raises:
            Refused: The prompt is not evaluated, or too few positions were captured.

        Examples:
            >>> run = probe.open_run("runs/example")
            >>> run.drift().data["first"].sel(method="origin").values.tolist()  # by layer, in tokens
            [nan, nan, 316.0, nan]
        """
        drifts = self.analysis(hook).drifts
        if isinstance(drifts, str):
            raise Refused(f"drift of {self.folder} is not evaluated: {drifts}")
        name = next(iter(drifts)) if prompt is None else prompt
        if name not in drifts:
            raise Refused(f"drift of prompt {name!r} is not evaluated; evaluated: {', '.join(drifts)}")
        text = plain_table(drift_table(drift_onsets(drifts[name]), name))
        return Result(drifts[name], text, report.drift_export(drifts[name], name, layers, methods))

    def thresholds(
        self,
        pairs: Sequence[tuple[int, int]] | None = None,
        top: int = 4,
        prompt: str | None = None,
        hook: str | None = None,
        methods: Sequence[str] | None = None,
    ) -> Result:
        """Thresholds and crossings of one prompt, see `search`.

        Args:
            pairs: The (layer, dim) pairs drawn. Default: the best.
            top: How many of the best; default 4.
            prompt: Default: the first.
            hook: Default: the run's first.
            methods: Those in figures and files. Default: all.

        Returns:
            A `Result`.
        """
        analysis = self.analysis(hook)
        hidden = one_prompt(analysis.hidden, prompt)
        name = str(hidden["prompt"].item())
        search = analysis.crossings.sel(prompt=name)
        pairs = best(search, top) if pairs is None else list(pairs)
        if not pairs:
            text = f"no threshold dim among {search.attrs['searched']} on prompt {name}"
            return Result(search, text, Export({}, {}))
        names = search["method"].values.tolist() if methods is None else list(methods)
        check_labels(hidden, "method", names)
        export = report.threshold_export(hidden.sel({"method": names}), search.sel({"method": names}), pairs)
        export = report.with_tables(export, summarize(analysis), methods, report.onsets, report.control)
        text = plain_table(crossing_table(hidden, search, pairs))
        first = "; ".join(f"{onset.method} {onset}" for onset in analysis.threshold_onsets[name])
        return Result(search, f"{text}\nthreshold onset: {first}", export)

    def distance(
        self, layers: Sequence[int] | None = None, hook: str | None = None, methods: Sequence[str] | None = None
    ) -> Result:
        """How far states on text lie from the in-window distribution.

        By length, of resid_post (`find_distance_by_length`), and by position where texts are stored
        (`find_state_distance`), whose numbers are then `data`.

        Args:
            layers: Those drawn. Default: the first, and the one in which the reference moves most.
            hook: Default: the run's first.
            methods: Those in figures and files. Default: all.

        Returns:
            A `Result`.

        Raises:
            Refused: No states of text were read.
        """
        by_length = distance_by_length(self) if hook in (None, "resid_post") else None
        stored = None if by_length is not None and not self.hidden.data_vars else self.analysis(hook).distance
        distances = [each for each in (by_length, stored) if each is not None]
        if not distances:
            raise Refused(
                f"{self.folder} does not hold the states of two texts within M and beyond, or states M wrongly; "
                "probe --texts 8 does, with the right --trained-length"
            )
        export = report.distance_export(distances, layers, methods)
        tables = report.distance_section(distances, layers, methods).tables
        return Result(distances[-1], "\n".join(plain_table(table) for table in tables), export)

    def heatmap(
        self,
        minus: str | None = None,
        methods: Sequence[str] | None = None,
        layers: Sequence[int] | None = None,
        dims: Sequence[int] | None = None,
        positions: Sequence[tuple[int, int]] | None = None,
        prompt: str | None = None,
        hook: str | None = None,
        cells: int | None = _CELLS,
        pool: int | None = None,
    ) -> Result:
        """Hidden states by method, layer, dim and position, less those under one method.

        Args:
            minus: The method that is subtracted. Default: none.
            methods: Default: all.
            layers: Default: all.
            dims: Default: all.
            positions: Half-open (start, stop), side by side. Default: around M, and the last M.
            prompt: Default: the first.
            hook: Default: the run's first.
            cells: The most values of a figure; default 100,000. None: a picture a method, one pixel a value.
            pool: The most values of data and files, each the farthest from 0 of a block of dims and positions. Default:
                all values; more than 25 million are read when they are used.

        Returns:
            A `Result`.

        Raises:
            Refused: A label was not captured.

        Examples:
            >>> run = probe.open_run("runs/example")
            >>> shown = run.heatmap(minus="origin", layers=[2], positions=[(240, 280)])
            >>> dict(shown.data.sizes)
            {'method': 1, 'layer': 1, 'position': 40, 'dim': 256}
            >>> [path.suffix for path in shown.save("runs/exports", "svg,csv")]
            ['.svg', '.csv']
        """
        hidden = heatmap.with_dims(one_prompt(hook_values(self, hook), prompt))
        given = {"methods": methods, "layers": layers, "dims": dims, "positions": positions}
        for name, labels in {"layer": layers, "dim": dims}.items():
            if labels is not None:
                check_labels(hidden, name, labels)
                hidden = hidden.sel({name: list(dict.fromkeys(labels))})
        bounds = (
            heatmap.default_regions(hidden["position"].values, self.trained_length) if positions is None else positions
        )
        names = list(dict.fromkeys(hidden["method"].values.tolist() if methods is None else methods))
        read = heatmap.side_by_side(hidden, bounds, names, minus)
        panel, drawn, limits = heatmap.lazy_difference(read, minus), None, None
        if cells is not None and panel.size > _WHOLE:
            group = [name for name in names if name != minus]
            drawn, limits = heatmap.survey(read, [group], cells if pool is None else pool, minus=minus)
            panel = panel if pool is None else drawn
        else:
            panel = heatmap.lazy_difference(read.load(), minus).load()
            limits = heatmap.layer_limits(panel)
            panel = panel if pool is None else heatmap.pool(panel, pool)
        if pool is not None and panel.size > pool:
            raise Refused(f"pool {pool} is below {panel.size}, a value for each method, layer and region of positions")
        text = f"{heatmap.describe(panel)}; methods {', '.join(panel['method'].values)}"
        text += f"; each value is {heatmap.pooling(panel)}" if heatmap.pooling(panel) else ""
        chosen = {name: labels for name, labels in given.items() if labels is not None}
        return Result(panel, text, heatmap_export(panel, self.trained_length, limits, cells, drawn, chosen))

    def curves(self, methods: Sequence[str] | None = None) -> Result:
        """Scores by length, with measured and predicted failures and drift onsets.

        Args:
            methods: Those in the figure and files. Default: all.

        Returns:
            A `Result`.

        Raises:
            Refused: The run measured no scores by length.
        """
        if self.evaluation is None:
            raise Refused(f"{self.path} holds no scores by length; probe with --samples above 0")
        try:
            summary = self.summary
        except Refused:  # positions that onsets need were not captured
            summary = None
        export = report.curves_of(self, summary, methods)
        failures = export.numbers["failures"]
        onset = next(name for name in failures if str(name).endswith("onset_text"))
        rows = zip(*(failures[name].values for name in ("method", "measured_text", onset)), strict=True)
        head = ("method", "measured failure", onset_title(summary.onset_by if summary else "drift"))
        return Result(self.evaluation, plain_table(Table("", head, tuple(rows))), export)

    def prediction(self) -> Result:
        """What `mesa-lens predict` computed in the folder: excess loss and failure length by method (docs/law.md).

        NotFound where it was not run. Where nothing is predicted, the text says why, and data is empty.
        """
        return Result(*command("predict").on_page("in_notebook")(self.folder))

    def located(self) -> Result:
        """The tables of `mesa-lens locate` in the folder, by name; FileNotFoundError where it was not run."""
        return Result(*command("locate").on_page("in_notebook")(self.folder))

    def anatomy(self) -> Result:
        """The tables of `mesa-lens anatomy` in the folder, by name; FileNotFoundError where it was not run."""
        return Result(*command("anatomy").on_page("in_notebook")(self.folder))

    def readout(self) -> Result:
        """The tables of `mesa-lens readout` in the folder, by name; FileNotFoundError where it was not run."""
        return Result(*command("readout").on_page("in_notebook")(self.folder))

    def tokens(self, method: str | None = None, layer: int | None = None, head: int | None = None) -> HTML:
        """A text token by token, as `mesa-lens anatomy --parts tokens` captured it.

        Two views, under the reference and a method: each token's loss, and what one head attends to.

        Args:
            method: Default: the first but the reference.
            layer: Default: with `head`, the one that the method changes most.
            head: As `layer`.

        Returns:
            HTML, which a notebook displays.

        Raises:
            FileNotFoundError: Nothing was captured.
            Refused: The method, layer or head was not captured.
        """
        return command("anatomy").on_page("tokens_in_notebook")(self.folder, method, layer, head)

    def __repr__(self) -> str:
        """Folder, model, sizes, and the methods for each part of the report."""
        states = ", ".join(f"{size} {name}s" for name, size in self.hidden.sizes.items())
        model = self.hidden.attrs.get("model")
        parts = "verdict drift thresholds distance heatmap curves prediction located anatomy readout tokens".split()
        calls = textwrap.fill(", ".join(f"{part}()" for part in parts), 100)
        return f"run {self.folder} of {model}, M = {self.trained_length}: {states}\n{calls}"

    @cached_property
    def _analyses(self) -> dict[str | None, Analysis]:
        return {}


def open_run(path: str | os.PathLike[str]) -> Run:
    """The run in a folder, after a check that its store is complete.

    Args:
        path: A folder that `run_probe` or `mesa-lens probe` wrote, or a store.

    Returns:
        A `Run`; select as in xarray: `run.hidden.sel(method="origin", layer=3)`.

    Raises:
        FileNotFoundError: No run is there.
        Refused: The store is incomplete, damaged or of another version.

    Examples:
        >>> probe.open_run("runs/example")
        run runs/example of default, M = 256: 256 dims, 4 layers, 512 positions, 2 methods, 1 prompts
        verdict(), drift(), thresholds(), distance(), heatmap(), curves(), prediction(), located(),
        anatomy(), readout(), tokens()
    """
    run = reader.open_run(path)
    return Run(run.path, labelled(run.hidden), labelled(run.evaluation))
