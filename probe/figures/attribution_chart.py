"""Where inside: attribution of every place against what was measured there, from `mesa-lens locate`'s summary."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from probe.figures.marks import Chart, Line, Panel, Rule
from probe.figures.mechanism import about, share_range
from probe.figures.styles import GREY, style
from probe.store.results import Located, Row, having, number, percent

_ZERO = Rule(0, "", GREY, dash="dot")
_LEAST = 3  # places in a panel
_ATTENTION = ("z", "attn_out")


def attribution_chart(summary: Located, method: str, length: int, measure: str, hook: str) -> Chart | None:
    """Attribution of a hook's places against what was measured there, with their rank correlation; None if not run.

    Measured by patching, and, where attention is read, by the method in that place alone.
    """
    labels = {"method": method, "length": length, "measure": measure}
    given = having(summary["attribution"], **labels, hook=hook)
    measured = {"patched": having(summary["effects"], **labels, kind="patch", way="mend", hook=hook, span="all")}
    if hook in _ATTENTION:
        measured[f"{method} there alone"] = having(summary["effects"], **labels, kind="weave", way="only")
    paired = {says: _paired(given, exact) for says, exact in measured.items()}
    panels = [_scatter(each, says, style(method)[0]) for says, each in paired.items() if len(each) >= _LEAST]
    title = f"Attribution at {hook} of {method}'s run against exact. {about(summary, length, measure)}"
    return Chart(title, tuple(panels)) if panels else None


def rank_correlation(first: Sequence[float], second: Sequence[float]) -> float:
    """Spearman's, ties averaged; NaN where one side is constant."""
    ranks = [pd.Series(values).rank() for values in (first, second)]
    return float(np.corrcoef(ranks)[0, 1]) if all(rank.nunique() > 1 for rank in ranks) else float("nan")


def _paired(given: Sequence[Row], exact: Sequence[Row]) -> list[tuple[float, Row]]:
    """Attribution and measured row of every place that has both."""
    by_place = {(row["layer"], row["head"]): row for row in exact if np.isfinite(number(row["share"]))}
    places = [(_attributed(row), by_place.get((row["layer"], row["head"]))) for row in given]
    return [(value, row) for value, row in places if row is not None and np.isfinite(value)]


def _attributed(row: Row) -> float:
    """What attribution gives a place: its share of the gap, or a value in other units."""
    return number(row.get("share", row.get("value")))


def _scatter(pairs: Sequence[tuple[float, Row]], title: str, colour: str) -> Panel:
    x, exact = np.array([value for value, _ in pairs]), [row for _, row in pairs]
    share, *ends = (np.array([number(row[name]) for row in exact]) for name in ("share", "low", "high"))
    texts = tuple(
        f"{_place(row)}: attribution {value:.3g}, exact {percent(row['share'], row['low'], row['high'])}"
        for value, row in pairs
    )
    line = Line(
        "one place, exact with 95% interval", x, share, colour, "none", "circle", (ends[0], ends[1]), texts=texts
    )
    rank = f"rank correlation {rank_correlation(x.tolist(), share.tolist()):z.2f}, {len(pairs)} places"
    rules = (_ZERO, Rule(0, "", GREY, dash="dot", vertical=True))
    return Panel(f"{title}: {rank}", "attribution", "share restored", (line,), (), rules, share_range([line], rules))


def _place(row: Row) -> str:
    return f"layer {row['layer']}" if row["head"] is None else f"head {row['layer']}.{row['head']}"
