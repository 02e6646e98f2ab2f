"""`mesa-lens paper`: every config is planned, the tiny model's report holds its numbers, an interrupted run goes on."""

import itertools
import json
import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import tiny
import torch
import yaml
from commands import main

from mesa.methods import registry
from mesa_lens.paper import runner
from mesa_lens.paper.config import check, estimate, model_of, plan_section, probe_request, read, section_methods
from mesa_lens.paper.sections import SECTIONS
from probe.evaluation import evaluator
from probe.evaluation import run as running
from probe.evaluation.intervals import shown
from probe.experiment import model_spec as source
from probe.experiment import run as experiment
from probe.experiment.runner import Runner
from probe.experiment.task import TasksLost
from probe.store.reader import open_run
from probe.tasks import corpus
from probe.tasks.likelihood import Likelihood
from probe.tasks.ruler import RULER

ROOT = Path(__file__).parents[2]
CONFIGS = sorted((ROOT / "configs").glob("*.yaml"))
LENGTHS = "200,320"
PROBE = {"length": 320, "samples": 1, "texts": 0, "lengths": "80,160", "layers": "1"}

pytestmark = pytest.mark.usefixtures("undrawn")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny.folder(tmp_path_factory.mktemp("model"))


@pytest.fixture
def little_text(monkeypatch):
    """Of the held-out texts the shortest alone, so that little is tokenized."""
    text = min(corpus.heldout(), key=len)
    monkeypatch.setattr(corpus, "heldout", lambda: [text])


def write(path, folder, sections, **more):
    config = {"model": str(folder), "trained_length": 160, "methods": ["origin", "mesa"], "sections": sections, **more}
    path.write_text(yaml.safe_dump(config, sort_keys=False))
    return path


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_every_config_is_planned_and_its_memory_estimated(path):
    config = read(path)
    text = estimate(config)
    for name in config.sections:
        assert f"\n{name}" in text
        for method in section_methods(config, name, model_of(config))[0].values():
            assert method.trained_length == config.trained_length


def test_estimates_know_the_size_of_the_models():
    weights = {path.stem: float(re.search(r"weights about ([\d.]+) GiB", estimate(read(path)))[1]) for path in CONFIGS}
    assert weights["llama2-7b"] == pytest.approx(6.74e9 * 2 / 2**30, rel=0.01)
    assert weights["vicuna-13b"] == pytest.approx(13.0e9 * 2 / 2**30, rel=0.01)
    assert weights["pythia-6.9b"] == pytest.approx(6.86e9 * 2 / 2**30, rel=0.01)
    assert weights["mpt-7b"] == pytest.approx(6.65e9 * 2 / 2**30, rel=0.01)
    assert weights["smollm2"] == pytest.approx(134.5e6 * 4 / 2**30, abs=0.05)
    assert weights["phi-3"] == pytest.approx(3.82e9 * 2 / 2**30, rel=0.01)


def test_the_default_config_runs_as_it_stands():
    config = read(ROOT / "configs" / "default.yaml")
    for name, section in SECTIONS.items():
        assert name in config.sections
        if section.tasks and name != "summary":
            assert plan_section(config, name).cells


def test_the_real_models_config_takes_every_method_of_ours():
    config = read("smollm2")
    assert [*section_methods(config, "nll", model_of(config))[0]] == [*registry()]
    assert [*section_methods(config, "probe", model_of(config))[0]] == [
        "origin",
        "rerope",
        "dynamic-ntk",
        "mesa",
        "stair",
    ]
    request = probe_request(config, model_of(config))
    assert request.lengths == (8192, 12288, 16384)
    text = estimate(config)
    assert f"nll (Figures 4 and 6): 85 cells, 255 passes, about {51 * 50 * 1024:,} prompt tokens" in text
    assert f"nll-position (Beside Figures 4 and 6): 17 cells, 51 passes, about {51 * 16 * 1024:,} prompt" in text
    short = 4 * (2048 + 512)  # of the last 2048 tokens each has 2048 before it, shared by 512
    tokens = 3 * (4 * 24 * 1024 + 24 * 1024 + 2 * short)
    assert f"longppl (Beside Figures 4 and 6): 8 cells, 54 passes, about {tokens:,} prompt tokens" in text
    assert f"5 methods, 35 passes, about {(5 * 16 + 10 * 36) * 1024:,} prompt tokens, store 5,400 MiB" in text


