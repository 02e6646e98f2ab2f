"""Input that is wrong in ways the parser alone cannot see ends in one line that names it, before any work."""

import json
import shutil

import numpy as np
import pytest
import tiny

import mesa
from mesa.methods import METHODS
from mesa.plan import LARGEST, Stepped
from mesa.settings import wanted_names
from mesa_lens.cli import main
from mesa_lens.paper.config import read


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return tiny.folder(tmp_path_factory.mktemp("model") / "model")


def refused(capsys, *words):
    """What a command says that is refused as misuse."""
    assert main([str(word) for word in words]) == 2
    said = capsys.readouterr().err.strip().splitlines()
    assert len(said) == 1, said
    return said[0]


@pytest.mark.parametrize("attribute", ["name", "formula", "as_trained", "cached_position", "plan", "executor"])
def test_what_is_no_parameter_is_refused_with_those_that_are(capsys, attribute):
    said = refused(capsys, "methods", "explain", "rerope", "--set", f"rerope.{attribute}=5")
    assert f"unknown parameter '{attribute}'; known: heads, layers, log_n, window" in said


@pytest.mark.parametrize("name", METHODS)
def test_sizes_beyond_what_integers_hold_are_refused_when_a_config_is_made(name):
    for parameter in mesa.METHODS[name].__dataclass_fields__:
        if mesa.METHODS[name].__dataclass_fields__[parameter].type not in ("int", "float"):
            continue
        for size in (LARGEST + 1, 2**63 - 1, 10**30, -(2**63)):
            wrong = {"trained_length": 256, parameter: size}
            with pytest.raises(ValueError, match=f"{parameter}={size}"):
                METHODS[name](**wrong)


def test_the_widest_stair_keeps_every_pair_causal():
    plan = mesa.StairPE(trained_length=256, window=32, width=LARGEST).plan(400)
    far = mesa.distances(plan)[np.subtract.outer(range(400), range(400)) > 32]
    assert set(far.tolist()) == {33}


def test_plans_of_other_packages_have_the_same_bound():
    with pytest.raises(ValueError, match=f"Stepped: width={2**63} exceeds {LARGEST}"):
        Stepped(2**63)
    with pytest.raises(ValueError, match=f"exceeds {LARGEST}"):
        mesa.make("rerope", 256).plan(2**62)


@pytest.mark.parametrize(("named", "first"), [("all", "origin"), ("all,origin", "nope"), ("mesa,all", "mesa")])
def test_all_stands_for_those_that_are_not_named(named, first):
    assert wanted_names(named)[0] == first
    assert sorted(wanted_names(named)) == sorted(METHODS)


@pytest.mark.parametrize(
    ("words", "option"),
    [
        (("verify", "--claim", "3.1", "--claim", "3.3"), "--claim"),
        (("probe", "--length", "512", "--length", "512"), "--length"),
        (("export", "heatmap", "run", "--layers", "1", "--layers", "2"), "--layers"),
    ],
)
def test_an_option_given_twice_is_refused(capsys, words, option):
    assert f"{option} is given twice; give one value" in refused(capsys, *words)


@pytest.mark.parametrize("written", ["4:16:4", "yes", "off", "012", "1_000", "0x10", "2024-01-01"])
def test_yaml_reads_what_is_written(tmp_path, written):
    path = tmp_path / "config.yaml"
    path.write_text(
        f"model: default\ntrained_length: 256\ntitle: {written}\nsections: {{probe: {{prompt: {written}}}}}\n"
    )
    config = read(path)
    assert (config.title, config.sections["probe"]["prompt"]) == (written, written)


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("seed: 1_000", "seed '1_000' is no whole number"),
        ("seed: 012", "seed '012' is no whole"),
        ("seed: 1e3", "seed 1000.0 is no whole number"),
        (f"seed: {10**30}", f"seed {10**30} is above"),
        ("load: {trust_remote_code: yes}", "trust_remote_code yes is neither true nor false"),
        ("methods: " + "[" * 3000, "nests too deep"),
        ("methods: &a [origin]\nset: *a", "the alias \\*a is not read"),
        ("seed: " + "9" * 5000, "is not YAML"),
    ],
)
def test_yaml_that_means_something_else_is_refused(tmp_path, line, complaint):
    path = tmp_path / "config.yaml"
    path.write_text(f"model: default\ntrained_length: 256\nsections: {{probe: {{}}}}\n{line}\n")
    with pytest.raises(ValueError, match=complaint):
        read(path)


LONG = {
    "probe": ("--length", "1000000000"),
    "eval": ("--task", "passkey", "--samples", "1", "--lengths", "256,1000000000"),
    "locate": ("--lengths", "1000000000"),
    "anatomy": ("--lengths", "1000000000"),
}


