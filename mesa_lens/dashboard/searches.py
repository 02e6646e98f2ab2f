"""Searches for thresholds of one prompt under any rule, and their control."""

from __future__ import annotations

from dataclasses import astuple
from typing import Any, NamedTuple

import streamlit as st
import xarray as xr

from mesa_lens.dashboard.runs import Entry
from mesa_lens.dashboard.state import opened_at, states
from probe.store.cache import cached, load
from probe.store.reader import Run
from probe.thresholds.analysis import FOUND
from probe.thresholds.control import negative_control
from probe.thresholds.search import CrossingRule, search


class SearchRequest(NamedTuple):
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
    def inputs(self) -> tuple[xr.DataArray, int, CrossingRule, str]:
        """What `search` and `negative_control` take; the states (method, layer, position, dim) are read when used."""
        return states(self.run, self.hook, self.prompt), self.trained, self.rule, self.reference


def search_request(
    entry: Entry, hook: str, prompt: str, trained: int, rule: CrossingRule, reference: str
) -> SearchRequest:
    """The request for one prompt of a run."""
    return SearchRequest(str(entry.path), entry.stamp, hook, prompt, trained, astuple(rule), reference)


@st.cache_resource(max_entries=24, show_spinner="Searching …")
def searched(of: SearchRequest) -> xr.Dataset:
    """`search` for one prompt; under the run's default rule it is stored beside the run."""
    if (of.trained, of.rule) != (of.run.trained_length, CrossingRule.scaled(of.trained)):
        return search(*of.inputs)
    report = load(of.run, f"{of.hook}-{FOUND}")
    if report is not None and not isinstance(report, str):
        stored = report[FOUND]
        return stored.sel(prompt=of.prompt) if "prompt" in stored.dims else stored
    return cached(of.run, f"{of.hook}-{of.prompt}-{FOUND}", lambda: {FOUND: search(*of.inputs)})[FOUND]


@st.cache_resource(max_entries=24, show_spinner="Making the control …")
def control(of: SearchRequest) -> xr.Dataset | str:
    """`negative_control` for one prompt, or why it could not be made."""
    try:
        return negative_control(*of.inputs)
    except ValueError as error:
        return str(error)
