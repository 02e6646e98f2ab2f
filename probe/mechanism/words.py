"""What `mesa-lens locate` found, in plain words computed from its summary; no torch.

The best of several is the one with the largest share, as on the maps; what its interval leaves open is said.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from probe.store.results import Located, Row, having, is_clear, number, percent

_MEASURES = {"nll": "tail NLL", "passkey": "the passkey's answer"}
_ENOUGH = 0.9  # of the loss, restored by a set of heads that is enough
_NAMED = 3  # layers named in a sentence
_FEW = 4  # places, of which all orders are too likely to be called a correlation
_WRITTEN_INTO = ("attn_out", "mlp_out")  # resid_* hold all that came before: late ones restore all of it


def located_findings(summary: Located, **labels: Any) -> list[tuple[str, list[str]]]:
    """(heading, sentences) for every method, length and measure gone over, or for those that bear the labels."""
    return [
        (
            f"{gap['method']} at {gap['length']} tokens, {_MEASURES.get(gap['measure'], gap['measure'])}",
            _told(summary, gap),
        )
        for gap in having(summary["gaps"], **labels)
    ]


def _told(summary: Located, gap: Row) -> list[str]:
    broken = next(iter(summary["methods"]))
    method, lost = gap["method"], number(gap["broken"]) - number(gap["mended"])
    at, items = f"At {gap['length']} tokens", _items(gap["items"])
    difference = f"{lost:z.2f} {_interval(gap)} nats/token"
    if number(gap["high"]) < 0:
        return [f"{at} {method} is worse than {broken} ({difference}; {items}): it mends nothing."]
    if not gap["judged"]:
        unsure = "is too small to locate" if number(gap["low"]) > 0 else "cannot be told from 0"
        return [f"{at} the loss of {broken} against {method} {unsure} ({difference}; {items})."]
    labels = {name: gap[name] for name in ("method", "length", "measure")}
    effects = [row for row in having(summary["effects"], **labels) if _is_known(row)]
    weave = having(effects, kind="weave")
    layers = [row for row in having(weave, head=None) if row["layer"] is not None]
    parts = [
        f"{at} {broken} loses {difference} against {method} ({items}).",
        _layers(having(layers, way="only"), f"{method} in one layer alone restores"),
        _layers(having(layers, way="without"), f"Without {method} in one layer there is lost again"),
        _largest(
            [row for row in having(weave, way="only") if row["head"] is not None], "single heads restores", _place
        ),
        _together(weave),
        _smallest(having(summary["smallest"], **labels)),
        _patches(effects, method, broken),
        _clamps(effects),
        _inside(having(summary.get("inside", ()), length=gap["length"], measure=gap["measure"])),
        _agreement(having(summary.get("agreement", ()), **labels)),
    ]
    fewer = sorted({row["items"] for row in effects if row["items"] < gap["items"]})
    parts += [f"Some shares are of {fewer[0]} item{'s' * (fewer[0] > 1)}." if fewer else ""]
    left = f"{summary['cells_left']} cells are still to be run." if summary.get("cells_left") else ""
    return [part for part in (*parts, left) if part]


def _layers(rows: Sequence[Row], says: str) -> str:
    """The layers with a share that is clearly not 0, and of how many that cannot be told; the largest share always."""
    if not rows:
        return ""
    rows = _ranked(rows)
    more, less = ([row for row in rows if is_clear(row) and (row["share"] > 0) == sign] for sign in (True, False))
    told = [_layer(row) for row in more[:_NAMED]]
    told += [f"less in {_numbers(more[_NAMED:])}"] if more[_NAMED:] else []
    told += [f"less than nothing in {_numbers(less)}"] if less else []
    unsure = [row for row in rows if not is_clear(row)]
    if unsure:
        largest = f", the largest {_layer(unsure[0])}" if unsure[0] is rows[0] else ""
        told.append(f"{len(unsure)} of {len(rows)} layers cannot be told from 0{largest}")
    return f"{says}: {'; '.join(told)}."


def _largest(rows: Sequence[Row], what: str, place: Callable[[Row], str]) -> str:
    """The largest share, as the map has it; if that may be 0, the largest that is not too."""
    if not rows:
        return ""
    rows = _ranked(rows)
    text = f"The best of {len(rows)} {what} {_share(rows[0])} ({place(rows[0])})"
    if is_clear(rows[0]):
        return f"{text}."
    clear = next((row for row in rows if is_clear(row) and row["share"] > 0), None)
    other = f"the best that can: {_share(clear)} ({place(clear)})" if clear else "nor can any other"
    return f"{text}, which cannot be told from 0; {other}."


def _together(effects: Sequence[Row]) -> str:
    """Places that restore clearly more than is lost without them, and the reverse: what they do is not theirs alone."""
    known = [row for row in effects if not math.isnan(number(row["low"]) + number(row["high"]))]
    alone, without = (_ranked(having(known, way=way)) for way in ("only", "without"))
    pairs = [
        (one, other)
        for one in alone
        for other in having(without, layer=one["layer"], head=one["head"])
        if one["layer"] is not None
    ]
    spare = [pair for pair in pairs if number(pair[0]["low"]) > max(0, number(pair[1]["high"]))]
    short = [pair for pair in pairs if number(pair[1]["low"]) > max(0, number(pair[0]["high"]))]
    short.sort(key=lambda pair: -pair[1]["share"])
    return " ".join(
        f"{says}: {', '.join(_alone_and_without(*pair) for pair in own[:_NAMED])}."
        for says, own in (
            ("Restores more alone than is lost without it: others can replace it", spare),
            ("Loses more when left out than it restores alone: it works with others", short),
        )
        if own
    )


def _alone_and_without(alone: Row, without: Row) -> str:
    return f"{_place(alone)} (alone {_share(alone)}, lost without it {_share(without)})"


def _smallest(found: Sequence[Row]) -> str:
    if not found:
        return ""
    row = found[0]
    if not row["heads"]:
        return "No smallest set was searched for: half of the items show no loss."
    size = row["enough"] or len(row["heads"])
    names = ", ".join(_name(*head) for head in row["heads"][:size])
    share, random = ([row[f"{first}{name}"][size - 1] for name in ends] for first, ends in _SETS)
    text = f"{_heads(size)} ({names}) restore{'s' * (size == 1)} {percent(*share)} (random sets of {size}: "
    text += f"{percent(*random)})."
    if not row.get("finished", True):
        return f"The search for the smallest set is not done: {text}"
    if row["enough"]:
        return f"Smallest set found: {text}"
    known = [(number(each), n) for n, each in enumerate(row["share"], 1) if not math.isnan(number(each))]
    if known and max(known)[0] >= _ENOUGH:
        best, n = max(known)
        return (
            f"Cannot tell whether a set restores {_ENOUGH:.0%}: {_heads(n)} did ({best:.0%}), the last did not: {text}"
        )
    return f"None of {len(known)} sets restores {_ENOUGH:.0%}; the last: {text}"


_SETS = (("", ("share", "low", "high")), ("random", ("", "_low", "_high")))


def _patches(effects: Sequence[Row], method: str, broken: str) -> str:
    rows = having(effects, kind="patch", way="mend", span="all", head=None)
    return _largest(
        [row for row in rows if row["hook"] in _WRITTEN_INTO],
        f"outputs of {method}'s single layers written into {broken}'s run restores",
        lambda row: f"{row['hook']} of layer {row['layer']}",
    )


def _clamps(effects: Sequence[Row]) -> str:
    """Every way of holding the dims in one sentence: the shares between which they lie."""
    everywhere = having(effects, kind="clamp", layer=None)
    held = sorted(having(everywhere, which="observable"), key=lambda row: number(row["share"]))
    if not held:
        return ""
    shares = _share(held[0]) if len(held) == 1 else f"{_share(held[0])} to {_share(held[-1])}, in {len(held)} ways"
    random = sorted(round(100 * number(row["share"])) for row in everywhere if row not in held)
    beside = f" (as many random dims {random[0]}% to {random[-1]}%)" if random else ""
    return f"Holding the observable dims of all layers beyond M restores {shares}{beside}."


def _inside(rows: Sequence[Row]) -> str:
    """What holding the dims costs where the model works, by the dearest of the ways and rules."""
    held = having(rows, which="observable")
    if not held:
        return ""
    dearest = max(held, key=lambda row: number(row["cost"]))
    alike = [row for row in rows if row["way"] == dearest["way"] and row["rule"] == dearest["rule"] and row not in held]
    costs = sorted(number(row["cost"]) for row in alike)
    beside = f" (random dims {costs[0]:z.2f} to {costs[-1]:z.2f})" if costs else ""
    return f"Held inside the window they cost up to {dearest['cost']:z.2f} {_interval(dearest)} nats/token{beside}."


def _agreement(rows: Sequence[Row]) -> str:
    known = [row for row in rows if number(row["spearman"]) == number(row["spearman"])]
    clear = [row for row in known if row["places"] > _FEW and number(row["low"]) * number(row["high"]) > 0]
    told = [
        f"{row['what']} with {row['with']} at {row.get('hook') or 'all hooks'} {number(row['spearman']):z.2f} "
        f"{_interval(row)} ({row['places']} places)"
        for row in clear
    ]
    rest = len(known) - len(clear)
    word = "" if not clear else " other" if rest == 1 else " others"
    others = [f"{rest}{word} cannot be told from 0, or have {_FEW} places or fewer"] if rest else []
    return f"Rank correlations: {'; '.join([*told, *others])}." if known else ""


def _ranked(rows: Sequence[Row]) -> list[Row]:
    """The rows with the largest share first, whatever their intervals, as maps show them."""
    return sorted(rows, key=lambda row: row["share"], reverse=True)


def _is_known(row: Row) -> bool:
    """Whether the row has a share."""
    return not math.isnan(number(row["share"]))


def _share(row: Row) -> str:
    return percent(row["share"], row["low"], row["high"])


def _layer(row: Row) -> str:
    return f"layer {row['layer']} {_share(row)}"


def _numbers(rows: Sequence[Row]) -> str:
    layers = sorted(row["layer"] for row in rows)
    return f"layer{'s' * (len(layers) > 1)} {', '.join(map(str, layers))}"


def _place(row: Row) -> str:
    return f"layer {row['layer']}" if row["head"] is None else _name(row["layer"], row["head"])


def _name(layer: int, head: int) -> str:
    return f"{layer}.{head}"


def _items(count: int) -> str:
    """How many items there are, and what intervals over one are worth."""
    if count == 1:
        return "1 item, whose intervals are of its blocks and say nothing of others"
    return f"{count} items"


def _heads(size: int) -> str:
    return "1 head" if size == 1 else f"{size} heads"


def _interval(row: Row) -> str:
    low, high = number(row["low"]), number(row["high"])
    return f"[{low:z.2f}, {high:z.2f}]" if low == low and high == high else "(no interval)"
