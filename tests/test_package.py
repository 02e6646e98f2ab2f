"""What an installer, a type checker and the build machines read: in step with each other, and with the code."""

import re
import runpy
import subprocess
import sys
import tomllib
from email import message_from_string
from pathlib import Path

import pytest
import yaml

from mesa_lens import __version__

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))


def test_the_pythons_tried_are_those_named():
    prefix = "Programming Language :: Python :: 3."
    named = [f"3.{item.removeprefix(prefix)}" for item in PROJECT["classifiers"] if item.startswith(prefix)]
    workflow = yaml.safe_load((ROOT / ".github/workflows/check.yml").read_text(encoding="utf-8"))
    assert workflow["jobs"]["check"]["strategy"]["matrix"]["python"] == named
    after = f"3.{int(named[-1].removeprefix('3.')) + 1}"
    assert PROJECT["requires-python"] == f">={named[0]},<{after}"


def test_the_licence_names_that_of_every_file():
    assert PROJECT["license"] == "Apache-2.0 AND Python-2.0.1"
    text = (ROOT / "mesa/shipped/heldout/LICENSE").read_text(encoding="utf-8")
    assert "PYTHON SOFTWARE FOUNDATION LICENSE VERSION 2" in text
    assert "mesa/shipped/heldout/LICENSE" in PROJECT["license-files"]


@pytest.mark.parametrize("file", WORKFLOWS, ids=lambda file: file.name)
def test_what_build_machines_make_is_a_target(file):
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = re.findall(r"\bmake ([\w-]+)", file.read_text(encoding="utf-8"))
    assert targets
    assert [target for target in targets if not re.search(rf"^{target}:", makefile, re.MULTILINE)] == []


def test_every_package_is_typed():
    packages = {
        path.parts[len(ROOT.parts)] for name in ("mesa*", "probe", "theory") for path in ROOT.glob(f"{name}/*.py")
    }
    assert packages == {"mesa", "mesa_lens", "probe", "theory"}
    assert [name for name in packages if not (ROOT / name / "py.typed").is_file()] == []


def test_the_newest_change_is_of_this_version_and_dated():
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    version, date = re.search(r"^## (\S+) \((.*)\)$", text, re.MULTILINE).groups()
    assert (version, bool(re.fullmatch(r"20\d\d-\d\d-\d\d", date))) == (__version__, True)


def test_the_packages_page_has_no_link_that_leads_nowhere(tmp_path):
    page = runpy.run_path(str(ROOT / "setup.py"))["page"]
    text = "![A](docs/a.png) [b](docs/b.md#c) [d](https://d.org) [e](#e)"
    host = "https://host.org/us/it"
    assert page(text, host) == (
        f"![A]({host}/raw/HEAD/docs/a.png) [b]({host}/blob/HEAD/docs/b.md#c) [d](https://d.org) [e](#e)"
    )
    assert page(text, None) == " b (`docs/b.md#c`) [d](https://d.org) [e](#e)"
    command = [sys.executable, "setup.py", "-q", "egg_info", "--egg-base", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (written,) = tmp_path.glob("*/PKG-INFO")
    metadata = message_from_string(written.read_text(encoding="utf-8"))
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert metadata.get_payload().strip() == page(readme, PROJECT["urls"].get("Source")).strip()
    assert not re.search(r"\]\((?!https?:|#)", metadata.get_payload())
