"""One writer a folder, whichever command it is."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from holding import held

from mesa.errors import Refused
from mesa_lens.cli import main
from probe.experiment.lock import owned
from probe.run_folder import LOCK


def test_every_command_that_writes_is_refused_at_once_and_names_who_holds_the_folder(model, tmp_path, capsys):
    out = tmp_path / "run"
    given = ["--model", model, "--out", str(out)]
    with held(out) as holder:
        for command in (
            ["probe", *given, "--length", "400", "--texts", "0", "--samples", "0", "--overwrite"],
            ["eval", *given, "--task", "nll", "--methods", "origin", "--lengths", "160", "--overwrite"],
            ["locate", *given, "--lengths", "320", "--samples", "1"],
        ):
            assert main(command) == 2, command
            (line,) = capsys.readouterr().err.splitlines()
            assert f"{out} is being written to by process {holder.pid}" in line
        assert [path.name for path in out.iterdir()] == [LOCK]


def test_the_lock_of_a_killed_process_holds_nobody_up(tmp_path):
    with held(out := tmp_path / "run") as holder:
        pass
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
    with pytest.raises(Refused, match="kept is a file"), owned(tmp_path / "run" / "kept"):
        pass
