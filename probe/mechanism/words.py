"""What `mesa-lens locate` found, in plain words computed from its summary; no torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from probe.store.located import Located, Row, having, is_clear, number, percent

_MEASURES = {"nll": "tail NLL", "passkey": "the passkey's answer"}
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
    lost = number(gap["broken"]) - number(gap["mended"])
    difference = f"{lost:z.2f} {_interval(gap)} nats/token"
    if number(gap["high"]) < 0:
        return [f"At {gap['length']} tokens {gap['method']} is worse than {broken} ({difference}): it mends nothing."]
    if not gap["judged"]:
        return [
            f"At {gap['length']} tokens {broken} and {gap['method']} do not differ beyond doubt ({difference}): "
            "there is no loss to locate."
        ]
    labels = {name: gap[name] for name in ("method", "length", "measure")}
    effects = having(summary["effects"], **labels)
    parts = [
        f"At {gap['length']} tokens {broken} loses {difference} against {gap['method']} ({_items(gap['items'])}).",
        _layers(effects, gap["method"]),
        _needed(effects, gap["method"]),
        _head(effects),
        _together(effects),
        _smallest(having(summary["smallest"], **labels)),
        _patches(effects, gap["method"], broken),
        _clamps(effects),
        _inside(having(summary.get("inside", ()), length=gap["length"], measure=gap["measure"])),
        _shifts(effects),
        _agreement(having(summary.get("agreement", ()), **labels)),
    ]
    left = f"{summary['cells_left']} cells are still to be run." if summary.get("cells_left") else ""
    return [part for part in (*parts, left) if part]


def _layers(effects: Sequence[Row], method: str) -> str:
    rows = _best(having(effects, kind="weave", way="only", head=None), lambda row: row["layer"] is not None)
    if not rows:
        return ""
    clear = [row for row in rows if is_clear(row) and row["share"] > 0]
    if not clear:
        return f"{method} in one layer alone restores nothing beyond doubt; most in {_layer(rows[0])}."
    told = [f"in layer {row['layer']} alone {_share(row)}" for row in clear[:_NAMED]]
    told[0] = f"{method} in layer {clear[0]['layer']} alone restores {_share(clear[0])}"
    less = sorted(row["layer"] for row in clear[_NAMED:])
    others = [f"less: layer {', '.join(map(str, less))}"] if less else []
    worse = [row["layer"] for row in rows if is_clear(row) and row["share"] < 0]
    others += [f"worse than nothing: layer {', '.join(map(str, sorted(worse)))}"] if worse else []
    rest = len(rows) - len(clear) - len(worse)
    others += [f"{rest} cannot be told from 0"] if rest else []
    return f"{'; '.join([', '.join(told), *others])}."


def _needed(effects: Sequence[Row], method: str) -> str:
    rows = _best(having(effects, kind="weave", way="without", head=None), lambda row: row["layer"] is not None)
    if not rows:
        return ""
    if not (is_clear(rows[0]) and rows[0]["share"] > 0):
        return f"No layer is needed beyond doubt: without {method} in it, most is lost again in {_layer(rows[0])}."
    told = [f"layer {row['layer']} {_share(row)}" for row in rows[:_NAMED] if is_clear(row) and row["share"] > 0]
    return f"Needed: with {method} everywhere but in that layer there is lost again, {', '.join(told)}."


def _head(effects: Sequence[Row]) -> str:
    rows = _best(having(effects, kind="weave", way="only"), lambda row: row["head"] is not None)
    if not rows:
        return ""
    doubt = "" if is_clear(rows[0]) else ", which cannot be told from 0"
    return f"The best of {len(rows)} single heads, {_place(rows[0])}, restores {_share(rows[0])}{doubt}."


def _together(effects: Sequence[Row]) -> str:
    """Places that restore clearly more than is lost without them, and the reverse: what they do is not theirs alone."""
    alone, without = (_best(having(effects, kind="weave", way=way), lambda row: True) for way in ("only", "without"))
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
            ("Restores more alone than is lost without it, so others can do the same", spare),
            ("More is lost without it than it restores alone, so it works with others", short),
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
        return "No smallest set was searched for: one half of the items shows no loss."
    size = row["enough"] or len(row["heads"])
    names = ", ".join(_name(*head) for head in row["heads"][:size])
    share, random = ([row[f"{first}{name}"][size - 1] for name in ends] for first, ends in _SETS)
    beside = f"random sets of {size}: {percent(*random)}"
    if not row.get("finished", True):
        return (
            f"The search for the smallest set is not done: {_heads(size)} restore{'s' * (size == 1)} {percent(*share)}."
        )
    if row["enough"]:
        return f"{_heads(size)} ({names}) restore{'s' * (size == 1)} {percent(*share)} of it ({beside})."
    return (
        f"No set that was tried restores 90%: {_heads(size)} restore{'s' * (size == 1)} {percent(*share)} ({beside})."
    )


_SETS = (("", ("share", "low", "high")), ("random", ("", "_low", "_high")))


def _patches(effects: Sequence[Row], method: str, broken: str) -> str:
    rows = _best(
        having(effects, kind="patch", way="mend", span="all", head=None), lambda row: row["hook"] in _WRITTEN_INTO
    )
    if not rows:
        return ""
    doubt = "" if is_clear(rows[0]) else ", which cannot be told from 0"
    return (
        f"Of the outputs of {method}'s single layers written into {broken}'s run, {rows[0]['hook']} of layer "
        f"{rows[0]['layer']} restores most: {_share(rows[0])}{doubt}."
    )


def _clamps(effects: Sequence[Row]) -> str:
    """Every way of holding the dims in one sentence: the shares between which they lie."""
    everywhere = _known(having(effects, kind="clamp", layer=None))
    held = sorted(having(everywhere, which="observable"), key=lambda row: number(row["share"]))
    if not held:
        return ""
    shares = _share(held[0]) if len(held) == 1 else f"{_share(held[0])} to {_share(held[-1])}, by {len(held)} rules"
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


def _shifts(effects: Sequence[Row]) -> str:
    """The layer in which giving positions beyond M an inner one's positional vector restores most."""
    rows = _best(having(effects, way="shift", which="positional"), lambda row: True)
    if not rows:
        return ""
    random = sorted(
        round(100 * number(row["share"])) for row in _known(having(effects, way="shift")) if row not in rows
    )
    beside = f" (with its dims shuffled {random[0]}% to {random[-1]}%)" if random else ""
    return (
        f"Giving positions beyond M the positional vectors of positions inside restores at most {_share(rows[0])}, in "
        f"layer {rows[0]['layer']}{beside}."
    )


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


