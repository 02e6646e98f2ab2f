"""The command as a whole: help, signals, failures, and the commands that need no run."""

import errno
import functools
import io
import json
import re
import shlex
import signal
import sys
import types
from pathlib import Path

import pytest
from commands import main, parsers

from mesa.engine.attention import EXECUTORS
from mesa_lens import cli, status
from probe.commands import Command, commands
from probe.figures.section import Table, plain_table
from probe.request import say_once

PARSERS = parsers(cli.parser())


@pytest.mark.parametrize("name", PARSERS)
def test_help_ends_with_one_example_that_the_parser_takes(name, capsys):
    with pytest.raises(SystemExit):
        main([*name.split()[1:], "--help"])
    (example,) = re.findall(r"^example: mesa-lens (.*)", capsys.readouterr().out, re.MULTILINE | re.DOTALL)
    arguments = shlex.split(example)
    assert callable(cli.parser().parse_args(arguments).run)
    assert arguments[: len(name.split()) - 1] == name.split()[1:] or name == "mesa-lens"


def test_commands_on_stdin_run_one_after_another_up_to_the_first_that_fails(monkeypatch, capsys):
    lines = "methods\n\n# nothing\nstatus 'no such folder'  # fails\nmethods --json\n"
    monkeypatch.setattr("sys.stdin", io.StringIO(lines))
    monkeypatch.setattr("sys.argv", ["mesa-lens", "-"])
    assert main(["-"]) == 2
    shown = capsys.readouterr()
    assert "rerope" in shown.out
    assert "{" not in shown.out
    first, second, refused = shown.err.splitlines()
    assert (first, second) == ("mesa-lens methods", "mesa-lens status 'no such folder'")
    assert refused.startswith("mesa-lens: no such folder is not there")
    assert sys.argv == ["mesa-lens", "-"]


def on_stdin(monkeypatch, lines, words=("-",)):
    """The exit code of `mesa-lens -` with these lines."""
    monkeypatch.setattr("sys.stdin", io.StringIO(lines))
    return main(words)


def test_after_help_in_a_line_the_next_line_is_run(monkeypatch, capsys):
    assert on_stdin(monkeypatch, "methods --help\n--version\nstatus nowhere\n") == 2
    shown = capsys.readouterr()
    assert shown.out.splitlines()[-1].startswith("mesa-lens ")
    assert "nowhere is not there" in shown.err


def test_a_line_with_an_open_quote_is_refused_by_its_number(monkeypatch, capsys):
    assert on_stdin(monkeypatch, "methods\n status 'runs \n") == 2
    assert capsys.readouterr().err.splitlines() == [
        "mesa-lens methods",
        "mesa-lens: line 2 of stdin cannot be read (No closing quotation): status 'runs",
    ]


def test_stdin_that_is_not_utf_8_is_refused(monkeypatch, capsys):
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"methods\nstatus caf\xe9\n"), encoding="utf-8"))
    assert main(["-"]) == 2
    assert capsys.readouterr().err == "mesa-lens: stdin is not UTF-8 (byte 0xe9); save the commands as UTF-8\n"


@pytest.mark.parametrize("words", [("-", "--debug"), ("--debug", "-")])
def test_debug_is_of_every_line_on_stdin(monkeypatch, capsys, words):
    assert on_stdin(monkeypatch, "methods\nstatus nowhere\n", words) == 2
    shown = capsys.readouterr().err
    assert shown.startswith("mesa-lens methods\nmesa-lens status nowhere\nTraceback")


def test_an_interrupt_while_waiting_for_a_line_is_one_line(monkeypatch, capsys):
    def waiting():
        yield "methods\n"
        signal.raise_signal(signal.SIGTERM)  # SIGINT is ignored in a background

    monkeypatch.setattr("sys.stdin", waiting())
    assert main(["-"]) == 1
    assert capsys.readouterr().err.splitlines()[1:] == ["", "mesa-lens: interrupted; nothing half-written was left"]