@pytest.mark.parametrize("estimate", [True, False])
@pytest.mark.parametrize("command", LONG)
def test_prompts_that_cannot_be_held_are_refused_before_one_is_drawn(capsys, model, tmp_path, command, estimate):
    words = (command, "--model", str(model), *LONG[command], "--out", str(tmp_path / "out"))
    assert main([*words, *(["--estimate"] if estimate else [])]) == 1
    said = capsys.readouterr().err
    assert all(part in said for part in ("1000000000", "GiB are free", "take a shorter length")), said
    assert not (tmp_path / "out").exists()


SHORT = {
    "probe": ("--samples", "0", "--length", "60"),
    "locate": ("--lengths", "60"),
}


@pytest.mark.parametrize("trained", [2, 3, 9])
@pytest.mark.parametrize("command", SHORT)
def test_a_window_too_short_for_the_analysis_is_refused_before_the_capture(capsys, model, tmp_path, command, trained):
    out = tmp_path / "out"
    words = (command, "--model", model, *SHORT[command], "--trained-length", trained, "--out", out)
    assert f"of the trained window's {trained} positions" in refused(capsys, *words)
    assert not out.exists()


@pytest.mark.parametrize(
    "line",
    [
        (
            "eval",
            "--task",
            "latency",
            "--methods",
            "origin",
            "--samples",
            "1",
            "--lengths",
            "40",
            "--trained-length",
            "40",
        ),
        ("probe", "--methods", "origin", "--samples", "0", "--texts", "0", "--length", "400"),
        ("locate", "--methods", "rerope", "--lengths", "400"),
        ("paper", "--config", "default"),
    ],
)
@pytest.mark.parametrize("kind", ["notes", "model"])
def test_a_folder_that_holds_other_things_is_not_written_to(capsys, model, tmp_path, line, kind):
    out = tmp_path / "out"
    if kind == "model":
        shutil.copytree(model, out)
    else:
        out.mkdir()
        (out / "notes.md").write_text("mine")
    before = sorted(path.name for path in out.iterdir())
    words = line if line[0] == "paper" else (*line, "--model", model)
    said = refused(capsys, *words, "--out", out)
    assert str(out) in said
    assert ("holds a model" if kind == "model" else "holds other things than a run (notes.md)") in said
    assert sorted(path.name for path in out.iterdir()) == before


def test_the_root_of_a_disk_is_no_output(capsys):
    assert "--out / is the root of a disk" in refused(capsys, "export", "heatmap", "run", "--out", "/")


def test_a_link_in_a_run_that_leads_out_of_it_is_not_followed(capsys, model, tmp_path):
    out, elsewhere = tmp_path / "out", tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "heatmap-mine.png").write_text("mine")
    out.mkdir()
    (out / "cells.jsonl").touch()
    (out / "figures").symlink_to(elsewhere)
    line = ("probe", "--model", model, "--methods", "origin", "--samples", "0", "--texts", "0", "--length", "400")
    said = refused(capsys, *line, "--out", out, "--overwrite")
    assert f"{out / 'figures'} is a link to {elsewhere}" in said
    assert (elsewhere / "heatmap-mine.png").read_text() == "mine"


def test_a_finished_evaluation_says_so_and_prints_its_result(capsys, model, tmp_path):
    line = ["eval", "--model", str(model), "--task", "latency", "--methods", "origin", "--samples", "1"]
    line += ["--lengths", "40", "--trained-length", "40", "--out", str(tmp_path / "out")]
    assert main(line) == 0
    first = capsys.readouterr().out
    assert main(line) == 0
    told = capsys.readouterr()
    assert f"finished already: {tmp_path / 'out'}" in told.err
    assert told.out == first


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"num_hidden_layers": 10**9}, "num_hidden_layers is 1000000000, not within 1 to 10000"),
        ({"model_type": "qwen2", "num_hidden_layers": 10**9}, "num_hidden_layers is 1000000000"),
        ({"num_key_value_heads": 0}, "num_key_value_heads is 0"),
        ({"num_key_value_heads": 3}, "no multiple of num_key_value_heads, 3"),
        ({"rope_theta": 0}, "rope_theta is 0, no finite number above 0"),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": float("nan")}}, "rope_theta is nan"),
        ({"rms_norm_eps": float("inf")}, "rms_norm_eps is inf"),
        (None, "holds no keys and values"),
    ],
    ids=str,
)
@pytest.mark.parametrize("command", ["eval", "check"])
def test_a_config_that_no_model_can_have_is_named(capsys, model, tmp_path, command, changes, complaint):
    folder = shutil.copytree(model, tmp_path / "model")
    stored = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(None if changes is None else {**stored, **changes}))
    said = refused(capsys, command, "--model", folder, "--methods", "origin", *(["--estimate"] * (command == "eval")))
    assert all(part in said for part in (str(folder), complaint, "config.json"))
