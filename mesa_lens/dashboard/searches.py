"""Searches for thresholds under any rule: nothing is read twice, and a first answer comes before the exact one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple
from typing import Any, NamedTuple

import streamlit as st
import xarray as xr

from mesa_lens.dashboard.runs import Entry
from mesa_lens.dashboard.state import opened_at, states
from probe.store.kept import kept, recalled
from probe.store.reader import Run
from probe.thresholds.analysis import FOUND
from probe.thresholds.coarse import first_answer
from probe.thresholds.columns import Columns
from probe.thresholds.control import negative_control
from probe.thresholds.search import CrossingRule, crossings_at, search

_MOST = 8  # rules whose searches are held, of those that read the same


class Asked(NamedTuple):
    """What is searched, of which store, and by which rule; hashed by Streamlit, so the rule is its values."""

    path: str
    stamp: tuple[float, float]
    hook: str
    prompt: str
    trained: int
    values: tuple[Any, ...]
    reference: str

    @property
    def rule(self) -> CrossingRule:
        """The rule of these values."""
        return CrossingRule(**dict(zip(CrossingRule.__dataclass_fields__, self.values, strict=True)))

    @property
    def run(self) -> Run:
        """The run that is read."""
        return opened_at(self.path, self.stamp)

    @property
    def hidden(self) -> xr.DataArray:
        """The states (method, layer, position, dim), read when used."""
        return states(self.run, self.hook, self.prompt)


def asked(entry: Entry, hook: str, prompt: str, trained: int, rule: CrossingRule, reference: str) -> Asked:
    """The question, as what is found is known by."""
    return Asked(str(entry.path), entry.stamp, hook, prompt, trained, astuple(rule), reference)


def searched(of: Asked, *, whole: bool = False) -> xr.Dataset:
    """`search` for one prompt; observable pairs have their crossings under the reference; the others: `crossed`.

    Where all of a large store would be read for it, its `first_answer`; with `whole`, the search in any case.
    """
    first = None if whole or _known(of) else _first_answer(of)
    return _searched(of) if first is None else first


def crossed(entry: Entry, found: xr.Dataset, pairs: Sequence[tuple[int, int]]) -> xr.Dataset:
    """What was `searched`, with the crossings at `pairs` of (layer, dim)."""
    known = found["inside"].notnull().all("method").transpose("layer", "dim").values
    layers, dims = (found[name].values.tolist() for name in ("layer", "dim"))
    lacking = [(layer, dim) for layer, dim in pairs if not known[layers.index(layer), dims.index(dim)]]
    if not lacking:
        return found
    columns = _columns(str(entry.path), entry.stamp, found.attrs["hook"], found["prompt"].item())
    return crossings_at(columns.hidden, found, lacking, columns)


@st.cache_resource(max_entries=24, show_spinner="Making the control …")
def control(of: Asked) -> xr.Dataset | str:
    """`negative_control` for one prompt, or why it could not be made."""
    try:
        return negative_control(of.hidden, of.trained, of.rule, of.reference)
    except ValueError as error:
        return str(error)


@st.cache_resource(max_entries=24, show_spinner="Searching …")
def _first_answer(of: Asked) -> xr.Dataset | None:
    return first_answer(of.hidden, of.trained, of.rule, of.reference)


def _searched(of: Asked) -> xr.Dataset:
    """The search, in which the reference alone is judged; from another that read the same, few values are read."""
    known = _known(of)
    if of.values not in known:
        other = next(iter(known.values()), None)
        found = _own(of, other) if _is_own(of) else _few(of, other)
        if len(known) == _MOST:
            known.pop(list(known)[1])
        known[of.values] = found
    return known[of.values]


def _own(of: Asked, other: xr.Dataset | None) -> xr.Dataset:
    """The search under the run's own rule, kept beside the store."""
    return recalled(of.run, f"{of.hook}-{of.prompt}-{FOUND}", lambda: {FOUND: _few(of, other)})[FOUND]


def _few(of: Asked, known: xr.Dataset | None) -> xr.Dataset:
    with st.spinner("Searching …"):
        return search(of.hidden, of.trained, of.rule, of.reference, every=False, others=False, known=known)


def _known(of: Asked) -> dict[tuple[Any, ...], xr.Dataset]:
    """The searches that read what this one reads, by their rules; what the report kept among them."""
    rule = of.rule
    known = _alike(of._replace(values=(rule.smoothing, rule.burn_in)))
    own = CrossingRule.scaled(of.trained)
    reads_own = (of.trained, rule.smoothing, rule.burn_in) == (of.run.trained_length, own.smoothing, own.burn_in)
    if not known and reads_own:
        for name in (f"{of.hook}-{FOUND}", f"{of.hook}-{of.prompt}-{FOUND}"):
            found = kept(of.run, name)
            if found is not None and not isinstance(found, str):
                each = found[FOUND]
                known[astuple(own)] = each.sel(prompt=of.prompt) if "prompt" in each.dims else each
                break
    return known


@st.cache_resource(max_entries=6, show_spinner=False)
def _alike(of: Asked) -> dict[tuple[Any, ...], xr.Dataset]:
    """Holds searches by their rules; values: smoothing and burn-in."""
    return {}


def _is_own(of: Asked) -> bool:
    return (of.trained, of.rule) == (of.run.trained_length, CrossingRule.scaled(of.trained))


@st.cache_resource(max_entries=2, show_spinner=False)
def _columns(path: str, stamp: tuple[float, float], hook: str, prompt: str) -> Columns:
    return Columns(states(opened_at(path, stamp), hook, prompt))
