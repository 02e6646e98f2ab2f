"""`mesa-lens estimate-window`: what it prints, and what it refuses."""

import json

import pytest
import tiny
from commands import main


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return str(tiny.folder(tmp_path_factory.mktemp("model")))


def test_random_weights_cannot_tell(model, capsys):
    assert main(["estimate-window", "--model", model, "--longest", "256", "--samples", "3", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["works"] is None
    assert found["text"] == "Cannot tell M: the model is at chance at every length (3 texts)."
    assert [row["length"] for row in found["lengths"]] == [64, 128, 256]


def test_the_estimate_loads_no_weights(model, capsys, monkeypatch):
    monkeypatch.setattr("mesa.models.load", lambda *_, **__: pytest.fail("weights were loaded"))
    assert main(["estimate-window", "--model", model, "--samples", "2", "--estimate"]) == 0
    out = capsys.readouterr().out
    assert "contexts of up to 640 tokens, 2 texts each" in out
    assert "time: " in out


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (["--longest", "100"], "--longest 100 is below 128"),
        (["--samples", "1"], "--samples 1 is below 2"),
        (["--text", "nowhere.txt"], "--text nowhere.txt is not a file"),
        (["--longest", "2000000000"], "--longest 2000000000: 20 prompt(s) of so many tokens take about"),
        (["--threads", "9999"], "--threads 9999 is above"),
        (["--model", "nowhere/at-all"], "nowhere/at-all"),
    ],
)
def test_bad_input_is_one_line(model, capsys, options, complaint):
    assert main(["estimate-window", "--model", model, *options]) in (1, 2)
    error = capsys.readouterr().err
    assert complaint in error
    assert error.count("\n") == 1


@pytest.mark.slow
@pytest.mark.parametrize(("model", "window"), [("default", (256, 400)), ("nope", (224, 350)), ("alibi", (1024, 1024))])
def test_the_shipped_models_windows(capsys, model, window):
    assert main(["estimate-window", "--model", model, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert window[0] <= found["works"] <= window[1]
    assert (found["fails"] is None) == (model == "alibi")
