"""Every command that has cells, on two workers of a real Ray: each file that it writes, beside the local runner's."""

import importlib.util
import re
import shlex

import headed
import pytest
import tiny
import yaml
from elsewhere import journal, table
from lm_tasks import write_tasks

from mesa_lens.cli import main

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is an extra"),
    pytest.mark.filterwarnings("ignore"),  # Ray's own, of whatever version
]

COMMANDS = {
    "eval": "--task passkey,nll,longppl --methods origin,mesa --lengths 96,150 --samples 2",
    "probe": "--methods origin,rerope --length 300 --texts 1 --samples 1 --lengths 80,160 --layers 0-1",
    "study": "--configs 'rerope,mesa width=4' --prompts repeated --seeds 2 --lengths 160,320 --windows 1 --samples 1",
    "locate": "--lengths 320 --samples 4 --try weave,patch,clamp,shift,attribution,smallest --heads 1",
    "anatomy": "--methods origin,rerope --lengths 160,320 --samples 2 --texts 6",
    "paper": "--config paper.yaml",
    "harness": "--harness choose,say --include-path tasks --methods origin,mesa --lengths 300",
}
SECTIONS = {
    "probe": {"length": 320, "samples": 1, "texts": 0, "lengths": "160,300"},
    "passkey": {"lengths": "200,320", "samples": 2},
    "longbench": {"tasks": ["choose"], "include_path": "tasks", "max_length": 300},
}


@pytest.fixture(scope="module")
def here(cluster, tmp_path_factory):
    """A folder with models, a text, a config and tasks, for commands that are given in it."""
    folder = tmp_path_factory.mktemp("here")
    tiny.folder(folder / "plain")
    headed.folder(folder / "headed")
    (folder / "text.txt").write_text(" ".join(f"Sentence {number} says {number**2}." for number in range(2000)))
    write_tasks(folder / "tasks")
    asked = {"model": "plain", "trained_length": 160, "methods": ["origin", "mesa"], "sections": SECTIONS}
    (folder / "paper.yaml").write_text(yaml.safe_dump(asked, sort_keys=False))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for name in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE"):
            patch.setenv(name, "1")
        yield folder


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_on_two_workers_writes_what_the_local_one_does(here, name, capfd):
    command = "eval" if name == "harness" else name
    given = [command, *shlex.split(COMMANDS[name]), "--out", f"{name}/out"]
    if name != "paper":
        given += ["--model", "headed" if name == "locate" else "plain"]
    if name in ("eval", "locate", "anatomy"):
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
    print(f"{name}: {len(local)} files are the same, {sum(map(len, local.values()))} bytes or rows")


def files(folder):
    """What each file below a folder holds: its bytes; of those that hold times, all else."""
    return {path.relative_to(folder): content(path) for path in sorted(folder.rglob("*")) if path.is_file()}


def content(path):
    if path.suffix == ".jsonl":
        return journal(path)
    if path.name == "samples.csv":
        return table(path)
    return path.read_bytes()
