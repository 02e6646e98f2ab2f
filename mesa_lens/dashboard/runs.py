"""Runs and results under the root folder, what a page gets, and what is computed of an opened run."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property, partial
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

import streamlit as st
import xarray as xr

from mesa.errors import Refused
from mesa_lens.dashboard import address
from probe.commands import commands
from probe.request import reference_method
from probe.run import Run, open_run
from probe.status import Status, status_of
from probe.store.cache import cached, load
from probe.store.reader import (
    hook_values,
    hooks_of,
    list_missing,
    missing_regions,
    partial_path,
    store_of,
)
from probe.store.result_file import ResultFile
from probe.thresholds.analysis import CROSSINGS, NOT_CAPTURED, evaluated_drifts, measured_of
from probe.thresholds.search import CrossingRule, search

if TYPE_CHECKING:
    from probe.commands.eval.page import Evaluated, HarnessScores
    from probe.commands.probe.verdict import Summary

ROOT_VARIABLE = "MESA_LENS_RUNS"
"""Environment variable that names the root folder."""

DEPTH = 3
"""Folders below the root that runs are looked for in."""
HARNESS, EVALUATION = "lm-eval", "eval"
_ANALYSING = "Analysing hidden states, at about a minute per GiB; the result is stored next to the run …"


@cache
def _kinds() -> dict[str, tuple[ResultFile[Any], tuple[str, ...]]]:
    """The file that is read, and others that must be there; none without `mesa-lens eval`."""
    if EVALUATION not in commands():
        return {}
    from probe.commands.eval.page import EVALUATED, HARNESS_SCORES

    return {HARNESS: (HARNESS_SCORES, ()), EVALUATION: (EVALUATED, ("samples.csv",))}


@dataclass(frozen=True)
class Entry:
    """A run, as it was when a page was asked for: each property is read once. name: its path below the root."""

    name: str
    path: Path

    @cached_property
    def stamp(self) -> tuple[float, float]:
        """When the complete and the unfinished store were written; 0 where there is none."""
        store = store_of(self.path)
        return changed(store / "zarr.json"), changed(partial_path(store))

    @property
    def finished(self) -> bool:
        """Whether there is a complete store."""
        return self.stamp[0] > 0

    @cached_property
    def checked(self) -> Entry:
        """Itself; Refused where something in its folder leads out of the root."""
        check_inside(self.path)
        return self

    @cached_property
    def status(self) -> Status | None:
        """How far it is; None where there is no run, or it is damaged."""
        try:
            return status_of(self.checked.path)
        except (Refused, OSError):
            return None

    @cached_property
    def run(self) -> Run:
        """The run, opened; raises what `open_run` raises, and Refused for one that is not finished."""
        complete, partial_store = self.checked.stamp
        if partial_store and not complete:
            missing = list_missing(missing_regions(partial_path(store_of(self.path)))) or "it is not finished"
            command = f": {line}" if self.status and (line := self.status.resume.get("probe")) else ""
            raise Refused(
                f"run {self.name} is still being written, or was cut short: {missing}; "
                f"reload this page when the capture is done, or go on with it{command}"
            )
        return _open(str(self.path), self.stamp)

    @property
    def summary(self) -> Summary:
        """The run's summary, of its report; where there is none, computed."""
        with st.spinner(_ANALYSING):
            return self.run.summary

    @property
    def opens(self) -> bool:
        """Whether it is neither unfinished nor damaged."""
        try:
            return self.run is not None
        except (Refused, OSError):
            return False


BY_STORE: dict[Any, Any] = {Entry: lambda entry: (str(entry.path), entry.stamp)}
"""Streamlit's `hash_funcs`: a run is another one as soon as its store is written again."""
_cache = partial(st.cache_resource, hash_funcs=BY_STORE)


