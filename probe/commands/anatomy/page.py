"""What the pages of `mesa-lens anatomy` show: maps of heads, tokens with their losses, sentences, sections, exports."""

import json
import math
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
from markupsafe import Markup, escape

from mesa.errors import Refused
from mesa.support import layers_text
from probe.commands.anatomy.result import (
    ANATOMY,
    BEYOND,
    INSIDE,
    TABLES,
    TOKENS,
    Anatomy,
    Captured,
    HeadMeasured,
    Retrieval,
    RetrievalHead,
    Tokens,
)
from probe.figures.export import (
    Export,
    InNotebook,
    Labels,
    as_row,
    chosen_labels,
    chosen_rows,
    labels_text,
    safe_name,
)
from probe.figures.figure_data import Heatmaps, Scale, at_length, tile_map, tiles
from probe.figures.section import Section, Table, as_text, figures_of, provenance, report_link, write_page
from probe.store.result_file import having, ranged

HeadRow = HeadMeasured | Retrieval


@dataclass(frozen=True)
class Statistic:
    """A number of every head: its table and column in the summary, and how it is written; is_share: a scale up to 1."""

    label: str
    table: str
    column: str
    title: str
    unit: str
    digits: int | None = None
    is_share: bool = False


_WITHOUT = "without the first 4"
_RETRIEVAL = "Retrieval score: how often a head attends most to the passkey's token, or to the one after it"
STATISTICS = {
    "retrieval": Statistic("retrieval", "retrieval", "best", _RETRIEVAL, "score", is_share=True),
    "beyond": Statistic(
        "keys beyond M", "heads", "mass_beyond", f"Attention to keys M or more tokens away, {_WITHOUT}", "share"
    ),
    "window": Statistic(
        "keys from N to M", "heads", "mass_window", f"Attention to keys from N to M tokens away, {_WITHOUT}", "share"
    ),
    "near": Statistic(
        "keys within N", "heads", "mass_near", f"Attention to keys at most N tokens away, {_WITHOUT}", "share"
    ),
    "first": Statistic("first 4 keys", "heads", "mass_first", "Attention to the first 4 keys", "share"),
    "distance": Statistic("mean distance", "heads", "mean_distance", "Mean attention distance", "tokens", 0),
    "entropy": Statistic("entropy", "heads", "entropy", "Entropy of attention", "nats", 1),
    "sink": Statistic("token 0", "heads", "sink", "Attention on token 0", "share"),
}
"""The maps, by name."""


def head_map(summary: Anatomy, name: str, method: str, length: int) -> Heatmaps | None:
    """Layers x heads: a statistic of the reference inside and beyond M, and next to it the method's; None if not run.

    One colour scale for all methods at the length.
    """
    statistic = STATISTICS[name]
    rows = having(getattr(summary, statistic.table), length=length)
    if not having(rows, method=method) or (name == "beyond" and length <= summary.trained_length):
        return None
    subsets = _blocks(summary, rows, statistic, method, length)
    is_inside = length <= summary.trained_length
    coloured = [
        row
        for row in rows
        if is_inside or row.method == summary.reference or getattr(row, "span", None) != INSIDE  # those drawn
    ]
    largest = 1.0 if statistic.is_share else max(getattr(row, statistic.column).mean for row in coloured)
    scale = Scale(0.0, _round_above(largest), statistic.digits)
    heads = [str(head) for head in range(1 + max(row.head for subset in subsets.values() for row in subset))]
    blocks = []
    for title, subset in subsets.items():
        triples = {(row.layer, row.head): getattr(row, statistic.column) for row in subset}
        blocks.append(tiles(title, heads, summary.layers, triples, scale))
    prompts = max(row.n for subset in subsets.values() for row in subset)
    at = at_length(summary.model, summary.trained_length, length)
    title = f"{statistic.title}. {at}, {prompts} prompt{'s' * (prompts > 1)}"
    return tile_map(title, statistic.unit, blocks, scale)


