"""New run: what a form may ask for, and a run's whole life: estimate, start, progress, stop, resume, finished."""

import json
import re
import subprocess
import time

import pytest
import tiny
from pages import PATIENCE, shown_texts, unopened
from synthetic import hidden_states, write_run

from mesa_lens.cli import main
from mesa_lens.dashboard import run_control
from mesa_lens.dashboard.run_control import arguments, run_folder


@pytest.fixture
def opened(monkeypatch, tmp_path):
    monkeypatch.setenv("MESA_LENS_RUNS", str(tmp_path / "runs"))
    monkeypatch.setenv("MESA_LENS_ALLOW_RUNS", "yes")
    return unopened("new").run()


def ask(app, **values):
    for key, value in values.items():
        app.text_input(key=f"ask_{key}").set_value(value)
    return app.run()


def until(app, holds):
    end = time.monotonic() + PATIENCE
    while not holds(app):
        assert time.monotonic() < end, shown_texts(app)
        assert not app.exception
        time.sleep(0.2)
        app.run()


def test_runs_are_off_unless_allowed(monkeypatch, tmp_path):
    monkeypatch.setenv("MESA_LENS_RUNS", str(tmp_path))
    monkeypatch.delenv("MESA_LENS_ALLOW_RUNS", raising=False)
    app = unopened("new").run()
    assert f"mesa-lens app --store {tmp_path} --allow-runs" in shown_texts(app)
    assert not app.button
    assert not app.text_input


def test_wrong_values_are_refused_as_they_are_typed(opened, tmp_path):
    for key, wrong, message in (
        ("length", "no length", "--length 'no length' is no whole number"),
        ("lengths", "1k:2k", "is no FIRST:LAST:STEP"),
        ("name", "../out", "'../out' is no name for a run"),
    ):
        app = ask(opened, **{key: wrong})
        assert message in app.error[0].value.replace("\\", "")
        assert not app.button
        ask(opened, **{key: "" if key != "name" else "mine"})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_run_from_start_to_finish(opened, tmp_path):
    model, folder = tiny.folder(tmp_path / "tiny"), tmp_path / "runs" / "first"
    app = ask(opened, name="first", model=str(model), length="400", lengths="80,160,320", samples="60", texts="1")
    (command,) = (element.value for element in app.code)
    assert command.startswith(f"mesa-lens probe --model={model} --length=400 ")
    app.button(key="start").click().run()
    assert not app.error
    until(app, lambda app: re.search(r" [1-9]\d* of \d+ measured cells done", shown_texts(app)))
    app.button(key="stop").click().run()
    until(app, lambda app: any(button.key == "resume" for button in app.button))
    assert "interrupted; what is done is kept: the same command continues from" in shown_texts(app)
    assert not (folder / "store.zarr").exists()
    app.button(key="resume").click().run()
    assert run_control.is_running(folder)
    until(app, lambda app: app.success)
    assert "The run is finished." in app.success[0].value
    assert json.loads((folder / "summary.json").read_text())["captured_length"] == 400


@pytest.mark.parametrize("name", ["../out", "/tmp/out", ".hidden", "a/b/c/d", "a\nb", "", "--help", "a/../../b"])
def test_what_is_no_name_is_refused(tmp_path, name):
    with pytest.raises(ValueError, match="is no name for a run"):
        run_folder(tmp_path, name)
    assert run_folder(tmp_path, "my/run-2") == tmp_path / "my" / "run-2"


def test_only_the_forms_options_are_set(tmp_path):
    for name in ("out", "overwrite", "trust-remote-code", "device"):
        with pytest.raises(KeyError, match=name):
            arguments({name: "x"}, tmp_path)
    line = arguments({"prompt": "--out=/etc; rm -rf $HOME", "model": "org/name"}, tmp_path / "run")
    assert line == ["--prompt=--out=/etc; rm -rf $HOME", "--model=org/name", f"--out={tmp_path / 'run'}"]


def test_no_run_goes_into_another(tmp_path):
    write_run(tmp_path / "whole", hidden_states(layers=2, dims=4))
    for root, name in ((tmp_path, "whole/inner"), (tmp_path / "whole", "inner")):
        with pytest.raises(ValueError, match="is a run's own folder"):
            run_folder(root, name)
    with pytest.raises(ValueError, match="whole is already there"):
        run_control.start(tmp_path / "whole", [])


def test_runs_are_allowed_for_this_machine_alone(monkeypatch, tmp_path, capsys):
    environments = []
    monkeypatch.setenv("MESA_LENS_ALLOW_RUNS", "yes")
    monkeypatch.setattr(subprocess, "call", lambda command, env: environments.append(env) or 0)
    app = ["app", "--store", str(tmp_path), "--no-browser"]
    assert [main(app), main([*app, "--allow-runs"])] == [0, 0]
    assert ["MESA_LENS_ALLOW_RUNS" in environment for environment in environments] == [False, True]
    assert main([*app, "--allow-runs", "--host", "0.0.0.0"]) == 2
    assert "--host 0.0.0.0 opens the page to others" in capsys.readouterr().err
