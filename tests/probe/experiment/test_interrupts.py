"""Ctrl-C is heard, also where another package swallows it, and from the first import on."""

import os
import signal
import subprocess
import sys
import time

import pytest

from mesa_lens import cli
from probe.experiment.interrupts import check_interrupt, interruptible
from probe.experiment.progress import showing_progress


def swallowed(number):
    """What a package does whose import takes every error for its own."""
    try:
        os.kill(os.getpid(), number)
        time.sleep(1)
    except BaseException:
        pass


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_swallowed_interrupt_comes_again_at_the_next_stage(number):
    before = signal.getsignal(number)
    with interruptible():
        swallowed(number)
        with pytest.raises(KeyboardInterrupt):
            showing_progress("measuring").__enter__()
    assert signal.getsignal(number) is before
    check_interrupt()  # a former command's is forgotten


def test_a_command_ends_by_an_interrupt_that_its_imports_swallow(model, tmp_path, monkeypatch, capsys):
    from probe.interventions import request as planning

    former = planning.plan
    monkeypatch.setattr(planning, "plan", lambda request: swallowed(signal.SIGINT) or former(request))
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
