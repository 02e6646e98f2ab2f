"""The whole path on a tiny local model: command in, store, report and summary out."""

import importlib.metadata
import json
import re
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import tiny
import torch
import xarray as xr
from synthetic import edit

from mesa.models import tokenizer_of
from mesa_lens.cli import main
from probe import plan as planning
from probe import run, work
from probe.capture.spec import CaptureSpec, Kept
from probe.cells import source
from probe.evaluation.intervals import wilson
from probe.evaluation.plan import EvalRequest
from probe.evaluation.plan import plan as plan_evaluation
from probe.evaluation.run import run as run_evaluation
from probe.plan import ProbeRequest, plan
from probe.store.reader import open_run, whole_passes
from probe.store.summary import own_summary
from probe.tasks import likelihood


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return str(tiny.folder(tmp_path_factory.mktemp("model")))


@pytest.fixture(scope="module")
def finished(model, tmp_path_factory):
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
    assert store.attrs["trained_length"] == 160
    assert json.loads(store.attrs["method_configs"])["mesa"]["window"] == 20
    origin, mesa = (hidden.sel({"method": name}).values for name in ("origin", "mesa"))
    np.testing.assert_allclose(origin[:, :, :50], mesa[:, :, :50], atol=1e-5)  # the first chunks are plain
    assert np.abs(origin[:, :, 200:] - mesa[:, :, 200:]).max() > 0.01


def test_the_store_keeps_the_tokens_of_every_prompt(finished, model):
    hidden = open_run(finished).hidden
    ids = xr.open_zarr(finished / "store.zarr", group="tokens")["id"]
    tokenizer = tokenizer_of(model)
    assert ids.shape == (2, 400)
    for prompt in ("repeated", "text-0"):
        own = ids.sel(prompt=prompt).values.tolist()
        assert hidden["token"].sel(prompt=prompt).values.tolist() == [tokenizer.decode([each]) for each in own]
    said = "".join(hidden["token"].sel(prompt="text-0").values)
    assert "says nothing at all" in said


def test_everything_promised_is_written(finished):
    names = {path.name for path in finished.iterdir()}
    assert {"store.zarr", "report.html", "summary.json"} <= names
    assert not any("partial" in name for name in names)
    summary = json.loads((finished / "summary.json").read_text())
    assert {row["method"] for row in summary["methods"]} == {"origin", "rerope", "dynamic-ntk", "mesa"}
    scores = summary["methods"][0]["scores"]["M"]
    low, high = scores["tail_nll_interval"]
    assert low < scores["tail_nll"] < high
    assert scores["passkey_interval"] == pytest.approx(wilson(round(2 * scores["passkey"]), 2))
    report = (finished / "report.html").read_text()
    assert "Plotly.newPlot" in report
    assert not re.search(r"<(script|link|img|iframe)\b[^>]*(src|href)=", report)  # nothing is fetched: opens offline


def test_random_weights_are_at_chance_and_never_hold(finished):
    summary = json.loads((finished / "summary.json").read_text())
    assert "tail NLL" in summary["at_chance"]
    for row in summary["methods"]:
        assert row["measured"]["text"].startswith("not judged: at chance inside M")
        assert not row["measured"]["holds"]
    told = {each["heading"]: each["text"] for each in summary["verdict"]["told"]}
    assert " hold" not in " ".join(told.values())
    assert "the model is at chance inside its window" in told["What broke"]
    assert "the model is at chance" in told["What mended it"]
    assert [row["rank"] for row in summary["verdict"]["rows"]] == [None] * 4
    origin = next(row for row in summary["verdict"]["rows"] if row["is_reference"])
    assert [cost["length"] for cost in origin["cost"]] == [160, 320]
    assert all(cost["time"] == 1 and cost["seconds"] > 0 and cost["passes"] == 2 for cost in origin["cost"])
    assert "not judged: at chance inside M" in (finished / "report.html").read_text()


