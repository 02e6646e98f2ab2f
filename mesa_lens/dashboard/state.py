"""Opened runs and what is computed of them, cached while the store on disk stays the same."""

from __future__ import annotations

from functools import partial
from typing import Any

import streamlit as st
import xarray as xr

from mesa_lens.dashboard import address
from mesa_lens.dashboard.runs import Entry
from probe.commands.probe.result import Summary
from probe.run import Run
from probe.store.cache import cached, load
from probe.store.select import hook_values, hooks_of, reference_method
from probe.thresholds.analysis import CROSSINGS, judged_drifts
from probe.thresholds.search import CrossingRule, search

BY_STORE: dict[Any, Any] = {Entry: lambda entry: (str(entry.path), entry.stamp)}
"""Streamlit's `hash_funcs`: a run is another one as soon as its store is written anew."""
_cache = partial(st.cache_resource, hash_funcs=BY_STORE)
_ANALYSING = "Analysing hidden states, at about a minute per GiB; the result is stored beside the run …"


def summary_of(entry: Entry) -> Summary:
    """The run's summary, of its report; where there is none, computed."""
    with st.spinner(_ANALYSING):
        return entry.run.summary


def states(run: Run, hook: str, prompt: str) -> xr.DataArray:
    """The hidden states (method, layer, position, dim) of a prompt, read when used."""
    return hook_values(run, hook).sel({"prompt": prompt})


def reference_of(run: Run) -> str:
    """The run's reference method."""
    return reference_method(run.hidden["method"].values.tolist())


def choose_states(run: Run) -> tuple[str, str]:
    """The hook and the prompt, from select boxes."""
    hooks = [hook for hook in hooks_of(run) if "dim" in hook_values(run, hook).dims]
    prompts = run.hidden["prompt"].values.tolist()
    left, right = st.columns(2)
    prompt = address.select(left, "Prompt", prompts, "prompt")
    return address.select(right, "Hook", hooks, "hook"), prompt


@_cache(max_entries=24, show_spinner="Searching …")
def searched(entry: Entry, hook: str, prompt: str, trained: int, rule: CrossingRule) -> xr.Dataset:
    """`search` for one prompt; under the run's default rule it is stored beside the run."""
    run = entry.run

    def compute() -> xr.Dataset:
        return search(states(run, hook, prompt), trained, rule, reference_of(run))

    if (trained, rule) != (run.trained_length, CrossingRule.scaled(trained)):
        return compute()
    stored = load(run, f"{hook}-{CROSSINGS}")
    if stored is not None and not isinstance(stored, str):
        thresholds = stored[CROSSINGS]
        return thresholds.sel(prompt=prompt) if "prompt" in thresholds.dims else thresholds
    return cached(run, f"{hook}-{prompt}-{CROSSINGS}", lambda: {CROSSINGS: compute()})[CROSSINGS]


def qualified(entry: Entry, hook: str, trained: int, rule: CrossingRule) -> dict[str, int]:
    """By prompt, how many threshold dims its search found, of those whose search under this rule is stored."""
    run = entry.run
    is_default = (trained, rule) == (run.trained_length, CrossingRule.scaled(trained))
    stored = load(run, f"{hook}-{CROSSINGS}") if is_default else None
    if stored is None or isinstance(stored, str):
        return {}
    counts = stored[CROSSINGS]["qualified"]
    return {str(count["prompt"].item()): int(count) for count in counts} if counts.dims else {}


@_cache(max_entries=8, show_spinner=_ANALYSING)
def drifted(entry: Entry, hook: str | None = None) -> dict[str, xr.Dataset] | str:
    """`find_drift` by prompt (see `drifts`), or why drift cannot be judged."""
    run = entry.run
    return judged_drifts(run, hook_values(run, hook), reference_of(run), partial(cached, run))
