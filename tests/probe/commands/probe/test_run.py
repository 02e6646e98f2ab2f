"""The whole path on a tiny local model: command in, store, report and summary out."""

import json
import re
import shutil

import matrix
import numpy as np
import pytest
import tiny
import xarray as xr
import zarr
from commands import main

from mesa.models import tokenizer_of
from probe.experiment import run as source
from probe.experiment.journal import REQUEST
from probe.files import SEAL, read_result, seal_of
from probe.statistics import wilson


@pytest.fixture(scope="module")
def finished(model, tmp_path_factory, unpainted):
    out = tmp_path_factory.mktemp("run") / "here"
    text = tmp_path_factory.mktemp("text") / "held.txt"
    text.write_text(" ".join(f"Sentence {number} says nothing at all." for number in range(400)))
    options = f"--length 400 --texts 1 --samples 2 --layers 0-1 --dims 0-9,20 --text {text} --out {out}"
    assert main(["probe", "--model", model, *options.split()]) == 0
    return out


def test_the_store_is_labelled_and_opens_with_xarray(finished):
    store = xr.open_zarr(finished / "store.zarr")
    hidden = store["resid_post"]
    assert hidden.dims == ("method", "prompt", "layer", "position", "dim")
    assert hidden["method"].values.tolist() == ["origin", "rerope", "dynamic-ntk", "mesa"]
    assert hidden["prompt"].values.tolist() == ["repeated", "text-0"]
    assert hidden["dim"].values.tolist() == [*range(10), 20]
    assert hidden["position"].values.tolist() == list(range(400))
    assert np.isfinite(hidden.values).all()
    assert (store.attrs["trained_length"], store.attrs["trained_length_by"]) == (160, "its config")
    assert json.loads(store.attrs["method_configs"])["mesa"]["window"] == 20
    origin, mesa = (hidden.sel({"method": name}).values for name in ("origin", "mesa"))
    np.testing.assert_allclose(origin[:, :, :50], mesa[:, :, :50], atol=1e-5)  # the first chunks are plain
    assert np.abs(origin[:, :, 200:] - mesa[:, :, 200:]).max() > 0.01


def test_everything_promised_is_written(finished):
    names = {path.name for path in finished.iterdir()}
    assert {"store.zarr", "report.html", "summary.json"} <= names
    assert not any("partial" in name for name in names)
    summary = read_result(finished / "summary.json")
    text = summary["text_source"]
    assert text["documents"] == {"held.txt": 1}
    assert (
        f"{text['source']}: 1 document, {text['tokens']:,} tokens (held.txt)" in (finished / "report.html").read_text()
    )
    assert {row["method"] for row in summary["methods"]} == {"origin", "rerope", "dynamic-ntk", "mesa"}
    scores = summary["methods"][0]["scores"][str(summary["trained_length"])]
    low, high = scores["tail_nll_interval"]
    assert low < scores["tail_nll"] < high
    assert scores["passkey_interval"] == pytest.approx(wilson(round(2 * scores["passkey"]), 2))
    report = (finished / "report.html").read_text()
    assert "Plotly.newPlot" in report
    assert not re.search(r"<(script|link|img|iframe)\b[^>]*(src|href)=", report)  # nothing is fetched: opens offline


@pytest.mark.parametrize(
    ("arguments", "message", "code"),
    [
        (["--positions", "200-300"], "position 160 (where thresholds are read) was not captured, only 200-300", 2),
        (["--length", "150"], "--length 150 is not far enough beyond the trained length 160; shorter prompts", 2),
        (["--length", "1000000000"], "GiB are free; take a shorter length", 1),
        (["--lengths", "70,160"], "--lengths 70 is too short for a tail of 40 tokens; measure from 80", 2),
        (["--set", "rerope.window=160"], "rerope: window=160 is not below the trained length 160", 2),
        (["--estimate", "--set", "rerope.heads=2:0,4"], "head 4 of layer 2 is out of range; the model has", 2),
        (["--device", "cuda"], "device='cuda' is not available here; use --device cpu", 2),
    ],
)
def test_bad_input_is_one_line_and_leaves_nothing(model, tmp_path, capsys, arguments, message, code):
    out = tmp_path / "out"
    assert main(["probe", "--model", model, "--out", str(out), "--samples", "1", *arguments]) == code
    errors = capsys.readouterr().err
    assert message in errors
    assert not (out / "store.zarr").exists()
    assert not list(tmp_path.glob("**/*partial*"))


