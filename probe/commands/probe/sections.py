"""A run's report as sections of a page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import NamedTuple, cast

from markupsafe import Markup

from probe.commands.anatomy.result import ANATOMY, TOKENS
from probe.commands.anatomy.sentences import anatomy_findings
from probe.commands.anatomy.token_views import token_views
from probe.commands.locate.result import LOCATED
from probe.commands.locate.sections import clearest
from probe.commands.probe.result import Summary
from probe.commands.probe.sentences import listed
from probe.commands.probe.tables import difference_table, interval_table, onset_title, threshold_doubt
from probe.figures.curves import parted
from probe.figures.figure_data import Chart, Drawable
from probe.figures.section import REPORT, Section, figures_of
from probe.glossary import TERMS
from probe.store.reader import StoredRun
from probe.store.result_file import NOT_RECORDED
from probe.tables import Table
from probe.thresholds.result import Control, Evidence
from probe.thresholds.threshold_onset import MIN_JUDGED_DIMS, TOP

Figures = Mapping[str, Drawable]
_PROVENANCE = (
    "model model_revision model_type left_out source_dtype quantization tokenizer_note created executor word "
    "first_token text seed"
)


class Drawn(NamedTuple):
    """Sections with figures, without heatmaps, the headline prompt's first; none of what was not measured or judged."""

    thresholds: list[Section]
    curves: list[Section]
    drift: list[Section]
    map: list[Section]


def title(summary: Summary) -> str:
    """The report's heading."""
    return f"{summary.model}: where it fails beyond M = {summary.trained_length} tokens"


def sections(summary: Summary, run: StoredRun, drawn: Drawn, differences: Figures, raw: Figures) -> list[Section]:
    """The whole report. differences, raw: heatmaps less the reference's, and as they are."""
    curves = [chart for curve in figures_of(drawn.curves).values() for chart in parted(cast(Chart, curve))]
    words = Section("Words", parts=[Section(term, [meaning]) for term, meaning in TERMS.items()])
    return [
        Section("", [summary.verdict.about], {f"curves-{number}": chart for number, chart in enumerate(curves)}),
        Section(figures={"verdict": Markup(summary.verdict.html())}),
        scores(summary),
        *drawn.map,
        *inside(run.folder),
        _drift(summary, drawn.drift),
        _thresholds(summary, drawn.thresholds),
        onsets(summary),
        control(summary),
        _states(summary, differences, raw),
        Section("How each number is made", parts=[Section(term, [text]) for term, text in _definitions(summary)]),
        words,
        _provenance(summary, run),
    ]


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
    """What `mesa-lens locate` and `anatomy` wrote into the run's folder, with links to their reports."""
    if located := LOCATED.find(folder):
        links = _link(folder, LOCATED.command, "Every method, length and measure, and clamps")
        yield replace(clearest(located), title="Where inside", links=links)
    if anatomy := ANATOMY.find(folder):
        links = _link(folder, ANATOMY.command, "Every head, method and length")
        yield Section("Attention statistics", anatomy_findings(anatomy), links=links)
    if views := token_views(TOKENS.find(folder)):
        yield Section("Token by token", figures={f"tokens-{number}": Markup(view) for number, view in enumerate(views)})


def provenance(run: StoredRun) -> dict[str, object]:
    """Where a store's numbers come from: model, prompt, seed."""
    attrs = run.hidden.attrs
    return {name: attrs[name] for name in _PROVENANCE.split() if name in attrs}


def _drift(summary: Summary, prompts: Sequence[Section]) -> Section:
    if isinstance(summary.drift, str):
        return Section("Drift", [f"Drift could not be judged: {summary.drift}."])
    text = (
        f"{TERMS['dim']} Here: how far a layer's states are from what they did inside the window, all dims together, "
        f"at the layer where {summary.reference}'s drift begins. Red: the limit."
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
    text += f" Shown minus {summary.reference}, at the layer where its drift begins."
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
            "half, is at chance; failure is not judged by that, nor by passkeys of which fewer than half are found "
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
            f"and over all dims, exceeds {drift.factor} times the largest inside the window. Where a method begins "
            f"to count positions anew, states settle again and are not judged for {drift.warm_up} tokens. The "
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
        f"{reference}: its own crossing is a description. With fewer than {MIN_JUDGED_DIMS} dims there is no threshold "
        "onset. Neither predicts failure (docs/findings.md); what does is `mesa-lens predict`.",
    )
    yield (
        "Tail NLL, passkey accuracy",
        "Mean negative log-likelihood of the same last tokens at every length, only the context before them grows; "
        "share of prompts whose hidden number is given back.",
    )


def _provenance(summary: Summary, run: StoredRun) -> Section:
    rows = [*provenance(run).items(), ("texts", summary.text_source or NOT_RECORDED)]
    rows += [("hook", summary.hook), ("captured length", summary.captured_length)]
    for method, config in summary.method_configs.items():
        rows.append((method, ", ".join(f"{key}={value}" for key, value in config.items() if key != "name")))
    rows += summary.versions.items()
    table = Table("", ("what", "value"), tuple((name, str(value)) for name, value in rows))
    return Section("Provenance", tables=[table])


def _link(folder: Path, command: str, text: str) -> dict[str, str]:
    """The address of a command's report by its text, if it is in the folder."""
    return {text: f"{command}/{REPORT}"} if (folder / command / REPORT).is_file() else {}
