"""`mesa-lens app`: what it refuses before it starts."""

import subprocess

import pytest

from mesa_lens.cli import main


@pytest.mark.parametrize(("name", "wrong"), [("nowhere", "is not there"), ("a-file", "is not a folder")])
def test_a_store_that_is_no_folder_is_refused(monkeypatch, tmp_path, capsys, name, wrong):
    (tmp_path / "a-file").write_text("")
    monkeypatch.setattr(subprocess, "call", lambda *_, **__: pytest.fail("a server was started"))
    assert main(["app", "--no-browser", "--store", str(tmp_path / name)]) == 2
    assert f"{name} {wrong}" in capsys.readouterr().err
