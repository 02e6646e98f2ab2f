"""What the pages work on: opened runs and their analyses, kept while the store on disk stays the same."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import streamlit as st
import xarray as xr

from mesa_lens.dashboard.runs import Entry
from probe.figures.export import Export
from probe.store.cache import Derived, cached
from probe.store.reader import Run, open_run, partial_path, store_of
from probe.store.regions import list_missing, missing_regions
from probe.store.select import hook_values, hooks_of, reference_method
from probe.thresholds.analysis import Analysis, analyse, judged_drifts

_STEPS = 3  # of an analysis: thresholds, their control, drift
_LARGE = 256 * 2**20  # bytes of states: fewer are read in seconds


class NotWorkedOut(Exception):
    """What a page needs of a large run was not worked out yet, or by another version of this package."""

    def __init__(self, entry: Entry, hook: str | None, size: int) -> None:
        """size: bytes of states that are read for it."""
        super().__init__(
            f"What this page shows of {entry.name} was not worked out yet, or by another version of Mesa Lens: "
            f"{size / 2**30:z.1f} GiB of states are read for it, once, about a minute for each"
        )
        self.entry, self.hook = entry, hook


class _TooLarge(Exception):
    """There are so many bytes to be read that the user is asked first."""


@st.cache_resource(max_entries=4, show_spinner="Opening the run …")
def opened_at(path: str, stamp: tuple[float, float]) -> Run:
    """The run in a folder; `stamp`: what changes with its store."""
    return open_run(path)


@st.cache_resource(max_entries=4, show_spinner=False)
def _made(path: str, stamp: tuple[float, float]) -> dict[str, Derived]:
    """What was worked out of a run here, by name: not every folder can keep it."""
    return {}


def _known(path: str, stamp: tuple[float, float], name: str, make: Callable[[], Derived]) -> Derived:
    """What was worked out of a run, or is at once of a small one."""
    run, made = opened_at(path, stamp), _made(path, stamp)

    def at_once() -> Derived:
        size = next(iter(run.hidden.data_vars.values())).nbytes
        if size > _LARGE:
            raise _TooLarge(size)
        return make()

    return made[name] if name in made else cached(run, name, at_once)


@st.cache_resource(max_entries=8, show_spinner="Reading thresholds …")
def _analysed(path: str, stamp: tuple[float, float], hook: str | None) -> Analysis:
    run = opened_at(path, stamp)
    return analyse(run, hook, work=partial(_known, path, stamp))


@st.cache_resource(max_entries=8, show_spinner="Reading drift …")
def _drifted(path: str, stamp: tuple[float, float], hook: str | None) -> dict[str, xr.Dataset] | str:
    run = opened_at(path, stamp)
    hidden = hook_values(run, hook)
    reference = reference_method(hidden["method"].values.tolist())
    return judged_drifts(run, hidden, reference, partial(_known, path, stamp))


def opened(entry: Entry) -> Run:
    """The run; raises what `open_run` raises, and ValueError for one that is not finished."""
    whole, partial = entry.stamp
    if partial and not whole:
        missing = list_missing(missing_regions(partial_path(store_of(entry.path)))) or "it is not finished"
        raise ValueError(
            f"run {entry.name} is still being written, or was cut short: {missing}; "
            "reload this page when the capture is done, or capture it again"
        )
    return opened_at(str(entry.path), entry.stamp)


def can_open(entry: Entry) -> bool:
    """Whether the run is whole as far as opening it tells: neither unfinished nor damaged."""
    try:
        opened(entry)
    except (ValueError, OSError):
        return False
    return True


def analysed(entry: Entry, hook: str | None = None) -> Analysis:
    """The analysis under the run's default rule; NotWorkedOut where that would take long."""
    opened(entry)
    return _asking_first(_analysed, entry, hook)


def drifted(entry: Entry, hook: str | None = None) -> dict[str, xr.Dataset] | str:
    """`find_drift` by prompt (see `drifts`), or why it could not be judged; NotWorkedOut where it would take long."""
    opened(entry)
    return _asking_first(_drifted, entry, hook)


def _asking_first(work: Callable[[str, tuple[float, float], str | None], Any], entry: Entry, hook: str | None) -> Any:
    try:
        return work(str(entry.path), entry.stamp, hook)
    except _TooLarge as error:
        raise NotWorkedOut(entry, hook, error.args[0]) from None


def work_out(entry: Entry, hook: str | None, tell: Callable[[float, str], object]) -> None:
    """Works out what pages need of a run, however long it takes; tells the share that is done, and what is next."""
    run, made = opened(entry), _made(str(entry.path), entry.stamp)
    begun: list[str] = []

    def work(name: str, make: Callable[[], Derived]) -> Derived:
        begun.append(name)
        tell((len(begun) - 1) / _STEPS, f"{len(begun)} of {_STEPS}: {name.rpartition('-')[2]}")
        made[name] = cached(run, name, make)
        return made[name]

    analyse(run, hook, work=work)


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
