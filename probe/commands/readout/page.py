"""What the pages of `mesa-lens readout` show: an answer, maps of probes, charts by layer, tables, exports."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
from scipy.special import stdtrit

from mesa.errors import Refused
from probe.commands import Findings, RunFacts
from probe.commands.readout.result import PASSKEY_DIGIT, READOUT, TABLES, DistanceRead, ProbeRead, Readout
from probe.figures import figure_data as fig
from probe.figures.export import Export, InNotebook, Labels, as_row, chosen_labels, chosen_rows, labels_text, safe_name
from probe.figures.section import Section, Table, as_text, figures_of, provenance, report_link, write_page
from probe.statistics import tally
from probe.store.result_file import Interval, having, ranged

PANELS = {"inside": "in (tokens)", "transfer": "transfer (tokens)", "refit": "refit (tokens)"}
"""The panels of a probe's map, by field."""
_PANELS = (
    "In: trained and read at M. Transfer: trained at M, read at this length. Refit: trained and read at this length."
)
_SCORES = {"classes": "accuracy", "numbers": "R2"}


def answers(summary: Readout) -> list[str]:
    """A sentence for each thing probed, at the longest length; then one of the lens; then what is left out."""
    probes = [*_probed(summary), *_answered(summary)]
    return [*probes, *_lens_sentences(summary), *_distance_sentences(summary), *_limits(summary)]


def _probed(summary: Readout) -> Iterator[str]:
    longest = summary.lengths[-1]
    for probe in summary.probed:
        rows = having(summary.probes, probe=probe, length=longest)
        if not rows or longest == summary.trained_length:
            continue
        layer = summary.best_layer(probe)
        if layer is None:
            yield f"{probe}: nothing is claimed; {_why_not(summary, rows)}."
            continue
        for row in having(rows, layer=layer):
            yield f"{probe}, layer {layer}, {row.method} at {longest} tokens: {_scores_text(summary, row)}"


def _why_not(summary: Readout, rows: Sequence[ProbeRead]) -> str:
    if not summary.is_trained:
        return "the model's own loss at M is not below that of token frequencies"
    best = max(having(rows, method=summary.reference), key=lambda row: row.selectivity.mean)
    return (
        f"in no layer the probe at M reads clearly more than its control and chance{_or_0(summary, best)} (best: layer "
        f"{best.layer}, {_n(best.inside)}, control {_n(best.control)}, chance {best.chance:z.2f})"
    )


def _or_0(summary: Readout, row: ProbeRead) -> str:
    """What a probe of numbers has to be above in addition."""
    return ", or 0" if summary.probed[row.probe].kind == "numbers" else ""


def _scores_text(summary: Readout, row: ProbeRead) -> str:
    """Scores at M and beyond, and what of the difference is lost and what moved."""
    text = (
        f"a probe reads {_n(row.inside)} at M (control {_n(row.control)}), the same probe {_n(row.transfer)} here, "
        f"one trained here {_n(row.refit)}"
    )
    if not row.is_read:
        least = f"its control and chance ({row.chance:z.2f}){_or_0(summary, row)}"
        return f"{text}; not clearly above {least}, so nothing is claimed."
    parts = [f"{name} {ranged(*value)}" for name, value, is_clear in _parts(row) if is_clear]
    text += f": {' and '.join(parts)}" if parts else ": neither lost nor moved beyond chance"
    if row.is_returned:
        text += (
            f"; the probe trained under {summary.reference} at M reads {_n(row.by_reference)} here, "
            f"{ranged(*row.returned)} more than under {summary.reference}"
        )
    return f"{text}."


def _answered(summary: Readout) -> Iterator[str]:
    """By method at the longest length: how many passkeys the model says, and what is read where it says another."""
    best, longest = summary.best_layer(PASSKEY_DIGIT), summary.lengths[-1]
    for row in having(summary.answers, length=longest, layer=_shown_layer(summary, PASSKEY_DIGIT)):
        text = f"Passkeys, {row.method} at {row.length} tokens: the model answers {tally(row.n - row.wrong, row.n)}"
        if row.wrong and best is not None and longest > summary.trained_length:
            text += (
                f"; of the {row.wrong} others the probe trained at M reads the first digit of a share of "
                f"{ranged(*row.transfer)} (layer {best}), one trained here of {ranged(*row.refit)}; chance: one in nine"
            )
        yield f"{text}."