def test_the_papers_sizes_are_in_its_configs():
    config = read(ROOT / "configs" / "llama2-7b.yaml")
    methods, _ = section_methods(config, "passkey", model_of(config))
    mesa = methods["mesa"].describe()
    assert {key: mesa[key] for key in ("window", "width", "first", "last")} == {
        "window": 512,
        "width": 50,
        "first": 100,
        "last": 512,
    }
    ablation, _ = section_methods(config, "ablation", model_of(config))
    assert [method.weave for method in ablation.values()] == ["stair", "rerope", "leaky-rerope"]
    assert {method.window for method in ablation.values()} == {512}


@pytest.mark.parametrize("methods", [{}, {"methods": "all"}, {"methods": ["origin", "yarn"]}])
def test_sections_that_name_no_methods_leave_out_what_the_model_cannot_have(methods, tmp_path, capsys):
    sections = {"nll": {"lengths": "256,512", "samples": 1}, "probe": {"samples": 1}, "ablation": {"samples": 1}}
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump({"model": "alibi", "trained_length": 256, "sections": sections, **methods}))
    for planned in (check, estimate):
        if methods.get("methods", "all") != "all":
            with pytest.raises(ValueError, match="yarn cannot be attached to model type 'mpt'"):
                planned(read(path))
            continue
        planned(read(path))
        assert capsys.readouterr().err.count("left out: yarn cannot be attached") == 1
    if methods.get("methods", "all") == "all":
        plans = check(read(path))
        assert [len(plans[name].methods) for name in sections] == [14, 14, 3]


