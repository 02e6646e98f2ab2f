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
BASES = worlds.DATA["bases"]
KINDS = {"nines": ["9" * 5000], **worlds.DATA["kinds"]}


def _values(entries: list[str]) -> list[str]:
    """The values of a list in which "@kind" stands for those of a kind."""
    return [value for entry in entries for value in (_values(KINDS[entry[1:]]) if entry[:1] == "@" else [entry])]


WRONG = {name: _values(entries) for names, entries in worlds.DATA["options"].items() for name in names.split()}
OTHERWISE = {name: _values(entries) for name, entries in worlds.DATA["otherwise"].items()}
AT_WORK = {"text": "probe", "data": ""}
"""Options whose value is looked at only as a run begins: --estimate is left out, for this command or where it fails."""
WEIGHTS = ("weights-cut", "weights-garbage", "weights-empty", "weights-short")
CONFIGS = [*(f"model-{name}" for name in worlds.DATA["configs"]), "model-list", "model-cut", "model-empty"]


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
    """Values that the option must not take. KeyError for an option without: give it some in wrong.yaml."""
    place = f"{command} {action.dest}"
    return OTHERWISE[place] if place in OTHERWISE else WRONG[action.dest]


def all_lines(world: dict[str, str], seed: int = 0) -> list[Line]:
    """All wrong lines of this world, in a seeded order."""
    draw, lines = random.Random(seed), dict[tuple[str, ...], Line]()
    for command, actions in commands().items():
        base = BASES[command].format(**world).split()
        head = command.split()
        for line in [*_misspelt(head, base, actions, draw), *_mistaken(command, head, base, actions, world)]:
            lines[line.words] = line
    for name in (*CONFIGS, *WEIGHTS):
        for command in ("check", "probe", "predict", "locate", "anatomy", "readout", "eval"):
            words = [world[name] if word == world["model"] else word for word in BASES[command].format(**world).split()]
            if name in WEIGHTS or name == "model-vocabulary-small":
                words = [word for word in words if word != "--estimate"]
            damaged = worlds.DATA["configs"].get(name.removeprefix("model-"), {})  # keys of a config.json
            line = Line((command, *words), (world[name], Path(world[name]).name, *damaged))
            lines[line.words] = line
    shuffled = list(lines.values())
    draw.shuffle(shuffled)
    return shuffled


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
    at_work = AT_WORK.get(action.dest) in (command, "") and "architecture" not in value
    words = _without([word for word in words if word != "--estimate" or not at_work], option)
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
    lines = [line for line in err.getvalue().splitlines() if not line.startswith("text: ")]  # what was read so far
    error, seconds = "\n".join(lines).strip(), time.monotonic() - started
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
