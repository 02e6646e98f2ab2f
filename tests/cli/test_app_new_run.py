"""New run: what a form may ask for, and a run's whole life: estimate, start, progress, stop, resume, finished."""

import io
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest
import tiny
from pages import PATIENCE, unopened
from synthetic import hidden_states, write_run

from mesa_lens.cli import main
from mesa_lens.dashboard import run_control
from mesa_lens.dashboard.run_control import arguments, inside, run_folder


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    return tiny.folder(tmp_path_factory.mktemp("models") / "tiny").parent


@pytest.fixture
def opened(monkeypatch, tmp_path, models):
    monkeypatch.setenv("MESA_LENS_RUNS", str(tmp_path))
    monkeypatch.setenv("MESA_LENS_ALLOW_RUNS", json.dumps([str(tmp_path), str(models)]))
    return unopened("new").run()


def texts(app):
    kinds = (app.markdown, app.error, app.warning, app.info, app.success, app.code, app.subheader)
    return "\n".join(element.value for kind in kinds for element in kind).replace("\\", "")


def ask(app, **values):
    for key, value in values.items():
        app.text_input(key=f"ask_{key}").set_value(value)
    return app.run()


def until(app, holds):
    end = time.monotonic() + PATIENCE
    while not holds(app):
        assert time.monotonic() < end, texts(app)
        assert not app.exception
        time.sleep(0.2)
        app.run()


def test_runs_are_off_unless_allowed(monkeypatch, tmp_path):
    monkeypatch.setenv("MESA_LENS_RUNS", str(tmp_path))
    monkeypatch.delenv("MESA_LENS_ALLOW_RUNS", raising=False)
    app = unopened("new").run()
    assert f"mesa-lens app --store {tmp_path} --allow-runs" in texts(app)
    assert not app.button
    assert not app.text_input


def here(command, **_):
    """What the command gives, in this process."""
    assert command[:3] == [sys.executable, "-m", "mesa_lens"]
    out, error = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(error):
        code = main(command[3:])
    return subprocess.CompletedProcess(command, code, out.getvalue(), error.getvalue())


def test_what_an_option_does_not_take_is_refused_as_it_is_typed(opened, tmp_path):
    for key, wrong, message in (
        ("length", "no length", "--length 'no length' is no whole number"),
        ("samples", "-1", "--samples -1 is below 0"),
        ("lengths", "1k:2k", "is no FIRST:LAST:STEP"),
    ):
        app = ask(opened, **{"model": "tiny", key: wrong})
        assert message in app.error[0].value.replace("\\", "")
        assert not app.button
        ask(opened, **{key: ""})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_run_from_start_to_finish(opened, tmp_path, models):
    app = ask(opened, name="first", model="tiny", length="400", lengths="80,160,320", samples="6", texts="1")
    app.text_area(key="ask_typed").set_value("Every word of this is my own. " * 600).run()
    (command,) = (element.value for element in app.code)
    assert command.startswith(f"mesa-lens probe --model={models / 'tiny'} --length=400 ")
    app.button(key="estimate").click().run()
    assert "captured length 400 tokens" in texts(app)
    assert list(tmp_path.iterdir()) == []
    app.button(key="start").click().run()
    assert not app.error
    assert app.selectbox(key="started").value == "first"
    assert app.button(key="stop")
    until(app, lambda _: run_control.progress(tmp_path / "first").share > 0)
    app.button(key="stop").click().run()
    until(app, lambda app: any(button.key == "resume" for button in app.button))
    assert "interrupted; what is done is kept: the same command continues from" in texts(app)
    assert not (tmp_path / "first" / "store.zarr").exists()
    app.button(key="resume").click().run()
    assert run_control.progress(tmp_path / "first").running
    until(app, lambda app: app.success)
    assert "The run is finished." in texts(app)
    whole = unopened().run()
    assert "tiny" in texts(whole)
    assert not whole.error
    summary = json.loads((tmp_path / "first" / "summary.json").read_text())
    assert summary["captured_length"] == 400


