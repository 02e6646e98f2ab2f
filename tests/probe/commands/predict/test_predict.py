"""`mesa-lens predict` on the shipped model."""

import csv
import json
import re
import shutil

import numpy as np
import pytest
from synthetic import edit, hidden_states, write_run

import probe
from mesa.models import tokenizer_of
from mesa.settings import read_configs
from mesa_lens.cli import main
from probe.commands.predict import PredictRequest, run as running
from probe.commands.predict.result import PREDICTION
from probe.commands.predict.run import plan
from probe.eval_tasks.score import heldout_ids
from probe.eval_tasks.sources import heldout, texts
from probe.files import read_result
from probe.run_folder import RUN
from probe.store.result_file import as_json

K2 = "leaky-rerope:k=1.2,log_n=false"
FAR = "gap:gap=90000"
CONFIGS = ["--config", K2, "--config", FAR]
WORDS = ["--lengths", "512,2048", "--samples", "2", "--methods", "rerope,yarn,pi", *CONFIGS, "--check"]


@pytest.fixture(scope="module")
def painted_once():
    """matplotlib takes a second for a picture."""
    with pytest.MonkeyPatch.context() as patch:
        drawn, draw = {}, running.rendered

        def rendered(figure, form):
            key = form, repr(figure)
            return drawn[key] if key in drawn else drawn.setdefault(key, draw(figure, form))

        patch.setattr(running, "rendered", rendered)
        yield


@pytest.fixture(scope="module")
def out(tmp_path_factory, painted_once):
    """A prediction, interrupted and resumed."""
    out = tmp_path_factory.mktemp("predict") / "run"
    assert main(["predict", "--out", str(out), *WORDS, "--minutes", "0.0001"]) == 0
    assert not (out / "predict" / "prediction.json").exists()
    assert main(["predict", "--out", str(out), *WORDS]) == 0
    return out / "predict"


def test_it_predicts_who_fails_and_who_holds(out):
    prediction = PREDICTION.read(out.parent)
    methods, law = prediction.methods, prediction.law
    assert sum(prediction.text_source.documents.values()) == 8
    assert methods["rerope"].refusal.startswith("not covered, since no key is at a distance of M or more up to 2048")
    assert methods["rerope"].not_covered
    assert methods["rerope"].cost_inside == pytest.approx(0, abs=0.1)
    assert not any(row.not_covered for name, row in methods.items() if name != "rerope")
    assert methods[K2].failure.length < 1024
    assert methods[K2].measured_failure == 2048
    assert methods["pi"].cost_inside > 0.5  # distances below M, and yet it costs
    assert methods["pi"].failure.length == 256
    assert "further away than any of Origin's" in methods[FAR].refusal
    assert not methods[FAR].predicted
    assert law.scale_power.value > 0  # rerope has log n
    assert 256 < law.origin_fails < 1024
    assert law.kind.few is False  # one key costs nothing, 127 do
    assert law.kind.one_key.value < 0.1 < 0.4 < law.kind.all_keys.value
    assert "frequencies" in methods["yarn"].refusal
    assert not methods["yarn"].predicted
    assert methods["yarn"].measured[0].length == 512
    assert prediction.agreement["those with distances beyond M"].methods == 2
    at = methods[K2].predicted[1]
    assert at.excess_ends[0] <= at.excess <= at.excess_ends[1]


def test_it_writes_a_table_and_figures(out):
    rows = list(csv.DictReader((out / "prediction.csv").read_text().splitlines()))
    assert len(rows) == 2 * 6
    assert {row["method"] for row in rows if not row["predicted"]} == {"yarn", FAR, "rerope"}
    assert (out / "prediction.png").read_bytes()[1:4] == b"PNG"
    assert b"plotly" in (out / "prediction.html").read_bytes()


def test_a_finished_run_measures_nothing_again(out, capsys):
    journal = (out / "journal.jsonl").read_bytes()
    assert main(["predict", "--out", str(out.parent), *WORDS, "--json"]) == 0
    written = read_result(out / "prediction.json")
    assert json.loads(capsys.readouterr().out) | {RUN: written[RUN]} == written
    assert (out / "journal.jsonl").read_bytes() == journal


