"""The core works without each of the commands that hang on it."""

import subprocess
import sys

import guests
import pytest

from probe.commands import commands, installed
from probe.run_folder import layouts

HUNG = [name for name in installed() if name != "probe"]
FOLDERS = {name: f"probe.commands.{name}" for name in commands() if name != "probe"}
FOLDERS |= {name: f"mesa_lens.{name}" for name in ("check", "config")}
CORE = "tests/mesa/test_methods.py tests/probe/store/test_store.py tests/probe/capture".split()


def hidden(folder, name):
    return guests.visible(folder, guest=False) | {"HIDDEN": FOLDERS[name]}


def test_all_but_probe_hang_on_it_and_have_layouts_of_their_own():
    assert sorted(HUNG) == sorted(FOLDERS)
    assert list(layouts()) == list(commands())
    assert all(row.layout == layouts()[name] for name, row in commands().items())


def test_an_outdated_metadata_folder_in_front_hides_no_command(tmp_path):
    old = tmp_path / "mesa_lens.egg-info"
    old.mkdir()
    (old / "PKG-INFO").write_text("Metadata-Version: 2.1\nName: mesa-lens\nVersion: 0.1\n")
    (old / "entry_points.txt").write_text("[console_scripts]\nmesa-lens = mesa_lens.__main__:main\n")
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); from probe.commands import commands; print(*commands())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=guests.ROOT)
    assert {"predict", "locate", "anatomy", "eval"} <= {*done.stdout.split()}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in ("eval", "check") else pytest.mark.slow) for name in HUNG]
)
def test_the_help_lacks_a_command_that_is_not_there(tmp_path, name):
    ((code, out, err),) = guests.commands(hidden(tmp_path, name), ["--help"], before="import hiding\n")
    listed = {line.split()[0] for line in out.splitlines() if line.startswith("    ") and line[4:5].strip()}
    assert (code, err) == (0, "")
    assert {*HUNG, "probe", "status", "export"} - listed == {name}


@pytest.mark.slow
@pytest.mark.parametrize("name", HUNG)
def test_a_probe_its_report_and_status_do_without_it(tmp_path, model, name):
    run = tmp_path / "run"
    words = ["--methods", "origin,rerope", "--length", "200", "--samples", "0", "--texts", "0", "--model", model]
    lines = [["probe", *words, "--out", run], ["status", run], ["report", run], ["export", "drift", run]]
    results = guests.commands(hidden(tmp_path / "site", name), *lines, before="import hiding\n" + guests.UNDRAWN)
    assert [(code, err[-300:]) for code, _, err in results if code] == []
    text = (run / "report.html").read_text(encoding="utf-8")
    assert ("not located" in text) == (name != "locate")


@pytest.mark.slow
@pytest.mark.parametrize("name", HUNG)
def test_the_tests_of_the_core_pass_without_it(tmp_path, name):
    words = [sys.executable, "-m", "pytest", "-p", "hiding", "-q", "-x", "-n", "0", *CORE]
    env = hidden(tmp_path, name)
    done = subprocess.run(words, capture_output=True, text=True, check=False, env=env, cwd=guests.ROOT)
    assert done.returncode == 0, done.stdout[-2000:]