@pytest.mark.parametrize(
    ("button", "values", "message"),
    [
        ("start", {"length": "100"}, "--length 100 is not far enough beyond the trained length 160"),
        ("estimate", {"set": "rerope.window=x"}, "rerope: window=x is not a whole number"),
    ],
)
def test_bad_input_is_refused_in_the_commands_own_words(opened, tmp_path, monkeypatch, button, values, message):
    monkeypatch.setattr(run_control.subprocess, "run", here)
    app = ask(opened, **{"model": "tiny", **values})
    app.button(key=button).click().run()
    assert message in app.error[0].value.replace("\\", "")
    assert list(tmp_path.iterdir()) == []  # nothing was made


def test_methods_left_as_they_are_fit_the_model(opened, monkeypatch):
    monkeypatch.setattr(run_control.subprocess, "run", here)
    monkeypatch.setattr("mesa_lens.probe.print_estimate", lambda args, text, *_: print(text))
    app = ask(opened, model="alibi")
    app.button(key="estimate").click().run()
    assert not app.error
    assert "3 method(s)" in texts(app)
    assert "left out: dynamic-ntk cannot be attached to model type 'mpt'" in texts(app)
    app.multiselect(key="ask_methods").set_value(["origin", "dynamic-ntk"]).run()
    app.button(key="estimate").click().run()
    assert "dynamic-ntk cannot be attached to model type 'mpt'" in app.error[0].value.replace("\\", "")


OUTSIDE = [
    {"name": "../out"},
    {"name": "/tmp/out"},
    {"name": ".hidden"},
    {"name": "a/b/c/d"},
    {"name": "a\nb"},
    {"name": ""},
    {"name": "--help"},
    {"model": "../tiny"},
    {"model": "/etc"},
    {"model": "~/model"},
    {"model": "./model"},
    {"model": "a/b/c"},
    {"model": "some.gguf"},
    {"text": "/etc/passwd"},
    {"text": "../../etc/passwd"},
    {"text": "tiny/../../../../etc/passwd"},
]


def test_paths_outside_are_refused_on_the_page(opened, tmp_path):
    inside = {"model": "tiny", "name": "inside", "text": ""}
    assert ask(opened, **inside).button
    for values in OUTSIDE:
        app = ask(opened, **{**inside, **values})
        assert len(app.error) == 1, values
        assert not app.button, values  # nothing to press
    assert list(tmp_path.iterdir()) == []


def test_links_out_of_the_folders_are_refused(tmp_path, models):
    root, outside = tmp_path / "root", tmp_path / "outside"
    outside.mkdir()
    (outside / "text.txt").write_text("secret")
    root.mkdir()
    (root / "link").symlink_to(outside)
    (root / "text.txt").symlink_to(outside / "text.txt")
    (root / "model").mkdir()
    (root / "model" / "config.json").symlink_to(outside / "text.txt")
    for name in ("link", "link/text.txt", "text.txt", "model", str(outside), str(root / "link")):
        with pytest.raises(ValueError, match="is not in"):
            inside(name, [root])
        with pytest.raises(ValueError, match="is not in"):
            arguments({"model": name}, root / "new", [root])
    with pytest.raises(ValueError, match="link is a link out of"):
        run_folder(root, "link")
    with pytest.raises(ValueError, match=r"link/new is a link out of"):
        run_folder(root, "link/new")
    assert inside("tiny", [root, models]) == models / "tiny"


def test_a_log_that_links_out_is_not_written(tmp_path):
    folder = tmp_path / "root" / "run"
    folder.mkdir(parents=True)
    (folder / "new-run.json").write_text(json.dumps({"options": {}, "pid": 1}))
    (tmp_path / "victim").write_text("untouched")
    (folder / "new-run.log").symlink_to(tmp_path / "victim")
    assert run_control.started_runs(tmp_path / "root") == []
    with pytest.raises(ValueError, match="holds links out of"):
        run_control.resume(tmp_path / "root", folder, [tmp_path / "root"])
    assert (tmp_path / "victim").read_text() == "untouched"