def _blocks(
    summary: Anatomy, rows: Sequence[HeadRow], statistic: Statistic, method: str, length: int
) -> dict[str, list[HeadRow]]:
    """Rows of the blocks by title, the reference's first; those without rows are left out."""
    reference, trained, names = summary.reference, summary.trained_length, (summary.reference, method)
    blocks: dict[str, list[HeadRow]] = {}
    if statistic.table == "retrieval":  # answers stand at the end: none of these rows is both inside and beyond
        of_reference = having(summary.retrieval, method=reference)
        within = max((row.length for row in of_reference if row.length <= trained), default=None)
        if length > trained:
            blocks[f"{reference} at {within} tokens, head"] = having(of_reference, length=within)
        blocks |= {f"{name} at {length} tokens, head": having(rows, method=name) for name in names}
    else:
        places = [(name, INSIDE) for name in names]
        if length > trained:
            places = [places[0], *((name, BEYOND) for name in names)]
        blocks = {f"{name} {span}, head": having(rows, method=name, span=span) for name, span in places}
    return {title: subset for title, subset in blocks.items() if subset}


def _round_above(value: float) -> float:
    """The least of 1, 2, 4, 6, 8 and 10 times a power of ten that is not below `value`; 1 for 0."""
    if value <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(factor * power for factor in (1, 2, 4, 6, 8, 10) if factor * power >= value * (1 - 1e-9))


SHOWN = 1024
"""Tokens of a view: of a longer text those around M, and the last."""
MIN_WEIGHT = 0.001
"""Weights below this are not drawn."""
CLEAR = 2.0
"""Nats by which a token's loss is called another."""
_FULL = 8.0  # nats of the deepest colour
_SHADES = 8
_DEEPEST = 0.65  # of the colour: text reads on it on a light and on a dark page
_STYLE = """<style>
.tokens { display: flex; flex-wrap: wrap; gap: 8px 24px; margin: 8px 0; max-height: 75vh; overflow-y: auto;
  position: relative; }
.tokens > div { flex: 1 1 300px; min-width: 0; }
.tokens p, .scale { font: 14px/1.7 ui-monospace, Menlo, Consolas, monospace; white-space: pre-wrap;
  overflow-wrap: anywhere; margin: 4px 0; }
.tokens i, .scale i { font-style: normal; background: rgba(220, 38, 38, var(--share, 0)); }
.tokens header { position: sticky; top: 0; background: Canvas; padding-bottom: 2px; }
.tokens b { background: rgba(196, 127, 0, 0.3); }
.tokens i[role] { text-decoration: underline dotted; cursor: pointer; }
.tokens i.broken { border-bottom: 2px solid #c47f00; }
.tokens i.query { outline: 2px solid #c47f00; }
.tokens-attention i { background: rgba(30, 136, 229, var(--share, 0)); }
"""
_STYLE += "".join(f".s{shade} {{ --share: {_DEEPEST * shade / _SHADES:z.2f}; }}\n" for shade in range(1, _SHADES + 1))
_STYLE += "</style>"
_SCRIPT = """<script>(() => {
const root = document.getElementById("ID"), weights = WEIGHTS, panels = [...root.querySelectorAll(".tokens > div")];
const pick = query => panels.forEach((panel, number) => {
  panel.querySelectorAll("i").forEach(token => {
    token.style.removeProperty("--share");
    token.classList.toggle("query", token.dataset.at == query);
    const far = query - token.dataset.at;
    token.title = far < 0 ? "" : `distance ${far}, not among the strongest`;
  });
  let shown = 0, all = 0;
  for (const [at, weight] of weights[number][query]) {
    const token = panel.querySelector(`i[data-at="${at}"]`);
    all += weight;
    if (!token) continue;
    shown += weight;
    token.style.setProperty("--share", DEEPEST * Math.sqrt(weight));
    token.title = `distance ${query - at}, weight ${weight}`;
  }
  const [on, out] = [all, all - shown].map(share => Math.round(100 * share) + "%");
  panel.querySelector("small").textContent =
    `from position ${query}: ${on} of the weight is on its strongest tokens` +
    (all > shown ? `, ${out} on such as are left out here` : "");
});
root.querySelectorAll("i[role]").forEach(token => ["click", "focus"].forEach(event =>
  token.addEventListener(event, () => pick(token.dataset.at))));
pick(QUERY);
root.querySelector(".tokens").scrollTop = root.querySelector(".query").offsetTop - 200;
})()</script>"""


