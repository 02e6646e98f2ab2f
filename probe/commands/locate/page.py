"""What the pages of `mesa-lens locate` show: maps of heads, effects by layer, smallest sets, clamps, sentences."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from mesa.errors import Refused
from probe.commands import Findings, RunFacts
from probe.commands.locate.result import (
    CLAMP,
    DIMS,
    GRADIENTS,
    LOCATED,
    PATCH,
    SUFFICIENT,
    Effect,
    InsideCost,
    Located,
    Loss,
    SmallestSet,
    findings_of,
)
from probe.figures import figure_data as fig
from probe.figures.export import (
    Export,
    Figures,
    InNotebook,
    Labels,
    Row,
    chosen_labels,
    chosen_rows,
    labels_text,
    present,
    safe_name,
)
from probe.figures.section import Section, Table, as_text, figures_of, provenance, report_link, write_page
from probe.options import head_name
from probe.statistics import shown, spearman
from probe.store.result_file import having, percent

MEASURES = {"nll": "tail NLL", "passkey": "passkey answer"}
_WAYS = {
    "only": "enough: loss recovered in that layer alone",
    "without": "needed: loss that returns without that layer",
}
_CLAMPS = {"at-M": "clamped at their values at M", "range": "clamped to their range inside M"}
_CLAMPED_LOOKS: dict[str, fig.Look] = {
    "threshold": ("#0072B2", "none", "circle"),
    "random": (fig.GREY, "none", "square"),
}
_SHARE_ENDS = 2.0  # of what intervals of shares are drawn
_ZERO, _ALL = fig.Rule(0, "", fig.GREY, dash="dot"), fig.Rule(1, "", fig.GREY, dash="dot")


def baseline_name(summary: Located) -> str:
    """The method of the baseline run: the first."""
    return next(iter(summary.methods))


def about(summary: Located, length: int, measure: str) -> str:
    """Model, length, measure and number of items, as in every title."""
    items = max((gap.items for gap in having(summary.loss_gaps, length=length, measure=measure)), default=0)
    counted = f", {items} item{'s' * (items > 1)}" if items else ""
    return f"{fig.at_length(summary.model, summary.trained_length, length)}, {MEASURES.get(measure, measure)}{counted}"


def triple(row: Effect) -> list[float]:
    """A row's share with the ends of its interval; NaN for missing ones."""
    return [row.share, row.low, row.high]


def recovery_map(
    summary: Located, method: str, length: int, measure: str, way: str = "only", kind: str = PATCH
) -> fig.Heatmaps | None:
    """Layers x heads: what the method in that place alone recovers, or what is lost without it there; None if not run.

    Full layers are a column next to their heads. way: "only" or "without". kind: PATCH, or GRADIENTS for estimates.
    """
    rows = having(summary.effects, kind=kind, way=way, method=method, length=length, measure=measure)
    baseline = baseline_name(summary)
    text = f"{method} in one place only, {baseline} elsewhere: share of {baseline}'s excess loss recovered"
    if kind == GRADIENTS:
        text = f"{method} in one head only, estimated by gradients: share of {baseline}'s excess loss recovered"
    if way == "without":
        text = f"{method} everywhere except in one place: share of {baseline}'s excess loss that returns"
    layers, heads = summary.layers, [str(head) for head in range(summary.heads)]
    of_layers = {(row.layer, 0): triple(row) for row in rows if row.head is None and row.layer is not None}
    single = {(row.layer, row.head): triple(row) for row in rows if row.layer is not None and row.head is not None}
    blocks = [fig.tiles("layer", ["all"], layers, of_layers, named="all heads")] if of_layers else []
    blocks += [fig.tiles("head", heads, layers, single)] if single else []
    colour_title = "share of the loss that returns" if way == "without" else "share of the loss recovered"
    return fig.tile_map(f"{text}. {about(summary, length, measure)}", colour_title, blocks) if blocks else None