@dataclass(frozen=True)
class EvalFolder:
    """A finished `eval` run. kind: `HARNESS` or `EVALUATION`. name: the path below the root."""

    kind: str
    name: str
    path: Path

    @property
    def file(self) -> Path:
        """The file that is read."""
        return self.path / _kinds()[self.kind][0].path

    def read(self) -> Evaluated | HarnessScores:
        """Its file; Refused, naming the command that writes it, for one that is damaged or of another model."""
        check_inside(self.path)
        return _kinds()[self.kind][0].read(self.path)

    @property
    def label(self) -> str:
        """Name and kind, for a select box."""
        return f"{self.name} ({self.kind})"


@dataclass(frozen=True)
class Context:
    """What a page gets. entry: the chosen run, None if there is none. pages: Streamlit's pages by their URL paths."""

    root: str
    entries: tuple[Entry, ...]
    entry: Entry | None
    pages: Mapping[str, Any]

    @property
    def run(self) -> Entry:
        """The chosen run; Refused if there is none, or it leads out of the root."""
        if self.entry is None:
            raise Refused(f"there is no run under {self.root}")
        return self.entry.checked


@st.cache_resource(max_entries=4, show_spinner="Opening the run …")
def _open(path: str, stamp: tuple[float, float]) -> Run:
    return open_run(path)


def pages_of_packages(pages: Collection[str]) -> list[str]:
    """Commands of other packages that tell of their results, each on its own page; Refused for a name of `pages`."""
    ours = {"probe", "locate", "anatomy", "readout", "predict", "eval"}
    others = {name: row for name, row in commands().items() if "inside" in row.tells and name not in ours}
    for name in [name for name in others if name in pages]:
        raise Refused(f"{others[name].package} is called {name!r}, as a page is; rename or uninstall it")
    return [*others]


def check_inside(place: Path) -> None:
    """Raises Refused unless the place, and all that it holds, lies in the root folder: no link of it leads out."""
    root, waiting, met = os.path.realpath(root_folder()), [str(place)], set[str]()
    while waiting:
        path = waiting.pop()
        real = os.path.realpath(path)
        if not _is_below(real, root):
            raise Refused(f"{path} is a link that leads out of {root}, so it is not read; copy what it names into that")
        if real not in met and os.path.isdir(real):
            met.add(real)
            with os.scandir(real) as held:
                for item in held:
                    if item.is_symlink() or item.is_dir():
                        waiting.append(item.path)
                    elif not item.is_file():
                        raise Refused(f"{item.path} is neither a file nor a folder; remove it")


def _is_below(real: str, root: str) -> bool:
    return real == root or real.startswith(os.path.join(root, ""))


def root_folder() -> Path:
    """The folder in `MESA_LENS_RUNS`; default: runs/."""
    return Path(os.environ.get(ROOT_VARIABLE, "runs"))


def entries(root: Path) -> list[Entry]:
    """The runs at most three folders below `root`, finished or not, newest first; none through links that lead out."""
    runs = [Entry(name_of(folder, root), folder) for folder in folders(root) if holds_run(folder)]
    return sorted(runs, key=lambda entry: (-max(entry.stamp), entry.name))


def results(root: Path) -> list[EvalFolder]:
    """The results at most three folders below `root`, newest first."""
    finished = [
        EvalFolder(kind, name_of(folder, root), folder)
        for folder in folders(root)
        for kind, (file, more) in _kinds().items()
        if not holds_run(folder) and all((folder / name).is_file() for name in (file.path, *more))
    ]
    return sorted(finished, key=lambda result: (-changed(result.file), result.label))


def unfinished(root: Path) -> list[Status]:
    """Status of the runs under `root` that are not finished."""
    known = (Entry(folder.name, folder).status for folder in folders(root))
    return [status for status in known if status is not None and status.state != "finished"]


def folders(root: Path) -> list[Path]:
    """`root` and its folders down to depth 3, except those inside a run's folder, and links that lead out of it."""
    real_root = os.path.realpath(root)

    def inside(folder: Path, depth: int) -> Iterator[Path]:
        if not _is_below(os.path.realpath(folder), real_root):
            return
        yield folder
        if depth and not holds_run(folder):
            try:
                inner = sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))
            except OSError:  # missing or not readable
                return
            for path in inner:
                yield from inside(path, depth - 1)

    return list(inside(root, DEPTH))


