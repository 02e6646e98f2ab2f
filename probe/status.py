"""How far a run of any command is, from its journals, store and lock. Loads no torch and writes nothing."""

import json
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import zarr

from mesa.errors import NotFound, Refused
from probe.commands import resume_command
from probe.experiment.journal import REQUEST, JournalFile, read_journal
from probe.experiment.pool import format_seconds
from probe.files import JsonObject, read_result
from probe.run_folder import LOCK, PROBE, REPORTED, Layout, RunFolder, layouts
from probe.store.reader import EVALUATION, complete_passes, partial_path, store_of, stored_labels


def _experiments() -> dict[str, Layout]:
    """Those that leave a journal and results; a probe leaves a store."""
    return {name: layout for name, layout in layouts().items() if name != "probe"}


@dataclass(frozen=True)
class CommandStatus:
    """One kind of work in a folder. cells: how many in all, None where that is unknown. failed: left out for good.

    file: its journal. damaged: numbers of lines. seconds: the time left; None: unknown, or nothing is running. refusal:
    why what is done gives no result. resume: the command that goes on; empty where the run recorded none.
    """

    command: str
    what: str
    done: int
    cells: int | None
    failed: int = 0
    file: Path | None = None
    damaged: tuple[int, ...] = ()
    seconds: float | None = None
    refusal: str = ""
    resume: str = ""

    @property
    def left(self) -> int | None:
        """What is still to be done, or under way."""
        return None if self.cells is None else max(0, self.cells - self.done - self.failed)


@dataclass(frozen=True)
class Status:
    """state: running, finished or unfinished. folder: says who writes, or wrote as it died.

    lacking: what is not written yet, of a run with all its cells. by: the command that writes it.
    """

    path: Path
    state: str
    parts: tuple[CommandStatus, ...]
    folder: RunFolder
    lacking: str = ""
    by: str = ""

    @property
    def resume(self) -> dict[str, str]:
        """The command line that goes on, by command; of what is finished, running, damaged or did not tell, none."""
        if self.state == "running":
            return {}
        parts = [part for part in self.parts if not part.damaged and (part.left != 0 or part.command == self.by)]
        lines = {part.command: part.resume for part in parts if part.resume}
        return lines | ({"report": shlex.join(["mesa-lens", "report", str(self.path)])} if self.by == "report" else {})

    def as_dict(self) -> JsonObject:
        """All of it, as JSON."""
        rows = []
        for part in self.parts:
            row = {"command": part.command, "what": part.what, "done": part.done, "failed": part.failed}
            row |= {"left": part.left, "of": part.cells, "seconds_left": part.seconds}
            row |= {"damaged_lines": list(part.damaged)} if part.damaged else {}
            rows.append(row | ({"refusal": part.refusal} if part.refusal else {}))
        columns = {name: [row[name] for row in rows] for name in ("done", "failed", "left", "of", "seconds_left")}
        sums = {name: None if None in values else sum(values) for name, values in columns.items()}
        holder = {key: value for key, value in self.folder.holder.items() if key != "journals"}
        about = {"run": str(self.path), "state": self.state, "holder": holder or None}
        return {**about, **sums, "resume": list(self.resume.values()), "parts": rows}

    def text(self) -> str:
        """A line a part."""
        who, holder = self.folder.holder_text, self.folder.holder
        ended = f"; {who} ended and left its {LOCK}" if holder else ""
        holder = f", {who}{'' if holder else ' holds it'}" if self.state == "running" else ended
        lines = [f"{self.path}: {self.state}{holder}"]
        for part in self.parts:
            name, total = part.command, part.cells
            counts = [f", {count} {name}" for name, count in (("failed", part.failed), ("left", part.left)) if count]
            time = f", about {format_seconds(part.seconds)}" if part.left and part.seconds is not None else ""
            damaged = f"; damaged: line {', '.join(map(str, part.damaged))}" if part.damaged else ""
            done = f"{part.done}{'' if total is None else f' of {total}'} {part.what} done"
            lines.append(f"  {name}: {done}{''.join(counts)}{time}{damaged}")
            lines += [f"  {name} ended without a result: {part.refusal}"] if part.refusal else []
        nothing = [] if self.parts else ["  nothing is done yet"]
        return "\n".join([*lines, *nothing, *([f"  {self.lacking}"] if self.lacking else [])])


def status_of(folder: Path) -> Status:
    """The status of the run in a folder. Raises FileNotFoundError, and Refused for a folder without a run."""
    if not folder.exists():
        raise NotFound(f"{folder} is not there; name the folder that a run writes to (its --out)")
    if not folder.is_dir():
        raise Refused(f"{folder} is a file; name the folder that a run writes to (its --out)")
    about = RunFolder(folder)
    try:
        parts = tuple(_parts(about))
    except (LookupError, TypeError, AttributeError) as error:
        raise Refused(f"{folder} is damaged ({error!r}): its journal is not as a command writes it") from error
    if not parts and not about.is_running:
        raise Refused(f"{folder} holds no run: no journal, no store; name the folder that a run writes to (its --out)")
    lacking, by = _lacking(about)
    is_finished = all(part.left == 0 and not part.damaged for part in parts) and not lacking
    state = "running" if about.is_running else "finished" if is_finished else "unfinished"
    return Status(folder, state, parts, about, lacking, by)


def has_results(out: Path) -> bool:
    """Whether the folder holds anything to go on from."""
    try:
        return any(part.done for part in status_of(out).parts)
    except (ValueError, OSError):
        return False