def layer_chart(summary: Located, length: int, measure: str, methods: Sequence[str]) -> fig.Chart | None:
    """What each method recovers at one layer alone ("enough") and what is lost without it there ("needed")."""
    layers, panels = summary.layers, []
    for way, title in _WAYS.items():
        rows = having(summary.effects, kind=PATCH, way=way, length=length, measure=measure, head=None)
        by_method = {name: subset for name in methods if (subset := having(rows, method=name))}
        lines = []
        for index, (name, subset) in enumerate(by_method.items()):
            ordered = [row for layer in layers for row in having(subset, layer=layer)]
            x = [float(row.layer or 0) + fig.offset(index, len(by_method)) for row in ordered]
            texts = [f"{name}, layer {row.layer}: {percent(*triple(row))}" for row in ordered]
            lines.append(_line(name, x, [triple(row) for row in ordered], fig.style(name), texts))
        if lines:
            panels.append(_panel(title, "layer", lines, layers, rules=(_ZERO, _ALL)))
    title = f"One layer at a time: share of {baseline_name(summary)}'s excess loss, 95% intervals"
    return _chart(f"{title}. {about(summary, length, measure)}", panels)


def smallest_chart(summary: Located, length: int, measure: str, methods: Sequence[str]) -> fig.Chart | None:
    """Share recovered by heads added one by one, in addition to random sets of the same size; a panel a method."""
    rows = having(summary.smallest, length=length, measure=measure)
    panels = [_smallest_panel(row) for name in methods for row in having(rows, method=name) if row.heads]
    title = f"Heads added one by one, scored on the other half of the items. {about(summary, length, measure)}"
    return _chart(title, panels)


def clamp_chart(summary: Located, method: str, length: int, measure: str, rule: str | None = None) -> fig.Chart | None:
    """What clamping the dims of a rule recovers, next to as many random ones: by layer, and in all layers at once.

    rule: by which the dims are chosen, of those in the summary.
    """
    labels = {"method": method, "length": length, "measure": measure, "rule": rule}
    rows = having(summary.effects, kind=CLAMP, **labels)
    panels = []
    for way in dict.fromkeys(row.way for row in rows):
        subset = having(rows, way=way)
        places = [place for place in (*summary.layers, None) if having(subset, layer=place)]
        kinds: dict[str, list[Effect]] = {}
        for row in subset:  # all random sets share one name
            kinds.setdefault(str(row.which or "all").partition(" ")[0], []).append(row)
        lines = [
            _clamped(kinds[kind], places, kind, fig.offset(n, len(kinds)), DIMS[rule]) for n, kind in enumerate(kinds)
        ]
        names = ["all" if place is None else str(place) for place in places]
        title = _CLAMPS.get(str(way), str(way))
        panels.append(_panel(title, "layer", lines, range(len(places)), names, rules=(_ZERO,)))
    dims, run = DIMS[rule].capitalize(), f"{baseline_name(summary)}'s run beyond M"
    title = f"{dims} clamped in {run}: share of its excess loss over {method} recovered"
    return _chart(f"{title}. {about(summary, length, measure)}", panels)


def _chart(title: str, panels: Sequence[fig.Panel]) -> fig.Chart | None:
    texts = [
        (line.y[at], line.texts[at])
        for panel in panels
        for line in panel.lines
        if line.texts
        for at in np.flatnonzero(np.isfinite(line.y))
    ]
    if texts and panels:
        seen = f"Largest: {max(texts, key=lambda pair: pair[0])[1]}."
        panels = [replace(panels[0], seen=seen), *panels[1:]]
    return fig.Chart(title, fig.same_range(panels)) if panels else None


def _panel(
    title: str,
    x_title: str,
    lines: Sequence[fig.Line],
    places: Sequence[int],
    names: Sequence[str] = (),
    rules: tuple[fig.Rule, ...] = (),
    points: tuple[fig.Point, ...] = (),
) -> fig.Panel:
    """Axes whose x stands for labelled places."""
    ticks = fig.spaced_ticks(len(places), last=bool(names))
    return fig.Panel(
        title,
        x_title,
        "share of the excess loss",
        tuple(lines),
        fig.axis_range(lines, rules, _SHARE_ENDS),
        points,
        rules,
        x_ticks=tuple(places[tick] for tick in ticks),
        x_labels=tuple(names[tick] for tick in ticks) if names else (),
    )


def _line(
    label: str,
    x: Sequence[float],
    triples: Sequence[Sequence[float]],
    look: fig.Look,
    texts: Sequence[str] = (),
    band: bool = False,
) -> fig.Line:
    y, low, high = np.array(triples, float).T
    return fig.Line(label, np.array(x, float), y, *look, interval=(low, high), band=band, texts=tuple(texts))


