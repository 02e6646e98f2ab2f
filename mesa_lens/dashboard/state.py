"""Opened runs and what is computed of them, cached while the store on disk stays the same."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from functools import partial
from typing import Any

import streamlit as st
import xarray as xr

from mesa_lens.dashboard.elements import plain
from mesa_lens.dashboard.runs import Entry
from probe.store.cache import Derived, cached, load
from probe.store.reader import Run, open_run, partial_path, store_of
from probe.store.regions import list_missing, missing_regions
from probe.store.select import hook_values, hooks_of, reference_method
from probe.thresholds.analysis import CROSSINGS, Analysis, analyse, judged_drifts
from probe.thresholds.predict import negative_control
from probe.thresholds.search import CrossingRule, search

_STEPS = 3  # of an analysis: thresholds, their control, drift
_LARGE = 256 * 2**20  # bytes of hidden states; less is read in seconds

BY_STORE: dict[Any, Any] = {Entry: lambda entry: (str(entry.path), entry.stamp)}
"""Streamlit's `hash_funcs`: a run is another one as soon as its store is written anew."""
_cache = partial(st.cache_resource, hash_funcs=BY_STORE)


class NotComputed(Exception):
    """A page needs what takes long to compute of a large run."""

    def __init__(self, entry: Entry, hook: str | None, size: int) -> None:
        """size: bytes of hidden states to read."""
        super().__init__(
            f"The analysis of {entry.name} was not computed yet, or by another version of Mesa Lens: "
            f"{size / 2**30:z.1f} GiB of hidden states are read for it once, at about a minute per GiB"
        )
        self.entry, self.hook = entry, hook


def opened(entry: Entry) -> Run:
    """The run; raises what `open_run` raises, and ValueError for one that is not finished."""
    whole, partial_store = entry.stamp
    if partial_store and not whole:
        missing = list_missing(missing_regions(partial_path(store_of(entry.path)))) or "it is not finished"
        raise ValueError(
            f"run {entry.name} is still being written, or was cut short: {missing}; "
            "reload this page when the capture is done, or capture it again"
        )
    return _open(entry)


def can_open(entry: Entry) -> bool:
    """Whether the run opens: it is neither unfinished nor damaged."""
    try:
        opened(entry)
    except (ValueError, OSError):
        return False
    return True


def analysed(entry: Entry) -> Analysis:
    """The analysis under the run's default rule; NotComputed where that would take long."""
    opened(entry)
    return _analysis(entry, None)


def drifted(entry: Entry, hook: str | None = None) -> dict[str, xr.Dataset] | str:
    """`find_drift` by prompt (see `drifts`), or why drift cannot be judged; NotComputed where it would take long."""
    opened(entry)
    return _drifts(entry, hook)


def offer(missing: NotComputed) -> None:
    """The message, a button that computes the analysis under a progress bar, and the command that does the same."""
    entry, hook = missing.entry, missing.hook
    st.info(plain(f"{missing}."))
    if st.button("Compute it now", key=f"compute {entry.name} {hook}"):
        _compute(entry, hook, st.progress(0.0, "Reading …").progress)
        st.rerun()
    st.caption("The same from the command line, which also rewrites the report:")
    st.code(f"mesa-lens report {shlex.quote(str(entry.path))}", language="bash")


def states(run: Run, hook: str, prompt: str) -> xr.DataArray:
    """The hidden states (method, layer, position, dim) of a prompt, read when used."""
    return run.hidden[hook].sel({"prompt": prompt})


def reference_of(run: Run) -> str:
    """The run's reference method."""
    return reference_method(run.hidden["method"].values.tolist())


def choose_states(run: Run) -> tuple[str, str]:
    """The hook and the prompt, from select boxes."""
    hooks, prompts = hooks_of(run), run.hidden["prompt"].values.tolist()
    left, right = st.columns(2)
    prompt = left.selectbox("Prompt", prompts, key="prompt", bind="query-params")
    hook = right.selectbox("Hook", hooks, key="hook", bind="query-params", disabled=len(hooks) == 1)
    return str(hook), str(prompt)


@_cache(max_entries=24, show_spinner="Searching …")
def searched(entry: Entry, hook: str, prompt: str, trained: int, rule: CrossingRule) -> xr.Dataset:
    """`search` for one prompt; under the run's default rule it is stored beside the run."""
    run = _open(entry)

    def compute() -> xr.Dataset:
        return search(states(run, hook, prompt), trained, rule, reference_of(run))

    if (trained, rule) != (run.trained_length, CrossingRule.scaled(trained)):
        return compute()
    stored = load(run, f"{hook}-{CROSSINGS}")
    if stored is not None and not isinstance(stored, str):
        thresholds = stored[CROSSINGS]
        return thresholds.sel(prompt=prompt) if "prompt" in thresholds.dims else thresholds
    return cached(run, f"{hook}-{prompt}-{CROSSINGS}", lambda: {CROSSINGS: compute()})[CROSSINGS]


@_cache(max_entries=24, show_spinner="Computing the negative control …")
def control(entry: Entry, hook: str, prompt: str, trained: int, rule: CrossingRule) -> xr.Dataset | str:
    """`negative_control` for one prompt, or why it cannot be made."""
    run = _open(entry)
    try:
        return negative_control(states(run, hook, prompt), trained, rule, reference_of(run))
    except ValueError as error:
        return str(error)


@_cache(max_entries=4, show_spinner="Opening the run …")
def _open(entry: Entry) -> Run:
    return open_run(str(entry.path))


@_cache(max_entries=4, show_spinner=False)
def _derived(entry: Entry) -> dict[str, Derived]:
    """What was computed of a run here, by name, for folders that cannot be written to."""
    return {}


@_cache(max_entries=8, show_spinner="Reading thresholds …")
def _analysis(entry: Entry, hook: str | None) -> Analysis:
    return analyse(_open(entry), hook, work=partial(_derive, entry, hook))


@_cache(max_entries=8, show_spinner="Reading drift …")
def _drifts(entry: Entry, hook: str | None) -> dict[str, xr.Dataset] | str:
    run = _open(entry)
    return judged_drifts(run, hook_values(run, hook), reference_of(run), partial(_derive, entry, hook))


def _derive(entry: Entry, hook: str | None, name: str, compute: Callable[[], Derived]) -> Derived:
    """What is stored of a run, or computed at once; NotComputed for a large run."""
    run, derived = _open(entry), _derived(entry)

    def compute_small() -> Derived:
        size = next(iter(run.hidden.data_vars.values())).nbytes
        if size > _LARGE:
            raise NotComputed(entry, hook, size)
        return compute()

    return derived[name] if name in derived else cached(run, name, compute_small)


def _compute(entry: Entry, hook: str | None, report: Callable[[float, str], object]) -> None:
    """Computes what pages need of a run, however long it takes; reports the share done and the step begun."""
    run, derived = opened(entry), _derived(entry)
    steps: list[str] = []

    def work(name: str, compute: Callable[[], Derived]) -> Derived:
        report(len(steps) / _STEPS, f"{len(steps) + 1} of {_STEPS}: {name.rpartition('-')[2]}")
        steps.append(name)
        derived[name] = cached(run, name, compute)
        return derived[name]

    analyse(run, hook, work=work)