def _parts(row: ProbeRead) -> tuple[tuple[str, Interval, bool], ...]:
    return ("lost", row.lost, row.is_lost), ("moved", row.moved, row.is_moved)


def _n(value: Interval) -> str:
    return f"{value.mean:z.2f}"


def _lens_sentences(summary: Readout) -> Iterator[str]:
    """By method, where the lens' loss leaves that at M; not of an untrained model."""
    longest = summary.lengths[-1]
    for method in summary.methods if summary.is_trained and longest > summary.trained_length else ():
        rows = having(summary.lens, method=method, length=longest)
        if not rows:
            continue
        last, layer = rows[-1], summary.leaves(method, longest)
        excess = f"{ranged(*last.excess)} nats/token"
        if layer is None:
            yield f"Lens, {method} at {longest} tokens: the loss is not clearly above that at M ({excess})."
        else:
            yield (
                f"Lens, {method} at {longest} tokens: from layer {layer} on the loss is above that at M, in the last "
                f"layer by {excess}."
            )


def _distance_sentences(summary: Readout) -> Iterator[str]:
    """By method at the longest length, the layer whose states clearly moved most; not of an untrained model."""
    longest, tests = summary.lengths[-1], len(summary.distances)
    for method in summary.methods if summary.is_trained else ():
        if rows := having(summary.distances, method=method, length=longest):
            clear = [row for row in rows if _is_clear(row, tests)]
            row = max(clear or rows, key=lambda row: abs(np.log(row.ratio.mean)))
            how = {"collapse": "collapse most", "growth": "grow most"}[row.direction] if clear else _LEVEL
            ratio = f"{ranged(*row.ratio)} of their squared distance from the in-window centre"
            yield f"States, {method} at {longest} tokens: {how} in layer {row.layer}, to {ratio}."


_LEVEL = "neither collapse nor grow clearly, at most"


def _is_clear(row: DistanceRead, tests: int) -> bool:
    """Whether the ratio is not 1 beyond chance, in one of `tests` tests (Bonferroni; Student's t)."""
    wider = stdtrit(row.n - 1, 1 - 0.025 / tests) / stdtrit(row.n - 1, 0.975)
    return bool(abs(np.log(row.ratio.mean)) > wider * np.log(row.ratio.high / row.ratio.mean))


def _limits(summary: Readout) -> Iterator[str]:
    if not summary.is_trained and np.isfinite(summary.loss.mean):
        yield (
            f"The model's own loss at M, {ranged(*summary.loss)}, is not clearly below that of token frequencies, "
            f"{summary.frequencies:z.2f} nats/token: nothing is claimed of what it knew."
        )
    if summary.tasks_left:
        yield f"{summary.tasks_left} passes and probes are left to run."


def probe_map(summary: Readout, probe: str, method: str) -> fig.Heatmaps | None:
    """Layers x prompt lengths of a probe under a method: at M, by the probe trained at M, by one trained there."""
    rows = having(summary.probes, probe=probe, method=method)
    if not rows:
        return None
    kind = _SCORES[summary.probed[probe].kind]
    columns = [str(length) for length in summary.lengths]
    blocks = []
    for field, title in PANELS.items():
        triples = {
            (row.layer, summary.lengths.index(row.length)): getattr(row, field)
            for row in rows
            if field != "inside" or row.length == summary.trained_length
        }
        chosen = columns[:1] if field == "inside" else columns
        blocks.append(fig.tiles(title, chosen, summary.layers, triples, fig.SCORES, named=f"{field}, {method}"))
    title = f"{_what(probe)} under {method}: {kind} of linear probes on texts that they were not trained on. {_PANELS} "
    return fig.tile_map(f"{title}{summary.model}, M = {summary.trained_length}", kind, blocks, fig.SCORES)


