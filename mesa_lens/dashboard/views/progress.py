"""How far a run is: the status of `mesa-lens status` as a table."""

from __future__ import annotations

from pathlib import Path

import streamlit as st

from mesa_lens.dashboard.elements import plain, sheet
from mesa_lens.dashboard.runs import STORE, folders, is_inside, name_of
from probe.experiment.lock import LOCK
from probe.experiment.progress import format_seconds
from probe.status import Status, status_of
from probe.store.location import POINTER, Remote
from probe.store.reader import partial_path

_COLUMNS = ("command", "section", "what", "done", "failed", "left", "of")
_READ = ("", LOCK, STORE, partial_path(Path(STORE)), "locate", "anatomy")
_PATTERNS = ("*.json*", "*/*.json*")


def overview(folder: Path) -> None:
    """The status of a run that is not finished; nothing for a finished one, or for one at a URL."""
    status = None if isinstance(folder, Remote) else _status(folder)
    if status is not None and status.state != "finished":
        _table({folder.name: status})


def unfinished(root: Path) -> None:
    """The runs under `root` that are running or not finished; nothing if there are none."""
    inside = [folder for folder in folders(root) if _is_inside(folder, root)]
    runs = {name_of(folder, root): status for folder in inside if (status := _status(folder)) is not None}
    papers = {status.path for status in runs.values() if any(part.section for part in status.parts)}
    runs = {
        name: status for name, status in runs.items() if status.state != "finished" and status.path.parent not in papers
    }
    if runs:
        with st.expander(f"Not finished: {len(runs)}"):
            _table(runs)


def _table(runs: dict[str, Status]) -> None:
    rows = [
        {"run": name, "state": status.state, **{key: row[key] for key in _COLUMNS if row.get(key) is not None}}
        | ({} if row["seconds_left"] is None else {"time left": format_seconds(row["seconds_left"])})
        for name, status in runs.items()
        for row in status.rows()
        if row["left"] != 0 or row["failed"] or "damaged_lines" in row
    ]
    if rows:
        sheet(rows, "Tasks done, failed and left in each run", height="content")
    for status in runs.values():
        st.caption(plain(status.text().partition("\n")[0]))


def _is_inside(folder: Path, root: Path) -> bool:
    """Whether every file that a status reads lies in `root`, links followed; False for a store at a URL."""
    read = [folder / name for name in _READ] + [path for pattern in _PATTERNS for path in folder.glob(pattern)]
    return all(is_inside(path, root) for path in read) and not (folder / POINTER).exists()


@st.cache_data(ttl=2, max_entries=64, show_spinner=False)
def _status(folder: Path) -> Status | None:
    try:
        return status_of(folder)
    except (ValueError, OSError):
        return None