def _smallest_panel(row: SmallestSet) -> fig.Panel:
    method, sizes = row.method, [*range(1, len(row.share) + 1)]
    triples = [*zip(row.share, row.low, row.high, strict=True)]
    look = fig.style(method)
    texts = [
        f"{size} heads, {head_name(layer, head)} added: {percent(*values)}"
        for size, (layer, head), values in zip(sizes, row.heads, triples, strict=True)
    ]
    lines = [
        _line(method, sizes, triples, look, texts, band=True),
        _line(
            "random sets: median and 95%",
            sizes,
            [*zip(row.random, row.random_low, row.random_high, strict=True)],
            (fig.GREY, "dot", "square"),
            band=True,
        ),
    ]
    points, enough = (), row.enough
    if enough:
        names = ", ".join(head_name(*head) for head in row.heads[:enough])
        text = f"{method}: {enough} {'head is' if enough == 1 else 'heads are'} enough ({names})"
        points = (fig.Point(text, enough, row.share[enough - 1], look[0]),)
    rules = (_ZERO, fig.Rule(SUFFICIENT, f"{SUFFICIENT:.0%}", fig.RED))
    return _panel(method, "number of heads", lines, sizes, rules=rules, points=points)


def _clamped(rows: Sequence[Effect], places: Sequence[int | None], kind: str, shift: float, dims: str) -> fig.Line:
    """By place: the share with its interval, or of several sets the mean with the least and the largest.

    dims: what those of the rule are called.
    """
    dims = dims if kind == "threshold" else f"{kind} dims"
    by_place = {place: subset for place in places if (subset := having(rows, layer=place))}
    sets = max(map(len, by_place.values()))
    texts, triples = [], []
    for place, subset in by_place.items():
        shares = [triple(row) for row in subset]
        values = [share for share, *_ in shares]
        triples.append((np.mean(values), np.min(values), np.max(values)) if sets > 1 else shares[0])
        where = "all layers" if place is None else f"layer {place}"
        texts.append(f"{dims}, {where}: {', '.join(percent(*share) for share in shares)}")
    x = [places.index(place) + shift for place in by_place]
    label = f"{dims}: mean and range of {sets} sets" if sets > 1 else f"{dims}, 95% interval"
    return _line(label, x, triples, _CLAMPED_LOOKS.get(kind, _CLAMPED_LOOKS["threshold"]), texts)


_MAX_NAMED = 3  # layers named in a sentence
_MAX_ESTIMATED, _LEAST_ESTIMATED = 10, 0.01  # heads by gradients, to be patched, and the least share of one
_LEAST_RANKED = 5  # heads below which nothing is said of ranks
_MANY = 20  # heads of which some would be significant by chance


def located_findings(summary: Located, **labels: Any) -> list[tuple[str, list[str]]]:
    """(heading, sentences) for every method, length and measure, or for those with these labels."""
    return [
        (f"{gap.method} at {gap.length} tokens, {MEASURES.get(gap.measure, gap.measure)}", _sentences(summary, gap))
        for gap in having(summary.loss_gaps, **labels)
    ]


def _sentences(summary: Located, gap: Loss) -> list[str]:
    origin, method, at = next(iter(summary.methods)), gap.method, f"At {gap.length} tokens"
    size = f"{gap.size:z.2f} {_interval(gap)} nats/token"
    items = "1 item, so the interval covers that text alone" if gap.items == 1 else f"{gap.items} items"
    if gap.high < 0:
        return [f"{at} {method} is worse than {origin} (excess loss {size}; {items}): there is no loss to recover."]
    if not gap.significant:
        reason = "too small to locate" if gap.low > 0 else "not significant"
        return [f"{at} the excess loss of {origin} over {method} is {reason} ({size}; {items})."]
    effects = [row for row in having(summary.effects, **gap.labels) if not math.isnan(row.share)]
    patches = having(effects, kind=PATCH)
    layers = [row for row in having(patches, head=None) if row.layer is not None]
    heads = [row for row in having(patches, way="only") if row.head is not None]
    fewer = min((row.items for row in effects), default=gap.items)
    sentences = [
        f"{at} the excess loss of {origin} over {method} is {size} ({items}).",
        _layers(having(layers, way="only"), f"Loss recovered by {method} in one layer alone"),
        _layers(having(layers, way="without"), f"Loss that returns with {method} everywhere but in one layer"),
        _best(heads),
        *_estimated(having(effects, kind=GRADIENTS), heads),
        _smallest(having(summary.smallest, **gap.labels)),
        *_clamps(effects, having(summary.inside, length=gap.length, measure=gap.measure)),
        f"Some shares are over {fewer} item{'s' * (fewer > 1)}." if fewer < gap.items else "",
        f"Tasks that are left to run: {summary.tasks_left}." if summary.tasks_left else "",
    ]
    return [sentence for sentence in sentences if sentence]


