"""Ctrl-C is heard, also where another package swallows it, and from the first import on."""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from types import SimpleNamespace

import pytest

from mesa_lens import cli
from probe.experiment.lock import interruptible


@pytest.fixture(autouse=True)
def of_a_terminal():
    """SIGINT as a terminal's command has it: a shell's background command starts with it ignored."""
    former = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, former)


def swallowed(number):
    """What a package does whose import takes every error for its own."""
    try:
        os.kill(os.getpid(), number)
        time.sleep(1)
    except BaseException:
        pass


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_swallowed_interrupt_comes_again_and_again_but_not_into_the_cleanup_of_one(number):
    before, cleaned = [signal.getsignal(each) for each in (number, signal.SIGALRM)], []

    @interruptible()
    def command():
        try:
            swallowed(number)
            swallowed(signal.SIGALRM)
            time.sleep(5)
        finally:
            time.sleep(0.5)
            with suppress(ValueError):
                time.sleep(0.3)
                raise ValueError
            cleaned.append(1)

    with pytest.raises(KeyboardInterrupt):
        command()
    assert cleaned
    assert [signal.getsignal(each) for each in (number, signal.SIGALRM)] == before
    with interruptible():
        time.sleep(0.3)  # a former command's is forgotten


def test_an_alarm_that_comes_as_a_command_ends_sets_no_other(monkeypatch):
    real = signal.setitimer

    def late(which, seconds):
        real(which, seconds)
        if not seconds:
            os.kill(os.getpid(), signal.SIGALRM)

    monkeypatch.setattr(signal, "setitimer", late)
    with pytest.raises(KeyboardInterrupt), interruptible():
        raise KeyboardInterrupt
    left = signal.getitimer(signal.ITIMER_REAL)
    real(signal.ITIMER_REAL, 0)
    assert left == (0, 0)


def test_what_python_drops_of_signals_is_not_printed_and_all_else_is(monkeypatch):
    printed = []
    monkeypatch.setattr(sys, "unraisablehook", printed.append)
    race, other = OSError("Signal 14 ignored due to race condition"), OSError("no space")  # CPython's words
    with interruptible():
        for error in (race, other, KeyboardInterrupt()):
            sys.unraisablehook(SimpleNamespace(exc_type=type(error), exc_value=error))
    assert [dropped.exc_value for dropped in printed] == [other]


def test_an_error_that_a_package_makes_of_an_interrupt_is_one():
    @interruptible()
    def command():
        try:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(5)
        except BaseException as error:
            failed = ImportError("a module cannot be imported")
            failed.add_note("go on")
            raise failed from error

    with pytest.raises(KeyboardInterrupt) as caught:
        command()
    assert caught.value.__notes__ == ["go on"]


def test_what_a_callback_swallows_is_raised_soon_after_without_a_word(capfd):
    """As that of the lock that every import ends with."""

    class Ends:
        def __del__(self):
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.01)

    @interruptible()
    def command():
        Ends()
        time.sleep(5)

    begun = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        command()
    assert time.monotonic() - begun < 3
    assert capfd.readouterr().err == ""


def test_a_command_ends_by_an_interrupt_that_its_imports_swallow(model, tmp_path, monkeypatch, capsys):
    from probe.commands.locate import run as planning

    former = planning.plan
    monkeypatch.setattr(planning, "plan", lambda request: swallowed(signal.SIGINT) or time.sleep(1) or former(request))
    assert (
        cli.main(["locate", "--model", model, "--lengths", "400", "--samples", "1", "--out", str(tmp_path / "a")]) == 1
    )
    assert "interrupted; nothing half-written was left" in capsys.readouterr().err
    assert not (tmp_path / "a").exists()


@pytest.mark.slow
@pytest.mark.parametrize("seconds", [0.1, 0.25, 0.5, 1.0])
def test_an_interrupt_of_the_first_seconds_is_one_line(seconds, tmp_path):
    words = [sys.executable, "-m", "mesa_lens", "probe", "--out", str(tmp_path / "out")]
    started = subprocess.Popen(words, stderr=subprocess.PIPE, text=True)
    time.sleep(seconds)
    started.send_signal(signal.SIGINT)
    _, said = started.communicate(timeout=60)
    assert started.returncode in (1, -signal.SIGINT)
    assert not (tmp_path / "out").exists()
    assert "interrupted" in said or seconds < 1  # Python itself was starting