def test_what_cannot_be_read_or_built_is_refused_before_the_weights_are_loaded(model, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(source, "load", None)
    short, empty = tmp_path / "short.txt", tmp_path / "empty.txt"
    short.write_text("Too short. " * 30)
    empty.write_text(" \n\t")
    for options, message in (
        (("--text", str(short)), r"the text has \d+ tokens, 399 are needed; give a longer text"),
        (("--text", str(short), "--texts", "0", "--lengths", "160,399"), "tokens, 399 are needed"),
        (("--text", str(empty)), r"empty\.txt holds no text; give a file or dataset that does"),
        (("--prompt", "a b c d e " * 50), r"--prompt .* has \d+ tokens, which --length 400 does not"),
    ):
        assert main(["probe", "--model", model, "--out", str(tmp_path / "out"), "--length", "400", *options]) == 2
        assert re.search(message, capsys.readouterr().err)
    assert not (tmp_path / "out").exists()


@pytest.mark.usefixtures("unpainted")
def test_the_report_is_rewritten_from_the_store_alone(finished, tmp_path, capsys, monkeypatch):
    out = tmp_path / "run"
    shutil.copytree(finished / "store.zarr", out / "store.zarr")
    assert main(["report", str(out)]) == 0
    assert f"wrote {out / 'report.html'}" in capsys.readouterr().out
    former, again = (read_result(folder / "summary.json") for folder in (finished, out))
    assert former == again
    assert {path.name for path in out.iterdir()} == {"store.zarr", "derived", "report.html", "summary.json", "figures"}
    monkeypatch.setattr("probe.commands.probe.report.write_figures", lambda *_: None)
    monkeypatch.setattr("probe.figures.section.html_embed", lambda _: "")
    assert main(["report", str(out), "--rule", "paper", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["onset_by"] == "paper"


@pytest.mark.usefixtures("unpainted")
def test_a_report_keeps_the_rule_of_its_run(finished, tmp_path, capsys):
    shutil.copytree(finished / "store.zarr", tmp_path / "store.zarr")
    group = zarr.open_group(tmp_path / "store.zarr", mode="r+", use_consolidated=False)
    group.attrs[REQUEST] = json.dumps({**json.loads(str(group.attrs[REQUEST])), "rule": ["paper"]})
    group.attrs[SEAL] = seal_of(tmp_path / "store.zarr")
    for words, rule in ([], "paper"), (["--rule", "drift"], "drift"):
        assert main(["report", str(tmp_path), *words, "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["onset_by"] == rule


def test_values_that_the_store_cannot_hold_are_refused_before_anything_is_measured(tmp_path, capsys, monkeypatch):
    folder = tiny.folder(tmp_path / "model")
    large = tiny.model(vocabulary=900, trained=160)
    large.model.layers[1].mlp.down_proj.weight.data *= 1e8
    large.resize_token_embeddings(tokenizer_of(str(folder)).vocab_size)
    large.save_pretrained(folder)
    monkeypatch.setattr("probe.experiment.pool.LocalPool.results", lambda *_: pytest.fail("measured"))
    command = ["probe", "--model", str(folder), "--out", str(tmp_path / "out"), "--length", "300", "--texts", "0"]
    assert main([*command, "--store-dtype", "float16"]) == 2
    error = capsys.readouterr().err
    assert re.search(r"layer 1 under origin has the value .*, beyond float16's range; store it", error)
    assert not (tmp_path / "out").exists()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("family", "hook"), [("phi", "resid_mid"), ("deepseek_v3", "q")])
def test_hooks_that_the_bridge_lacks_are_refused_before_anything_is_measured(
    family, hook, tmp_path, capsys, monkeypatch
):
    tokenizer = tiny.byte_level()
    for part in (matrix.build(family, vocab_size=len(tokenizer), max_position_embeddings=160), tokenizer):
        part.save_pretrained(tmp_path / "model")
    monkeypatch.setattr("probe.experiment.pool.LocalPool.results", lambda *_: pytest.fail("measured"))
    command = ["probe", "--model", tmp_path / "model", "--out", tmp_path / "out", "--methods", "origin", "--texts", "0"]
    assert main([*map(str, command), "--length", "300", "--samples", "2", "--hooks", f"resid_post,{hook}"]) == 2
    assert f"hook '{hook}' is" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_two_configs_of_a_method_stand_in_one_run_by_their_texts(model, tmp_path, unpainted, capsys):
    configs = ["rerope:window=8", "rerope:window=8,log_n=false"]
    command = ["probe", "--model", model, "--methods", "origin,rerope", *f"--config {configs[0]}".split()]
    command += "--length 400 --texts 0 --samples 0 --layers 0 --dims 0-3 --out".split()
    assert main([*command, tmp_path / "run", "--config", configs[1]]) == 0
    store = xr.open_zarr(tmp_path / "run" / "store.zarr")
    names = ["origin", "rerope", *configs]
    assert store["method"].values.tolist() == names
    assert [json.loads(store.attrs["method_configs"])[name].get("window") for name in names] == [None, 20, 8, 8]
    plain, small, unscaled = (store["resid_post"].sel({"method": name}).values for name in names[1:])
    assert np.abs(plain - small).max() > 1e-3
    assert np.abs(small - unscaled).max() > 1e-3
    page = (tmp_path / "run" / "report.html").read_text()
    assert all(name in page for name in configs)
    out = str(tmp_path / "figures")
    chosen = ["--methods", ",".join(names[2:]), "--format", "npz", "--out", out]
    assert main(["export", "heatmap", str(tmp_path / "run"), *chosen]) == 0
    capsys.readouterr()
    assert main([*command, tmp_path / "none", "--config", configs[0]]) == 2
    assert f"--config {configs[0]!r} is passed twice" in capsys.readouterr().err