def test_only_the_forms_options_are_set(tmp_path):
    for name in ("out", "overwrite", "trust-remote-code", "device"):
        with pytest.raises(ValueError, match=f"--{name} cannot be set here"):
            arguments({name: "x"}, tmp_path, [tmp_path])
    line = arguments({"prompt": "--out=/etc; rm -rf $HOME", "model": "org/name"}, tmp_path / "run", [tmp_path])
    assert line == ["--prompt=--out=/etc; rm -rf $HOME", "--model=org/name", f"--out={tmp_path / 'run'}"]


def test_a_name_that_is_a_folder_here_is_not_taken_for_the_hubs(tmp_path, monkeypatch):
    (tmp_path / "org" / "name").mkdir(parents=True)
    (tmp_path / "runs").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="org/name is not in"):
        arguments({"model": "org/name"}, tmp_path / "runs" / "new", [tmp_path / "runs"])


def test_no_run_goes_into_another(tmp_path):
    write_run(tmp_path / "whole", hidden_states(layers=2, dims=4))
    with pytest.raises(ValueError, match="is a run's own folder"):
        run_folder(tmp_path, "whole/inner")
    with pytest.raises(ValueError, match="is a run's own folder"):
        run_folder(tmp_path / "whole", "inner")
    with pytest.raises(ValueError, match="whole is already there"):
        run_control.start(tmp_path, "whole", {}, "", [tmp_path])


def test_no_process_is_stopped_but_the_runs_own(tmp_path):
    other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)", f"--out={tmp_path}"])
    try:
        for pid in (other.pid, os.getpid(), 2**40, -1):
            (tmp_path / "new-run.json").write_text(json.dumps({"options": {}, "pid": pid}))
            assert not run_control.progress(tmp_path).running
            run_control.stop(tmp_path)
        assert other.poll() is None
    finally:
        other.send_signal(signal.SIGKILL)
        other.wait()


@pytest.mark.parametrize("record", ["{", "[]", '{"options": {}}', '{"options": {"length": 3}, "pid": 1}'])
def test_a_damaged_record_is_named(tmp_path, record):
    (tmp_path / "new-run.json").write_text(record)
    with pytest.raises(ValueError, match=r"new-run\.json is damaged"):
        run_control.resume(tmp_path.parent, tmp_path, [tmp_path.parent])


def test_progress_is_read_from_the_status_and_errors_from_the_log(tmp_path):
    log = "$ mesa-lens probe\nmesa-lens: old\n$ mesa-lens probe --x\nhello\n"
    (tmp_path / "new-run.log").write_text(log)
    progress = run_control.progress(tmp_path)
    assert progress.lines == ("$ mesa-lens probe --x", "hello")
    assert (progress.running, progress.finished, progress.error, progress.text) == (False, False, "", "starting")
    (tmp_path / "new-run.log").write_text(f"{log}mesa-lens: no luck\n")
    assert run_control.progress(tmp_path).error == "no luck"
    write_run(tmp_path / "whole", hidden_states(layers=2, dims=4))
    partly = run_control.progress(tmp_path / "whole")
    assert partly.text.startswith("captured passes: ")
    assert 0 < partly.share <= 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--inputs", "here"], "--inputs here is for --allow-runs, which is not given"),
        (["--allow-runs", "--inputs", "/nonexistent"], "--inputs /nonexistent is not a folder"),
    ],
)
def test_the_options_of_the_app(options, message, capsys, tmp_path):
    assert main(["app", "--store", str(tmp_path), "--no-browser", *options]) == 2
    assert message in capsys.readouterr().err


def test_the_app_hands_over_the_folders(monkeypatch, tmp_path):
    given = []
    monkeypatch.setenv("MESA_LENS_ALLOW_RUNS", "[]")
    monkeypatch.setattr(subprocess, "call", lambda command, env: given.append(env) or 0)
    (tmp_path / "models").mkdir()
    app = ["app", "--store", str(tmp_path), "--no-browser"]
    assert main(app) == 0
    assert main([*app, "--allow-runs", "--inputs", str(tmp_path / "models")]) == 0
    assert "MESA_LENS_ALLOW_RUNS" not in given[0]
    assert json.loads(given[1]["MESA_LENS_ALLOW_RUNS"]) == [str(tmp_path), str(Path(tmp_path, "models"))]
