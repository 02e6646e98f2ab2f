import errno
import json
import signal
from pathlib import Path

import pytest
import tiny
from commands import main

from mesa.engine.attention import EXECUTORS
from mesa_lens import cli


def test_methods_are_listed_with_parameters_and_formula(capsys):
    assert main(["methods", "--trained-length", "256"]) == 0
    text = capsys.readouterr().out
    assert "R = min(r, N)" in text
    assert "window=32, width=50, first=6, last=32" in text


def test_methods_as_json(capsys):
    assert main(["methods", "--json"]) == 0
    records = {record["name"]: record for record in json.loads(capsys.readouterr().out)}
    assert records["mesa"]["window"] == 512
    assert records["rerope"]["formula"] == "R = min(r, N)"


def test_explain_draws_the_matrix(capsys):
    assert main(["methods", "explain", "lm-infinite", "--length", "6", "--set", "lm-infinite.window=3"]) == 0
    drawn = capsys.readouterr().out.splitlines()[-6:]
    assert drawn == [
        "0 | 0",
        "1 | 1 0",
        "2 | 2 1 0",
        "3 | 3 2 1 0",
        "4 | 3 . 2 1 0",
        "5 | 3 . . 2 1 0",
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["app", "--store", "README.md"], "mesa-lens: --store README.md is not a folder"),
        (["app", "--port", "0"], "mesa-lens: --port 0 is below 1"),
        (["methods", "explain", "rope"], "mesa-lens: unknown method 'rope'; known: origin, nope, rerope,"),
        (["methods", "explain", "rerope", "--set", "window=3"], "--set 'window=3' is not METHOD.PARAMETER=VALUE"),
        (["methods", "explain", "rerope", "--length", "0"], "--length 0 is below 1"),
        (["methods", "explain", "rerope", "--length", "99"], "--length 99 is too wide to draw; use at most 48"),
        (["methods", "--trained-length", "1"], "--trained-length 1 is below 2"),
    ],
)
def test_misuse_is_one_line_and_exit_code_2(arguments, message, capsys):
    assert main(arguments) == 2
    errors = capsys.readouterr().err
    assert message in errors
    assert errors.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "module", "remedy"),
    [
        (["eval"], "eval", "mend its permissions or choose another --out"),
        (["fetch"], "fetch", "mend its permissions or choose another --cache"),
        (["status", "runs"], "status", "mend its permissions"),
    ],
)
def test_the_remedy_for_a_read_only_folder_names_an_option_of_the_command(
    arguments, module, remedy, monkeypatch, capsys
):
    def refused(args):
        raise PermissionError(errno.EACCES, "Permission denied", "/there")

    monkeypatch.setattr(f"mesa_lens.{module}.run", refused)
    assert main(arguments) == 1
    assert capsys.readouterr().err == f"mesa-lens: /there: Permission denied; {remedy}\n"


def test_a_folder_that_may_not_be_looked_at_is_told(capsys):
    assert main(["eval", "--out", "x" * 999]) == 2
    assert "(File name too long); name another; see" in capsys.readouterr().err


def test_the_readme_has_the_support_table(capsys):
    assert main(["methods", "--table"]) == 0
    assert capsys.readouterr().out.strip() in (Path(__file__).parents[2] / "README.md").read_text()


def test_check_prints_a_table_and_fails_where_a_row_does(tmp_path, capsys, monkeypatch):
    model = str(tiny.folder(tmp_path))
    line = ["check", "--model", model, "--methods", "rerope", "--pretended", "24", "--trained-length", "99"]
    assert main(line) == 0
    text = capsys.readouterr().out
    assert text.startswith(f"{model}: 10 passed, 0 failed, 0 not run\n")
    assert "M = 99 is stated" in text
    monkeypatch.setitem(EXECUTORS, "fused", lambda *given: (given[3].repeat_interleave(2, 1) * 0, None))
    assert main([*line, "--json"]) == 1
    record = json.loads(capsys.readouterr().out)
    failed = {row["check"] for row in record["rows"] if row["result"] == "failed"}
    assert record["failed"] == len(failed) >= 3
    assert main([*line, "--methods", "rope"]) == 2
    assert "unknown method 'rope'" in capsys.readouterr().err


def test_a_signal_while_the_commands_are_imported_ends_in_one_line(monkeypatch, capsys):
    def refused(*_):
        raise AssertionError("the process would have ended here, without a word")

    former = signal.signal(signal.SIGTERM, refused)
    try:
        monkeypatch.setattr(cli, "parser", lambda: signal.raise_signal(signal.SIGTERM))
        assert main([]) == 1
    finally:
        signal.signal(signal.SIGTERM, former)
    assert capsys.readouterr().err == "\nmesa-lens: interrupted; nothing half-written was left\n"
