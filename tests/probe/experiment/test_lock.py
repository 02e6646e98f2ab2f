"""One writer a folder, whichever command it is."""

import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from mesa_lens.cli import main
from probe.experiment.lock import LOCK, owned

HOLD = """
import sys, time
from pathlib import Path
from probe.experiment.lock import owned
with owned(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(600)
"""
ROOT = Path(__file__).parents[3]


@pytest.fixture
def held(tmp_path):
    """A folder that another process writes to, and that process."""
    out = tmp_path / "run"
    holder = subprocess.Popen([sys.executable, "-c", HOLD, str(out)], stdout=subprocess.PIPE, text=True, cwd=ROOT)
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    yield out, holder
    holder.kill()
    holder.wait()
    holder.stdout.close()


def test_every_command_that_writes_is_refused_at_once_and_names_who_holds_the_folder(model, held, tmp_path, capsys):
    out, holder = held
    config = tmp_path / "paper.yaml"
    config.write_text(f"model: {model}\ntrained_length: 160\nmethods: origin\nsections:\n  passkey: {{samples: 1}}\n")
    given = ["--model", model, "--out", str(out)]
    for command in (
        ["probe", *given, "--length", "400", "--texts", "0", "--samples", "0", "--overwrite"],
        ["eval", *given, "--task", "nll", "--methods", "origin", "--lengths", "160", "--overwrite"],
        ["locate", *given, "--lengths", "320", "--samples", "1"],
        ["paper", "--config", str(config), "--out", str(out)],
    ):
        assert main(command) == 2, command
        (line,) = capsys.readouterr().err.splitlines()
        assert f"{out} is being written to by process {holder.pid}" in line
    assert [path.name for path in out.iterdir()] == [LOCK]


def test_the_lock_of_a_killed_process_holds_nobody_up(held):
    out, holder = held
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    assert (out / LOCK).exists()
    with owned(out):
        assert f"process {holder.pid}" not in (out / LOCK).read_text()
    assert not out.exists() or not list(out.iterdir())


def test_a_folder_is_owned_by_one_thread_several_times_over(tmp_path):
    out = tmp_path / "a" / "b"
    refused = pytest.raises(FileExistsError, match="is being written to by process")
    with owned(out), owned(out), ThreadPoolExecutor(1) as pool, refused:
        pool.submit(owned(out).__enter__).result()
    assert not (tmp_path / "a").exists()  # nothing was kept


def test_what_was_kept_stays_and_a_file_is_no_folder(tmp_path):
    with owned(tmp_path / "run"):
        (tmp_path / "run" / "kept").write_text("")
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["kept"]
    with pytest.raises(NotADirectoryError, match="kept is a file"), owned(tmp_path / "run" / "kept"):
        pass
