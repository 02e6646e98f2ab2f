"""Wrong command lines, made from the parser itself, seeded; each must end in one line that names what is wrong.

`python tests/fuzz/command_lines.py 2000` tries so many and prints those that do not; `make test` tries some.
"""

import argparse
import contextlib
import io
import random
import re
import sys
import tempfile
import time
import traceback
from dataclasses import dataclass
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "helpers"))
import worlds  # beside this file

from mesa_lens.cli import main, parser

SECONDS = 10
BASES = {  # what is right, and ends without work
    "probe": "--model {model} --length 400 --texts 0 --samples 0 --out {here}/out --estimate",
    "check": "--model {model} --methods origin --pretended 24",
    "estimate-window": "--model {model} --longest 256 --samples 2 --text {text}",
    "predict": "--model {model} --methods rerope --lengths 320 --samples 2 --text {text} --out {here}/out --estimate",
    "locate": "--model {model} --lengths 320 --samples 1 --text {text} --out {here}/out --estimate",
    "anatomy": "--model {model} --lengths 160,320 --samples 1 --parts heads --text {text} --out {here}/out --estimate",
    "eval": "--model {model} --task nll --methods origin --lengths 160 --samples 1 --text {text} "
    "--out {here}/out --estimate",
    "paper": "--config {paper} --out {here}/out --estimate",
    "app": "--store {here} --no-browser --allow-runs",
    "report": "{run}",
    "status": "{run}",
    "export heatmap": "{run} --format npz --out {here}/out",
    "export drift": "{run} --format npz --out {here}/out",
    "export thresholds": "{run} --format npz --out {here}/out",
    "export curves": "{run} --format npz --out {here}/out",
    "export anatomy": "{run} --format npz --out {here}/out",
    "export locate": "{run} --format npz --out {here}/out",
    "methods": "",
    "methods explain": "rerope",
    "verify": "--quick --claim 3.3",
    "fetch": "",
}
NUMBERS = ["", " ", "x", "1.5x", "nan", "inf", "1e999", "0x10", "²", "1 2", "--5", "[1]", "None"]
WHOLE = [*NUMBERS, "1.5", "1e3", "9" * 20, "9" * 5000, "-1"]
NAMES = ["", " ", ",", "no such", "nonsense,nonsense", "origin,,rerope", "\udcff", "-", "None"]
RANGES = ["", " ", "1-", "-1", "2-1", "x", "1,,2", "0-99999999999", "9" * 20, "²", "1:2"]
LENGTHS = [
    f"{2**31}", "4:16:4:4", "", ",", "x", "0", "-5", "1k:2k", "2k:1k:1", "1:9999999999:1", "1.5k", "256,,512",
    "9" * 20, "1k:2k:0",
]  # fmt: skip
FILES = ["", " ", "/nonexistent/x.txt"]
FOLDERS = ["", " ", "{file}"]
OUTPUTS = [*FOLDERS, "/", "{model}"]
SETS = [
    "", "window", "rerope", "rerope.=3", "origin.trained_length=5", "rerope.window=x", "rerope.nonsense=1",
    "rerope.name=5", "rerope.plan=5", "rerope.layers=[0,0]", f"rerope.window={2**63}", "=", ".",
]  # fmt: skip
MODELS = ["", "./nowhere", "/nonexistent/x", "{file}", "no such.gguf"]
EITHER = {  # values, and the destinations of the options that must not take them
    tuple(WHOLE): "texts samples seed refine",
    (*WHOLE, "0"): "length longest candidates batch new_tokens threads pool top",
    tuple(NUMBERS): "H",
    (*NUMBERS, "0", "-1"): "minutes limit",
    (*NUMBERS, "-1"): "margin minimum_score floor",
    (*NUMBERS, "0", "-1", "1.5"): "share M N E",
    tuple(NAMES): "methods hooks try spans parts ways measure task evaluator_method measures",
    tuple(RANGES): "layers dims positions",
    tuple(FILES): "wheel",
    tuple(FOLDERS): "cache",
    ("", "nonsense"): "rule renderer minus recovery",
}
WRONG = {name: [*values] for values, names in EITHER.items() for name in names.split()} | {
    "model": MODELS,
    "revision": ["", "main"],
    "dtype": ["", "int8", "float7"],
    "device": ["", "nonsense", "cuda", "cuda:99", "meta", "mps", "-1"],
    "device_map": ["", "nonsense", "cuda"],
    "trained_length": [*WHOLE, "0", "1"],
    "pretended": [*WHOLE, "0", "23", "4097"],
    "set": SETS,
    "executor": ["", "flash", "None"],
    "lengths": LENGTHS,
    "prompt": ["", " ", "\n", "\udcff"],
    "text": [*FILES, "{binary}"],
    "store_dtype": ["", "int8", "float64"],
    "out": OUTPUTS,
    "heads": [*RANGES, "nonsense"],
    "data": [*FILES, "{text}"],
    "depth": [*NUMBERS, "-0.1", "1.1"],
    "harness": ["", ",", "a,,b"],
    "include_path": ["", "/nonexistent"],
    "inputs": [*FOLDERS, "/nonexistent"],
    "config": [*FILES, "{no-yaml}", "{here}", "nonsense", *(f"{{paper-{name}}}" for name in worlds.PAPER)],
    "sections": ["", ",", "nonsense", "passkey,,nll"],
    "store": ["", "/nonexistent/x", "http://host/run", "{run-list}", "{run-cut}", "{run-number}", "{here}"],
    "run_folder": ["", "/nonexistent/x", "{file}", "{run-list}", "{run-cut}", "{run-number}", "{model}"],
    "host": ["", "not a host", "\udcff"],
    "port": [*WHOLE, "0", "70000"],
    "format": ["", "bmp", "png,,npz", "nonsense"],
    "hook": ["", "nonsense", "resid_pre"],
    "pairs": ["", "1", "1:", "x:y", "0:9999", "²:1", "1:2,,3:4", "-1:2"],
    "smoothing": [*WHOLE, "0", "1000"],
    "sustained": [*WHOLE, "0", "1000"],
    "warm_up": [*WHOLE, "64", "1000"],
    "name": ["", "nonsense", "None"],
    "claim": ["", "nonsense", "99"],
    "html": ["/nonexistent/x/y.html"],
    "runner": ["", "spark", "ray:", "Ray", "local:auto"],
    "workers": [*WHOLE, "0", "2"],
    "gpus_per_worker": [*NUMBERS, "-1", "1"],
}
NONE = "export anatomy", "export locate"  # nothing was measured in this world: any line is refused for that
OTHERWISE = {  # where an option of this name means something else
    ("app", "store"): ["", " ", "{file}", "ftp://host/runs", "s3://"],
    ("probe", "store"): ["", " ", "nonsense", "ftp://host/run", "s3://", "memory://bucket/../run"],
    ("fetch", "wheel"): None,  # looked at only where a checkpoint is fetched
    ("locate", "dims"): [*WHOLE, "0"],
    ("predict", "config"): [
        "", "rerope", "rerope:", ":window=3", "rerope:window", "rerope:windw=3", "rerop:window=3", "rerope:window=a",
        "rerope:window=-1", f"rerope:window={2**63}", "\udcff",
    ],
    ("verify", "dtype"): ["", "int8"],
} | {(command, name): None for command in NONE for name in ("methods", "lengths", "measures")}  # fmt: skip
AT_WORK = {"text": "probe", "config": "paper", "data": ""}
"""Options whose value is looked at only as a run begins: --estimate is left out, for this command or where it fails."""
WEIGHTS = ("weights-cut", "weights-garbage", "weights-empty", "weights-short")
CONFIGS = [*(f"model-{name}" for name in worlds.CONFIGS), "model-list", "model-cut", "model-empty"]


