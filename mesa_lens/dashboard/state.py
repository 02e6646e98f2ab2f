"""What the pages work on: opened runs and their analyses, kept while the store on disk stays the same."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple
from functools import partial
from typing import Any

import streamlit as st
import xarray as xr

from mesa_lens.dashboard.runs import Entry
from probe.figures.export import Export
from probe.store.kept import kept, recalled
from probe.store.reader import Run, list_missing, missing_regions, open_run, partial_path, store_of
from probe.store.select import hook_values, hooks_of, reference_method
from probe.thresholds.analysis import FOUND, Analysis, analyse, judged_drifts
from probe.thresholds.columns import Columns
from probe.thresholds.control import negative_control
from probe.thresholds.search import CrossingRule, crossings_at, search


@st.cache_resource(max_entries=4, show_spinner="Opening the run …")
def _opened(path: str, stamp: tuple[float, float]) -> Run:
    return open_run(path)


@st.cache_resource(max_entries=8, show_spinner="Reading thresholds …")
def _analysed(path: str, stamp: tuple[float, float], hook: str | None) -> Analysis:
    run = _opened(path, stamp)
    return analyse(run, hook, work=partial(recalled, run))


@st.cache_resource(max_entries=8, show_spinner="Reading drift …")
def _drifted(path: str, stamp: tuple[float, float], hook: str | None) -> dict[str, xr.Dataset] | str:
    run = _opened(path, stamp)
    hidden = hook_values(run, hook)
    return judged_drifts(run, hidden, reference_method(hidden["method"].values.tolist()), partial(recalled, run))


@st.cache_resource(max_entries=24, show_spinner="Searching …")
def _searched(
    path: str, stamp: tuple[float, float], hook: str, prompt: str, trained: int, rule: tuple[Any, ...], reference: str
) -> xr.Dataset:
    run, own = _opened(path, stamp), _rule(rule)
    if (trained, own) == (run.trained_length, CrossingRule.scaled(trained)):
        found = kept(run, f"{hook}-{FOUND}")
        if found is not None and not isinstance(found, str):
            return found[FOUND].sel(prompt=prompt)
        name = f"{hook}-{prompt}-{FOUND}"
        return recalled(run, name, lambda: {FOUND: _few(states(run, hook, prompt), trained, own, reference)})[FOUND]
    known = _known(path, stamp, hook, prompt, trained, own.smoothing, own.burn_in, reference)
    found = _few(states(run, hook, prompt), trained, own, reference, known.get(FOUND))
    known.setdefault(FOUND, found)
    return found


def _few(
    hidden: xr.DataArray, trained: int, rule: CrossingRule, reference: str, known: xr.Dataset | None = None
) -> xr.Dataset:
    """A search that reads the reference alone; `crossed` reads the rest where it is looked at."""
    return search(hidden, trained, rule, reference, every=False, others=False, known=known)


@st.cache_resource(max_entries=24, show_spinner=False)
def _known(
    path: str,
    stamp: tuple[float, float],
    hook: str,
    prompt: str,
    trained: int,
    smoothing: int,
    burn_in: int,
    reference: str,
) -> dict[str, xr.Dataset]:
    """Holds the first search under this smoothing and burn-in: the others need not read it all again."""
    run, own = _opened(path, stamp), CrossingRule.scaled(trained)
    if (trained, smoothing, burn_in) != (run.trained_length, own.smoothing, own.burn_in):
        return {}
    return {FOUND: _searched(path, stamp, hook, prompt, trained, astuple(own), reference)}


@st.cache_resource(max_entries=2, show_spinner=False)
def _columns(path: str, stamp: tuple[float, float], hook: str, prompt: str) -> Columns:
    return Columns(states(_opened(path, stamp), hook, prompt))


@st.cache_resource(max_entries=24, show_spinner="Making the control …")
def _control(
    path: str, stamp: tuple[float, float], hook: str, prompt: str, trained: int, rule: tuple[Any, ...], reference: str
) -> xr.Dataset | str:
    try:
        hidden = states(_opened(path, stamp), hook, prompt)
        return negative_control(hidden, trained, _rule(rule), reference)
    except ValueError as error:
        return str(error)


def _rule(values: tuple[Any, ...]) -> CrossingRule:
    return CrossingRule(**dict(zip(CrossingRule.__dataclass_fields__, values, strict=True)))


def opened(entry: Entry) -> Run:
    """The run; raises what `open_run` raises, and ValueError for one that is not finished."""
    whole, partial = entry.stamp
    if partial and not whole:
        missing = list_missing(missing_regions(partial_path(store_of(entry.path)))) or "it is not finished"
        raise ValueError(
            f"run {entry.name} is still being written, or was cut short: {missing}; "
            "reload this page when the capture is done, or capture it again"
        )
    return _opened(str(entry.path), entry.stamp)


def analysed(entry: Entry, hook: str | None = None) -> Analysis:
    """The analysis under the run's default rule."""
    opened(entry)
    return _analysed(str(entry.path), entry.stamp, hook)