def _layers(rows: Sequence[Effect], begin: str) -> str:
    """The layers with a significant share, the largest share in any case, and how many are not significant."""
    if not rows:
        return ""
    rows = _ranked(rows)
    more, less = ([row for row in rows if row.is_clear and (row.share > 0) == sign] for sign in (True, False))
    parts = [f"layer {row.layer} {_share(row)}" for row in more[:_MAX_NAMED]]
    parts += [f"less in {_numbers(more[_MAX_NAMED:])}"] if more[_MAX_NAMED:] else []
    parts += [f"a negative share in {_numbers(less)}"] if less else []
    if unclear := [row for row in rows if not row.is_clear]:
        largest = f" (the largest: layer {rows[0].layer} {_share(rows[0])})" if unclear[0] is rows[0] else ""
        parts.append(f"{len(unclear)} of {len(rows)} layers not significant{largest}")
    return f"{begin}: {'; '.join(parts)}."


def _best(rows: Sequence[Effect]) -> str:
    """The largest share of a head, as the map shows it; if it is not significant, the largest that is."""
    if not rows:
        return ""
    rows = _ranked(rows)
    text = f"The best of {len(rows)} single heads, {rows[0].name}, recovers {_share(rows[0])}"
    clear = [row for row in rows if row.is_clear and row.share > 0]
    chance = f"; significant: {len(clear)}, by chance about {len(rows) / 40:z.1f}"
    chance = chance if clear and len(rows) >= _MANY else ""
    if rows[0].is_clear:
        return f"{text}{chance}."
    other = f"the best significant one, {clear[0].name}, recovers {_share(clear[0])}" if clear else "none is"
    return f"{text}, which is not significant; {other}{chance}."


def _estimated(rows: Sequence[Effect], patched: Sequence[Effect]) -> Iterator[str]:
    """The heads with the largest estimates, how the estimates rank the patched heads, and which ones to patch next."""
    if not rows:
        return
    best = [row for row in _ranked(rows)[:_MAX_ESTIMATED] if row.share >= _LEAST_ESTIMATED]
    text = f"By gradients none of {len(rows)} heads is estimated to recover {_LEAST_ESTIMATED:.0%} or more"
    if best:
        named = ", ".join(f"{row.name} {_share(row)}" for row in best[:_MAX_NAMED])
        text = f"By gradients, of {len(rows)} heads most is estimated in {named}"
    measured = {row.name: row.share for row in patched}
    both = [(row.share, measured[row.name]) for row in rows if row.name in measured]
    if len(both) >= _LEAST_RANKED:
        value, low, high = spearman(*zip(*both, strict=True))
        if not math.isnan(value):
            ranks = shown(value, low, high, "z.2f")
            text += f"; over the {len(both)} patched heads the rank correlation is {ranks}"
    yield f"{text}."
    if left := [row.name for row in best if row.name not in measured]:
        yield f"An estimate is no intervention: try --try patch --heads {','.join(left)}."


def _smallest(rows: Sequence[SmallestSet]) -> str:
    if not rows:
        return ""
    row = rows[0]
    if not row.heads:
        return "No head set was searched for: half of the items have no excess loss."
    size = row.size
    share = (ends[size - 1] for ends in (row.share, row.low, row.high))
    random = (ends[size - 1] for ends in (row.random, row.random_low, row.random_high))
    heads = f"{size} head{'s' * (size > 1)}"
    text = f"{heads} ({', '.join(head_name(*head) for head in row.heads[:size])}) recover{'s' * (size == 1)} "
    text += f"{percent(*share)} (random sets of {size}: {percent(*random)})."
    if not math.isnan(row.rest[0]):
        text += f" All other heads together recover {percent(*row.rest)}."
    if not row.finished:
        return f"The search for the smallest set is unfinished: {text}"
    if row.enough:
        return f"Smallest set found: {text}"
    known, enough = [share for share in row.share if not math.isnan(share)], f"{SUFFICIENT:.0%}"
    if max(known, default=0.0) >= SUFFICIENT:
        return f"It is unclear whether a set recovers {enough}: one did ({max(known):.0%}), the last did not: {text}"
    most = f" (most: {max(known):z.1%})" if known else ""
    return f"None of {len(known)} sets recovers {enough}{most}; the last: {text}"


