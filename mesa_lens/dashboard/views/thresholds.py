"""Thresholds: chosen dims over position, the ranking of dims, and the rule, adjustable."""

from typing import Any

import numpy as np
import pandas as pd
import streamlit as st
import xarray as xr

from mesa_lens.dashboard import address, elements as ui
from mesa_lens.dashboard.runs import Context, Entry, choose_states, qualified, searched, states
from probe.commands.probe.report import distance_section, threshold_export
from probe.commands.probe.verdict import crossings_at_restarts, listed, run_summary
from probe.figures.states import small_thresholds, threshold_chart
from probe.glossary import DIM, THRESHOLD_DIM
from probe.request import reference_method
from probe.run import Run
from probe.thresholds.analysis import distance_by_length, plans_of
from probe.thresholds.onset import best, crossing_texts, excluded
from probe.thresholds.search import CrossingRule

_MOST = 6  # figures drawn at once
_GALLERY, _SMALL = 10, "max(150px, 18%)"  # dims drawn small, and their width: five side by side, two on a phone
_MEANING = (
    "What a crossing shows: beyond M this value passes the limit, on whose other side it stayed inside the window. "
    "What it does not show: that the model fails there, or because of it. Positions inside M cross such limits too, as "
    "the report's negative control counts; which length fails is measured by loss. A method is excluded, and drawn "
    "faintly, where its value is beyond the limit already inside the window."
)
_ROWS, _FEW = 1000, 20  # dims in the table; where none qualifies
_EXCLUDED = "excluded: beyond the limit already inside the window, so that its crossing is not counted"
_LABELS = {
    "M": "M, the trained length (tokens)",
    "smoothing": "Smoothing (tokens)",
    "sustained": "A crossing lasts (tokens)",
    "warm_up": "Left out at the start (tokens)",
    "margin": "Margin (spreads)",
    "minimum_score": "Least score (spreads)",
    "share": "Share that agrees",
    "floor": "Least spread (share)",
}


def page(context: Context) -> None:
    """Widgets, one figure a chosen (layer, dim), and the ranking."""
    entry = context.run
    run = entry.run
    hook, prompt = choose_states(run)
    trained, rule = _rule(run, entry.name)
    above, files, below = st.container(), st.empty(), st.container()  # no file is offered while others are computed
    crossings = searched(entry, hook, prompt, trained, rule)
    hidden = states(run, hook, prompt)
    others = vars(CrossingRule.scaled(run.trained_length)) | {"M": run.trained_length}
    changed = (f"{name}{value:g}" for name, value in (vars(rule) | {"M": trained}).items() if value != others[name])
    view = [entry.name, prompt, *([hook] if hook != "resid_post" else []), "thresholds", *changed]
    with above:
        counts = qualified(entry, hook, trained, rule)
        _opening(run, hidden, crossings, {name: count for name, count in counts.items() if name != prompt})
        pairs = _drawn(hidden, crossings, view, _failures(entry))
    if pairs:
        several = ("csv",) if len(pairs) == 1 else (*ui.FORMS, "html")  # csv: crossings, and values
        stem = ui.file_stem(*view, *(f"{layer}-{dim}" for layer, dim in pairs))
        with files.container():
            ui.buttons(lambda: threshold_export(hidden, crossings, pairs), stem, (*ui.FORMS, "html"), several)
    with below:
        _ranking(crossings)
        if (distance := distance_by_length(run)) is not None:
            ui.draw([distance_section([distance])], entry.name)


def _failures(entry: Entry) -> dict[str, int]:
    """By method the length at which it was measured to fail, of the run's report; empty without one."""
    methods = summary.methods if (summary := run_summary(entry.path, entry.run)) else ()
    return {row.method: row.measured.length for row in methods if row.measured and row.measured.length is not None}


def _opening(run: Run, hidden: xr.DataArray, crossings: xr.Dataset, others: dict[str, int]) -> None:
    """How many thresholds there are, on this prompt and on the others, and where methods cross for another reason."""
    attrs, prompt = run.hidden.attrs, str(crossings["prompt"].item())
    reference = reference_method(hidden["method"].values.tolist())
    word = f", one repeated word ({attrs['word']!r})" if prompt == "repeated" and "word" in attrs else ""
    st.markdown(
        f"**{int(crossings['qualified'])}** of {int(crossings.attrs['searched'])} (layer, dim) pairs show a threshold "
        f"at position {int(crossings.attrs['trained_length'])} under {ui.plain(reference)}, on prompt "
        f"{ui.plain(prompt + word)}; the smoothed value at that position is the threshold."
    )
    if names := [name for name in run.hidden["prompt"].values.tolist() if name != prompt]:
        counts = [f"{others[name]} on {name}" for name in names if name in others]
        text = f"On the other prompts: {listed(counts)}." if counts else f"Not counted by this rule: {listed(names)}."
        st.markdown(ui.plain(text))
    for sentence in crossings_at_restarts(crossings, plans_of(run, hidden)):
        st.markdown(ui.plain(sentence))
    st.caption(ui.plain(f"{DIM} {THRESHOLD_DIM}"))