def test_every_line_on_stdin_says_what_it_took_from_the_config(monkeypatch, capsys):
    def add(commands):
        commands.add_parser("saying").set_defaults(run=lambda _: say_once("M is 256"))

    monkeypatch.setattr(cli, "installed", lambda: {"saying": types.SimpleNamespace(add=add)})
    assert on_stdin(monkeypatch, "saying\nsaying\n") == 0
    assert capsys.readouterr().err.splitlines() == ["mesa-lens saying", "M is 256"] * 2


def test_a_command_of_another_package_needs_no_help(monkeypatch, capsys):
    other = types.SimpleNamespace(add=lambda commands: commands.add_parser("other"))
    monkeypatch.setattr(cli, "installed", lambda: {"other": other})
    assert main(["methods"]) == 0
    with pytest.raises(SystemExit):
        main(["--help"])
    assert "    other\n" in capsys.readouterr().out


@pytest.mark.parametrize("row", [commands()["eval"], types.ModuleType("other.status")])
def test_a_command_of_another_package_takes_no_name_of_ours(row, monkeypatch, capsys):
    monkeypatch.setattr(cli, "installed", lambda: {"status": row})
    assert main(["methods"]) == 2
    package = "probe.commands.eval" if isinstance(row, Command) else "other.status"
    assert f"mesa-lens: {package} is called 'status', as a command of mesa-lens is; rename" in capsys.readouterr().err


@pytest.mark.parametrize("name", PARSERS)
def test_help_speaks_of_what_its_command_has(name):
    options = {
        action.option_strings[-1]: action.help or "" for action in PARSERS[name]._actions if action.option_strings
    }
    for flag, text in options.items():
        assert set(re.findall(r"(?<!\w)--[a-z][a-z-]*", text)) <= {*options}, flag
        assert "--out" in options or "the same command continues" not in text, flag
        assert "--runner" in options or "Ray" not in text, flag
        assert "--task" in options or "needle" not in text, flag


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        ("eval --lenghts 2k", "--lengths"),
        ("evl", "eval"),
        ("eval --task pasky", "passkey"),
        ("eval --methods rerop", "rerope"),
        ("eval --methods rerope --set rerope.windw=3", "window"),
        ("report x --rule drfit", "drift"),
    ],
)
def test_a_misspelt_word_is_answered_with_the_likely_one(words, meant, capsys):
    assert main(words.split()) == 2
    assert f"did you mean {meant!r}?" in capsys.readouterr().err