def every_other(loaded, ids, trained_length):
    """Key tokens of a model that has none, with random weights."""
    return np.arange(trained_length // 4) % 2 == 0


@pytest.mark.usefixtures("little_text")
def test_a_report_of_every_kind_of_section(folder, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(evaluator, "key_tokens", every_other)
    data = tmp_path / "reports.jsonl"
    data.write_text("\n".join(json.dumps({"report": "word " * 400, "summary": "a word"}) for _ in range(2)))
    sections = {
        "probe": {"length": 320, "samples": 1, "texts": 0, "lengths": "160,300"},
        "passkey": {"lengths": LENGTHS, "samples": 2},
        "nll": {"lengths": LENGTHS, "samples": 2},
        "summary": {"lengths": "200", "samples": 2, "data": str(data), "new_tokens": 4},
        "latency": {"lengths": "64", "samples": 1},
        "longbench": {},
        "ablation": {"lengths": "320", "samples": 1},
        "ruler": {"lengths": "160,320", "samples": 1, "tasks": "niah-multikey-2"},
        "longppl": {"lengths": LENGTHS, "samples": 2, "methods": ["origin", "rerope", "crop"]},
    }
    path, out = write(tmp_path / "config.yaml", folder, sections, title="<b>Tiny</b>"), tmp_path / "out"
    assert main(["paper", "--config", str(path), "--out", str(out)]) == 0
    assert "longbench: left out, no lm-eval tasks are given" in capsys.readouterr().out
    html = (out / "report.html").read_text()
    assert "&lt;b&gt;Tiny" in html
    assert not re.search(r"<(script|link|img)\s[^>]*(src|href)=", html)  # nothing is fetched
    results = json.loads((out / "results.json").read_text())["sections"]
    assert set(results) == set(sections)
    measured = open_run(out / "probe").evaluation
    assert measured is not None
    assert measured["length"].values.tolist() == [160, 300]
    for cell in results["nll"]["cells"]:
        assert shown(cell["mean"], cell["low"], cell["high"], ".2f") in html
    assert {cell["method"] for cell in results["ablation"]["cells"]} == {
        f"mesa, {w}" for w in ("stair", "rerope", "leaky-rerope")
    }
    assert "41.0/20.4/37.5" in html  # Table 1: Mesa at 4k
    assert "42.76" in html  # Table 3: Mesa, M-Document QA, 8k+
    for name in sections:
        assert f'id="{name}"' in html
    assert "effective length (tokens): the longest with at least 0.85 of the score in the first row" in html
    assert "LongPPL: e to the mean NLL over all key tokens of all texts" in html
    assert re.search(r"LongPPL&#39;s key tokens were chosen by the model itself under rerope: \d+ in 2 texts", html)
    assert {entry["method"] for entry in results["longppl"]["longppl"]} == {"origin", "crop"}
    assert {cell["task"] for cell in results["ruler"]["cells"]} == {"niah-multikey-2"}
    assert SECTIONS["ruler"].tasks == tuple(task.name for task in RULER)


def test_the_report_says_what_did_not_fit(folder, tmp_path, monkeypatch):
    def small(self, loaded, length, *rest):
        if length > 200:
            raise torch.OutOfMemoryError
        return original(self, loaded, length, *rest)

    original = Likelihood.measure
    monkeypatch.setattr(Likelihood, "measure", small)
    path = write(tmp_path / "config.yaml", folder, {"nll": {"lengths": LENGTHS, "samples": 1}})
    assert main(["paper", "--config", str(path), "--out", str(tmp_path / "out")]) == 0
    html = (tmp_path / "out" / "report.html").read_text()
    assert "Did not fit in memory: nll under origin at 320, nll under mesa at 320." in html


def test_what_no_worker_could_finish_is_told_and_the_other_sections_go_on(folder, tmp_path, monkeypatch, capsys):
    sections = {"probe": {"length": 320, "samples": 1, "texts": 0}, "passkey": {"lengths": "200", "samples": 1}}
    path, out = write(tmp_path / "config.yaml", folder, sections), tmp_path / "out"

    def lost(*_, **__):
        raise TasksLost("no worker could capture mesa, repeated (1 of 2 passes failed)", [("mesa", "repeated")])

    monkeypatch.setattr(runner, "run_probe", lost)
    assert main(["paper", "--config", str(path), "--out", str(out)]) == 1
    shown = capsys.readouterr()
    assert "probe: left out, no worker could capture mesa, repeated (1 of 2 passes failed)\n" in shown.out
    assert "failed: probe (1 cells); the same command goes on" in shown.err
    assert len(json.loads((out / "results.json").read_text())["sections"]["passkey"]["cells"]) == 2


def test_workers_not_this_process_load_the_model_before_anything_is_removed(folder, tmp_path, monkeypatch):
    path, out = write(tmp_path / "config.yaml", folder, {"passkey": {"lengths": "200", "samples": 1}}), tmp_path / "out"
    (out / "passkey").mkdir(parents=True)
    (out / "passkey" / "cells.jsonl").write_text('{"settings": ')
    config, asked = read(path), []

    @dataclass(frozen=True)
    class Broken(Runner):
        kind: str = "elsewhere"

        def check(self, options):
            pass

        def pool(self, work, cells):
            asked.append((work.source.name, self.workers))
            raise RuntimeError("workers cannot load it")

    monkeypatch.setattr(source, "load", lambda *a, **k: pytest.fail("loaded in this process"))
    with pytest.raises(RuntimeError, match="workers cannot load it"):
        runner.run_sections(config, runner_plans(config), out, overwrite=True, runner=Broken(workers=4))
    assert asked == [(str(folder), 1)]
    assert (out / "passkey" / "cells.jsonl").exists()


def runner_plans(config):
    return {name: plan_section(config, name) for name in config.sections}


@pytest.mark.usefixtures("little_text")
def test_an_interrupted_run_goes_on(folder, tmp_path, monkeypatch, capsys):
    sections = {"probe": PROBE, "passkey": {"lengths": "200", "samples": 1}}
    path, out = write(tmp_path / "config.yaml", folder, sections), tmp_path / "out"
    real = runner.run_cells

    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(runner, "run_cells", interrupted)
    assert main(["paper", "--config", str(path), "--out", str(out)]) == 1
    assert "goes on from" in capsys.readouterr().err
    monkeypatch.setattr(runner, "run_cells", real)
    monkeypatch.setattr(runner, "run_probe", lambda *a, **k: pytest.fail("the probe was whole"))
    assert main(["paper", "--config", str(path), "--out", str(out)]) == 0


@pytest.mark.slow
@pytest.mark.usefixtures("little_text")
def test_after_its_minutes_a_run_ends_and_the_same_command_goes_on(folder, tmp_path, monkeypatch, capsys):
    sections = {
        "nll": {"lengths": LENGTHS, "samples": 1},
        "passkey": {"lengths": "200", "samples": 1},
        "probe": PROBE,
    }
    path, out = write(tmp_path / "config.yaml", folder, sections), tmp_path / "out"
    asked = ["paper", "--config", str(path), "--out", str(out)]
    looks = itertools.count()  # at the clock: before the first cell
    with monkeypatch.context() as patch:
        patch.setattr(runner, "run_probe", lambda *_, **__: pytest.fail("ran"))
        for module in (runner, running, experiment):
            patch.setattr(module, "is_over", lambda until: until is not None and next(looks) > 0)
        assert main([*asked, "--minutes", "5"]) == 0
    error = capsys.readouterr().err
    assert "minutes are over, left: nll (3 cells), probe, passkey; the same command goes on from" in error
    html = (out / "report.html").read_text()
    assert "Cells that are not run yet: 3." in html
    assert html.count("Not run: the time was over") == 2
    results = json.loads((out / "results.json").read_text())["sections"]
    assert [(cell["method"], cell["length"]) for cell in results["nll"]["cells"]] == [("origin", 200)]
    assert main(asked) == 0
    assert "minutes are over" not in capsys.readouterr().err
    whole = json.loads((out / "results.json").read_text())["sections"]
    assert list(whole) == ["probe", "passkey", "nll"]
    assert len(whole["nll"]["cells"]) == 4
    assert main([*asked, "--minutes", "-1"]) == 2
    assert "--minutes -1 is not above 0" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.usefixtures("little_text")
def test_overwriting_in_too_little_time_leaves_nothing_old(folder, tmp_path, monkeypatch, capsys):
    sections = {
        "nll": {"lengths": "200", "samples": 1},
        "passkey": {"lengths": "200", "samples": 1},
        "probe": PROBE,
    }
    path, out = write(tmp_path / "config.yaml", folder, sections), tmp_path / "out"
    asked = ["paper", "--config", str(path), "--out", str(out)]
    assert main(asked) == 0
    before = {file: file.read_bytes() for file in out.rglob("*") if file.is_file()}
    again = [*asked, "--overwrite", "--minutes", "5"]

    def broken(*_, **__):
        raise OSError("no weights")

    with monkeypatch.context() as patch:
        patch.setattr(source, "load", broken)
        assert main(again) == 1
    assert {file: file.read_bytes() for file in out.rglob("*") if file.is_file()} == before
    with monkeypatch.context() as patch:
        for module in (runner, running):
            patch.setattr(module, "is_over", lambda until: until is not None)
        assert main(again) == 0
    shown = capsys.readouterr().err
    assert "left: probe, passkey, nll; without --overwrite, the same command" in shown
    assert (out / "report.html").read_text().count("Not run: the time was over") == 3
    assert not any((out / "probe" / name).exists() for name in ("store.zarr", "summary.json", "measured.jsonl"))
    assert not list(out.glob("*/cells.jsonl"))
    with monkeypatch.context() as patch:
        patch.setattr(runner, "run_cells", lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt))
        assert main([*asked, "--sections", "nll"]) == 1
    assert capsys.readouterr().err.endswith("interrupted; nothing half-written was left\n")


@pytest.mark.slow
@pytest.mark.usefixtures("little_text")
def test_folders_of_another_run_are_refused_before_anything_runs(folder, tmp_path, monkeypatch, capsys):
    sections = {"probe": PROBE, "passkey": {"lengths": "200", "samples": 1}}
    path, out = write(tmp_path / "config.yaml", folder, sections), tmp_path / "out"
    asked = ["paper", "--config", str(path), "--out", str(out)]
    assert main(asked) == 0
    with monkeypatch.context() as patch:
        for name in ("run_probe", "run_cells"):
            patch.setattr(runner, name, lambda *_, **__: pytest.fail("ran"))
        for change, different in {
            "prompt": ({"prompt": "text"}, {}),
            "samples": ({"samples": 2}, {}),
            "texts": ({"texts": 1}, {}),
            "passkey": ({}, {"samples": 2}),
        }.items():
            probe, passkey = different
            changed = {"probe": {**sections["probe"], **probe}, "passkey": {**sections["passkey"], **passkey}}
            write(path, folder, changed)
            assert main(asked) == 2
            what = {"prompt": "config: word (hello there, text now) differs", "passkey": "samples (1 there, 2 now)"}
            what["texts"] = "config: prompt (['repeated'] there, ['repeated', 'text-0'] now) differs"
            what = what.get(change, "config: samples (1 there, 2 now) differs")
            assert f"holds a run with another {what}; use --overwrite or another --out" in capsys.readouterr().err
    assert main([*asked, "--overwrite"]) == 0
    assert json.loads((out / "results.json").read_text())["sections"]["passkey"]["cells"][0]["n"] == 2


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sections": {"passkeys": {}}}, "has an unknown key 'passkeys'; known: probe, passkey"),
        ({"sections": {"passkey": {"length": 5}}}, "passkey has an unknown key 'length'; known: lengths, samples"),
        ({"sections": {"passkey": {"lengths": "20"}}}, "length=20 is below the task's fixed text"),
        ({"sections": {"summary": {"data": "nowhere.jsonl"}}}, "nowhere.jsonl is not a file or folder"),
        ({"sections": {"nll": {"methods": ["mesa", "rope"]}}}, "unknown method 'rope'"),
        ({"sections": {}, "load": {"quantized": 4}}, "load has an unknown key 'quantized'"),
        ({"sections": {"nll": {}}, "set": ["mesa.window=999"]}, "mesa: window=999"),
        ({"sections": {"nll": {}}, "set": "mesa.window=999"}, "mesa: window=999"),
        ({"sections": {"nll": {}}, "set": ["leaky_rerope.window=9"]}, "set has an unknown key 'leaky_rerope'; known: "),
        ({"sections": ["nll"]}, "sections holds ['nll'] in place of keys and values"),
        ({"sections": {"ruler": {"tasks": "vt,nll"}}}, "ruler: tasks has an unknown key 'nll'; known: niah-multikey-2"),
        ({"sections": {"nll": 3}}, "nll holds 3 in place of keys and values"),
        ({"sections": {}}, "config.yaml: sections names none; give some of probe, passkey"),
        ({"sections": {"nll": {}}, "architecture": {"model_type": "foo"}}, "config.yaml: architecture {'model_type': "),
        ({"sections": {"nll": {}}, "architecture": {"model_type": "llama", "hidden_size": "abc"}}, "is no model's: "),
        ({"sections": {}, "trained_length": None}, "has no trained_length"),
        ({"sections": {}, "trained_length": "4k"}, "trained_length '4k' is no whole number; see configs/default.yaml"),
        ({"sections": {"nll": {}}, "load": {"dtype": "fp16"}}, "unknown dtype 'fp16'"),
    ],
)
def test_bad_configs_are_told_before_anything_runs(folder, tmp_path, changes, message, capsys):
    path = write(tmp_path / "config.yaml", folder, **changes)
    assert main(["paper", "--config", str(path), "--out", str(tmp_path / "out")]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_misuse(tmp_path, capsys):
    assert main(["paper", "--config", "nowhere.yaml"]) == 2
    assert "--config nowhere.yaml is no file and not one of default, llama2-7b" in capsys.readouterr().err
    (tmp_path / "broken.yaml").write_text("a: [")
    assert main(["paper", "--config", str(tmp_path / "broken.yaml")]) == 2
    assert "is not YAML" in capsys.readouterr().err
    (tmp_path / "twice.yaml").write_text("model: default\nsections:\n  nll: { samples: 1, samples: 2 }\n")
    assert main(["paper", "--config", str(tmp_path / "twice.yaml")]) == 2
    assert re.search("the key 'samples' stands twice, keep one .*, line 3", capsys.readouterr().err)
    assert main(["paper", "--config", str(CONFIGS[0]), "--sections", "nothing"]) == 2
    assert "--sections 'nothing' is not in" in capsys.readouterr().err
