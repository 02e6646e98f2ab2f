"""A progress bar is a line that moves on a terminal, and in a file a line every few seconds."""

import io
import os
import pty
import re
import threading
import time
from pathlib import Path

import pytest

import mesa
from mesa import progress
from mesa.progress import INTERVAL, Bar


@pytest.fixture
def clock(monkeypatch):
    """A clock for bars, moved by hand; tqdm's own is of the same time."""
    now = [1000.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    monkeypatch.setattr("tqdm.std.time", lambda: now[0])
    return now


def test_a_file_has_a_line_every_few_seconds_and_no_returns(clock):
    file = io.StringIO()
    with Bar(total=600, desc="measuring", unit="cell", file=file) as bar:
        for number in range(600):  # five minutes
            bar.set_postfix_str(f"task {number}")
            clock[0] += 0.5
            bar.update()
            if number == 300:
                bar.write("a line of its own", file=file)
    lines = file.getvalue().splitlines()
    assert "\r" not in file.getvalue()
    assert 300 / INTERVAL <= len(lines) <= 300 / INTERVAL + 2
    assert lines[-1].startswith("measuring: 100% of 600 [05:00<")
    assert lines.count("a line of its own") == 1


def test_what_takes_less_has_none(clock):
    file = io.StringIO()
    for _ in Bar(range(300), desc="drawing", file=file):
        clock[0] += INTERVAL / 301
    with Bar(desc="of unknown length", file=file):
        pass
    assert file.getvalue() == ""


def test_the_time_goes_on_while_one_step_is_long(monkeypatch):
    monkeypatch.setattr(progress, "INTERVAL", 0.0)
    monkeypatch.setattr(progress, "TICK_IN_FILE", 0.01)
    file, threads = io.StringIO(), threading.active_count()
    with Bar(total=1, desc="measuring", file=file) as bar, bar.ticking():
        before = file.getvalue().count("measuring: 0% of 1")
        time.sleep(0.2)
        assert file.getvalue().count("measuring: 0% of 1") > before + 1
    assert threading.active_count() == threads


def test_a_file_that_cannot_be_written_to_ends_the_run_and_does_not_hang_it(monkeypatch):
    monkeypatch.setattr(progress, "INTERVAL", 0.0)
    monkeypatch.setattr(progress, "TICK_IN_FILE", 0.01)

    def closed(text):
        raise BrokenPipeError

    bar = Bar(total=2, desc="measuring", file=io.StringIO())
    with bar.ticking():
        status, bar.sp = bar.sp, closed
        time.sleep(0.2)
    bar.sp = status
    thread = threading.Thread(target=bar.refresh, daemon=True)
    thread.start()
    thread.join(5)
    assert not thread.is_alive()  # the lock of all bars is free again
    bar.close()


def test_a_terminal_has_a_bar_that_moves():
    ours, theirs = pty.openpty()
    with os.fdopen(theirs, "w") as terminal:
        for _ in Bar(range(3), desc="drawing", file=terminal, ncols=60):
            pass
        shown = ""
        while "\n" not in shown:  # a terminal hands over what was written piece by piece
            shown += os.read(ours, 10_000).decode()
    os.close(ours)
    assert shown.count("\r") >= 2
    assert "100%|" in shown


def test_every_bar_is_one_of_these():
    root = Path(mesa.__file__).parents[1]
    files = [path for name in ("mesa", "probe", "theory", "mesa_lens") for path in (root / name).rglob("*.py")]
    others = [path.name for path in files if re.search(r"(?:import|from) tqdm", path.read_text(encoding="utf-8"))]
    assert others == ["progress.py"]