def parts_chart(summary: Readout, probe: str, length: int) -> fig.Chart | None:
    """What is lost and what moved by layer, a line a method, with 95% intervals."""
    rows = having(summary.probes, probe=probe, length=length)
    if not rows or length == summary.trained_length:
        return None
    panels = []
    for field, title in {
        "lost": "Lost: trained and read at M, minus trained and read here",
        "moved": "Moved: trained here minus trained at M, both read here",
    }.items():
        lines = []
        for method in dict.fromkeys(row.method for row in rows):
            of = having(rows, method=method)
            lines.append(_line(method, of, [getattr(row, field) for row in of], fig.style(method)))
        seen = [
            f"{row.method} {ranged(*getattr(row, field))}" for row in having(rows, layer=_shown_layer(summary, probe))
        ]
        panels.append(
            _panel(
                title,
                f"difference in {_SCORES[summary.probed[probe].kind]}",
                lines,
                f"{field.capitalize()}: {'; '.join(seen)}.",
            )
        )
    of = fig.at_length(summary.model, summary.trained_length, length)
    title = f"{_what(probe)}: lost or moved? Linear probes, {of}, 95% intervals"
    return fig.Chart(title, fig.same_range(panels))


def lens_chart(summary: Readout) -> fig.Chart | None:
    """The lens' loss by layer, a line a length and a panel a method; where a line leaves that of M is marked."""
    panels = []
    for method in dict.fromkeys(row.method for row in summary.lens):
        lines, seen = [], []
        for number, length in enumerate(summary.lengths):
            rows = having(summary.lens, method=method, length=length)
            look = (fig.BLACK, "solid", "circle") if length == summary.trained_length else fig.nth(number)
            label = f"{length} tokens (M)" if length == summary.trained_length else f"{length} tokens"
            lines += [_line(label, rows, [row.loss for row in rows], look)] if rows else []
        longest = max(row.length for row in summary.lens if row.method == method)
        leaves = summary.leaves(method, longest)
        rule = (
            []
            if leaves is None
            else [fig.Rule(leaves, f"{longest} tokens: above M from here", fig.nth(0)[0], "dot", vertical=True)]
        )
        last = having(summary.lens, method=method, length=longest)[-1]
        seen = f"{method}: at {longest} tokens {ranged(*last.excess)} nats/token above M in the last layer."
        panels.append(_panel(method, "loss (nats/token)", lines, seen, rule))
    if not panels:
        return None
    return fig.Chart(
        f"What the lens reads by layer: loss of the same last tokens. {summary.model}", fig.same_range(panels)
    )


def distance_chart(summary: Readout) -> fig.Chart | None:
    """Distance of states to the in-window distribution over that at M, by layer: a panel a method, a line a length."""
    panels = []
    for method in dict.fromkeys(row.method for row in summary.distances):
        lines = []
        for number, length in enumerate(summary.lengths[1:], 1):
            rows = having(summary.distances, method=method, length=length)
            lines.append(_line(f"{length} tokens", rows, [row.ratio for row in rows], fig.nth(number)))
        panel = _panel(method, "squared distance over that at M", lines, "", [fig.Rule(1.0, "M", fig.BLACK)])
        panels.append(panel)
    if not panels:
        return None
    return fig.Chart(
        f"How far states lie from the in-window distribution, by layer. {summary.model}", fig.same_range(panels)
    )


def _line(label: str, rows: Sequence[Any], values: Sequence[Interval], look: tuple[str, str, str]) -> fig.Line:
    mean, low, high = np.array([list(value) for value in values], float).T
    return fig.Line(label, np.array([row.layer for row in rows], float), mean, *look, interval=(low, high))