class HTML(str):
    """A part of a page, which a notebook displays."""

    def _repr_html_(self) -> str:
        return str(self)


def token_losses(tokens: Sequence[str], losses: Mapping[str, Sequence[float]], trained_length: int) -> HTML:
    """A text under two methods, each token coloured by its loss.

    Args:
        tokens: The text's tokens.
        losses: By method the loss of every token but the first, nats. The first method is the reference, the last is
            compared with it.
        trained_length: M, tokens.

    Returns:
        HTML for notebooks; every text is escaped.

    Raises:
        Refused: A method has more or fewer losses than there are tokens after the first.

    Examples:
        >>> shown = probe.token_losses(["<bos>", "A", "B"], {"origin": [2.0, 6.5], "rerope": [2.0, 1.5]}, 2)
        >>> "1 of 1 tokens beyond M lose 2 nats or more over their loss under rerope" in shown
        True
    """
    for name, values in losses.items():
        if len(values) != len(tokens) - 1:
            raise Refused(f"{len(values)} losses under {name} of {len(tokens)} tokens; give one for each but the first")
    methods = {name: Captured(list(values), weight=[], key=[]) for name, values in losses.items()}
    return HTML(loss_view(Tokens(trained_length, next(iter(losses)), [], "", list(tokens), [], methods)))


def methods_of(tokens: Tokens, method: str | None = None) -> tuple[str, str]:
    """The reference and `method`, by default the last: twice the same where there is one. Refused: not captured."""
    known = list(tokens.methods)
    if method is not None and method not in known:
        raise Refused(f"method {method!r} was not captured token by token; known: {', '.join(known)}")
    reference = tokens.reference if tokens.reference in known else known[0]
    return reference, known[-1] if method is None else method


def token_views(tokens: Tokens | None) -> list[str]:
    """Both views, of the last method; none where nothing was captured."""
    return [] if tokens is None else [loss_view(tokens), attention_view(tokens)]


def loss_view(tokens: Tokens, method: str | None = None) -> str:
    """The text under the reference and a method, each token coloured by its loss; as HTML, every text escaped.

    Raises what `methods_of` raises.
    """
    names = methods_of(tokens, method)
    panels, losses = [], {name: np.array(tokens.methods[name].nll) for name in names}
    for name, values in losses.items():
        shades = np.clip(np.round(values / _FULL * _SHADES), 0, _SHADES).astype(int).tolist()
        at = range(1, len(tokens.tokens))
        broken = (values - losses[names[1]] >= CLEAR).tolist()
        marks = (
            f' class="s{shade}{" broken" * is_broken}" title="{number}: {loss:z.2f}"'
            for number, shade, is_broken, loss in zip(at, shades, broken, values, strict=True)
        )
        panels.append(_panel(tokens, name, ["", *marks]))
    scale = "".join(f"<i class=s{shade}> {shade * _FULL / _SHADES:g} </i>" for shade in range(1, _SHADES + 1))
    legend = f"<div class=scale>loss in nats: {scale} or more; hover for position and loss; "
    legend += f"underlined: {CLEAR:g} or more over the loss under {escape(names[1])}</div>"
    text = f"{_STYLE}<p>{escape(loss_sentence(tokens, losses))}</p>{legend}"  # which scrolls, by keys as well
    return f"{text}<div class=tokens tabindex=0 role=group aria-label='Loss of each token'>{''.join(panels)}</div>"


def loss_sentence(tokens: Tokens, losses: Mapping[str, np.ndarray]) -> str:
    """Mean losses inside and beyond M, and how many tokens break."""
    beyond, parts = slice(tokens.trained_length - 1, None), []  # the first token has no loss
    for where, part in (("inside", slice(beyond.start)), ("beyond", beyond)):
        means = [f"{values[part].mean():z.2f} under {name}" for name, values in losses.items() if values[part].size]
        parts += [f"{where} M {' and '.join(means)}"] if means else []
    text = f"Mean loss of a token, in nats: {'; '.join(parts)}."
    (first, *_), (*_, last) = losses.values(), losses.values()
    more = (first - last)[beyond] >= CLEAR
    if len(losses) < 2 or not more.size:
        return text
    *_, name = losses
    return (
        f"{text} {more.sum()} of {more.size} tokens beyond M lose {CLEAR:g} nats or more over their loss under {name}."
    )


