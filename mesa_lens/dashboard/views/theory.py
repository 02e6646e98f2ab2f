"""Theory: how far the paper's constructions reach, by their closed forms, and what the verification found."""

import math
from functools import partial
from pathlib import Path
from shlex import quote
from typing import Any

import numpy as np
import pandas as pd
import streamlit as st
import xarray as xr

from mesa.errors import Refused
from mesa_lens.dashboard import address, elements as ui
from mesa_lens.dashboard.runs import Context, check_inside
from probe.figures.export import csv_bytes
from probe.figures.section import Table
from probe.files import read_result
from probe.glossary import REMAP
from theory import bounds
from theory.claim import THEOREMS, ClaimVerdict, summary
from theory.figures import IDEAL, PE, STAIR, attention_figure, curve_data, curve_end, output_figure, position_figure

REPORT = "theory.json"
_LONGEST = 4000
_HEAD = ("claim", "whose", "verdict", "statement", "tried with", "margin (error)")
_LONGEST_STEPS = 10**6
_EXACT = 10**12  # tokens; below, float64 tells the first failure


def page(context: Context) -> None:
    """Sliders, three figures, and the table of verified claims."""
    st.markdown(
        "The head output o_t of the paper's constructed transformers is M / D(t) - 1 + H: it falls below the threshold "
        "H where D(t) passes M. Plain positions give D(t) = t; remapping slows it down. These are the closed forms; "
        "`mesa-lens verify` checks them on real weights."
    )
    st.caption(ui.plain(REMAP))
    M, H, N, E = _parameters()
    try:
        bounds.check_window(M, N, E)
    except Refused as error:
        address.keep()
        st.warning(ui.plain(error))
        return
    data = closed_forms(M, H, N, E)
    weave, stair = data.attrs["T_weave"], data.attrs["T_stair"]
    reached = {"Plain positions fail at": M + 1, "The remap reaches T*": weave, "Stair PE reaches T*": stair}
    for column, (label, value) in zip(st.columns(3), reached.items(), strict=True):
        column.metric(label, f"{value:,.5g}", help="tokens", border=True)
    st.caption(ui.plain(first_failures(M, N, E)))
    raised = (data["excess"] + H).assign_attrs(long_name="head output o_t").rename("output")
    tabs = {  # figure, its numbers, what it shows
        "Head output o_t": (output_figure, raised, f"Head output o_t over position t: fails below H = {H:g}."),
        "Recovered position": (position_figure, data["position"], "The position that layer 1 recovers at t."),
        "Attention on <bos>": (attention_figure, data["attention"], "Attention on bos over t: above 1/M succeeds."),
    }
    reach = f"M = {M}, T* of the remap {weave:.5g}, of Stair PE {stair:.5g}. {curve_end(data)}"
    places = address.tabs(list(tabs), "theory_tab")
    for place, (figure, values, shown) in zip(places, tabs.values(), strict=True):
        with place:
            stem = _stem(values.assign_attrs(data.attrs))
            ui.show(figure(data), str(values.name), f"{shown} {reach}", file=stem)
            if values is raised:
                st.caption(ui.plain("How far o_t is above H, M / D(t) - 1, is the same for every H."))
            numbers = values.assign_attrs(data.attrs, **values.attrs).to_dataset(name=str(values.name))
            ui.download("CSV", partial(csv_bytes, numbers), f"{stem}.csv", key=stem)
    _claims(Path(context.root))


def first_failures(M: int, N: int, E: int) -> str:
    """In words: the first position that fails, as far as float64 tells it."""
    sentences = []
    for name, width in (("the remap", None), ("Stair PE", E)):
        reach = bounds.extended_length(M, N, width)
        if reach < _EXACT:
            failure = f"at t = {bounds.first_failure(M, N, width):,}"
        else:
            failure = f"beyond 10^12, at about 10^{math.log10(reach):z.3f}"
        sentences.append(f"{name} first fails {failure}")
    steps = bounds.step_failure(M, N, M - 1, longest=_LONGEST_STEPS)
    fails = f"not up to {_LONGEST_STEPS:,}" if steps is None else f"at t = {steps:,}"
    stair = f", and Stair PE at t = {bounds.stair_failure(M, N, E):,}" if bounds.stair_is_recovered(N, E) else ""
    own = f"with theorem 3.2's own weights, which recover up to M - 1, the remap first fails {fails}{stair}"
    return f"With positions recovered ideally, {'; '.join(sentences)}; {own}."