def _drawn(
    hidden: xr.DataArray, crossings: xr.Dataset, view: list[str], failures: dict[str, int]
) -> list[tuple[int, int]]:
    """A figure of each chosen (layer, dim), which are returned. view: what pictures' names start with."""
    gallery = st.container()
    pairs = _pairs(crossings)
    with gallery:
        _gallery(hidden, crossings, pairs)
    for layer, dim in pairs:
        file = ui.file_stem(*view, f"{layer}-{dim}")
        ui.show(threshold_chart(hidden, crossings, layer, dim, failures), f"layer{layer}-dim{dim}", file=file)
    st.caption(ui.plain(_MEANING))
    return pairs


def _gallery(hidden: xr.DataArray, crossings: xr.Dataset, drawn: list[tuple[int, int]]) -> None:
    """The clearest dims as small pictures, each with a button that draws it below."""
    pairs = best(crossings, _GALLERY)
    if len(pairs) < 2:
        return
    st.markdown(
        f"The {len(pairs)} clearest, over position. Dashed: M and the threshold; dotted: the limit; what lies outside "
        "the central 99% of values is drawn at the edge. Choose one to enlarge it below."
    )
    with st.container(horizontal=True, key="gallery"):
        st.html(f"<style>.st-key-gallery > div {{flex: 1 1 {_SMALL}; max-width: 270px}}</style>")
        for (layer, dim), picture in zip(pairs, small_thresholds(hidden, crossings, pairs), strict=True):
            with st.container(gap="small"):
                st.html(picture)
                kind = "primary" if (layer, dim) in drawn else "secondary"
                st.button(
                    f"Layer {layer}, dim {dim}",
                    key=f"small-{layer}-{dim}",
                    type=kind,
                    width="stretch",
                    on_click=_choose_pair,
                    args=(f"{layer}:{dim}",),
                )


def _choose_pair(pair: str) -> None:
    st.session_state["pairs"] = pair


def _rule(run: Run, name: str) -> tuple[int, CrossingRule]:
    """M and the rule, from widgets, the run's by default; lengths in tokens."""
    scaled = CrossingRule.scaled(run.trained_length)
    last = int(run.hidden["position"].values[-1])
    widgets = (  # name, minimum, maximum, default, step, meaning
        ("M", 2, last, run.trained_length, 1, "The trained length, in tokens"),
        ("smoothing", 1, 512, scaled.smoothing, 1, "A value is the mean over so many positions"),
        ("sustained", 1, 4096, scaled.sustained, 1, "A crossing lasts for so many positions"),
        ("warm_up", 0, last, scaled.warm_up, 1, "Positions before it are left out"),
        ("margin", 0.0, 50.0, scaled.margin, 0.5, "From the threshold to the limit; 0 is the paper's rule"),
        ("minimum_score", 0.0, 1000.0, scaled.minimum_score, 1.0, "Motion beyond M, in spreads, of a threshold dim"),
        ("share", 0.01, 1.0, scaled.share, 0.01, "Of positions inside, and after the crossing, that must agree"),
        ("floor", 0.0, 1.0, scaled.floor, 0.01, "Least spread, as a share of the layer's typical size"),
    )
    defaults = {key: default for key, _, _, default, _, _ in widgets}
    values: dict[str, Any] = {}
    changes = st.container()
    with st.expander("The rule: M, smoothing, how long a crossing must last"):
        columns = [*st.columns(4), *st.columns(4)]
    for (key, least, most, default, step, help), column in zip(widgets, columns, strict=True):
        values[key] = address.number(
            column, _LABELS[key], least, max(most, default), default, key, name, step=step, help=help
        )
    changed = [
        f"{_LABELS[key]} is {values[key]:g} ({default:g})"
        for key, default in defaults.items()
        if values[key] != default
    ]
    if changed:
        changes.warning(ui.plain(f"The rule is changed: {'; '.join(changed)}. In brackets: the run's rule."))
    return values.pop("M"), CrossingRule(**values)