def attention_view(tokens: Tokens, method: str | None = None, layer: int | None = None, head: int | None = None) -> str:
    """What one head attends to under the reference and a method, from a token that is chosen by a click; as HTML.

    Default: the head whose attention the method changes most. Raises Refused for one that was not captured.
    """
    names = dict.fromkeys(methods_of(tokens, method))
    changes = head_changes(tokens, method)
    layers, heads = tokens.layers, changes.shape[1]
    row, column = (int(at) for at in np.unravel_index(changes.argmax(), changes.shape))
    row = row if layer is None else layers.index(layer) if layer in layers else -1
    column = column if head is None and layer is None else int(changes[row].argmax()) if head is None else head
    if row < 0 or not 0 <= column < heads:
        raise Refused(f"layer {layer}, head {head} was not captured; layers {layers}, heads 0 to {heads - 1}")
    weights, queries = [], tokens.queries
    for name in names:
        stored = [part[row][column] for part in (tokens.methods[name].key, tokens.methods[name].weight)]
        strongest = [list(zip(*pair, strict=True)) for pair in zip(*stored, strict=True)]
        drawn = [[(int(key), round(weight, 3)) for key, weight in pairs if weight >= MIN_WEIGHT] for pairs in strongest]
        weights.append(dict(zip(queries, drawn, strict=True)))
    marks = [
        f" data-at={at}{' role=button tabindex=0' if at in {*queries} else ''}" for at in range(len(tokens.tokens))
    ]
    panels = "".join(_panel(tokens, name, marks, "<small></small>") for name in names)
    text = (
        f"Layer {layers[row]}, head {column}: what it attends to differs by {changes[row, column]:.0%} (half of all "
        "differences of strongest weights, mean of queries; 100%: other tokens altogether). Choose an underlined "
        "token: the tokens that it attends to are coloured; hover for distance and weight."
    )
    name = f"attention-{zlib.crc32(json.dumps([weights, text]).encode()):08x}"
    first = max(query for query in queries if any(start <= query < stop for start, stop in _windows(tokens)))
    script = (
        _SCRIPT.replace("ID", name)
        .replace("DEEPEST", str(_DEEPEST))
        .replace("WEIGHTS", json.dumps(weights))
        .replace("QUERY", str(first))
    )
    body = f"<p>{escape(text)}</p><div class=tokens>{panels}</div>"
    return f"{_STYLE}<div id={name} class=tokens-attention>{body}</div>{script}"


def head_changes(tokens: Tokens, method: str | None = None) -> np.ndarray:
    """By layer and head, half the summed differences of the recorded weights to the reference's, mean of queries."""
    parts = [tokens.methods[name] for name in methods_of(tokens, method)]
    arrays = [(np.array(part.key), np.array(part.weight)) for part in parts]
    changes = np.zeros(arrays[0][0].shape[:3])
    for at in np.ndindex(*changes.shape):
        one, other = (dict(zip(keys[at].tolist(), weights[at].tolist(), strict=True)) for keys, weights in arrays)
        changes[at] = sum(abs(one.get(key, 0) - other.get(key, 0)) for key in {*one, *other}) / 2
    return changes.mean(-1)