def test_estimate_loads_no_weights_and_writes_nothing(model, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(source, "load", None)
    assert main(["probe", "--model", model, "--estimate", "--out", str(tmp_path / "x")]) == 0
    text = capsys.readouterr().out
    assert "trained length M = 160, captured length 640 tokens" in text
    assert "disk: 3 MiB" in text  # 4 methods x 3 prompts x 3 layers x 640 positions x 32 dims x 4 bytes
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize(
    ("arguments", "message", "code"),
    [
        (["--methods", "origin,rope"], "unknown method 'rope'; known: origin,", 2),
        (["--methods", "origin,origin"], "--methods names origin more than once", 2),
        (["--dims", "30-40"], "dim 30-40 is out of range; there are dims 0-31", 2),
        (["--layers", "7"], "layer 7-7 is out of range; there are layers 0-2", 2),
        (["--positions", "200-100"], "'200-100' is empty", 2),
        (["--positions", "200-300"], "position 160 (where thresholds are read) was not captured, only 200-300", 2),
        (["--length", "150"], "--length 150 is not far enough beyond the trained length 160; take e.g. 640", 2),
        (["--length", "100000000000"], "GiB are free; shorten --length", 1),
        (["--lengths", "70,160"], "--lengths 70 is too short for a tail of 40 tokens; measure from 80", 2),
        (["--lengths", "1k:2k"], "is no FIRST:LAST:STEP, e.g. 1k:16k:1k", 2),
        (["--lengths", "90"], "--lengths leaves out the trained length 160", 2),
        (["--set", "rerope.window=160"], "rerope: window=160 is not below the trained length 160", 2),
        (
            ["--estimate", "--set", "rerope.heads=2:0,4"],
            "head 4 of layer 2 is out of range; the model has heads 0-3",
            2,
        ),
        (["--estimate", "--set", "mesa.layers=0,3"], "layer 3 is out of range; the model has layers 0-2", 2),
        (["--methods", "all", "--estimate", "--set", "mesa.heads=3:0"], "layer 3 is out of range; the model has", 2),
        (["--text", "/nowhere.txt"], "--text /nowhere.txt is not a file", 2),
        (["--dtype", "int8"], "unknown dtype 'int8'; known: float32, float16, bfloat16, float64", 2),
        (["--device", "cuda"], "device='cuda' is not available here; use --device cpu", 2),
        (["--executor", "flash"], "unknown executor 'flash'; known: dense, fused", 2),
    ],
)
def test_bad_input_is_one_line_and_leaves_nothing(model, tmp_path, capsys, arguments, message, code):
    out = tmp_path / "out"
    assert main(["probe", "--model", model, "--out", str(out), "--samples", "1", *arguments]) == code
    errors = capsys.readouterr().err
    assert message in errors
    assert not (out / "store.zarr").exists()
    assert not list(tmp_path.glob("**/*partial*"))


def test_a_missing_model_is_named(tmp_path, capsys):
    assert main(["probe", "--model", "./nowhere", "--out", str(tmp_path / "out")]) == 2
    assert (
        "no model at 'nowhere' (no config.json there); give a folder, a .gguf file or a hub id"
        in capsys.readouterr().err
    )


def test_what_cannot_be_read_or_built_is_told_before_the_weights_are_loaded(model, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(source, "load", None)
    (tmp_path / "short.txt").write_text("Too short. " * 30)
    asked = ["probe", "--model", model, "--out", str(tmp_path / "out"), "--text", str(tmp_path / "short.txt")]
    assert main([*asked, "--length", "400"]) == 2
    assert re.search(r"the text has \d+ tokens, 399 are needed; give a longer text", capsys.readouterr().err)
    assert main([*asked, "--length", "400", "--texts", "0", "--lengths", "160,399"]) == 2
    assert "tokens, 399 are needed" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_values_that_the_store_cannot_hold_are_found_before_anything_is_measured(tmp_path, capsys, monkeypatch):
    folder = tiny.folder(tmp_path / "model")
    large = tiny.model(vocabulary=900, trained=160)
    large.model.layers[2].mlp.down_proj.weight.data *= 1e8
    large.resize_token_embeddings(tokenizer_of(str(folder)).vocab_size)
    large.save_pretrained(folder)
    monkeypatch.setattr(run.by_length, "measure", lambda *_: pytest.fail("measured"))
    asked = ["probe", "--model", str(folder), "--out", str(tmp_path / "out"), "--length", "300", "--texts", "0"]
    assert main([*asked, "--store-dtype", "float16"]) == 2
    assert re.search(r"layer 2 has the value .*, beyond float16's range; store it", capsys.readouterr().err)
    assert not (tmp_path / "out").exists()


def test_scores_that_are_no_numbers_end_the_run(model, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(likelihood, "nll", lambda *_, **__: torch.tensor(torch.nan))
    asked = ["probe", "--model", model, "--out", str(tmp_path), "--length", "300", "--texts", "0", "--samples", "2"]
    assert main(asked) == 2
    assert "the tail NLL under origin at 80 tokens is not a number; run the model with --dtype float32" in (
        capsys.readouterr().err
    )
    assert not list(tmp_path.iterdir())


def test_another_run_in_the_folder_leaves_nothing_of_the_first(tmp_path, capsys):
    folder = tiny.folder(tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"dtype": "bfloat16"}))
    out = tmp_path / "out"
    asked = ["probe", "--model", str(folder), "--out", str(out), "--length", "300", "--texts", "0"]
    assert main([*asked, "--methods", "origin,rerope", "--samples", "1"]) == 0
    assert (out / "figures" / "curves.svg").exists()
    (out / "figures" / "mine.txt").write_text("mine")
    hooks = ["--methods", "rerope", "--samples", "0", "--hooks", "resid_post,attn_out", "--overwrite"]
    assert main([*asked, *hooks]) == 0
    names = {path.name for path in (out / "figures").iterdir()}
    assert "heatmap-rerope.png" in names
    assert "mine.txt" in names
    assert not any("origin" in name or "curves" in name for name in names)
    summary = json.loads((out / "summary.json").read_text())
    assert summary["hook"] == "resid_post"  # the first asked for, not by the alphabet
    assert xr.open_zarr(out / "store.zarr").attrs["source_dtype"] == "float32"  # as loaded on a CPU
    assert "captured with --length" not in summary["control"]


def test_the_estimate_knows_what_is_measured_and_how(model):
    def needed(**changes):
        return plan(ProbeRequest(model=model, length=640, **changes))

    assert needed(executor="dense").pass_bytes == needed().pass_bytes + 3 * 4 * 4 * 640**2  # 4 heads
    assert needed(samples=1, lengths=(160, 10**6)).pass_bytes > 100 * needed(samples=0).pass_bytes
    assert needed(methods="origin").host_bytes < needed(methods="all").host_bytes


def test_a_run_that_is_there_is_not_replaced_unasked(finished, model, capsys):
    assert main(["probe", "--model", model, "--out", str(finished)]) == 2
    assert "already holds a run with another config" in capsys.readouterr().err


def test_the_report_is_written_anew_from_the_store_alone(finished, tmp_path, capsys):
    out = tmp_path / "run"
    shutil.copytree(finished / "store.zarr", out / "store.zarr")
    assert main(["report", str(out)]) == 0
    assert f"wrote {out / 'report.html'}" in capsys.readouterr().out
    former, anew = (json.loads((each / "summary.json").read_text()) for each in (finished, out))
    assert former == anew
    assert {path.name for path in out.iterdir()} == {"store.zarr", "derived", "report.html", "summary.json", "figures"}
    assert main(["report", str(out), "--rule", "paper", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["predicted_by"] == "paper"


def test_a_store_that_is_not_whole_gets_no_report(finished, tmp_path, capsys):
    shutil.copytree(finished / "store.zarr", tmp_path / "store.zarr.partial")
    assert main(["report", str(tmp_path)]) == 2
    assert "store.zarr is incomplete" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["store.zarr.partial"]


def test_the_summary_of_another_store_is_not_taken_for_this_one_s(model, uninterrupted, tmp_path):
    other = tmp_path / "other"
    shutil.copytree(uninterrupted, other)
    edit(other, lambda attrs: attrs.update(created="another time"))
    assert own_summary(uninterrupted)["model"] == model
    assert own_summary(other) is None
    assert main(asked(model, other)) == 0  # not: already holds this run; the report is written anew
    assert own_summary(other)["created"] == "another time"


def interrupt_at(monkeypatch, place, name, count):
    """Raises KeyboardInterrupt in the `count`-th call of place.name; counts go on in what is returned."""
    calls, original = [], getattr(place, name)

    def interrupted(*args, **kwargs):
        calls.append(args)
        if len(calls) == count:
            raise KeyboardInterrupt
        return original(*args, **kwargs)

    monkeypatch.setattr(place, name, interrupted)
    return calls


def asked(model, out, *more):
    options = "--length 300 --texts 0 --samples 1 --methods origin,rerope --lengths 80:160:80 --layers 0-1"
    return ["probe", "--model", model, "--out", str(out), *options.split(), *more]


@pytest.fixture(scope="module")
def uninterrupted(model, tmp_path_factory):
    out = tmp_path_factory.mktemp("uninterrupted") / "run"
    assert main(asked(model, out)) == 0
    return out


def files(folder):
    """Contents by path of a store, less its attributes, which hold the time, and what passes cost."""
    paths = [path.relative_to(folder) for path in folder.rglob("*") if path.is_file()]
    own = ("zarr.json", "evaluation/seconds/c", "evaluation/peak_mib/c")
    return {path: (folder / path).read_bytes() for path in paths if not path.as_posix().startswith(own)}


def scored(out):
    """The journal's scores by cell, without times."""
    rows = map(json.loads, (out / "measured.jsonl").read_text().splitlines()[1:])
    return {tuple(row["cell"]): [score["value"] for score in row["scores"]] for row in rows}


def untimed(summary):
    methods = [{**row, "cost": None} for row in summary["methods"]]
    return {**summary, "created": "", "store": "", "methods": methods, "verdict": summary["verdict"]["told"]}


def same(out, other):
    assert scored(out) == scored(other)
    assert files(out / "store.zarr") == files(other / "store.zarr")
    first, second = (untimed(json.loads((each / "summary.json").read_text())) for each in (out, other))
    assert first == second
    assert {path.name for path in out.iterdir()} == {path.name for path in other.iterdir()}


def test_measured_failure_is_the_evaluations_cells(model, uninterrupted, tmp_path):
    made = plan_evaluation(
        EvalRequest(model=model, methods="origin,rerope", samples=1, lengths=(80, 160), tasks=("nll", "passkey"))
    )
    run_evaluation(made, tmp_path)
    rows = map(json.loads, (tmp_path / "cells.jsonl").read_text().splitlines()[1:])
    cells = {tuple(row["cell"]): [score["value"] for score in row["scores"]] for row in rows}
    assert cells == scored(uninterrupted)
    stored = xr.open_zarr(uninterrupted / "store.zarr", group="evaluation")
    for (task, method, length), values in cells.items():
        at = stored[{"nll": "tail_nll"}.get(task, task)].sel({"method": method, "length": length})
        assert at.values.tolist() == values


def test_an_interrupt_before_anything_is_kept_leaves_nothing(model, tmp_path, capsys, monkeypatch):
    interrupt_at(monkeypatch, work, "capture", 1)
    assert main(asked(model, tmp_path / "out", "--samples", "0")) == 1
    assert capsys.readouterr().err.endswith("mesa-lens: interrupted; nothing half-written was left\n")
    assert not (tmp_path / "out").exists()


def test_an_interrupted_capture_goes_on_where_it_was(model, uninterrupted, tmp_path, capsys, monkeypatch):
    out = tmp_path / "out"
    calls = interrupt_at(monkeypatch, work, "capture", 2)
    assert main(asked(model, out)) == 1
    assert f"interrupted; what is done is kept: the same command goes on from {out}\n" in capsys.readouterr().err
    measured = interrupt_at(monkeypatch, likelihood, "nll", 0)
    assert main(asked(model, out)) == 0
    assert [args[2].name for args in calls] == ["origin", "rerope", "rerope"]
    assert not measured
    same(out, uninterrupted)


def test_an_interrupted_measuring_goes_on_where_it_was(model, uninterrupted, tmp_path, capsys, monkeypatch):
    out = tmp_path / "out"
    calls = interrupt_at(monkeypatch, likelihood, "nll", 4)
    assert main(asked(model, out)) == 1
    assert "the same command goes on" in capsys.readouterr().err
    assert main(asked(model, out)) == 0
    assert len(calls) == 5
    same(out, uninterrupted)


def test_a_region_cut_short_is_captured_again(model, uninterrupted, tmp_path, monkeypatch):
    out = tmp_path / "out"
    with monkeypatch.context() as patch:
        interrupt_at(patch, work, "capture", 2)
        assert main(asked(model, out)) == 1
    (region,) = (out / "store.zarr.partial").glob("resid_post/c/0/0/1/0/0")
    region.write_bytes(region.read_bytes()[:-4])
    assert main(asked(model, out)) == 0
    same(out, uninterrupted)


def test_an_unfinished_run_of_other_settings_is_refused_before_long_work(model, tmp_path, capsys, monkeypatch):
    out = tmp_path / "out"
    with monkeypatch.context() as patch:
        interrupt_at(patch, work, "capture", 2)
        assert main(asked(model, out, "--overwrite")) == 1
    assert "kept: without --overwrite, the same command goes on" in capsys.readouterr().err
    with monkeypatch.context() as patch:
        patch.setattr(source, "load", None)
        for option, value, message in [
            ("--prompt", "world", "an unfinished run with another config: word differs; use --overwrite"),
            ("--texts", "1", "an unfinished run with another config: prompt differs; use --overwrite"),
            ("--seed", "1", "an unfinished run with another config: seed differs; use --overwrite"),
        ]:
            assert main(asked(model, out, option, value)) == 2
            assert message in (error := capsys.readouterr().err)
            assert "goes on" not in error
    assert main(asked(model, out, "--prompt", "world", "--overwrite")) == 0
    assert xr.open_zarr(out / "store.zarr").attrs["word"] == "world"


def test_a_whole_store_without_its_report_is_finished(model, uninterrupted, tmp_path, capsys, monkeypatch):
    out = tmp_path / "out"
    with monkeypatch.context() as patch:
        interrupt_at(patch, run, "write_report", 1)
        assert main(asked(model, out)) == 1
    assert "the same command goes on" in capsys.readouterr().err
    monkeypatch.setattr(source, "load", None)
    assert main(asked(model, out)) == 0
    same(out, uninterrupted)
    assert main(asked(model, out)) == 2
    assert "already holds a run with the same config; use --overwrite" in capsys.readouterr().err


def test_an_interrupt_before_a_run_goes_on_says_what_was_kept_before(model, tmp_path, capsys, monkeypatch):
    out = tmp_path / "out"
    interrupt_at(monkeypatch, work, "capture", 2)
    assert main(asked(model, out)) == 1
    interrupt_at(monkeypatch, run, "prepare", 1)
    capsys.readouterr()
    assert main(asked(model, out)) == 1
    assert capsys.readouterr().err.endswith(f"mesa-lens: interrupted; the same command goes on from {out}\n")


def test_a_failure_says_what_is_kept(model, tmp_path, capsys, monkeypatch):
    def failing(*args, **kwargs):
        raise RuntimeError("no luck")

    monkeypatch.setattr(work, "capture", failing)
    assert main(asked(model, tmp_path / "out")) == 1
    error = capsys.readouterr().err
    assert error.endswith(
        f"mesa-lens: no luck; what is done is kept: the same command goes on from {tmp_path / 'out'}\n"
    )


@pytest.mark.parametrize("sent", [signal.SIGTERM, pytest.param(signal.SIGKILL, marks=pytest.mark.slow)])
def test_a_killed_run_goes_on_to_the_same_bytes(model, uninterrupted, tmp_path, capsys, sent):
    out = tmp_path / "out"
    code = (
        "import sys, time\nfrom mesa_lens.cli import main\nfrom probe import work\nfirst = work.capture\n"
        "def slow(*args, **kwargs):\n    values = first(*args, **kwargs)\n    work.capture = hang\n    return values\n"
        "def hang(*args, **kwargs):\n    time.sleep(60)\n"
        "work.capture = slow\nraise SystemExit(main(sys.argv[1:]))"
    )
    command = [sys.executable, "-c", code, *asked(model, out)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        partial = out / "store.zarr.partial"
        while not partial.exists() or not whole_passes(partial):
            assert process.poll() is None
            time.sleep(0.05)
        process.send_signal(sent)
        _, error = process.communicate()
    if sent == signal.SIGTERM:
        assert process.returncode == 1
        assert error.endswith(f"mesa-lens: interrupted; what is done is kept: the same command goes on from {out}\n")
    assert whole_passes(partial) == {("origin", "repeated")}
    assert main(asked(model, out)) == 0
    same(out, uninterrupted)


def test_a_full_disk_is_said_before_the_weights_are_loaded(model, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(source, "load", None)
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=1))
    assert main(["probe", "--model", model, "--out", str(tmp_path / "out")]) == 1
    assert "are free; keep fewer layers, positions or dims" in capsys.readouterr().err


def test_measured_cells_of_other_sizes_are_refused(model, uninterrupted, tmp_path, capsys):
    out = tmp_path / "out"
    out.mkdir()
    shutil.copy(uninterrupted / "measured.jsonl", out)
    assert main(asked(model, out, "--set", "rerope.window=2")) == 2
    assert "measured.jsonl holds nll of rerope at 80 with other parameters; use --overwrite" in capsys.readouterr().err
    assert [path.name for path in out.iterdir()] == ["measured.jsonl"]


def cut_short(monkeypatch, model, out, *more):
    with monkeypatch.context() as patch:
        interrupt_at(patch, work, "capture", 2)
        assert main(asked(model, out, *more)) == 1


def test_an_unfinished_run_does_not_go_on_with_other_texts_weights_or_libraries(tmp_path, capsys, monkeypatch):
    folder, out, text = tmp_path / "model", tmp_path / "out", tmp_path / "held.txt"
    tiny.folder(folder)
    text.write_text(written := " ".join(f"Sentence {number} says nothing." for number in range(400)))
    given = (str(folder), out, "--text", str(text), "--texts", "1")
    cut_short(monkeypatch, *given)
    capsys.readouterr()
    text.write_text(written.replace("says", "said"))
    assert main(asked(*given)) == 2
    assert "an unfinished run with another config: inputs differs; use --overwrite" in capsys.readouterr().err
    text.write_text(written)
    with monkeypatch.context() as patch:
        patch.setattr(planning, "version", lambda name: "0.0" if name == "torch" else importlib.metadata.version(name))
        assert main(asked(*given)) == 2
    assert "with another config: the version of torch differs; use --overwrite" in capsys.readouterr().err
    weights = folder / "model.safetensors"
    weights.write_bytes((before := weights.read_bytes())[:-4] + b"\0\0\0\1")
    assert main(asked(*given)) == 2
    assert "with another config: weights differs; use --overwrite" in capsys.readouterr().err
    weights.write_bytes(before)
    assert main(asked(*given)) == 0


def test_a_whole_store_without_fingerprints_is_still_this_run(model, uninterrupted, tmp_path, capsys):
    out = shutil.copytree(uninterrupted, tmp_path / "out")

    def forget(attrs):
        assert attrs.pop("inputs").startswith("sha256 ")
        assert attrs.pop("weights").startswith("sha256 ")

    edit(out, forget)
    made = plan(ProbeRequest(model=model, length=300, texts=0, samples=1, methods="origin,rerope", lengths=(80, 160),
                             spec=CaptureSpec(layers=((0, 2),))))  # fmt: skip
    assert run.is_whole(made, out)
    (out / "store.zarr").rename(out / "store.zarr.partial")
    with pytest.raises(FileExistsError, match="an unfinished run with another config: inputs differs"):
        run.is_whole(made, out)


@pytest.mark.parametrize("fault", ["memory", "disk", "weights"])
def test_overwriting_removes_nothing_for_a_run_that_cannot_be(model, tmp_path, capsys, monkeypatch, fault):
    def broken(*_, **__):
        raise MemoryError("no memory") if fault == "memory" else OSError("no weights")

    out = tmp_path / "out"
    cut_short(monkeypatch, model, out)
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    with monkeypatch.context() as patch:
        if fault == "disk":
            patch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=1))
        else:
            patch.setattr(*{"memory": (run, "check_memory"), "weights": (source, "load")}[fault], broken)
        assert main(asked(model, out, "--overwrite", "--dims", "0-31", "--hooks", "resid_post,attn_out")) == 1
    capsys.readouterr()
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before
    assert main(asked(model, out)) == 0


def test_another_rule_writes_the_report_anew_and_captures_nothing(model, uninterrupted, tmp_path, capsys, monkeypatch):
    out = shutil.copytree(uninterrupted, tmp_path / "out")
    monkeypatch.setattr(source, "load", None)
    stored = json.loads((out / "summary.json").read_text())
    (out / "summary.json").write_text(json.dumps({**stored, "predicted_by": "drift", "drift": []}))
    assert main(asked(model, out, "--rule", "paper")) == 0
    assert json.loads((out / "summary.json").read_text())["predicted_by"] == "paper"
    assert files(out / "store.zarr") == files(uninterrupted / "store.zarr")
    capsys.readouterr()
    assert main(asked(model, out, "--rule", "paper")) == 2
    assert "already holds a run with the same config" in capsys.readouterr().err


def test_the_estimate_of_captured_values_is_one_pass_and_a_few_layers(model):
    def real(made, **changes):  # SmolLM2's size
        return replace(made, kept=Kept(range(30), range(16384), range(576)), **changes)

    made = plan(ProbeRequest(model=model, length=640, methods="origin,rerope,dynamic-ntk,mesa,stair"))
    one = 30 * 16384 * 576 * 4
    assert one < real(made).host_bytes < one + 2**30
    both = replace(made.request, spec=CaptureSpec(hooks=("resid_post", "attn_out")))
    assert real(made, request=both).host_bytes == real(made).host_bytes + one