def test_fewer_methods_in_a_finished_folder_are_predicted_from_its_journal(out, capsys):
    words = ["--lengths", "512,2048", "--samples", "2", "--methods", "rerope"]
    assert main(["predict", "--out", str(out.parent), *words]) == 0
    printed = capsys.readouterr()
    assert re.search("rerope +not covered", printed.out)
    misfit = PREDICTION.read(out.parent).misfit
    assert (
        f"Misfit of the law to the 15 position gaps that it was fitted to: {misfit.rms:.2f} nats/token" in printed.out
    )
    assert 0 < misfit.rms < 0.5
    assert "are left" not in printed.err


def test_python_predicts_as_the_command_does_and_an_opened_run_shows_it(out, tmp_path):
    load = {"device": "cpu", "trust_remote_code": False}  # as a command states it
    words = {"methods": "rerope,yarn,pi", "configs": (K2, FAR), "lengths": (512, 2048), "samples": 2}
    request = PredictRequest(**words, load=load, check=True)
    prediction = probe.predict_failure(request, out.parent)
    written = read_result(out / "prediction.json")
    assert as_json(prediction) | {RUN: written[RUN]} == written
    run = write_run(tmp_path / "run", hidden_states(256, layers=1, dims=4), trained_length=256)
    shutil.copytree(out, run / "predict", ignore=shutil.ignore_patterns("journal.jsonl"))
    edit(run, lambda attrs: attrs.update(written[RUN]))
    shown = probe.open_run(run).prediction()
    at = shown.data.sel(method=K2, length=2048)
    assert at["predicted"].item() == prediction.methods[K2].predicted[1].excess
    assert at["predicted"].attrs["units"] == "nats/token"
    assert 256 < at["predicted_failure"].item() < 1024
    assert np.isnan(shown.data["predicted"].sel(method="yarn")).all()
    assert "frequencies" in shown.data["refusal"].sel(method="yarn").item()
    assert "Misfit of the law" in repr(shown)
    assert {path.suffix for path in shown.save(tmp_path / "files", "svg,csv")} == {".svg", ".csv"}


def test_a_run_without_a_prediction_names_the_command(tmp_path):
    run = probe.open_run(write_run(tmp_path / "run", hidden_states(layers=1, dims=4)))
    with pytest.raises(FileNotFoundError, match="mesa-lens predict --out"):
        run.prediction()


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
        read_configs([text], 256)
    assert str(error.value).startswith(f"--config '{text}'")


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"lengths": (200, 512)}, "--lengths 200 is not beyond the trained length 256"),
        ({"samples": 1}, "--samples 1: one text has no interval"),
        ({"method_settings": ("lm-infinite.window=100",)}, "--set gives lm-infinite parameters"),
        ({"method_settings": ("origin.log_n=true",)}, "such as --config origin:log_n=true"),
        ({"lengths": (257, 300)}, "the longest must be at least 512, so that gaps of M/2 and of M"),
        ({"lengths": (400_000,)}, "are needed; give a longer text"),
    ],
)
def test_a_wrong_request_is_named(changes, complaint):
    with pytest.raises(ValueError, match=complaint):
        plan(PredictRequest(**changes))


def test_a_text_that_repeats_itself_is_named(tmp_path):
    (tmp_path / "same.txt").write_text("The cat sat on the mat and looked at the dog. " * 900)
    with pytest.raises(ValueError, match="the text repeats itself"):
        plan(PredictRequest(lengths=(512,), samples=4, text=str(tmp_path / "same.txt")))


def test_lengths_are_sorted_and_texts_do_not_overlap(tmp_path):
    path = tmp_path / "one.txt"
    path.write_text(heldout()[0][:9000])
    planned = plan(PredictRequest(lengths=(1024, 512, 512), text=str(path)))
    assert planned.lengths == (512, 1024)
    tokens = sum(map(len, heldout_ids(tokenizer_of("default"), texts(str(path)))))
    assert sum(len(text) - 1 for text in planned.texts) <= tokens
