"""`mesa-lens predict` on the shipped model."""

import csv
import json

import pytest

from mesa_lens.cli import main
from probe.law.plan import configs, plan
from probe.request import PredictRequest

K2 = "leaky-rerope:k=1.2,log_n=false"
WORDS = ["--lengths", "512,2048", "--samples", "3", "--methods", "rerope,yarn,pi", "--config", K2, "--check"]


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    """A prediction, interrupted and resumed."""
    out = tmp_path_factory.mktemp("predict") / "run"
    assert main(["predict", "--out", str(out), *WORDS, "--minutes", "0.0001"]) == 0
    assert not (out / "predict" / "prediction.json").exists()
    assert main(["predict", "--out", str(out), *WORDS]) == 0
    return out / "predict"


def test_it_predicts_who_fails_and_who_holds(out):
    summary = json.loads((out / "prediction.json").read_text())
    methods = summary["methods"]
    assert methods["rerope"]["failure"]["length"] is None
    assert methods[K2]["failure"]["length"] < 1024
    assert methods[K2]["measured_failure"] == 2048
    assert methods["pi"]["cost_inside"] > 0.5  # distances below M, and yet it costs
    assert "frequencies" in methods["yarn"]["refusal"]
    assert "predicted" not in methods["yarn"]
    assert methods["yarn"]["measured"][0]["length"] == 512
    assert summary["agreement"]["all methods"]["methods"] == 3
    low, high = methods[K2]["predicted"][1]["excess_ends"]
    assert low <= methods[K2]["predicted"][1]["excess"] <= high


def test_it_writes_a_table_and_figures(out):
    rows = list(csv.DictReader((out / "prediction.csv").read_text().splitlines()))
    assert len(rows) == 2 * 5
    assert {row["method"] for row in rows if not row["predicted"]} == {"yarn"}
    assert (out / "prediction.png").read_bytes()[1:4] == b"PNG"
    assert b"plotly" in (out / "prediction.html").read_bytes()


def test_a_finished_run_measures_nothing_again(out, capsys):
    journal = (out / "journal.jsonl").read_bytes()
    assert main(["predict", "--out", str(out.parent), *WORDS, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads((out / "prediction.json").read_text())
    assert (out / "journal.jsonl").read_bytes() == journal


def test_other_parameters_under_the_same_name_are_refused(out, capsys):
    words = ["--lengths", "512,2048", "--samples", "3", "--methods", "rerope", "--set", "rerope.window=99", "--check"]
    assert main(["predict", "--out", str(out.parent), *words]) == 2
    assert "rerope at 256 with other parameters" in capsys.readouterr().err


def test_fewer_methods_in_a_finished_folder_are_predicted_from_its_journal(out, capsys):
    words = ["--lengths", "512,2048", "--samples", "3", "--methods", "rerope"]
    assert main(["predict", "--out", str(out.parent), *words]) == 0
    printed = capsys.readouterr()
    assert "none up to 2048" in printed.out
    assert "are left" not in printed.err


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("rerope", "'rerope' is not METHOD:PARAMETER=VALUE"),
        ("rerope:windw=3", "unknown parameter 'windw'"),
        ("rerop:window=3", "unknown method 'rerop'"),
        ("rerope:window=3000", "is not below the trained length"),
    ],
)
def test_a_wrong_config_is_named(text, complaint):
    with pytest.raises(ValueError, match=complaint) as error:
        configs([text], 256)
    assert str(error.value).startswith(f"--config '{text}'")


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"lengths": (200, 512)}, "--lengths 200 is not beyond the trained length 256"),
        ({"samples": 1}, "--samples 1: one text has no interval"),
        ({"settings": ("lm-infinite.window=100",)}, "--set gives lm-infinite parameters"),
        ({"settings": ("origin.log_n=true",)}, "such as --config origin:log_n=true"),
        ({"lengths": (400_000,)}, "are needed; give a longer text"),
    ],
)
def test_a_wrong_request_is_named(changes, complaint):
    with pytest.raises(ValueError, match=complaint):
        plan(PredictRequest(**changes))


def test_two_passes_for_each_length_beyond_the_calibration():
    planned = plan(PredictRequest(lengths=(512, 1024), samples=2, methods="all"))
    longest = [key for key in planned.passes if key[1] > planned.trained_length]
    assert len(longest) == 3  # Origin, with and without log n, and the reference
    inside = [key for key in planned.passes if key[0] in planned.methods and key[1] == planned.trained_length]
    assert len(inside) == len(planned.methods) - len(planned.refused)
