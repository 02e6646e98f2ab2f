"""Anatomy: what heads attend to under each method."""

from __future__ import annotations

from typing import Any

import streamlit as st

from mesa_lens.dashboard import elements as ui
from mesa_lens.dashboard.runs import Context
from probe.commands.anatomy.export import anatomy_labels, anatomy_tables
from probe.commands.anatomy.figures import head_map
from probe.commands.anatomy.report import head_texts
from probe.commands.anatomy.result import ANATOMY, Anatomy
from probe.commands.anatomy.sentences import anatomy_findings
from probe.figures.export import Export
from probe.store.result_file import having

_STATISTICS = {
    "keys beyond M": "beyond",
    "keys from N to M": "window",
    "keys within N": "near",
    "first 4 keys": "first",
    "mean distance": "distance",
    "entropy": "entropy",
    "token 0": "sink",
}
_TABLE = "all heads"
_KINDS = {  # of figures: what each is drawn of, and chosen by
    "retrieval": ("retrieval", ("method", "length")),
    "attention": ("heads", ("method", "length", "statistic")),
    _TABLE: ("all_heads", ("length",)),
}


def page(context: Context) -> None:
    """Findings; one kind of figure with its select boxes; downloads of what is displayed."""
    anatomy = ui.written(context, ANATOMY.find, "anatomy")
    if anatomy is None:
        return
    for paragraph in anatomy_findings(anatomy):
        st.markdown(ui.plain(paragraph))
    kinds = [kind for kind, (table, _) in _KINDS.items() if getattr(anatomy, table)]
    if not kinds:
        st.info("Nothing was measured of its heads.")
        return
    kind = ui.choose_one("Figures", kinds, "anatomy_figures")
    chosen = _choose(anatomy, kind)
    if kind == _TABLE:
        rows = [
            {"method": row.method, "queries": row.span, **head_texts(row)}
            for row in having(anatomy.all_heads, **chosen)
        ]
        ui.sheet(rows, "Means over all heads with 95% intervals, by method and queries")
        return
    name = "retrieval" if kind == "retrieval" else _STATISTICS[chosen["statistic"]]
    figure = head_map(anatomy, name, chosen["method"], chosen["length"])
    if figure is None:
        st.info("It was not measured here; choose another method, length or statistic.")
        return
    ui.show(figure, f"anatomy-{name}")
    labels = {name: [value] for name, value in chosen.items() if name in anatomy_labels(anatomy)}
    stem = ui.file_stem(context.run.name, "anatomy", kind, *chosen.values())
    ui.buttons(lambda: Export({f"anatomy-{name}": figure}, anatomy_tables(anatomy, labels)), stem, ui.FORMS, ("csv",))


def overview(context: Context) -> None:
    """The first finding; nothing where `mesa-lens anatomy` was not run."""
    if anatomy := ANATOMY.find(context.run.path):
        st.subheader("What does the inside look like?", anchor=False)
        st.markdown(ui.plain(next(iter(anatomy_findings(anatomy)), "")))


def _choose(anatomy: Anatomy, kind: str) -> dict[str, Any]:
    """The labels of a figure, of those measured. Defaults: last method, longest length, the first statistic there."""
    table, names = _KINDS[kind]
    known = {
        name: [value for value in values if having(getattr(anatomy, table), **{name: value})]
        for name, values in anatomy_labels(anatomy).items()
    }
    first = {name: values[-1] for name, values in known.items()}
    if "statistic" in names:
        known["statistic"] = list(_STATISTICS)
        there = (name for name, column in _STATISTICS.items() if head_map(anatomy, column, **first) is not None)
        first["statistic"] = next(there, known["statistic"][0])
    return ui.choose_labels({name: known[name] for name in names}, first, "anatomy")
