"""Thresholds: values of chosen dims over position, the ranking of dims, and the rule, adjustable."""

from __future__ import annotations

from typing import Any

import numpy as np
import streamlit as st
import xarray as xr

from mesa_lens.dashboard.context import Context
from mesa_lens.dashboard.downloads import FORMS, buttons, named
from mesa_lens.dashboard.look import plain, sheet, show
from mesa_lens.dashboard.searches import control, search_request, searched
from mesa_lens.dashboard.state import choose_states, follow, opened, states, while_unchanged
from probe.figures.export import threshold_export
from probe.figures.thresholds import threshold_chart
from probe.glossary import DIM, OBSERVABLE
from probe.store.reader import Run
from probe.store.select import reference_method
from probe.thresholds.control import as_many, false_predictions
from probe.thresholds.predict import LEAST, best, crossing_texts, predict
from probe.thresholds.search import CrossingRule

_RANKING, _PREDICTED, _CONTROL = "ranking of dims", "predictions", "negative control"
_MOST = 6  # figures drawn at once
_LISTED, _ALL = 100, 1000  # dims in the table, and at most
_CROSSES = "excluded: beyond the line already inside the window, so that its crossing is not counted"
_LABELS = {
    "M": "M, the trained window (tokens)",
    "smoothing": "Smoothing (tokens)",
    "sustained": "A crossing lasts (tokens)",
    "warm_up": "Left out at the start (tokens)",
    "margin": "Margin (spreads)",
    "minimum_score": "Least score (spreads)",
    "share": "Share that agrees",
    "floor": "Least spread (share)",
}


def page(context: Context) -> None:
    """Widgets, one figure a chosen (layer, dim), predictions, ranking and control."""
    entry = context.run
    run = opened(entry)
    hook, prompt = choose_states(run)
    reference = reference_method(run.hidden["method"].values.tolist())
    trained, rule = _rule(run, entry.name)
    of = search_request(entry, hook, prompt, trained, rule, reference)
    crossings = searched(of)
    hidden = states(run, hook, prompt)
    qualified = int(crossings["qualified"])
    st.markdown(
        f"**{qualified}** of {crossings.attrs['searched']} (layer, dim) pairs show an observable threshold at "
        f"position {trained} under {plain(reference)}; the smoothed value at that position is the threshold."
    )
    st.caption(plain(f"{DIM} {OBSERVABLE}"))
    pairs = _pairs(crossings)
    for layer, dim in pairs:
        text = _crossings(crossings, layer, dim)
        figure = threshold_chart(hidden, crossings, layer, dim)
        show(figure, f"Layer {layer}, dim {dim} over position. {text}", f"layer{layer}-dim{dim}")
    if pairs:
        several = ("csv",) if len(pairs) == 1 else (*FORMS, "html")  # csv: thresholds, and values
        stem = named(entry.name, prompt, "thresholds", *(f"{layer}-{dim}" for layer, dim in pairs))
        make = while_unchanged(entry, lambda: threshold_export(hidden, crossings, pairs))
        buttons(make, stem, (*FORMS, "html"), several)
    below = st.segmented_control(
        "Below", [_RANKING, _PREDICTED, _CONTROL], default=_RANKING, required=True, key="below", bind="query-params"
    )
    if below == _CONTROL:  # many more searches, so only when asked for
        _negative_control(control(of), prompt)
    elif below == _PREDICTED:
        _predictions(crossings)
    else:
        _ranking(crossings)


