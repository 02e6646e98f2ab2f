"""What `mesa-lens locate` found, as sections of a page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from probe.commands.locate.figures import MEASURES, about, clamp_chart, layer_chart, recovery_map, smallest_chart
from probe.commands.locate.result import Located, Loss
from probe.commands.locate.sentences import located_findings
from probe.figures.export import safe_name
from probe.figures.labels import Figures, present
from probe.figures.section import Section, provenance
from probe.statistics import shown
from probe.store.result_file import having
from probe.tables import Table

_MADE = {
    "Loss recovered, loss that returns": "(baseline − changed) / (baseline − method), and (changed − method) / "
    "(baseline − method): 100% is all of the excess loss, below 0 it gets worse. Intervals are over resampled items, "
    "paired, and as wide as Fieller's at least, which hold with few items; none where the excess loss may be 0. L2H3 "
    "is head 3 of layer 2.",
    "Enough, needed": "Enough: the method in that place alone, the unmodified model elsewhere. Needed: the method "
    "everywhere but there.",
    "Clamped": "Dims clamped at their values at M, or within their in-window range, next to as many random dims of the "
    "same layer matched in variance. Drift dims have the largest shares of their layer's drift (the rule “drift”); "
    "threshold dims cross a threshold (the rule “paper”).",
    "Smallest set": "Heads added greedily, chosen on one half of the items and scored on the other, beside random sets "
    "of every size.",
}


def title(summary: Located) -> str:
    """The page's heading."""
    return f"{summary.model}: where inside it fails beyond M = {summary.trained_length} tokens"


def sections(summary: Located) -> list[Section]:
    """The whole report: the clearest loss, what was lost, each length and measure, how each number is made."""
    definitions = Section("How each number is made", parts=[Section(name, [text]) for name, text in _MADE.items()])
    return [clearest(summary), losses(summary), *places(summary), definitions, provenance(summary)]


def clearest(summary: Located) -> Section:
    """The clearest loss in sentences, and its map."""
    if summary.clearest is None:
        return Section(sentences=["No loss is clear at any length and measure, so nothing is located."])
    at = summary.clearest.labels
    sentences = [sentence for _, sentences in located_findings(summary, **at) for sentence in sentences]
    return Section("", sentences, present({_name("map", **at): recovery_map(summary, **at)}))


def places(summary: Located) -> list[Section]:
    """A section for each length and measure."""
    at = dict.fromkeys((gap.length, gap.measure) for gap in summary.loss_gaps)
    methods = list(dict.fromkeys(gap.method for gap in having(summary.loss_gaps, significant=True)))
    return [place(summary, length, measure, methods) for length, measure in at]


def place(summary: Located, length: int, measure: str, methods: Sequence[str]) -> Section:
    """One length and measure. methods: whose figures are drawn."""
    at = {"length": length, "measure": measure}
    texts = [Section(heading, sentences) for heading, sentences in located_findings(summary, **at)]
    common = (summary, length, measure, methods)
    layers, smallest = layer_chart(*common), smallest_chart(*common)
    maps = {method: _maps(summary, method, length, measure) for method in methods}
    clamps = {method: _clamps(summary, method, length, measure) for method in methods}
    kinds = [
        _kind("Layers and heads", present({_name("layers", **at): layers}), maps),
        _kind("Smallest sets", present({_name("smallest", **at): smallest}), {}),
        _kind("Clamps", {}, clamps),
    ]
    return Section(about(summary, length, measure), parts=[*texts, *(kind for kind in kinds if kind)])


def _kind(title: str, common: Figures, by_method: Mapping[str, Figures]) -> Section | None:
    """Figures of all methods, and those of each, folded where they are several; None without any."""
    by_method = {method: figures for method, figures in by_method.items() if figures}
    if len(by_method) == 1:
        return Section(title, figures=common | next(iter(by_method.values())))
    parts = [Section(method, figures=figures, folded=True) for method, figures in by_method.items()]
    return Section(title, figures=common, parts=parts) if common or parts else None


def _maps(summary: Located, method: str, length: int, measure: str) -> Figures:
    at = (method, length, measure)
    ways = {"map": "only", "map-without": "without"}
    return present({_name(name, *at): recovery_map(summary, *at, way) for name, way in ways.items()})


def _clamps(summary: Located, method: str, length: int, measure: str) -> Figures:
    at = (method, length, measure)
    rules = dict.fromkeys(row.rule for row in having(summary.effects, kind="clamp"))
    names = {rule: f"clamp-{safe_name(rule)}" if rule else "clamp" for rule in rules}
    return present({_name(name, *at): clamp_chart(summary, *at, rule) for rule, name in names.items()})


def _name(kind: str, method: str = "", length: int = 0, measure: str = "") -> str:
    return "-".join(["locate", kind, *([safe_name(method)] if method else []), str(length), measure])


def losses(summary: Located) -> Section:
    """The excess loss over each method, with intervals, and which are significant."""
    head = (
        "method",
        "length",
        "measure",
        "items",
        "baseline",
        "with the method",
        "excess loss [95% interval]",
        "significant",
    )
    note = (
        "In nats/token. Not significant: the interval includes 0, or there is none, or the excess loss is below 0.01, "
        "so that shares of it mean nothing."
    )
    return Section("Excess loss", [note], tables=[Table("", head, tuple(map(_loss, summary.loss_gaps)))])


def _loss(gap: Loss) -> tuple[str, ...]:
    return (
        gap.method,
        str(gap.length),
        MEASURES.get(gap.measure, gap.measure),
        str(gap.items),
        f"{gap.baseline:z.2f}",
        f"{gap.patched:z.2f}",
        shown(gap.size, gap.low, gap.high, "z.2f"),
        "yes" if gap.significant else "no",
    )