def _clamps(effects: Sequence[Effect], inside: Sequence[InsideCost]) -> Iterator[str]:
    """By the dims' rule: the range of shares over all ways of clamping all layers, and the largest cost inside."""
    everywhere = having(effects, kind=CLAMP, layer=None)
    for rule in dict.fromkeys(row.rule for row in having(everywhere, which="threshold")):
        rows = having(everywhere, rule=rule)
        clamped = _ranked(having(rows, which="threshold"))
        shares = _share(clamped[0]) if len(clamped) == 1 else f"{_share(clamped[-1])} to {_share(clamped[0])}"
        random = sorted(round(100 * row.share) for row in rows if row not in clamped)
        compared = f" (random dims {random[0]}% to {random[-1]}%)" if random else ""
        text = f"Clamping the {DIMS[rule]} of all layers beyond M recovers {shares}{compared}."
        costs = sorted(having(inside, which="threshold", rule=rule), key=lambda row: row.cost)
        cost = f" Inside M it costs up to {costs[-1].cost:z.2f} {_interval(costs[-1])} nats/token." if costs else ""
        yield text + cost


def _ranked(rows: Sequence[Effect]) -> list[Effect]:
    return sorted(rows, key=lambda row: row.share, reverse=True)


def _share(row: Effect) -> str:
    return percent(row.share, row.low, row.high)


def _numbers(rows: Sequence[Effect]) -> str:
    layers = sorted(row.layer for row in rows if row.layer is not None)
    return f"layer{'s' * (len(layers) > 1)} {', '.join(map(str, layers))}"


def _interval(row: Loss | InsideCost) -> str:
    low, high = row.low, row.high
    return f"[{low:z.2f}, {high:z.2f}]" if low == low and high == high else "(no interval)"


_MADE = {
    "Loss recovered, loss that returns": "(baseline − changed) / (baseline − method), and (changed − method) / "
    "(baseline − method): 100% is all of the excess loss, below 0 it gets worse. Intervals are over resampled items, "
    "paired, and as wide as Fieller's at least, which hold with few items; none where the excess loss may be 0. L2H3 "
    "is head 3 of layer 2.",
    "By gradients": "The gradient of the unmodified model's loss by a head's output, times the method's change of that "
    "output, as a share of the excess loss: what the method in that head alone recovers, to first order. Intervals are "
    "over items.",
    "Enough, needed": "Enough: the method in that place alone, the unmodified model elsewhere. Needed: the method "
    "everywhere but there.",
    "Clamped": "Dims clamped at their values at M, or within their in-window range, next to as many random dims of the "
    "same layer matched in variance. Drift dims have the largest shares of their layer's drift (the rule “drift”); "
    "threshold dims cross a threshold (the rule “paper”).",
    "Smallest set": "Heads added greedily, chosen on one half of the items and scored on the other, like random sets "
    "of every size.",
}


def title(summary: Located) -> str:
    """The page's heading."""
    return f"{summary.model}: where inside it fails beyond M = {summary.trained_length} tokens"


def sections(summary: Located) -> list[Section]:
    """The full report: the clearest loss, what was lost, each length and measure, how each number is made.

    With one method, length and measure the clearest loss is all there is, and stands once.
    """
    definitions = Section("How each number is made", parts=[Section(name, [text]) for name, text in _MADE.items()])
    is_one = len(summary.loss_gaps) == 1 and summary.clearest is not None
    lost, parts = losses(summary), places(summary)
    answer = [*parts, lost] if is_one else [clearest(summary), lost, *parts]
    return [*answer, definitions, provenance(summary)]


def clearest(summary: Located) -> Section:
    """The clearest loss in sentences, and its map."""
    if summary.clearest is None and summary.tasks_left:
        return Section(sentences=[f"Not known yet: {summary.tasks_left} tasks are left to run."])
    if summary.clearest is None:
        return Section(sentences=["No loss is clear at any length and measure, so nothing is located."])
    at = summary.clearest.labels
    sentences = [sentence for _, sentences in located_findings(summary, **at) for sentence in sentences]
    is_patched = bool(having(summary.effects, kind=PATCH, way="only", **at))
    kind, name = (PATCH, "map") if is_patched else (GRADIENTS, "map-gradients")
    return Section("", sentences, present({_name(name, **at): recovery_map(summary, **at, kind=kind)}))


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
    clamps = {method: _clamp_figures(summary, method, length, measure) for method in methods}
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
    maps = {"map": ("only", PATCH), "map-without": ("without", PATCH), "map-gradients": ("only", GRADIENTS)}
    return present({_name(name, *at): recovery_map(summary, *at, *which) for name, which in maps.items()})