def _best(rows: Sequence[Row], among: Callable[[Row], bool]) -> list[Row]:
    """The rows with a share, the largest first; shares whose interval leaves 0 out before all others."""
    known = [row for row in _known(rows) if among(row)]
    return sorted(known, key=lambda row: (is_clear(row) and row["share"] > 0, row["share"]), reverse=True)


def _known(rows: Sequence[Row]) -> list[Row]:
    """The rows with a share."""
    return [row for row in rows if number(row["share"]) == number(row["share"])]


def _share(row: Row) -> str:
    return percent(row["share"], row["low"], row["high"])


def _layer(row: Row) -> str:
    return f"layer {row['layer']}: {_share(row)}"


def _place(row: Row) -> str:
    return f"layer {row['layer']}" if row["head"] is None else _name(row["layer"], row["head"])


def _name(layer: int, head: int) -> str:
    return f"{layer}.{head}"


def _items(count: int) -> str:
    """How many items there are, and what intervals over one are worth."""
    if count == 1:
        return "1 item: intervals are of its blocks and say nothing of other items"
    return f"{count} items"


def _heads(size: int) -> str:
    return "1 head" if size == 1 else f"{size} heads"


def _interval(row: Row) -> str:
    low, high = number(row["low"]), number(row["high"])
    return f"[{low:z.2f}, {high:z.2f}]" if low == low and high == high else "(no interval)"
