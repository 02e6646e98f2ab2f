"""Where inside: maps of what an intervention in one place restores, from the summary of `mesa-lens locate`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from probe.figures.cells import SHARES, Block, Cells, Scale
from probe.figures.marks import Line, Rule
from probe.store.results import Located, Row, having, number

MEASURES = {"nll": "tail NLL", "passkey": "passkey answer"}
WAYS = {"only": "enough", "without": "needed"}
_HOOKS = ("resid_pre", "attn_out", "mlp_out", "resid_post")
_SPANS = ("all", "inside", "beyond", "last")
_SPAN_TITLES = {"all": "all positions", "inside": "inside M", "beyond": "beyond M", "last": "last tokens"}


def broken_name(summary: Located) -> str:
    """The method of the broken run: the first."""
    return next(iter(summary["methods"]))


def about(summary: Located, length: int, measure: str) -> str:
    """Model, length, measure and how many items, as in every title."""
    items = max((gap["items"] for gap in having(summary["gaps"], length=length, measure=measure)), default=0)
    counted = f", {items} item{'s' * (items > 1)}" if items else ""
    return f"{at_length(summary, length)}, {MEASURES.get(measure, measure)}{counted}"


def at_length(summary: Located, length: int) -> str:
    """Model and length."""
    return f"{summary['model']}, {length} tokens ({length / summary['trained_length']:.3g} M)"


def restoration_map(summary: Located, method: str, length: int, measure: str, way: str = "only") -> Cells | None:
    """Layers x heads: what the method in that place alone restores, or what is lost without it there; None if not run.

    Whole layers stand in a column beside their heads. way: "only" or "without".
    """
    rows = having(summary["effects"], kind="weave", way=way, method=method, length=length, measure=measure)
    broken = broken_name(summary)
    says = (
        f"{method} in one place alone, {broken} elsewhere: share of {broken}'s loss that it restores"
        if way == "only"
        else f"{method} everywhere but in one place: share of {broken}'s loss that comes back"
    )
    return _by_head(summary, rows, f"{says}. {about(summary, length, measure)}", _moved(way))


def head_patch_map(summary: Located, method: str, length: int, measure: str, way: str = "mend") -> Cells | None:
    """Layers x heads: what the mended run's z written into the broken run restores, or the reverse; None if not run."""
    labels = {"method": method, "length": length, "measure": measure, "kind": "patch", "way": way, "hook": "z"}
    spans = [span for span in _SPANS if having(summary["effects"], **labels, span=span)]
    if not spans:
        return None
    rows = having(summary["effects"], **labels, span=spans[0])
    title = f"{_patched(summary, method, way, f'z of single heads, {_SPAN_TITLES[spans[0]]}')}. "
    return _by_head(summary, rows, title + about(summary, length, measure), _moved(way))


def patch_map(summary: Located, method: str, length: int, measure: str, way: str = "mend") -> Cells | None:
    """Layers x hooks, a block a span of positions: what patched activations restore or break; None if not run."""
    labels = {"method": method, "length": length, "measure": measure, "kind": "patch", "way": way, "head": None}
    rows = having(summary["effects"], **labels)
    hooks = [hook for hook in _HOOKS if having(rows, hook=hook)]
    spans = [span for span in _SPANS if having(rows, span=span)]
    if not hooks or not spans:
        return None
    layers = summary["layers"]
    blocks = tuple(
        block(
            _SPAN_TITLES[span],
            hooks,
            layers,
            {(row["layer"], hooks.index(row["hook"])): row for row in having(rows, span=span) if row["hook"] in hooks},
        )
        for span in spans
    )
    title = f"{_patched(summary, method, way, 'activations of whole layers')}. {about(summary, length, measure)}"
    return Cells(title, _moved(way), "layer", tuple(map(str, layers)), blocks)


def block(
    title: str,
    columns: Sequence[str],
    layers: Sequence[int],
    rows: Mapping[tuple[int | None, int], Row],
    scale: Scale = SHARES,
) -> Block:
    """Cells of `rows`, which are by layer and number of their column; NaN where there is none."""
    values, low, high = np.full((3, len(layers), len(columns)), np.nan)
    for (layer, column), row in rows.items():
        if layer in layers and 0 <= column < len(columns):
            at = layers.index(layer), column
            values[at], low[at], high[at] = (number(row[name]) for name in ("share", "low", "high"))
    return Block(title, tuple(columns), values, low, high, scale)


def share_range(lines: Sequence[Line], rules: Sequence[Rule]) -> tuple[float, float]:
    """Ends of a y axis that holds all values and level rules; of intervals what lies between -1 and 2."""
    shares = [line.y for line in lines] + [np.array([rule.at for rule in rules if not rule.vertical])]
    ends = [np.clip(end, -1, 2) for line in lines for end in line.interval or ()]
    values = np.concatenate(shares + ends)
    low, high = float(np.nanmin(values)), float(np.nanmax(values))
    pad = 0.08 * (high - low or 1)
    return low - pad, high + pad


def _by_head(summary: Located, rows: Sequence[Row], title: str, moved: str) -> Cells | None:
    layers, heads = summary["layers"], [str(head) for head in range(summary["heads"])]
    whole = {(row["layer"], 0): row for row in rows if row["head"] is None and row["layer"] is not None}
    single = {(row["layer"], row["head"]): row for row in rows if row["head"] is not None}
    blocks = [block("layer", ["all"], layers, whole)] if whole else []
    blocks += [block("head", heads, layers, single)] if single else []
    return Cells(title, moved, "layer", tuple(map(str, layers)), tuple(blocks)) if blocks else None


def _moved(way: str) -> str:
    return "share restored" if way in ("only", "mend") else "share lost again"


def _patched(summary: Located, method: str, way: str, what: str) -> str:
    broken = broken_name(summary)
    if way == "mend":
        return f"{what[0].upper()}{what[1:]} from {method}'s run written into {broken}'s: share of the loss restored"
    return f"{what[0].upper()}{what[1:]} from {broken}'s run written into {method}'s: share of the loss that comes back"
