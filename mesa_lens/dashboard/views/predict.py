"""Predict: a method's distances and the loss that they predict, from a stored curve; no model is run."""

from __future__ import annotations

import dataclasses
from typing import Any

import streamlit as st

from mesa.errors import Refused
from mesa.methods import Method, make, standard_methods
from mesa_lens.dashboard import elements as ui
from mesa_lens.dashboard.runs import Context
from probe.figures.export import Export
from probe.figures.prediction import method_chart, prediction_chart
from probe.law.formula import failure_length, far_keys_by_length, length_grid, stored_law
from probe.store.results import find_prediction

_QUERIES = 8
_HIDDEN = ("trained_length", "layers", "heads")


def page(context: Context) -> None:
    """What was predicted of the run's methods; then any method, with its parameters to move."""
    summary = ui.written(context, find_prediction, "predict")
    if summary is None:
        return
    if summary["refusal"]:
        st.info(ui.plain(f"Nothing is predicted: {summary['refusal']}."))
        return
    law, lengths, trained = stored_law(summary), summary["lengths"], summary["trained_length"]
    names = [name for name, method in standard_methods().items() if name != "origin" and not method.needs_rotary]
    name = str(st.selectbox("Method", names, names.index("leaky-rerope"), key="predicted", bind="query-params"))
    method = _parameters(name, trained)
    if method is None:
        return
    known = [row for row in summary["methods"].values() if row["config"] == _config(method) and "cost_inside" in row]
    cost = known[0]["cost_inside"] if known else 0.0
    grid = length_grid(lengths, trained)
    far = far_keys_by_length(method, grid, _QUERIES)
    if summary["law"]["scale_power"] is None and (far.scales != 1).any():
        st.info("Not predicted: what log n takes away was not measured; predict any method with log n in this run.")
        return
    if law.is_beyond(far):
        st.info(f"Not predicted: its keys are further away than Origin's at {max(lengths)} tokens.")
        return
    failure = failure_length(grid, law.at(far) + cost)
    longest = max(lengths)
    answer = f"holds up to {longest} tokens, the longest measured" if failure is None else f"fails at {failure} tokens"
    inside = f"its measured cost inside M is {cost:+z.2f} nats/token" if known else "a cost inside M is not included"
    st.markdown(ui.plain(f"Predicted: {name} {answer} (M = {trained}; {inside})."))
    chart = method_chart(law, method, lengths, cost)
    ui.show(chart, "method")
    st.subheader("Methods of this run", anchor=False)
    figure = prediction_chart(summary)
    ui.show(figure, "predictions")
    ui.buttons(
        lambda: Export({"prediction": figure}, {}), ui.file_stem(context.run.name, "prediction"), ui.FORMS[:-1], ()
    )


def _parameters(name: str, trained: int) -> Method | None:
    """The method with the parameters from widgets; None, with a warning, where it refuses them."""
    default = make(name, trained)
    values: dict[str, Any] = {}
    fields = [field for field in dataclasses.fields(default) if field.name not in _HIDDEN]
    for field, column in zip(fields, st.columns(len(fields)) if fields else (), strict=True):
        value, key = getattr(default, field.name), f"predict.{name}.{field.name}"
        if isinstance(value, bool):
            values[field.name] = column.checkbox(field.name, value, key=key, bind="query-params")
        elif isinstance(value, int):
            most = 4 * trained
            values[field.name] = int(column.slider(field.name, 1, most, min(value, most), key=key, bind="query-params"))
        elif isinstance(value, float):
            values[field.name] = float(column.slider(field.name, 1.0, 32.0, value, 0.1, key=key, bind="query-params"))
    try:
        return make(name, trained, **values)
    except Refused as error:
        st.warning(ui.plain(error))
        return None


def _config(method: Method) -> dict[str, Any]:
    return {key: list(value) if isinstance(value, tuple) else value for key, value in method.describe().items()}