def _panel(title: str, y_title: str, lines: Sequence[fig.Line], seen: str, rules: Sequence[fig.Rule] = ()) -> fig.Panel:
    layers = sorted({int(layer) for line in lines for layer in line.x})
    zero = [fig.Rule(0.0, "", "#666666")] if y_title.startswith("difference") else []
    step = -(-len(layers) // 12)
    return fig.Panel(
        title,
        "layer",
        y_title,
        tuple(lines),
        fig.axis_range(lines, zero),
        rules=(*zero, *rules),
        x_ticks=tuple(layers[::step]),
        seen=seen,
    )


def _what(probe: str) -> str:
    """What is probed, with its meaning where the name alone does not tell it."""
    if probe == PASSKEY_DIGIT:
        return f"{probe} (the first digit of the key, at the question's end)"
    return f"{probe} (the token {probe[9:]} before)" if probe.startswith("previous-") else probe


def _shown_layer(summary: Readout, probe: str) -> int:
    best = summary.best_layer(probe)
    return summary.layers[-1] if best is None else best


_COLUMNS = ("layer", "method", "length", "in", "control", "transfer", "refit", "moved", "lost")


def probe_table(summary: Readout, probe: str, lengths: Sequence[int]) -> Table:
    """Every score of a probe beyond M, with intervals; `*` where a part is claimed."""
    rows = []
    for row in having(summary.probes, probe=probe):
        if row.length in lengths and row.length > summary.trained_length:
            parts = [ranged(*value) + "*" * is_clear for _, value, is_clear in reversed(_parts(row))]
            scores = (ranged(*row.inside), _n(row.control), ranged(*row.transfer), ranged(*row.refit))
            rows.append((str(row.layer), row.method, str(row.length), *scores, *parts))
    of = summary.probed[probe]
    title = f"{probe}: {_SCORES[of.kind]}, {of.values} labels{f' ({of.note})' if of.note else ''}; * claimed"
    return Table(title, _COLUMNS, tuple(rows))


_MADE = {
    "In, transfer, refit": "A linear probe is trained on half of the texts and scored on the last tokens of the "
    "others: trained and scored at M (in), trained at M and scored at this length (transfer), trained and scored at "
    "this length (refit). The tokens are the same at every length; only what stands before them differs.",
    "Moved, lost": "moved = refit - transfer: what is in the states in another form. lost = in - refit: what no "
    "linear probe finds that is trained on as many texts. In both, a score below chance or 0 counts as the larger of "
    "these. Intervals are 95%, over resampled test texts, paired.",
    "Control": "The same probe on labels drawn at random for each token type (Hewitt and Liang 2019); for each text "
    "where labels are at few token types (below 20 by entropy), and chance is then the most frequent label of each "
    "type. Nothing is claimed where the probe at M is not clearly above its control and chance, where the model's own "
    "loss at M is not below that of token frequencies, or where a part is not above 0 after a correction for all "
    "layers, lengths and methods.",
    "Distance": "The squared Mahalanobis distance of states to those of the reference at M on the training texts, "
    "along 64 principal components, over the same at M. Below 1 they collapse towards the centre, above they grow: a "
    "symptom, of which failure is one cause.",
    "Lens": "The model's own last norm and unembedding on the states of each layer. A length leaves M's line from the "
    "first layer from which on, up to the last, its loss is above that at M after the same correction.",
}


def title(summary: Readout) -> str:
    """The page's heading."""
    return f"{summary.model}: what probes and a lens read beyond M = {summary.trained_length} tokens"


def sections(summary: Readout) -> list[Section]:
    """The full report."""
    definitions = Section("How each number is made", parts=[Section(name, [text]) for name, text in _MADE.items()])
    parts = [place(summary, probe, list(summary.methods)) for probe in summary.probed]
    return [Section("", answers(summary)), *parts, *lens_section(summary), definitions, provenance(summary)]


def headline(summary: Readout) -> list[Section]:
    """What was found in sentences, and the scores of the best layers."""
    tables = [_short(probe_table(summary, probe, summary.lengths), summary, probe) for probe in summary.probed]
    return [Section("", answers(summary)), Section("", tables=[table for table in tables if table.rows])]


def _short(table: Table, summary: Readout, probe: str) -> Table:
    """The table's rows of the layer that is shown."""
    layer = str(_shown_layer(summary, probe))
    return Table(table.title, table.head, tuple(row for row in table.rows if row[0] == layer))


def place(summary: Readout, probe: str, methods: Iterable[str]) -> Section:
    """One thing probed: lost and moved at the longest length, a map a method, all scores."""
    figures: dict[str, Any] = {f"readout-{safe_name(probe)}-parts": parts_chart(summary, probe, summary.lengths[-1])}
    figures |= {f"readout-{safe_name(probe)}-{safe_name(name)}": probe_map(summary, probe, name) for name in methods}
    table = probe_table(summary, probe, summary.lengths)
    details = [Section("All scores", tables=[table], folded=True)] if table.rows else []
    return Section(probe, figures={name: figure for name, figure in figures.items() if figure}, parts=details)


def lens_section(summary: Readout) -> list[Section]:
    """The lens and the distances by layer; nothing of what was not read."""
    chart = lens_chart(summary)
    distances = distance_chart(summary)
    lens = [] if chart is None else [Section("Lens", figures={"readout-lens": chart})]
    return lens + ([Section("Distance", figures={"readout-distance": distances})] if distances else [])


def readout_export(
    summary: Readout, methods: Sequence[str] | None = None, lengths: Sequence[int] | None = None
) -> Export:
    """Figures and tables; default: all. Raises Refused for a method or length that is not there."""
    known = {"method": list(summary.methods), "length": summary.lengths}
    chosen = chosen_labels({"method": methods, "length": lengths}, known, known, "measured")
    part = _part(summary, *chosen.values())
    figures = figures_of([*(place(part, probe, chosen["method"]) for probe in part.probed), *lens_section(part)])
    if not figures:
        raise Refused(f"nothing is there for {labels_text(chosen)}; run `mesa-lens readout`")
    return Export(figures, readout_tables(summary, chosen))


def _part(summary: Readout, methods: Sequence[Any], lengths: Sequence[Any]) -> Readout:
    """The rows of these methods and lengths, and those at M, by which they are read."""
    trained = summary.trained_length
    kept = [length for length in summary.lengths if length in (trained, *lengths)]
    rows = {
        name: [row for row in getattr(summary, name) if row.method in methods and row.length in kept] for name in TABLES
    }
    if summary.reference not in methods:  # tells which layer is shown
        rows["probes"] += having(summary.probes, method=summary.reference, length=trained)
    return replace(summary, lengths=kept, **rows)


def readout_tables(summary: Readout, chosen: Labels) -> dict[str, xr.Dataset]:
    """The measurements as tables. chosen: labels to keep, all if empty."""
    tables = {name: [as_row(vars(row)) for row in getattr(summary, name)] for name in TABLES}
    return chosen_rows(tables, chosen, model=summary.model, trained_length=summary.trained_length)


def write_readout(folder: Path, summary: Readout) -> Path:
    """Writes the report and its tables in a run's folder; returns the page's path."""
    tables = readout_tables(summary, {})
    return write_page(folder / READOUT.command, title(summary), sections(summary), tables, TABLES)


def findings(folder: Path, facts: RunFacts) -> Findings:
    """For the verdict of the run in a folder: what is lost or moved under the reference, where it is claimed."""
    summary, notes = READOUT.find(folder), list[str]()
    for row in [] if summary is None else having(summary.probes, method=facts.reference, length=summary.lengths[-1]):
        parts = [f"{name} {ranged(*value)}" for name, value, is_clear in _parts(row) if is_clear]
        if parts and summary and row.layer == summary.best_layer(row.probe):
            at = f"{row.probe}, layer {row.layer}, {row.method} at {row.length} tokens"
            notes.append(f"Of what a linear probe reads at M ({at}; {_n(row.inside)}): {' and '.join(parts)}.")
    return Findings({}, {}, notes)


def inside(folder: Path) -> Iterator[Section]:
    """For the report of the run in a folder: the answers."""
    if summary := READOUT.find(folder):
        links = report_link(folder, READOUT.command, "Every probe, layer, length and method")
        yield Section("Lost or moved", answers(summary), links=links)


def rewrite(folder: Path) -> None:
    """Writes the report again, if there is one."""
    if summary := READOUT.find(folder):
        write_readout(folder, summary)


def export(folder: Path, **chosen: Any) -> Export:
    """`readout_export` of what is in the folder; NotFound where nothing is."""
    return readout_export(READOUT.read(folder), **chosen)


def in_notebook(folder: Path) -> InNotebook:
    """The tables by name, findings and figures; NotFound where nothing was measured."""
    summary = READOUT.read(folder)
    export = readout_export(summary)
    return export.numbers, as_text(headline(summary)), export, None
