"""Predict: a method's distances and the loss that they predict, from a stored curve; no model is run."""

import dataclasses
import json
from typing import Any, cast

import streamlit as st

from mesa.errors import Refused
from mesa.methods import Method, make, standard_methods
from mesa_lens.dashboard import address, elements as ui
from mesa_lens.dashboard.runs import Context
from probe.commands.predict.formula import ORIGIN, failure_length, far_keys_by_length, length_grid, stored_law
from probe.commands.predict.page import law_sentences, left_out, method_chart, prediction_export
from probe.commands.predict.result import NOT_COVERED, PREDICTION, FittedLaw, Prediction
from probe.figures.figure_data import Chart

_QUERIES = 8
_HIDDEN = ("trained_length", "layers", "heads")


def page(context: Context) -> None:
    """What was predicted of the run's methods; then any method, with its parameters to move."""
    prediction = ui.written(context, PREDICTION.find, "predict")
    if prediction is None:
        return
    if (law := prediction.law) is None:
        st.info(ui.plain(f"Nothing is predicted: {prediction.refusal}."))
        return
    known = {name: method for name, method in standard_methods().items() if name != ORIGIN}
    names = [name for name, method in known.items() if not method.needs_rotary]
    name = address.select(st, "Method", names, "predicted", "leaky-rerope")
    others = ", ".join(name for name in known if name not in names)
    st.caption(
        ui.plain(
            f"Left out: {others} (they change rotary frequencies and leave distances as they are, so the law says "
            f"nothing of them), and {ORIGIN}, whose measured loss the law starts from."
        )
    )
    if method := _parameters(name, prediction.trained_length):
        _predicted(prediction, law, method, context.run.name)
    ui.heading("What it is predicted from")
    st.markdown(ui.bullets(law_sentences(prediction)))
    _of_run(context, prediction)


def _predicted(prediction: Prediction, fitted: FittedLaw, method: Method, run: str) -> None:
    """The failure length in a sentence, the distances and the loss; or why nothing is predicted."""
    lengths, trained, longest = prediction.lengths, prediction.trained_length, prediction.longest
    law, grid = stored_law(fitted, trained), length_grid(lengths, trained)
    far = far_keys_by_length(method, grid, _QUERIES)
    if fitted.scale_power is None and (far.scales != 1).any():
        st.info("Not predicted: what log n takes away was not measured; predict any method with log n in this run.")
        return
    if law.is_beyond(far):
        st.info(ui.plain(f"Not predicted: keys are further away than any of {ORIGIN}'s within {longest} tokens."))
        return
    if not far.sums.any():
        st.info(
            ui.plain(
                f"{method.name} is not predicted: {NOT_COVERED} up to {longest} tokens; measure it (mesa-lens probe)."
            )
        )
        return
    config = json.loads(json.dumps(method.describe()))
    rows = (row for row in prediction.methods.values() if row.failure and row.config == config)
    cost = next((row.cost_inside for row in rows), None)
    failure = failure_length(grid, law.at(far) + (cost or 0.0))
    answer = f"passes up to {longest} tokens, the longest measured" if failure is None else f"fails at {failure} tokens"
    inside = "a cost inside M is not included"
    if cost is not None:
        inside = f"its measured cost inside M, {cost:+z.2f} nats/token, is included"
    st.markdown(ui.plain(f"Predicted: {method.name} {answer} (M = {trained}; {inside})."))
    sizes = (f"{name}{value}" for name, value in config.items() if name not in ("name", *_HIDDEN))
    stem = ui.file_stem(run, "predict", method.name, *sizes)
    ui.show(method_chart(law, method, lengths, cost or 0.0), "method", file=stem)


def _of_run(context: Context, prediction: Prediction) -> None:
    """The methods that the command was passed: their curves, and those that nothing is predicted of."""
    ui.heading("Methods of this run")
    export = prediction_export(prediction)
    ui.show(cast(Chart, export.figures["prediction"]), "predictions")
    if left := left_out(prediction):
        st.markdown(ui.bullets(left))
    ui.buttons(lambda: export, ui.file_stem(context.run.name, "prediction"), ui.FORMS, ("csv",))


def _parameters(name: str, trained: int) -> Method | None:
    """The method with the parameters from widgets; None, with a warning, where it refuses them."""
    default = make(name, trained)
    values: dict[str, Any] = {}
    fields = [field for field in dataclasses.fields(default) if field.name not in _HIDDEN]
    for field, column in zip(fields, st.columns(len(fields)) if fields else (), strict=True):
        value, key = getattr(default, field.name), f"predict.{name}.{field.name}"
        if isinstance(value, bool):
            values[field.name] = address.checkbox(column, field.name, value, key)
        elif isinstance(value, int):
            most = 4 * trained
            values[field.name] = address.slider(column, field.name, 1, most, min(value, most), key)
        elif isinstance(value, float):
            values[field.name] = address.slider(column, field.name, 1.0, 32.0, value, key, step=0.1)
    try:
        return make(name, trained, **values)
    except Refused as error:
        st.warning(ui.plain(error))
        return None
