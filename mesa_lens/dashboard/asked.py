"""What the form of a new run says, as arguments of `mesa-lens probe`; no path outside the folders given at start."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from mesa.checkpoints.fetched import CHECKPOINTS
from mesa.checkpoints.place import SHIPPED
from mesa_lens.dashboard.runs import DEPTH, holds_run, is_inside

ALLOWED_VARIABLE = "MESA_LENS_ALLOW_RUNS"
"""Environment variable with the folders that models and texts may be read from, as JSON; runs are off without it."""

OPTIONS = ("model", "trained-length", "methods", "set", "length", "lengths", "samples", "prompt", "texts", "text")
"""The options of `mesa-lens probe` that a form may set."""
NAMES = (*SHIPPED, *CHECKPOINTS)
"""Models that are no path."""
_HUB = r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?"
_PART = r"[A-Za-z0-9_][A-Za-z0-9_.-]*"


def input_folders() -> tuple[Path, ...] | None:
    """The folders that models and texts may be read from; None where no run may be started."""
    given = os.environ.get(ALLOWED_VARIABLE)
    return None if given is None else tuple(map(Path, json.loads(given)))


def run_folder(root: Path, name: str) -> Path:
    """The folder of a run called `name`; ValueError for one that does not lie in `root`, or lies in another run's."""
    parts = name.split("/")
    if len(parts) > DEPTH or not all(re.fullmatch(_PART, part) for part in parts):
        raise ValueError(f"{name!r} is no name for a run; take letters, digits, '_', '.' and '-', e.g. mine or my/run")
    folder = root.joinpath(*parts)
    if not is_inside(folder, root):
        raise ValueError(f"{name} is a link out of {root}; take another name")
    for above in (root, *(each for each in folder.parents if each.is_relative_to(root))):
        if holds_run(above):
            raise ValueError(f"{above} is a run's own folder; open the dashboard on the folder of runs")
    return folder


def arguments(options: Mapping[str, str], folder: Path, inputs: Sequence[Path]) -> list[str]:
    """The arguments of `mesa-lens probe` for a run in `folder`; empty values are left out.

    Values are not looked at, that is the command's; ValueError for what it must not be given: options that are not in
    `OPTIONS`, and a model or text that is not in `inputs`.
    """
    made = []
    for name, value in options.items():
        if name not in OPTIONS:
            raise ValueError(f"--{name} cannot be set here; known: {', '.join(OPTIONS)}")
        if not value:
            continue
        if name == "model":
            value = _model(value, inputs)
        elif name == "text":
            value = str(inside(value, inputs))
        values = value.split() if name == "set" else [value]
        made += [f"--{name}={each}" for each in values]
    return [*made, f"--out={folder}"]


def inside(text: str, inputs: Sequence[Path]) -> Path:
    """The file or folder that `text` names, its links followed; ValueError for one that is not there or not inside.

    A path that is not absolute begins in the first of `inputs` in which it is found. Of a folder, the files count too.
    """
    given = Path(text)
    if ".." not in given.parts:
        for folder in inputs:
            found = folder / given  # `given` itself where it is absolute
            if found.exists() and all(_is_in(each, inputs) for each in (found, *_within(found))):
                return found.resolve()
    raise ValueError(f"{text} is not in {' or '.join(map(str, inputs))}; nothing else is read, see --inputs")


def _model(value: str, inputs: Sequence[Path]) -> str:
    """A model's name, or the path of one inside; what could be a path is taken for one."""
    there = Path(value).exists() or any((folder / value).exists() for folder in inputs)
    is_name = re.fullmatch(_HUB, value) and not value.lower().endswith(".gguf")
    return value if value in NAMES or (is_name and not there) else str(inside(value, inputs))


def _within(found: Path) -> list[Path]:
    return list(found.iterdir()) if found.is_dir() else []


def _is_in(path: Path, inputs: Sequence[Path]) -> bool:
    return any(is_inside(path, folder) for folder in inputs)
