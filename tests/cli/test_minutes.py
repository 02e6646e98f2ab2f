"""`mesa-lens probe --minutes`: what fits the time by the model's speed, said aloud; the same command continues it."""

import json

import pytest

from mesa_lens import running
from mesa_lens.cli import main
from probe.experiment.estimate import Speed

pytestmark = pytest.mark.usefixtures("undrawn")


@pytest.fixture
def speed(monkeypatch):
    """Half a second a pass of whatever length, and the lengths that it was measured up to."""
    longest_of = []

    def measured(spec, longest, executor):
        longest_of.append(longest)
        return Speed(0.5, 0.0, 0.0, longest)

    monkeypatch.setattr("probe.experiment.estimate.measure_speed", measured)
    return longest_of


def chosen(out):
    lines = (out / "store.zarr" / "zarr.json").read_text(encoding="utf-8")
    return json.loads(json.loads(lines)["attributes"]["request"])


def test_what_fits_is_chosen_said_and_measured_and_the_same_command_continues(model, tmp_path, speed, capsys):
    out = tmp_path / "run"
    command = ["probe", "--model", model, "--methods", "origin,rerope", "--minutes", "0.25", "--out", str(out)]
    assert main(command) == 0
    said = [line for line in capsys.readouterr().err.splitlines() if "takes about" in line]
    assert len(said) == 1
    assert "all that is measured by default takes about" in said[0]
    assert "--samples=2" in said[0]
    assert "--lengths=160," in said[0]
    assert chosen(out)["samples"] == ["2"]
    summary = json.loads((out / "summary.json").read_text(encoding="utf-8"))
    assert summary["measured_lengths"][0] == 160  # those inside M are left out first
    assert main(command) == 0
    assert len(speed) == 1  # the second time the folder says what was chosen


def test_where_not_even_two_prompts_fit_nothing_is_begun(model, tmp_path, speed, capsys):
    out = tmp_path / "run"
    assert main(["probe", "--model", model, "--minutes", "0.01", "--out", str(out)]) == 2
    assert "two prompts of one method at two lengths do not fit 0.01 minutes" in capsys.readouterr().err
    assert not out.exists()


@pytest.mark.parametrize(("more", "is_fitted"), [([], True), (["--samples", "2", "--refine", "0"], False)])
def test_without_numbers_a_run_takes_half_an_hour_at_most(model, tmp_path, monkeypatch, speed, capsys, more, is_fitted):
    monkeypatch.setattr(running, "CHEAP_RUN", 0)
    out = tmp_path / "run"
    methods = ["--methods", "origin", "--texts", "0"] if more else ["--methods", "origin"]
    assert main(["probe", "--model", model, *methods, *more, "--out", str(out)]) == 0
    assert bool(speed) == is_fitted


def test_a_small_run_measures_no_speed(model, tmp_path, speed):
    assert main(["probe", "--model", model, "--methods", "origin", "--out", str(tmp_path / "run")]) == 0
    assert speed == []
