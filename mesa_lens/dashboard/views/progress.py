"""How far a run is: the status that `mesa-lens status` tells, as a table."""

from __future__ import annotations

from pathlib import Path

import streamlit as st

from mesa_lens.dashboard.look import plain, sheet
from mesa_lens.dashboard.runs import STORE, folders, is_inside, name_of
from probe.experiment.lock import LOCK
from probe.experiment.status_file import STATUS_FILE
from probe.status import Status, format_seconds, status_of
from probe.store.location import POINTER, Remote
from probe.store.reader import partial_path


def overview(folder: Path) -> None:
    """The status of a run that is not finished; nothing of another, or of one at a URL."""
    status = None if isinstance(folder, Remote) else _status(folder)
    if status is not None and status.state != "finished":
        _table([status], [folder.name])


def unfinished_runs(root: Path) -> None:
    """The runs under `root` that are running or not finished; nothing where there are none."""
    inside = [folder for folder in folders(root) if _lies_in(folder, root)]
    statuses = [(name_of(folder, root), status) for folder in inside if (status := _status(folder)) is not None]
    papers = {status.path for _, status in statuses if any(part.section for part in status.parts)}
    unfinished = [
        (name, status) for name, status in statuses if status.state != "finished" and status.path.parent not in papers
    ]
    if unfinished:
        with st.expander(f"Not finished: {len(unfinished)}"):
            _table([status for _, status in unfinished], [name for name, _ in unfinished])


def _table(statuses: list[Status], names: list[str]) -> None:
    rows = [
        {"run": name, "state": status.state, **{key: row[key] for key in _COLUMNS if row.get(key) is not None}}
        | ({} if row["seconds_left"] is None else {"time left": format_seconds(row["seconds_left"])})
        for name, status in zip(names, statuses, strict=True)
        for row in status.rows()
        if row["left"] != 0 or row["failed"] or "damaged_lines" in row
    ]
    if rows:
        sheet(rows, "What is done, failed and left of each run", height="content")
    for status in statuses:
        st.caption(plain(status.text().partition("\n")[0]))


_COLUMNS = ("command", "section", "what", "done", "running", "failed", "left", "of")


def _lies_in(folder: Path, root: Path) -> bool:
    """Whether what a status reads lies in `root`, its links followed; a store at a URL is not asked."""
    read = [
        folder / name for name in ("", LOCK, STATUS_FILE, STORE, partial_path(Path(STORE)), "locate", "anatomy")
    ] + [
        *folder.glob("*.json*"),
        *folder.glob("*/*.json*"),
        *folder.glob(f"*/{STATUS_FILE}"),
    ]
    return all(is_inside(path, root) for path in read) and not (folder / POINTER).exists()


@st.cache_data(ttl=2, max_entries=64, show_spinner=False)
def _status(folder: Path) -> Status | None:
    try:
        return status_of(folder)
    except (ValueError, OSError):
        return None
