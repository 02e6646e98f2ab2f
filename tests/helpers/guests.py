"""The package in third_party as if it were installed: seen by its entry points, in a process of its own."""

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = Path(__file__).with_name("third_party")

_RUN = """
import contextlib, io, json, sys
from mesa_lens.cli import main

done = []
for words in json.loads(sys.argv[1]):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = main(words)
        except SystemExit as end:
            code = end.code
    done.append((code, out.getvalue(), err.getvalue()))
print(json.dumps(done))
"""

UNDRAWN = """
import probe.commands.probe.report, probe.figures.section
probe.figures.section.html_embed = lambda _: "<figure >"
probe.commands.probe.report.write_figures = lambda *_: None
"""
"""Run first: reports are written without their charts, which take most of the time."""


def entry_points(file: Path) -> str:
    """What pip writes of a pyproject.toml's entry points."""
    groups = tomllib.loads(file.read_text(encoding="utf-8"))["project"]["entry-points"]
    return "".join(
        f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in points.items())
        for group, points in groups.items()
    )


def visible(folder: Path, *, ours: Path = ROOT, guest: bool = True) -> dict[str, str]:
    """The environment of a process that sees our tree in `ours`, and the package, as installed."""
    files = {"mesa_lens": ours / "pyproject.toml"} | ({"guest": PACKAGE / "pyproject.toml"} if guest else {})
    for name, file in files.items():
        place = folder / f"{name}-1.dist-info"
        place.mkdir(parents=True, exist_ok=True)
        (place / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name.replace('_', '-')}\nVersion: 1\n")
        (place / "entry_points.txt").write_text(entry_points(file))
    path = os.pathsep.join(map(str, [folder, ours, PACKAGE, Path(__file__).parent]))
    return os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}


def commands(env: dict[str, str], *lines: list[str], before: str = "", cwd: Path = ROOT) -> list[tuple[int, str, str]]:
    """Exit code, stdout and stderr of each command line, one after another in one process. before: Python run first."""
    words = [sys.executable, "-c", before + _RUN, json.dumps([[str(word) for word in line] for line in lines])]
    done = subprocess.run(words, capture_output=True, text=True, check=False, env=env, cwd=cwd)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])