@dataclass(frozen=True)
class Line:
    """Words of a command, and what its complaint must name: one of these."""

    words: tuple[str, ...]
    named: tuple[str, ...]


def commands() -> dict[str, list[argparse.Action]]:
    """Every command's actions, by its words; those without options are left out."""
    actions: dict[str, list[argparse.Action]] = {}

    def visit(at: argparse.ArgumentParser, words: tuple[str, ...]) -> None:
        inner = [action for action in at._actions if isinstance(action, argparse._SubParsersAction)]
        options = [action for action in at._actions if action not in inner and action.dest != "help"]
        if words and options and not any(action.required for action in inner):
            actions[" ".join(words)] = options
        for name, below in (item for action in inner for item in action.choices.items()):
            visit(below, (*words, name))

    visit(parser(), ())
    return actions


def wrong_values(command: str, action: argparse.Action) -> list[str]:
    """Values that the option must not take. KeyError for an option that this file does not know: give it some."""
    if (command, action.dest) in OTHERWISE:
        return OTHERWISE[command, action.dest] or []
    return WRONG[action.dest]


def all_lines(world: dict[str, str], seed: int = 0) -> list[Line]:
    """All wrong lines of this world, in a seeded order."""
    draw, lines = random.Random(seed), dict[tuple[str, ...], Line]()
    for command, actions in commands().items():
        base = BASES[command].format(**world).split()
        head = command.split()
        for line in [*_misspelt(head, base, actions, draw), *_mistaken(command, head, base, actions, world)]:
            lines[line.words] = line
    for name in (*CONFIGS, *WEIGHTS):
        for command in ("check", "probe", "predict", "locate", "anatomy", "eval"):
            words = [world[name] if word == world["model"] else word for word in BASES[command].format(**world).split()]
            if name in WEIGHTS or name == "model-vocabulary-small":
                words = [word for word in words if word != "--estimate"]
            line = Line((command, *words), (world[name], Path(world[name]).name, *_changed(name)))
            lines[line.words] = line
    shuffled = list(lines.values())
    draw.shuffle(shuffled)
    return shuffled


