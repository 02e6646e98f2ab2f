"""A text token by token, as plain HTML: its loss under two methods, and what one head attends to."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping, Sequence

import numpy as np
from markupsafe import escape

from mesa.errors import Refused
from probe.commands.anatomy.result import Captured, Tokens

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
    """A text token by token under two methods, each token coloured by its loss.

    Args:
        tokens: The text's tokens.
        losses: By method the loss of every token but the first, nats. The first method is the reference, the last is
            compared with it.
        trained_length: M, tokens.

    Returns:
        HTML, which a notebook displays; every text is escaped.

    Examples:
        >>> shown = probe.token_losses(["<bos>", "A", "B"], {"origin": [2.0, 6.5], "rerope": [2.0, 1.5]}, 2)
        >>> "1 of 1 tokens beyond M lose 2 nats or more over their loss under rerope" in shown
        True
    """
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