def _stem(values: xr.DataArray) -> str:
    """The name of a figure's files: what is drawn, and the sliders."""
    return ui.file_stem("theory", values.name, *(f"{name}{values.attrs[name]:g}" for name in ("M", "N", "E", "H")))


def _parameters() -> tuple[int, float, int, int]:
    one, two, three, four = st.columns(4)
    M = address.slider(one, "M, the window (tokens)", 4, 1000, 16, "theory_M")
    N = address.slider(two, "N, the remap's window (tokens)", 1, 40, 3, "N")
    E = address.slider(three, "E, the stair's width (tokens)", 2, 50, 3, "E")
    H = address.slider(four, "H, the threshold", 0.0, 2.0, 0.5, "H", step=0.1)
    return M, H, N, E


@st.cache_data(max_entries=64)
def closed_forms(M: int, H: float, N: int, E: int) -> xr.Dataset:
    """o_t - H, the recovered position and the attention on <bos> over (construction, t), with ideal recovery."""
    length = int(np.clip(1.5 * max(bounds.extended_length(M, N), bounds.extended_length(M, N, E)), 4 * M, _LONGEST))
    t = np.arange(1, length + 1)
    D = {PE: t.astype(float), IDEAL: bounds.denominator(t, N), STAIR: bounds.denominator(t, N, E)}
    position = {PE: t.astype(float), IDEAL: bounds.ideal_position(t, N), STAIR: bounds.ideal_position(t, N, E)}
    rows = {name: (M / value - 1, position[name], 1 / value) for name, value in D.items()}
    return curve_data(rows, M, N, E, H)


def _claims(root: Path) -> None:
    """The verification's table, where it was run."""
    ui.heading("What the verification found")
    path = root / REPORT
    check_inside(path)
    try:
        claims = pd.DataFrame(read_result(path)["claims"])
        about = summary(zip(claims["name"], claims["verdict"], claims["whose"], strict=True))
    except (FileNotFoundError, ValueError) as error:
        why = error if isinstance(error, Refused) else f"{path}: {error}"
        missing = f"There is no {path} yet" if isinstance(error, FileNotFoundError) else f"{why}; remove it"
        text = f"{missing}. Run the verification (10 seconds), then reload this page:"
        ui.suggest(text, f"mesa-lens verify --html {quote(str(path.with_suffix('')))}")
        return
    st.markdown(ui.plain(about))
    for title, group in _groups(claims).items():
        with st.expander(ui.plain(title)):
            ui.table(Table("", _HEAD, tuple(_cells(claim) for claim in group.to_dict("records"))))


def _cells(claim: dict[str, Any]) -> tuple[str, ...]:
    """A claim's row: its statement with source and correction, what was tried, by how much it holds."""
    notes = [f"{name.capitalize()}: {text}." for name in ("correction", "counterexample") if (text := claim.get(name))]
    statement = " ".join([f"{claim['statement']} ({claim.get('citation', '')}).", *notes])
    margin = "none" if pd.isna(claim["margin"]) else f"{claim['margin']:.2g}"
    reading = f"{margin} ({claim.get('error_text', '')})"
    return claim["name"], claim["whose"], claim["verdict"], statement, claim.get("tested", ""), reading


def _groups(claims: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """The claims by theorem; the title counts them and names those that are BROKEN."""
    theorems = [next((one for one in THEOREMS if f"{name}-".startswith(f"{one}-")), "") for name in claims["name"]]
    groups = {}
    for theorem, group in claims.groupby(theorems, sort=False):
        broken = group["name"][group["verdict"] == ClaimVerdict.BROKEN]
        wrong = f"; BROKEN: {', '.join(broken)}" if len(broken) else ""
        title = f"Theorem {theorem}" if str(theorem)[:1].isdecimal() else str(theorem).capitalize()
        groups[f"{title or 'On no single theorem'} ({len(group)} of the claims{wrong})"] = group
    return groups