def drifted(entry: Entry, hook: str | None = None) -> dict[str, xr.Dataset] | str:
    """`find_drift` by prompt (see `drifts`), or why it could not be judged."""
    opened(entry)
    return _drifted(str(entry.path), entry.stamp, hook)


def searched(entry: Entry, hook: str, prompt: str, trained: int, rule: CrossingRule, reference: str) -> xr.Dataset:
    """`search` for one prompt; observable pairs have their crossings under the reference; the others: `crossed`."""
    return _searched(str(entry.path), entry.stamp, hook, prompt, trained, astuple(rule), reference)


def crossed(entry: Entry, found: xr.Dataset, pairs: Sequence[tuple[int, int]]) -> xr.Dataset:
    """What was `searched`, with the crossings at `pairs` of (layer, dim)."""
    known = found["inside"].notnull().all("method").transpose("layer", "dim").values
    layers, dims = (found[name].values.tolist() for name in ("layer", "dim"))
    lacking = [(layer, dim) for layer, dim in pairs if not known[layers.index(layer), dims.index(dim)]]
    if not lacking:
        return found
    columns = _columns(str(entry.path), entry.stamp, found.attrs["hook"], found["prompt"].item())
    return crossings_at(columns.hidden, found, lacking, columns)


def control(entry: Entry, hook: str, prompt: str, trained: int, rule: CrossingRule, reference: str) -> xr.Dataset | str:
    """`negative_control` for one prompt, or why it could not be made."""
    return _control(str(entry.path), entry.stamp, hook, prompt, trained, astuple(rule), reference)


def states(run: Run, hook: str, prompt: str) -> xr.DataArray:
    """The hidden states (method, layer, position, dim) of a prompt, read when used."""
    return run.hidden[hook].sel({"prompt": prompt})


def follow(what: str, value: object, defaults: Mapping[str, Any]) -> None:
    """Puts widgets back to `defaults` (by key) when `value`, which these come from, is another than when last drawn.

    By itself a widget keeps its value when its default changes. The first time nothing is put back, so that a link's
    values stand.
    """
    known = f"followed {what}"
    if st.session_state.get(known, value) != value:
        st.session_state.update(defaults)
    st.session_state[known] = value


def while_unchanged(entry: Entry, make: Callable[[], Export]) -> Callable[[], Export]:
    """`make`, for later; then it raises ValueError if the run has been captured anew, for half of it would be old."""
    stamp = entry.stamp

    def unless_changed() -> Export:
        if entry.stamp != stamp:
            raise ValueError(f"run {entry.name} was captured anew since this page was drawn; reload the page")
        return make()

    return unless_changed


def choose_states(run: Run) -> tuple[str, str]:
    """Widgets for the hook (where there are several) and the prompt; returns both."""
    hooks = hooks_of(run)
    prompts = run.hidden["prompt"].values.tolist()
    left, right = st.columns(2)
    prompt = left.selectbox("Prompt", prompts, key="prompt", bind="query-params")
    hook = right.selectbox("Hook", hooks, key="hook", bind="query-params", disabled=len(hooks) == 1)
    return str(hook), str(prompt)
