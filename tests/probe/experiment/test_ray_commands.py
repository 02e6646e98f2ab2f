"""Commands whose cells are run on a real Ray, beside the local runner: every file that they write, whoever dies."""

import itertools
import re
import shlex
from types import SimpleNamespace

import headed
import numpy as np
import pytest
import tiny
from drawn import NEEDS_RAY
from elsewhere import journal, table
from lm_tasks import write_tasks

from mesa_lens.cli import main
from probe.experiment.ray import RayWorker

pytestmark = [pytest.mark.slow, *NEEDS_RAY]

COMMANDS = {
    "eval": "--task passkey,nll --methods origin,mesa --lengths 96,150 --samples 2",
    "probe": "--methods origin,rerope --length 300 --texts 1 --samples 1 --lengths 80,160 --layers 0-1",
    "stages": "--minutes 30 --methods origin,rerope --length 300 --samples 4 --lengths 80,160,320 --layers 0-1",
    "locate": "--lengths 320 --samples 4 --try patch,clamp,smallest --heads 1",
    "anatomy": "--methods origin,rerope --lengths 160,320 --samples 2",
    "readout": "--methods origin,rerope --lengths 320 --samples 4 --tokens 24 --probe position",
    "harness": "--harness choose --include-path tasks --methods origin,mesa --lengths 300",
}
TIMES = re.compile(
    rb'"(seconds|time|peak_mib|created|store|checksum)": [^,}\n]*|[0-9-]{10}T[0-9:+]{14}|'
    rb"[0-9.]+( s\b| MiB|\\u00d7|\xc3\x97)|\b[0-9a-f]{64}\b|[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"
)
"""When a run was, how long it took, check sums of that, and names that plotly draws."""


@pytest.fixture(scope="module")
def here(cluster, tmp_path_factory):
    """A folder with models, a text and tasks, for commands that are given in it."""
    folder = tmp_path_factory.mktemp("here")
    tiny.folder(folder / "plain")
    headed.folder(folder / "headed")
    (folder / "text.txt").write_text(" ".join(f"Sentence {number} says {number**2}." for number in range(2000)))
    write_tasks(folder / "tasks")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for name in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE"):
            patch.setenv(name, "1")
        yield folder


@pytest.fixture(scope="module")
def actors(cluster):
    """Two workers, for one command after another: each would import torch again."""
    started = [cluster.remote(RayWorker).options(num_cpus=1).remote() for _ in range(2)]
    yield started
    for each in started:
        cluster.kill(each)


@pytest.fixture
def kept(cluster, actors, monkeypatch):
    """Commands are given these workers, and write no charts."""
    turns = itertools.cycle(actors)
    started = SimpleNamespace(options=lambda **takes: SimpleNamespace(remote=lambda: next(turns)))
    monkeypatch.setattr(cluster, "remote", lambda kind: started)
    monkeypatch.setattr(cluster, "kill", lambda actor: None)
    for name in ("locate", "anatomy"):
        monkeypatch.setattr(f"probe.commands.{name}.page.write_page", lambda folder, *_: folder / "report.html")


@pytest.mark.usefixtures("undrawn", "kept")
@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_on_two_workers_writes_what_the_local_one_does(here, name, capfd):
    command = {"harness": "eval", "stages": "probe"}.get(name, name)
    given = [command, *shlex.split(COMMANDS[name]), "--out", f"{name}/out"]
    given += ["--model", "headed" if name == "locate" else "plain"]
    if name in ("eval", "anatomy", "readout"):
        given += ["--text", "text.txt"]
    assert main(given) == 0
    (here / name / "out").rename(here / name / "local")
    assert main([*given, "--runner", "ray", "--workers", "2", "--verbose"]) == 0
    workers = re.findall(r"worker (\d): process \d+ on ", capfd.readouterr().err)
    assert {*workers} == {"1", "2"}
    local, ray = files(here / name / "local"), files(here / name / "out")
    assert local.keys() == ray.keys()
    differing = [path for path in local if local[path] != ray[path]]
    assert differing == []


def files(folder):
    """What each file below a folder holds, but for times and peaks of memory and what is made of them."""
    paths = {path.relative_to(folder): path for path in sorted(folder.rglob("*")) if path.is_file()}
    return {name: content(path) for name, path in paths.items() if not {"seconds", "peak_mib"} & {*name.parts}}


def content(path):
    if path.suffix == ".jsonl":
        return journal(path)
    if path.name == "samples.csv":
        return table(path)
    if path.suffix == ".npz":
        with np.load(path) as arrays:
            texts = {"about", "header"} & {*arrays.files}
            return [arrays[name].tobytes() for name in arrays.files if name not in texts] + [
                untimed(str(arrays[name]).encode()) for name in texts
            ]
    return untimed(path.read_bytes()) if path.suffix in (".json", ".html") else path.read_bytes()


def untimed(text):
    return TIMES.sub(b"", text)
