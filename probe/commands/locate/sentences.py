"""The main results of a locate run as sentences computed from its summary; the tables hold the rest. No torch."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from probe.commands.locate.result import DIMS, PATCH, Effect, InsideCost, Located, Loss, SmallestSet
from probe.heads import head_name
from probe.store.result_file import having
from probe.store.results import percent

_MEASURES = {"nll": "tail NLL", "passkey": "the passkey's answer"}
_ENOUGH = 0.9  # of the excess loss
_MAX_NAMED = 3  # layers named in a sentence


def located_findings(summary: Located, **labels: Any) -> list[tuple[str, list[str]]]:
    """(heading, sentences) for every method, length and measure, or for those with these labels."""
    return [
        (f"{gap.method} at {gap.length} tokens, {_MEASURES.get(gap.measure, gap.measure)}", _sentences(summary, gap))
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
        _smallest(having(summary.smallest, **gap.labels)),
        *_clamps(effects, having(summary.inside, length=gap.length, measure=gap.measure)),
        f"Some shares are over {fewer} item{'s' * (fewer > 1)}." if fewer < gap.items else "",
        f"{summary.tasks_left} tasks are left to run." if summary.tasks_left else "",
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
    if rows[0].is_clear:
        return f"{text}."
    clear = next((row for row in rows if row.is_clear and row.share > 0), None)
    other = f"the best significant one, {clear.name}, recovers {_share(clear)}" if clear else "none is"
    return f"{text}, which is not significant; {other}."


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
    if not row.finished:
        return f"The search for the smallest set is unfinished: {text}"
    if row.enough:
        return f"Smallest set found: {text}"
    known = [share for share in row.share if not math.isnan(share)]
    if max(known, default=0.0) >= _ENOUGH:
        return (
            f"It is unclear whether a set recovers {_ENOUGH:.0%}: one did ({max(known):.0%}), the last did not: {text}"
        )
    return f"None of {len(known)} sets recovers {_ENOUGH:.0%}; the last: {text}"


def _clamps(effects: Sequence[Effect], inside: Sequence[InsideCost]) -> Iterator[str]:
    """By the dims' rule: the range of shares over all ways of clamping all layers, and the largest cost inside."""
    everywhere = having(effects, kind="clamp", layer=None)
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