def _windows(tokens: Tokens) -> list[tuple[int, int]]:
    """Half-open ranges of the tokens that are shown: all, or those around M and the last."""
    length, trained, half = len(tokens.tokens), tokens.trained_length, SHOWN // 2
    if length <= SHOWN:
        return [(0, length)]
    start = min(max(0, trained - half // 2), length - SHOWN)
    return [(start, start + half), (length - half, length)]


def _panel(tokens: Tokens, name: str, marks: Sequence[str], below: str = "") -> str:
    """The tokens shown, each with the attributes of `marks`; M is marked."""
    parts, last = [], 0
    for start, stop in _windows(tokens):
        parts.append(f"<b> … positions {last} to {start - 1} … </b>" if start > last else "")
        for at in range(start, stop):
            parts.append(f"<b>|M = {at}|</b>" if at == tokens.trained_length else "")
            parts.append(f"<i{marks[at]}>{escape(tokens.tokens[at]).replace(chr(10), '↵' + chr(10))}</i>")
        last = stop
    title = f"{name}, the unmodified model" if name == "origin" else name
    return f"<div><header><strong>{escape(title)}</strong> {below}</header><p>{''.join(parts)}</p></div>"


RETRIEVES = 0.3
"""Least score inside M of a retrieval head."""
_NAMED = 6  # heads in a sentence, at most
_PREVIOUS = 0.5  # least share on the token before of a previous-token head


def anatomy_findings(summary: Anatomy) -> list[str]:
    """A paragraph for every part that was measured beyond M, and which parts were not."""
    paragraphs = [" ".join(part(summary)) for part in (_retrieval, _previous)]
    absent = ", ".join(name for name in ("heads", "retrieval") if not getattr(summary, name))
    paragraphs.append(f"Not measured: {absent} (--parts)." if absent else "")
    paragraphs.append(f"Tasks that are left to run: {summary.tasks_left}." if summary.tasks_left else "")
    return [paragraph for paragraph in paragraphs if paragraph]


def _retrieval(summary: Anatomy) -> Iterator[str]:
    """Which heads stop retrieving beyond M, which methods recover them, and where neither can be told."""
    reference, trained = summary.reference, summary.trained_length
    measured = having(summary.retrieval, method=reference)
    lengths = sorted({row.length for row in measured})
    if not lengths or lengths[-1] <= trained:
        return
    if lengths[0] > trained:
        yield "Retrieval: cannot tell which heads are lost; no length up to M was measured."
        return
    inside = having(measured, length=max(length for length in lengths if length <= trained))
    heads = [row for row in inside if row.best.mean >= RETRIEVES]
    score = f"score {RETRIEVES} or more inside M under {reference} ({_prompts(inside)})"
    text = f"Retrieval: {len(heads)} of {_heads(inside)} {score}"
    if not heads:
        best = max(inside, key=lambda row: row.best.mean)
        yield f"{text}; highest: {best.name}, {ranged(*best.best, digits=3)}."
        return
    after = sum(row.best_offset for row in heads)
    yield f"{text}{f', {after} of them on the token after the one emitted' if after else ''}."
    for length in dict.fromkeys(row.length for row in summary.retrieval_heads):
        rows = having(summary.retrieval_heads, length=length)
        yield _lost(rows, reference, _prompts(having(measured, length=length)))
        if lost := having(rows, lost=True):
            others = [name for name in summary.methods if name != reference and name in rows[0].beyond]
            recovered = "; ".join(_recovered(lost, name) for name in others)
            yield f"Of the lost heads, recovered: {recovered}." if others else ""


def _lost(rows: Sequence[RetrievalHead], reference: str, prompts: str) -> str:
    """How many of the retrieval heads are lost and kept at one length, and of how many that is open."""
    outcomes: dict[str, list[RetrievalHead]] = {"lost": [], "kept": [], "cannot tell": []}
    for row in sorted(rows, key=lambda row: -row.inside.mean):
        outcomes["lost" if row.lost else "kept" if row.kept else "cannot tell"].append(row)
    parts = []
    for outcome, members in outcomes.items():
        named = [f"{row.name} ({row.inside.mean:z.2f} to {row.beyond[reference].mean:z.2f})" for row in members]
        more = f" and {len(members) - _NAMED} more" if len(members) > _NAMED else ""
        parts += [f"{outcome} {len(members)}: {', '.join(named[:_NAMED])}{more}"] if members else []
    return f"At {rows[0].length} tokens ({prompts}; score inside to beyond M): {'; '.join(parts)}."


def _recovered(lost: Sequence[RetrievalHead], name: str) -> str:
    """How many lost heads retrieve again under a method, and of how many that is open."""
    others = [row for row in lost if name not in row.recovered_by]
    unclear = sum(not (name in row.beyond and row.beyond[name].high < row.inside.mean / 2) for row in others)
    return f"{len(lost) - len(others)} of {len(lost)} by {name}{f' (cannot tell: {unclear})' if unclear else ''}"


def _previous(summary: Anatomy) -> Iterator[str]:
    """The heads that attend to the token before inside M, and whether they still do beyond it, by length beyond M."""
    reference = summary.reference
    for length in (length for length in summary.lengths if length > summary.trained_length):
        inside = having(summary.heads, method=reference, length=length, span=INSIDE)
        if not inside:
            continue
        ranked = sorted(inside, key=lambda row: -row.previous.mean)
        heads = [row for row in ranked if row.previous.mean >= _PREVIOUS]
        parts = [_beyond(summary, row) for row in heads[:_NAMED]]
        parts += [f"and {len(heads) - _NAMED} more"] if len(heads) > _NAMED else []
        text = "; ".join(parts) or f"highest: {ranked[0].name}, {ranged(*ranked[0].previous, digits=3)}"
        of = f"of {_heads(inside)} (attention on the token before at least {_PREVIOUS} inside M, {_prompts(inside)})"
        yield f"Previous-token heads under {reference} at {length} tokens: {len(heads)} {of}; {text}."


def _beyond(summary: Anatomy, row: HeadMeasured) -> str:
    beyond = having(summary.heads, layer=row.layer, head=row.head, length=row.length, span=BEYOND)
    scores = ", ".join(f"{other.previous.mean:z.2f} {other.method}" for other in beyond)
    return f"{row.name} {row.previous.mean:z.2f}{f' (beyond M {scores})' if scores else ''}"


def _heads(rows: Sequence[HeadMeasured | Retrieval]) -> str:
    return "1 head" if len(rows) == 1 else f"{len(rows)} heads"


def _prompts(rows: Sequence[HeadMeasured | Retrieval]) -> str:
    """Over how many prompts the rows are means."""
    counts = sorted({row.n for row in rows})
    return f"{counts[0]} prompt{'s' * (counts[0] > 1)}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]} prompts"


_COLUMNS = {
    "mean distance (tokens)": ("mean_distance", 0),
    "beyond M": ("mass_beyond", 2),
    "on token 0": ("sink", 2),
    "entropy (nats)": ("entropy", 2),
}
_MADE = {
    "Attention": "Exact weights of sampled queries: those inside M stand in its second half, those beyond M up to the "
    "end.",
    "Retrieval score": "Share of the passkey's tokens at which the key that a head attends to most holds the token to "
    "be emitted, or follows it; the better of both. Such a head is lost where its score falls below half of that "
    "inside M and the intervals are apart; a method recovers it where its score is half or more and above the "
    "reference's.",
}


def title(summary: Anatomy) -> str:
    """The page's heading."""
    return f"{summary.model}: attention statistics beyond M = {summary.trained_length} tokens"


def sections(summary: Anatomy) -> list[Section]:
    """The full report: findings, means over heads, every method's maps by length, how each number is made."""
    places = [place(summary, length, list(summary.methods)) for length in summary.lengths]
    definitions = Section("How each number is made", parts=[Section(name, [text]) for name, text in _MADE.items()])
    return [*headline(summary), *(part for part in places if part.parts), definitions, provenance(summary)]


def headline(summary: Anatomy) -> list[Section]:
    """What was found in sentences, and the means over all heads."""
    return [Section("", anatomy_findings(summary)), *all_heads(summary, summary.lengths)]


def all_heads(summary: Anatomy, lengths: Sequence[int]) -> list[Section]:
    """Means over all heads, a row a method, length and span of queries; nothing where none were measured."""
    rows = tuple(
        (
            row.method,
            str(row.length),
            row.span,
            str(row.n),
            *(ranged(*getattr(row, column), digits=digits) for column, digits in _COLUMNS.values()),
        )
        for row in summary.all_heads
        if row.length in lengths
    )
    of = layers_text(summary.layers)
    text = f"means over the heads of {of} with 95% intervals over prompts, by where the query stands"
    table = Table(text, ("method", "length", "queries", "prompts", *_COLUMNS), rows)
    return [Section("All heads", tables=[table])] if rows else []


def place(summary: Anatomy, length: int, methods: Iterable[str]) -> Section:
    """One length: the maps of each method, folded, a part a statistic."""
    by_method = {method: _maps(summary, method, length) for method in methods}
    parts = [Section(method, parts=maps, folded=True) for method, maps in by_method.items() if maps]
    return Section(at_length(summary.model, summary.trained_length, length), parts=parts)


def _maps(summary: Anatomy, method: str, length: int) -> list[Section]:
    maps = {name: head_map(summary, name, method, length) for name in STATISTICS}
    return [
        Section(STATISTICS[name].label, figures={f"anatomy-{name}-{safe_name(method)}-{length}": figure})
        for name, figure in maps.items()
        if figure is not None
    ]


def anatomy_export(
    summary: Anatomy, methods: Sequence[str] | None = None, lengths: Sequence[int] | None = None
) -> Export:
    """Figures as `anatomy-NAME-METHOD-LENGTH`, and their tables; default: all.

    Raises Refused for a method or length that is not there.
    """
    known = {"method": list(summary.methods), "length": summary.lengths}
    chosen = chosen_labels({"method": methods, "length": lengths}, known, known, "measured")
    names, measured = chosen.values()
    figures = figures_of([place(summary, length, names) for length in measured])
    if not figures:
        raise Refused(f"nothing is there for {labels_text(chosen)}; run those --parts of `mesa-lens anatomy`")
    return Export(figures, anatomy_tables(summary, chosen))


def anatomy_tables(summary: Anatomy, chosen: Labels) -> dict[str, xr.Dataset]:
    """The measurements as tables; those without rows are left out. chosen: labels to keep, all if empty."""
    tables = {name: [as_row(vars(row)) for row in getattr(summary, name)] for name in TABLES[:3]}
    tables["retrieval_heads"] = [  # a row for each head that retrieves inside M and each method beyond it
        {"method": method, **as_row(vars(head))} | as_row({"beyond": beyond, "recovered": method in head.recovered_by})
        for head in summary.retrieval_heads
        for method, beyond in head.beyond.items()
    ]
    return chosen_rows(tables, chosen, model=summary.model, trained_length=summary.trained_length)


def write_anatomy(folder: Path, summary: Anatomy) -> Path:
    """Writes the report and its tables in a run's folder; returns the page's path."""
    tables = anatomy_tables(summary, {})
    return write_page(folder / ANATOMY.command, title(summary), sections(summary), tables, TABLES)


def inside(folder: Path) -> Iterator[Section]:
    """For the report of the run in a folder: findings, and two texts token by token."""
    if anatomy := ANATOMY.find(folder):
        links = report_link(folder, ANATOMY.command, "Every head, method and length")
        yield Section("Attention statistics", anatomy_findings(anatomy), links=links)
    if views := token_views(TOKENS.find(folder)):
        yield Section("Token by token", figures={f"tokens-{number}": Markup(view) for number, view in enumerate(views)})


def rewrite(folder: Path) -> None:
    """Writes the report again, if there is one."""
    if anatomy := ANATOMY.find(folder):
        write_anatomy(folder, anatomy)


def export(folder: Path, **chosen: Any) -> Export:
    """`anatomy_export` of what is in the folder; NotFound where nothing is."""
    return anatomy_export(ANATOMY.read(folder), **chosen)


def in_notebook(folder: Path) -> InNotebook:
    """The tables by name, findings and figures; NotFound where nothing was measured."""
    summary = ANATOMY.read(folder)
    export = anatomy_export(summary)
    return export.numbers, as_text(headline(summary)), export, None


def tokens_in_notebook(folder: Path, method: str | None, layer: int | None, head: int | None) -> HTML:
    """Two views of a text, see `probe.Run.tokens`."""
    tokens = TOKENS.read(folder)
    return HTML(loss_view(tokens, method) + attention_view(tokens, method, layer, head))