def test_lines_are_those_of_the_terminal(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    assert main("verify --claim 3.1 --M 8".split()) == 0
    head, row = ("method", "a head of many words that wraps"), ("origin", "a cell of words " * 9)
    table = plain_table(Table("", head, (row,)))
    lines = [*capsys.readouterr().out.splitlines(), *table.splitlines()]
    assert max(map(len, lines)) <= 60
    assert table.split() == " ".join(head + row).split()


ESTIMATES = {  # options, and what the estimate says of them
    "probe": ("--length 400 --texts 0 --samples 0", " MiB; disk: "),
    "eval": ("--task passkey,nll --methods origin,mesa --lengths 96,200 --samples 2", "8 tasks: "),
    "locate": ("--lengths 320 --samples 1 --try patch", ""),
    "anatomy": ("--lengths 160,320 --samples 1 --parts heads", ""),
    "readout": (
        "--lengths 320 --samples 4 --tokens 20 --probe position",
        "then 12 probes, seconds to a minute each",
    ),
    "predict": ("--lengths 512 --samples 2 --methods rerope", "40 tasks: 40 passes, "),
}


@pytest.mark.parametrize("command", ESTIMATES)
def test_an_estimate_tells_the_time_and_writes_nothing(command, model, tmp_path, capsys):
    options, sizes = ESTIMATES[command]
    assert main([command, "--model", model, *options.split(), "--estimate", "--out", str(tmp_path / "out")]) == 0
    printed = capsys.readouterr().out
    assert sizes in printed
    assert re.fullmatch(
        r"time: about [\d.]+ (s|min|h) for the passes, if this machine stays as busy as it is now \(.* tokens/s .*\)",
        printed.splitlines()[-1],
    )
    assert not (tmp_path / "out").exists()


def test_an_estimate_of_a_long_run_names_a_command_that_takes_half_an_hour(model, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("probe.experiment.estimate.HALF_HOUR", 0.5)
    words = f"eval --model {model} --methods origin,rerope --task nll --lengths 160,320 --samples 5000".split()
    words += "--overwrite --threads 1 --verbose".split()
    assert main([*words, "--estimate", "--json", "--out", str(tmp_path / "out")]) == 0
    begin, line = json.loads(capsys.readouterr().out)["estimate"][-1].split(": ", 1)
    assert begin == "half an hour of it at a time (repeated without --overwrite)"
    assert shlex.split(line.replace("=", " ")) == [
        "mesa-lens",
        *words,
        "--out",
        str(tmp_path / "out"),
        "--minutes",
        "30",
    ]
    assert main([*shlex.split(line)[1:], "--estimate"]) == 0
    assert "half an hour" not in capsys.readouterr().out
    monkeypatch.setattr("mesa_lens.running.resume_command", lambda *_: "")  # cannot be written in a line
    assert main([*words, "--estimate", "--out", str(tmp_path / "out")]) == 0
    assert "--minutes" not in capsys.readouterr().out


def test_methods_are_listed_with_parameters_and_formula(capsys):
    printed = {}
    for option in ("--trained-length=256", "--json", "--table"):
        assert main(["methods", option]) == 0
        printed[option] = capsys.readouterr().out
    assert "R = min(r, N)" in printed["--trained-length=256"]
    assert "window=32, width=50, first=6, last=32" in printed["--trained-length=256"]
    records = {record["name"]: record for record in json.loads(printed["--json"])}
    assert (records["mesa"]["window"], records["rerope"]["formula"]) == (512, "R = min(r, N)")
    page = (Path(__file__).parents[2] / "docs/models.md").read_text()
    assert printed["--table"].strip() in page, "paste `mesa-lens methods --table` into docs/models.md"


def test_check_prints_a_table_and_fails_where_a_row_does(model, capsys, monkeypatch):
    words = ["check", "--model", model, "--methods", "rerope", "--pretended", "24", "--trained-length", "99"]
    assert main(words) == 0
    text = capsys.readouterr().out
    assert text.startswith(f"{model}: M = 99 tokens, by --trained-length; the config's max_position_embeddings")
    assert f"\n{model}: 10 passed, 0 failed, 0 not run\n" in text
    monkeypatch.setitem(EXECUTORS, "fused", lambda *args: (args[3].repeat_interleave(2, 1) * 0, None))
    assert main([*words, "--json"]) == 1
    record = json.loads(capsys.readouterr().out)
    failed = {row["check"] for row in record["rows"] if row["result"] == "failed"}
    assert record["failed"] == len(failed) >= 3
    assert main([*words, "--methods", "rope"]) == 2
    assert "unknown method 'rope'" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize(("model", "window"), [("default", (256, 400)), ("nope", (224, 350)), ("alibi", (1024, 1024))])
def test_the_shipped_models_windows(capsys, model, window):
    assert main(["check", "--estimate-window", "--model", model, "--json"]) == 0
    estimate = json.loads(capsys.readouterr().out)
    assert window[0] <= estimate["works"] <= window[1]
    assert (estimate["fails"] is None) == (model == "alibi")


@pytest.mark.parametrize(
    ("words", "place", "remedy"),
    [
        (["eval"], cli.run_experiment, "fix its permissions or choose another --out"),
        (["status", "runs"], status.run, "fix its permissions"),
    ],
)
def test_the_remedy_for_a_read_only_folder_names_an_option_of_the_command(words, place, remedy, monkeypatch, capsys):
    @functools.wraps(place)
    def refused(*_):
        raise PermissionError(errno.EACCES, "Permission denied", "/there")

    monkeypatch.setattr(cli if words == ["eval"] else status, place.__name__, refused)
    assert main(words) == 1
    assert capsys.readouterr().err == f"mesa-lens: /there: Permission denied; {remedy}\n"