def _lacking(run: RunFolder) -> tuple[str, str]:
    """What is not written, in words, and the command that writes it; both empty for nothing."""
    folder, store = run.path, store_of(run.path)
    if partial_path(store).exists():
        return "the store is not finished", "probe"
    if store.exists() and not all((folder / name).exists() for name in REPORTED):
        return "the report is not written; `mesa-lens report` writes it", "report"
    for command, layout in _experiments().items():
        location, is_begun = folder / layout.folder, layout.journal_paths(folder)[0].exists()
        path = location / layout.results[0]
        missing = [name for name in layout.results if not (location / name).exists()]
        if missing == ["report.html"] and store.exists() and path.exists():
            return f"report.html of {command} is not written; `mesa-lens report` writes it", "report"
        if missing and is_begun:
            return f"{' and '.join(missing)} of {command} not written; the same command writes them", command
        try:
            content = read_result(path)
            if is_begun and (other := run.not_of_run(path, content, command)):
                return other, command
        except FileNotFoundError:
            continue
        except (OSError, Refused) as error:
            return f"{error}; the same command writes it again", command
    return "", ""


def _parts(run: RunFolder) -> Iterator[CommandStatus]:
    """The parts in the folder itself. Raises Refused for an unreadable file."""
    for command, layout in _experiments().items():
        for path in layout.journal_paths(run.path)[1:]:
            if path.exists():
                journal = read_journal(path)
                yield _journal_part(command, "lm-eval tasks", run, path, journal, journal.expected)
    yield from _probe_parts(run)
    for command, layout in _experiments().items():
        if (path := layout.journal_paths(run.path)[0]).exists():
            journal, summary = read_journal(path), _summary(path, path.with_name(layout.results[0]))
            failed = 0 if command != "eval" else len(summary.get("out_of_memory", ())) + len(summary.get("failed", ()))
            total = journal.expected  # but of a run that ended, what its summary says
            if "tasks_left" in summary:
                total = len(journal.rows) + failed + summary["tasks_left"]
            part = _journal_part(command, "cells", run, path, journal, total, failed)
            yield replace(part, refusal=str(summary.get("refusal", "")))


def _journal_part(
    command: str, what: str, run: RunFolder, path: Path, journal: JournalFile, total: int | None, failed: int = 0
) -> CommandStatus:
    resume, done = resume_command(command, run.path, journal.request), len(journal.rows)
    return _timed(CommandStatus(command, what, done, total, failed, path, tuple(journal.damaged), resume=resume), run)


def _timed(part: CommandStatus, run: RunFolder) -> CommandStatus:
    """The part with its seconds left: at the pace of its journal since the run that is writing started."""
    if not run.is_running or part.left is None or part.file is None:
        return part
    name = part.file.relative_to(run.path).as_posix()
    try:
        elapsed = (datetime.now(UTC) - datetime.fromisoformat(run.holder["since"])).total_seconds()
        rows = run.journal_lines()[name] - run.holder["journals"].get(name, 1)  # without the settings
    except (KeyError, TypeError, ValueError, AttributeError):
        return part
    return replace(part, seconds=round(part.left * elapsed / rows, 1) if rows > 0 else None)


def _probe_parts(run: RunFolder) -> Iterator[CommandStatus]:
    of_run, path = store_of(run.path), PROBE.journal_paths(run.path)[0]
    store = next((place for place in (partial_path(of_run), of_run) if place.exists()), None)
    if store is None:
        if path.exists():
            yield _journal_part("probe", "measured cells", run, path, read_journal(path), None)
        return
    try:
        group = zarr.open_group(store, mode="r", use_consolidated=False)
        lengths = json.loads(str(group.attrs.get("lengths", "[]")))
        methods, prompts = ({*stored_labels(group, name)} for name in ("method", "prompt"))
        captured, in_stages = len(complete_passes(store)), "stages" in group.attrs
        resume = resume_command("probe", run.path, json.loads(str(group.attrs.get(REQUEST, "null"))))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise Refused(f"{store} is damaged ({str(error).partition(chr(10))[0]})") from error
    if path.exists() or lengths:
        journal = read_journal(path) if path.exists() else JournalFile(None)
        journal.rows = {key: row for key, row in journal.rows.items() if key[1] in methods}  # not an earlier run's
        further = sum(length not in lengths for _, _, length in journal.rows)  # by bisection: known as they come
        total: int | None = 2 * len(methods) * len(lengths) + further  # tail likelihood and passkey
        if in_stages:
            total = _with_left(of_run, len(journal.rows))
        yield replace(_journal_part("probe", "measured cells", run, path, journal, total), resume=resume)
    yield CommandStatus("probe", "captured passes", captured, len(methods) * len(prompts), resume=resume)


def _with_left(store: Path, rows: int) -> int | None:
    """The cells of a run in stages as far as they are known: those measured, and those of its next step."""
    try:
        left = zarr.open_group(store / EVALUATION, mode="r", use_consolidated=False).attrs["left"]
    except (OSError, KeyError):
        return None
    return rows + int(str(left))


def _summary(path: Path, summary: Path) -> JsonObject:
    """What a run wrote at its end, where that is not older than `path`; else nothing."""
    try:
        if summary.stat().st_mtime < path.stat().st_mtime:
            return {}
        return read_result(summary)
    except (OSError, ValueError):
        return {}
