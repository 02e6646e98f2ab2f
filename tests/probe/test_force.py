"""--force goes on with other weights, and every summary tells of it; without it each command refuses and names it."""

import json

import pytest
import tiny
from commands import main

from mesa.models import tokenizer_of
from probe.experiment.journal import Journal
from probe.interventions.loss_gap import LossGap

COMMANDS = {
    "probe": ("--methods origin,rerope --length 400 --texts 0 --samples 1 --lengths 160,320", "summary.json"),
    "locate": (
        "--methods nope --lengths 320 --samples 1 --measure nll --text {text} --try weave --heads 0",
        "locate/summary.json",
    ),
    "paper": ("--config {config}", "passkey/summary.json"),
}


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    here = tmp_path_factory.mktemp("world")
    model = tiny.folder(here / "model")
    text, config = here / "text.txt", here / "paper.yaml"
    text.write_text(" ".join(f"word{number % 17} says {number % 5}." for number in range(6000)))
    config.write_text(
        f"model: {model}\ntrained_length: 160\nmethods: origin\n"
        'sections:\n  passkey: {samples: 1, lengths: "160,320"}\n'
    )
    return {"model": model, "text": text, "config": config}


def weigh(model, seed):
    """Gives the checkpoint other weights."""
    tiny.model(seed=seed, vocabulary=len(tokenizer_of(str(model))), trained=160).save_pretrained(model)


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize(
    "command", [pytest.param(command, marks=[] if command == "probe" else pytest.mark.slow) for command in COMMANDS]
)
def test_a_cut_run_goes_on_with_other_weights_by_force_alone(command, world, tmp_path, monkeypatch, capsys):
    options, written = COMMANDS[command]
    line = [command, *options.format(**world).split(), "--out", str(tmp_path)]
    line += [] if command == "paper" else ["--model", str(world["model"])]
    add = Journal.add

    def cut(self, *arguments):
        add(self, *arguments)
        raise KeyboardInterrupt

    weigh(world["model"], 0)
    with monkeypatch.context() as patch:
        patch.setattr(Journal, "add", cut)
        assert main(line) == 1
    weigh(world["model"], 1)
    monkeypatch.setattr(LossGap, "judged", True)  # locate: no weights of chance are mended
    capsys.readouterr()
    assert main(line) == 2
    refused = capsys.readouterr().err
    assert "weights" in refused
    assert "; --force continues and records it" in refused
    assert main([*line, "--force"]) == 0
    summary = json.loads((tmp_path / written).read_text())
    assert [list(command) for command in summary["forced"]] == [["weights"]]