def _changed(name: str) -> list[str]:
    """The key that is damaged in a config.json."""
    return list(worlds.CONFIGS.get(name.removeprefix("model-"), {}))


def _mistaken(command: str, head: list[str], base: list[str], actions: list, world: dict[str, str]) -> list[Line]:
    """Each option with each value that it must not take."""
    lines = []
    for action in actions:
        if action.nargs == 0:
            option = action.option_strings[-1]
            lines.append(Line((*head, *base, f"{option}=1"), (option,)))
            continue
        for wrong in wrong_values(command, action):
            value = wrong.format(**world) if wrong.startswith("{") or "{here}" in wrong else wrong
            lines.append(_with(command, head, base, action, value))
    return lines


def _with(command: str, head: list[str], base: list[str], action: argparse.Action, value: str) -> Line:
    words = list(base)
    shown = {value, repr(value)[1:-1], value.strip(), str(Path(value)), "inf" if value == "1e999" else ""}
    shown |= {value.encode("ascii", "backslashreplace").decode(), *re.split("[,.=:]", value)}
    shown |= set() if value else {"''"}
    shown -= {"", "." if value != "." else ""}
    if not action.option_strings:
        words = [value, *words[1:]]
        return Line((*head, *words), (*shown, action.dest, "empty"))
    option = action.option_strings[-1]
    if (
        action.dest in AT_WORK
        and "architecture" not in value
        and AT_WORK[action.dest] in (command, "")
        and "--estimate" in words
    ):
        words.remove("--estimate")
    words = _without(words, option)
    small = not value.strip(" .") or value.startswith("-") or len(value) > 40
    return Line((*head, *words, option, value), (*shown, *([action.dest, option] if small else [])))


def _misspelt(head: list[str], base: list[str], actions: list, draw: random.Random) -> list[Line]:
    """Unknown options and words, options without their value."""
    lines = []
    for _ in range(6):
        word = "".join(draw.choices("abcdefghijklmnopqrstuvwxyz", k=8))
        lines.append(Line((*head, *base, f"--{word}"), (f"--{word}",)))
        lines.append(Line((*head, *base, f"{word}x", f"{word}y"), (f"{word}x", f"{word}y")))
    for action in actions:
        if action.option_strings and action.nargs != 0:
            option = action.option_strings[-1]
            lines.append(Line((*head, *_without(base, option), option), (option,)))
    return lines


def _without(words: list[str], option: str) -> list[str]:
    place = words.index(option) if option in words else len(words)
    return words[:place] + words[place + 2 :]


def complaint(line: Line) -> str:
    """What is wrong with how a wrong line ends; empty where it ends as it must."""
    out, err, started = io.StringIO(), io.StringIO(), time.monotonic()
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = main(line.words)
    except BaseException:
        return "ended with " + " ".join(traceback.format_exc().splitlines()[-3:])[-300:]
    error, seconds = err.getvalue().strip(), time.monotonic() - started
    if code not in (1, 2):
        return f"was accepted ({code})"
    if len(error.splitlines()) != 1:
        return f"said {len(error.splitlines())} lines: {error[:400]!r}"
    if not any(name in error for name in line.named):
        return f"names none of {line.named}: {error[:300]}"
    return f"took {seconds:.0f} s" if seconds > SECONDS else ""


def failures(lines: list[Line]) -> list[str]:
    """The lines that do not end as they must, with what is wrong."""
    pairs = ((line, complaint(line)) for line in lines)
    return [f"{' '.join(map(repr, line.words))}\n    {wrong}" for line, wrong in pairs if wrong]


if __name__ == "__main__":
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 2000
    with tempfile.TemporaryDirectory() as place:
        tried = all_lines(worlds.build(Path(place)), seed=int(sys.argv[2]) if len(sys.argv) > 2 else 0)[:count]
        begun = time.monotonic()
        failed = failures(tried)
    print("\n".join([*failed, f"{len(tried)} lines in {time.monotonic() - begun:.0f} s, {len(failed)} failed"]))
    sys.exit(bool(failed))