def _clamp_figures(summary: Located, method: str, length: int, measure: str) -> Figures:
    at = (method, length, measure)
    rules = dict.fromkeys(row.rule for row in having(summary.effects, kind=CLAMP))
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


TABLES = ("loss_gaps", "effects", "smallest")


def located_export(
    summary: Located,
    methods: Sequence[str] | None = None,
    lengths: Sequence[int] | None = None,
    measures: Sequence[str] | None = None,
) -> Export:
    """Figures as `locate-NAME-METHOD-LENGTH-MEASURE`, and their tables; default: every significant loss.

    Raises Refused for a method, length or measure that is not there.
    """
    requested = {"method": methods, "length": lengths, "measure": measures}
    significant = _labels(having(summary.loss_gaps, significant=True))
    chosen = chosen_labels(requested, _labels(summary.loss_gaps), significant, "located")
    names, *places = chosen.values()
    figures = figures_of([place(summary, length, measure, names) for length, measure in product(*places)])
    if not figures:
        raise Refused(
            f"no effect is there for {labels_text(chosen)}: baseline and method do not differ, or it was not run"
        )
    return Export(figures, located_tables(summary, chosen))


def located_tables(summary: Located, chosen: Labels) -> dict[str, xr.Dataset]:
    """Loss gaps, effects and smallest sets as tables; those without rows are left out."""
    tables = {
        "loss_gaps": list(map(asdict, summary.loss_gaps)),
        "effects": list(map(asdict, summary.effects)),
        "smallest": list(_by_size(summary.smallest)),
    }
    return chosen_rows(tables, chosen, model=summary.model, trained_length=summary.trained_length)


def write_located(folder: Path, summary: Located) -> Path:
    """Writes the report and its tables in a run's folder; returns the page's path."""
    tables = located_tables(summary, {})
    return write_page(folder / LOCATED.command, title(summary), sections(summary), tables, TABLES)


def _labels(gaps: Sequence[Loss]) -> dict[str, list[Any]]:
    return {name: list(dict.fromkeys(gap.labels[name] for gap in gaps)) for name in ("method", "length", "measure")}


def _by_size(rows: Sequence[SmallestSet]) -> Iterator[Row]:
    """A row for each size of every smallest set: the head added, and the loss recovered in so many."""
    for row in rows:
        labels = {"method": row.method, "length": row.length, "measure": row.measure}
        for n, (layer, head) in enumerate(row.heads):
            columns = ("share", "low", "high", "random_low", "random", "random_high")
            shares = {name: getattr(row, name)[n] for name in columns}
            ends = row.rest if n + 1 == len(row.heads) else (math.nan,) * 3
            shares |= dict(zip(("rest", "rest_low", "rest_high"), ends, strict=True))
            yield labels | {"size": n + 1, "layer": layer, "head": head} | shares


def findings(folder: Path, facts: RunFacts) -> Findings:
    """For the verdict of the run in a folder."""
    return findings_of(LOCATED.find(folder), facts)


def inside(folder: Path) -> Iterator[Section]:
    """For the report of the run in a folder: the clearest loss."""
    if located := LOCATED.find(folder):
        links = report_link(folder, LOCATED.command, "Every method, length and measure, and clamps")
        yield replace(clearest(located), title="Where inside", links=links)


def rewrite(folder: Path) -> None:
    """Writes the report again, if there is one."""
    if located := LOCATED.find(folder):
        write_located(folder, located)


def export(folder: Path, **chosen: Any) -> Export:
    """`located_export` of what is in the folder; NotFound where nothing is."""
    return located_export(LOCATED.read(folder), **chosen)


def in_notebook(folder: Path) -> InNotebook:
    """The tables by name, the text of the report and its figures; NotFound where nothing was located."""
    summary = LOCATED.read(folder)
    main, text = next(iter(clearest(summary).figures), None), as_text(places(summary))
    if summary.clearest is None:
        tables = located_tables(summary, {})
        return tables, text, Export({}, tables), None
    export = located_export(summary)
    return export.numbers, text, export, main