def _rule(run: Run, name: str) -> tuple[int, CrossingRule]:
    """M and the rule, from widgets, the run's own by default; lengths in tokens."""
    scaled = CrossingRule.scaled(run.trained_length)
    last = int(run.hidden["position"].values[-1])
    whole = (  # name, least, most, default, meaning
        ("M", 2, last, run.trained_length, "The trained window, in tokens"),
        ("smoothing", 1, 512, scaled.smoothing, "A value is the mean over so many positions"),
        ("sustained", 1, 4096, scaled.sustained, "A crossing lasts for so many positions"),
        ("warm_up", 0, last, scaled.warm_up, "Positions before it are left out"),
    )
    real = (
        ("margin", 50.0, scaled.margin, 0.5, "In-window spreads beyond the threshold; 0 is the paper's rule"),
        ("minimum_score", 1000.0, scaled.minimum_score, 1.0, "Motion beyond M, in spreads, of an observable dim"),
        ("share", 1.0, scaled.share, 0.01, "Of positions inside, and after the crossing, that must agree"),
        ("floor", 1.0, scaled.floor, 0.01, "Least spread, as a share of the layer's typical size"),
    )
    defaults = {name: value for name, _, _, value, _ in whole} | {name: value for name, _, value, _, _ in real}
    follow("rule", name, defaults)
    values: dict[str, Any] = {}
    place_of_note = st.container()
    with st.expander("The rule: M, smoothing, how long a crossing must last"):
        for (name, least, most, value, meaning), place in zip(whole, st.columns(4), strict=True):
            value = int(value)
            values[name] = int(
                place.number_input(
                    _LABELS[name], least, max(most, value), value, key=name, bind="query-params", help=meaning
                )
            )
        for (name, most, value, step, meaning), place in zip(real, st.columns(4), strict=True):
            values[name] = place.number_input(
                _LABELS[name], 0.0, most, value, step, key=name, bind="query-params", help=meaning
            )
    with place_of_note:
        _say_changed(values, defaults)
    return values.pop("M"), CrossingRule(**values)


def _say_changed(values: dict[str, Any], defaults: dict[str, Any]) -> None:
    """What of the rule is not the run's own, and a button that puts it back."""
    changed = [
        f"{_LABELS[name]} is {values[name]:g} ({default:g})"
        for name, default in defaults.items()
        if values[name] != default
    ]
    if changed:
        st.warning(plain(f"The rule is changed: {'; '.join(changed)}. In brackets: the run's own."))
        st.button("Back to the run's own rule", on_click=lambda: st.session_state.update(defaults))


def _pairs(crossings: xr.Dataset) -> list[tuple[int, int]]:
    """The (layer, dim) pairs to draw: chosen, else the clearest."""
    clearest = best(crossings, 1)
    options = [f"{layer}:{dim}" for layer, dim in clearest]
    typed = st.text_input(
        "Layer and dim to draw, as layer:dim, several with commas",
        key="pairs",
        bind="query-params",
        placeholder=f"the clearest ({options[0]})" if options else "none is observable; write e.g. 1:17",
        help="A dim is one coordinate of the hidden state. Ticked rows of the ranking below are written here",
    )
    pairs = [pair for text in typed.split(",") if text.strip() and (pair := _pair(text.strip(), crossings)) is not None]
    pairs = list(dict.fromkeys(pairs)) or clearest[:1]
    if len(pairs) > _MOST:
        st.warning(plain(f"{len(pairs)} pairs are more than are drawn at once; the first {_MOST} are shown"))
    return pairs[:_MOST]


def _pair(text: str, crossings: xr.Dataset) -> tuple[int, int] | None:
    layers, dims = crossings["layer"].values, crossings["dim"].values
    layer, _, dim = text.partition(":")
    if layer.strip().isdigit() and dim.strip().isdigit() and int(layer) in layers and int(dim) in dims:
        return int(layer), int(dim)
    spans = f"layers {layers[0]} to {layers[-1]}, dims {dims[0]} to {dims[-1]}"
    st.warning(plain(f"{text!r} is no captured layer:dim; the store holds {spans}"))
    return None


def _crossings(crossings: xr.Dataset, layer: int, dim: int) -> str:
    at = crossing_texts(crossings.sel(layer=layer, dim=dim))
    values = zip(at["method"].values.tolist(), at.values, strict=True)
    return "; ".join(f"{name} {f'crosses at {text}' if text.isdigit() else text}" for name, text in values)