def holds_run(folder: Path) -> bool:
    """Whether there is a store in the folder, finished or not."""
    store = store_of(folder)
    return store.exists() or partial_path(store).exists()


def place_of_more(root: Path) -> tuple[Path, str]:
    """The folder that commands of a page write to, and, where `root` is one run's, a line that shows what is there."""
    if not holds_run(root):
        return root, ""
    parent = root.parent if root.name else root.resolve().parent
    return parent, f"\nmesa-lens app --store {quote(str(parent))}  # to see it: this dashboard is over one run"


def name_of(path: Path, root: Path) -> str:
    """The path below the root, which names a run or result; of the root its last part."""
    return root.resolve().name if path == root else path.relative_to(root).as_posix()


def changed(path: Path) -> float:
    """When a file was last written; 0 where there is none."""
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


# What pages show of a run's hidden states


def states(run: Run, hook: str, prompt: str) -> xr.DataArray:
    """The hidden states (method, layer, position, dim) of a prompt, read when used."""
    return hook_values(run, hook).sel({"prompt": prompt})


def reference_of(run: Run) -> str:
    """The run's reference method."""
    return reference_method(run.hidden["method"].values.tolist())


def choose_states(run: Run) -> tuple[str, str]:
    """The hook and the prompt, from select boxes."""
    if not hooks_of(run):
        hook_values(run)  # says that none are stored yet
    hooks = [hook for hook in hooks_of(run) if "dim" in hook_values(run, hook).dims]
    prompts = run.hidden["prompt"].values.tolist()
    left, right = st.columns(2)
    prompt = address.select(left, "Prompt", prompts, "prompt")
    return address.select(right, "Hook", hooks, "hook"), prompt


@_cache(max_entries=24, show_spinner="Searching …")
def searched(entry: Entry, hook: str, prompt: str, trained: int, rule: CrossingRule) -> xr.Dataset:
    """`search` for one prompt; under the run's default rule it is stored next to the run."""
    run = entry.run

    def compute() -> xr.Dataset:
        return search(states(run, hook, prompt), trained, rule, reference_of(run))

    if not _is_default(run, trained, rule):
        return compute()
    stored = load(run, f"{hook}-{CROSSINGS}")
    if stored is not None and not isinstance(stored, str):
        thresholds = stored[CROSSINGS]
        return thresholds.sel(prompt=prompt) if "prompt" in thresholds.dims else thresholds
    return cached(run, f"{hook}-{prompt}-{CROSSINGS}", lambda: {CROSSINGS: compute()})[CROSSINGS]


def qualified(entry: Entry, hook: str, trained: int, rule: CrossingRule) -> dict[str, int]:
    """By prompt, how many threshold dims its search found, of those whose search under this rule is stored."""
    stored = load(entry.run, f"{hook}-{CROSSINGS}") if _is_default(entry.run, trained, rule) else None
    if stored is None or isinstance(stored, str):
        return {}
    counts = stored[CROSSINGS]["qualified"]
    return {str(count["prompt"].item()): int(count) for count in counts} if counts.dims else {}


def _is_default(run: Run, trained: int, rule: CrossingRule) -> bool:
    return (trained, rule) == (run.trained_length, CrossingRule.scaled(trained))


@_cache(max_entries=8, show_spinner=_ANALYSING)
def drifted(entry: Entry, hook: str | None = None) -> dict[str, xr.Dataset] | str:
    """`find_drift` by prompt (see `drifts`), or why drift cannot be evaluated."""
    run = entry.run
    if not hooks_of(run):
        return NOT_CAPTURED
    reference = reference_of(run)
    return evaluated_drifts(run, hook_values(run, hook), reference, measured_of(run, reference), partial(cached, run))