def _pairs(crossings: xr.Dataset) -> list[tuple[int, int]]:
    """The (layer, dim) pairs to draw: those typed, else the clearest, else the dim of the highest score."""
    qualified = best(crossings, 1)
    clearest = qualified or _highest(crossings)
    text = "".join(f"{layer}:{dim}" for layer, dim in clearest)
    if clearest and not qualified:
        score = float(crossings["score"].sel(layer=clearest[0][0], dim=clearest[0][1]))
        meaning = f"No dim shows a threshold under this rule. {text} has the highest score, {score:z.1f}"
        st.info(ui.plain(f"{meaning} (at least {crossings.attrs['minimum_score']:g} is asked for), and is drawn."))
    default = f"the {'clearest' if qualified else 'highest score'} ({text})" if clearest else "no dim has a score"
    typed = address.text(
        "Layer and dim to draw, as layer:dim, several with commas",
        "pairs",
        placeholder=default,
        help="A dim is one coordinate of the hidden state. Ticked rows of the ranking below are written here",
    )
    texts = [text.strip() for text in typed.split(",") if text.strip()]
    pairs = list(dict.fromkeys(pair for text in texts if (pair := _pair(text, crossings)))) or clearest
    if len(pairs) > _MOST:
        st.warning(ui.plain(f"{len(pairs)} pairs are more than are drawn at once; the first {_MOST} are displayed"))
    return pairs[:_MOST]


def _highest(crossings: xr.Dataset) -> list[tuple[int, int]]:
    """The (layer, dim) of the highest score, whether it qualifies or not; none where no dim has a score."""
    score = crossings["score"].transpose("layer", "dim")
    if not score.notnull().any():
        return []
    layer, dim = np.unravel_index(np.nanargmax(score.values), score.shape)
    return [(int(score["layer"][layer]), int(score["dim"][dim]))]


def _pair(text: str, crossings: xr.Dataset) -> tuple[int, int] | None:
    layers, dims = crossings["layer"].values, crossings["dim"].values
    layer, _, dim = text.partition(":")
    if layer.strip().isdecimal() and dim.strip().isdecimal() and int(layer) in layers and int(dim) in dims:
        return int(layer), int(dim)
    spans = f"layers {layers[0]} to {layers[-1]}, dims {dims[0]} to {dims[-1]}"
    st.warning(ui.plain(f"{text!r} is not a captured layer:dim; the store holds {spans}"))
    return None


def _ranking(crossings: xr.Dataset) -> None:
    """The threshold dims, sortable and searchable; a ticked row is drawn above."""
    names = ["rank", "score", "threshold", "limit", "spread"]
    table = crossings[[*names, "threshold_dim"]].to_dataframe().reset_index()
    if int(crossings["qualified"]):
        table = table.query("threshold_dim").sort_values("rank").head(_ROWS)
    else:
        st.caption("No dim qualifies; these have the highest scores.")
        table = table.sort_values("score", ascending=False).head(_FEW)
    table = _of_difference(table, crossings)
    table["score"] = table["score"].round(1) + 0.0  # no -0.0
    at = {name: xr.DataArray(table[name].to_numpy(), dims="pair") for name in ("layer", "dim")}
    texts = crossing_texts(crossings.sel(at))
    methods = {name: f"{name} crosses at" for name in crossings["method"].values.tolist()}
    for method, column in methods.items():  # of one width, so that they sort as numbers
        table[column] = [f"{text:>8}" for text in texts.sel({"method": method}).values]
    pairs = [f"{layer}:{dim}" for layer, dim in zip(table["layer"], table["dim"], strict=True)]
    key = f"ranked-{hash(tuple(pairs))}"  # ticks are row numbers: other rows, other ticks
    ui.sheet(
        table[["layer", "dim", *names, *methods.values()]],
        "Dims by score, with threshold, limit and crossing of each method",
        key=key,
        on_select=lambda: _draw(key, pairs),
        column_config={
            "rank": st.column_config.NumberColumn(help="1: the highest score"),
            "score": st.column_config.NumberColumn(format="%.1f", help="Motion beyond M, in in-window spreads"),
            **{name: st.column_config.NumberColumn(format="%.3g") for name in ("threshold", "limit", "spread")},
            **{name: st.column_config.TextColumn(alignment="right", help=_EXCLUDED) for name in methods.values()},
        },
    )


def _of_difference(table: pd.DataFrame, crossings: xr.Dataset) -> pd.DataFrame:
    """The rows of the dims that the reference crosses and a chosen method does not, where it is not excluded."""
    names = crossings["method"].values.tolist()
    reference = reference_method(names)
    choices = {f"{reference} crosses, {name} does not": name for name in names if name != reference}
    chosen = address.select(st, "Dims", ["all", *choices], "crossed")
    if chosen == "all":
        return table
    at = {name: xr.DataArray(table[name].to_numpy(), dims="pair") for name in ("layer", "dim")}
    crosses = crossings["crossing"].notnull().sel(at)
    first, other = ({"method": name} for name in (reference, choices[chosen]))
    counted = ~excluded(crossings).sel(at)
    kept = crosses.sel(first) & ~crosses.sel(other) & counted.sel(first) & counted.sel(other)
    st.caption(f"{int(kept.sum())} of {len(table)} dims.")
    return table.loc[kept.to_numpy()]


def _draw(key: str, pairs: list[str]) -> None:
    """Chooses the pairs of the ticked rows."""
    st.session_state["pairs"] = ", ".join(pairs[row] for row in st.session_state[key].selection.rows[:_MOST])