def _ranking(crossings: xr.Dataset) -> None:
    """Every observable pair, or all of them, sortable and searchable; a ticked row is drawn above."""
    with st.container(horizontal=True):
        every = st.toggle("Also dims that are not observable", key="every", bind="query-params")
        listed = _ALL if st.toggle(f"List up to {_ALL}", key="long", bind="query-params") else _LISTED
    names = ["rank", "score", "threshold", "limit", "spread"]
    table = crossings[[*names, "observable"]].to_dataframe().reset_index()
    order = np.lexsort((-table["score"], ~table["observable"]))
    if not every:
        order = order[: int(crossings["qualified"])]
    several = len(order)
    table = table.iloc[order := order[:listed]]
    rows = list(zip(table["layer"].tolist(), table["dim"].tolist(), strict=True))
    table["score"] = table["score"].round(1) + 0.0  # no -0.0
    methods = {name: f"{name} crosses at" for name in crossings["method"].values.tolist()}
    at = {name: xr.DataArray(table[name].to_numpy(), dims="pair") for name in ("layer", "dim")}
    crossing = crossing_texts(crossings.sel(at))
    for method, column in methods.items():  # as wide as each other, so that they sort as numbers
        table[column] = [f"{text:>8}" for text in crossing.sel({"method": method}).values]
    columns = ["layer", "dim", *names, *methods.values()]
    pairs = [f"{layer}:{dim}" for layer, dim in rows]
    key = f"ranked-{hash(tuple(pairs))}"  # ticks are row numbers: other rows, other ticks
    sheet(
        table[columns],
        "Dims by score, with threshold and crossing of each method",
        key=key,
        on_select=lambda: _draw(key, pairs),
        column_config={
            "rank": st.column_config.NumberColumn(help="1: the highest score; 0: not observable"),
            "score": st.column_config.NumberColumn(format="%.1f", help="Motion beyond M, in in-window spreads"),
            **{name: st.column_config.NumberColumn(format="%.3g") for name in ("threshold", "limit", "spread")},
            **{name: st.column_config.TextColumn(alignment="right", help=_CROSSES) for name in methods.values()},
        },
    )
    if several > listed:
        st.caption(f"The first {listed} of {several} are listed.")


def _draw(key: str, pairs: list[str]) -> None:
    """Choose the ticked rows' pairs."""
    st.session_state["pairs"] = ", ".join(pairs[row] for row in st.session_state[key].selection.rows[:_MOST])


def _predictions(crossings: xr.Dataset) -> None:
    rows = [
        {
            "method": prediction.method,
            "predicted failure": str(prediction),
            "dims judged": prediction.judged,
            "of them cross": prediction.crossed,
        }
        for prediction in predict(crossings)
    ]
    st.markdown(
        f"Predicted failure length: the median crossing over the ten clearest dims, each dim's best layer only, where "
        f"there are {LEAST} or more. The reference's own is a description: dims are chosen on it."
    )
    sheet(rows, "Predicted failure length of each method")


def _negative_control(crossings: xr.Dataset | str, prompt: str) -> None:
    st.markdown(
        "**Negative control**: the same search put at positions inside the window, where the model works. Dims found "
        "there are found by drift alone, and what they predict is false; *at M* is the search at M with as many "
        "positions as the control has."
    )
    if isinstance(crossings, str):
        st.info(plain(f"The control could not be made: {crossings}."))
        return
    rates = false_predictions(crossings)
    methods = rates["method"].values.tolist()
    shares = ", ".join(f"{name} {float(rates.sel({'method': name})):.0%}" for name in methods)
    st.markdown(
        plain(
            f"False predictions, of {crossings.attrs['least']} dims or more, at so many of the positions: {shares}. At "
            f"{float(as_many(crossings)):.0%} of them no fewer dims are observable than at M."
        )
    )
    rows = [
        {
            "position": int(row["place"]),
            "positions seen": f"{int(row['first'])} to {int(row['last'])}",
            "observable": int(row["qualified"]),
            "at M": int(row["matched"]),
            **{f"{name} falsely fails at": _whole(row["called"].sel({"method": name})) for name in methods},
        }
        for row in (crossings.isel(place=index) for index in range(crossings.sizes["place"]))
    ]
    sheet(rows, f"Observable dims inside the window and at M, prompt {prompt}")


def _whole(value: xr.DataArray) -> int | None:
    return int(value) if np.isfinite(value) else None
