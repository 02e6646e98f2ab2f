"""What we refuse is one line; a fault of ours keeps its traceback; --debug shows it for both."""

import re

import pytest
import torch

import mesa
from mesa.errors import Failed, NotFound, Occupied, Refused
from mesa_lens import cli


def run(monkeypatch, capsys, error, *words):
    """Exit code and stderr of a command that raises `error`."""

    def parse_args(self, argv, args):
        assert "--debug" not in argv
        raise error

    monkeypatch.setattr(cli.Parser, "parse_args", parse_args)
    return cli.main(["methods", *words]), capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "code"),
    [(Refused("no x"), 2), (NotFound("no x"), 2), (Occupied("no x"), 2), (Failed("no x"), 1), (OSError("no x"), 1)],
)
def test_what_is_refused_or_fails_is_one_line(monkeypatch, capsys, error, code):
    assert run(monkeypatch, capsys, error) == (code, "mesa-lens: no x\n")
    shown, text = run(monkeypatch, capsys, error, "--debug")
    assert shown == code
    assert "Traceback" in text
    assert text.endswith("mesa-lens: no x\n")


def no_memory():
    """What torch raises where a CPU has too little memory."""
    with pytest.raises(RuntimeError) as raised:
        torch.empty(2**60, dtype=torch.uint8)
    return raised.value


@pytest.mark.parametrize("error", [MemoryError("no memory"), torch.OutOfMemoryError("no memory"), no_memory()])
def test_too_little_memory_is_no_fault_of_ours(monkeypatch, capsys, error):
    code, text = run(monkeypatch, capsys, error)
    assert code == 1
    assert re.fullmatch("mesa-lens: .*memory.*\n", text)


@pytest.mark.parametrize("error", [ValueError("x"), KeyError("x"), RuntimeError("x"), TypeError("x")])
def test_a_fault_of_ours_keeps_its_traceback(monkeypatch, capsys, error):
    code, text = run(monkeypatch, capsys, error)
    assert code == 1
    first, rest = text.split("\n", 1)
    assert "please report it" in first
    assert rest.startswith("Traceback")
    assert "in parse_args" in rest


def test_refusals_are_value_errors_by_their_public_name():
    with pytest.raises(mesa.Refused, match="rerop"):
        mesa.make("rerop", 256)
    assert issubclass(mesa.Refused, ValueError)
    assert issubclass(NotFound, FileNotFoundError)


def test_losses_that_are_no_numbers_end_an_estimate_of_m_as_a_failure(monkeypatch, capsys):
    monkeypatch.setattr("probe.eval_tasks.score.nll", lambda *_, **__: float("nan"))
    assert cli.main(["check", "--estimate-window", "--longest", "128", "--samples", "2"]) == 1
    assert "the losses at 64 tokens are not finite; run the model with --dtype float64" in capsys.readouterr().err
