"""Wrong input ends in one line that names it and a remedy, before any work."""

import shutil

import pytest
from commands import main

from mesa.errors import Refused
from mesa.settings import read_configs
from mesa_lens import cli
from probe.evaluation import check_read
from probe.request import EvalRequest


def refused(capsys, *words, code=2):
    """The line that a command ends with, which is all that it writes."""
    assert main(words) == code
    out, err = capsys.readouterr()
    assert not out
    lines = err.strip().splitlines()
    assert len(lines) == 1, lines
    return lines[0]


EVAL = "eval --task passkey,nll --methods origin,mesa --lengths 96,200 --samples 2"
MISUSE = [
    ("methods explain origin,crop", "mesa-lens: unknown method 'origin,crop'; known: origin, nope, rerope,"),
    ("methods explain rope", "mesa-lens: unknown method 'rope'; known: origin, nope, rerope,"),
    ("methods explain rerope --set rerope.plan=5", "'plan'; known: heads, layers, log_n, window"),
    ("methods explain rerope --set mesa.window=3", "--set names 'mesa', which is not among the methods rerope"),
    ("methods explain rerope --length 99", "--length 99 is too wide to draw; use at most 48"),
    ("methods --table --json", "--json with --table"),
    ("methods --table --trained-length 99", "--trained-length 99 with --table"),
    ("methods --json explain rerope", "--json before 'explain' has no effect: write it behind that"),
    ("export heatmap run --layers 1 --out /", "--out / is the root of a disk"),
    ("verify --quick --full", "--quick and --full ask for the shortest and the longest inputs"),
    ("verify --html /proc/report", "--html /proc/report.html: /proc cannot be written to"),
    ("check --estimate-window --longest 512 --trained-length 99", "--trained-length 99 with --longest"),
    ("check --longest 512", "--longest has no effect without --estimate-window"),
    ("check --estimate-window --minutes 5", "--minutes has no effect next to --estimate-window"),
    ("check --estimate-window --methods rerope", "--methods has no effect next to --estimate-window"),
    ("fetch --overwrite", "--wheel and --overwrite are for one checkpoint"),
    (f"{EVAL} --lengths 50 {{run}}", "length=50 is below the task's fixed text of 66 tokens"),
    (f"{EVAL} --set rerope.window=3 {{run}}", "--set names 'rerope'"),
    ("eval --harness task --minutes 5 {run}", "--minutes is not for --harness; lm-eval's tasks"),
    ("eval --task nll --depth .5 {run}", "--depth 0.5 is read by passkey, passkey-question,"),
    ("eval --harness a --depth .5 {run}", "--depth is not for --harness; lm-eval's tasks have their own prompts"),
    ("eval --harness a --task nll {run}", "--task is not for --harness; lm-eval's tasks have their own prompts"),
    ("eval --harness a --samples 5 {run}", "--samples is not for --harness; lm-eval's tasks have their own prompts"),
    ("eval --device cuda:0 --device-map auto {run}", "--device cuda:0 with --device-map auto, which places the model"),
    ("probe --samples 0 --lengths 96 {run}", "--lengths (96,) has no effect here; it works with --samples above 0"),
    ("probe --samples 0 --texts 0 --text {text} {run}", "it works with --texts or --samples above 0"),
    ("locate --try patch --dims 3 {run}", "--dims 3 has no effect here; it works with --try clamp"),
    ("locate --try patch --prompt world {run}", "--prompt 'world' has no effect here; it works with --try clamp"),
    ("locate --try clamp --ways only {run}", "--ways ('only',) has no effect here; it works with --try patch"),
    ("locate --candidates 3 {run}", "--candidates 3 has no effect here; it works with --try smallest"),
    ("locate --try clamp --heads all {run}", "--heads 'all' has no effect here; it works with --try patch or smallest"),
    ("locate --measure passkey --text {text} {run}", "has no effect here; it works with --measure nll"),
    ("anatomy --parts retrieval --text {text} {run}", "it works with --parts heads or tokens"),
    ("anatomy --parts tokens --samples 2 {run}", "--samples 2 has no effect here; it works with --parts heads or retr"),
    ("readout --probe position --classes 5 {run}", "--classes 5 has no effect here; it works with --probe previous-K"),
    ("readout --samples 3 {run}", "--samples 3 is below 4"),
    ("probe --seed 4294967296", "--seed 4294967296 is above 4294967295"),
    ("probe --out {loop}/out", "cannot be read (Too many levels"),
    ("report {loop}", "cannot be read (Too many levels"),
    ("status {loop}", "cannot be read (Too many levels"),
    ("probe --out ~nobody-of-this-name/out", "~nobody-of-this-name/out' cannot be read"),
    (f"eval --out {'x' * 999}", "cannot be read (File name too long); see"),
    (f"probe --out {'d/' * 2000}", "is longer than 3500 characters"),
]


@pytest.mark.parametrize(("words", "message"), MISUSE, ids=range(len(MISUSE)))
def test_misuse_is_one_line_that_names_the_value_and_leaves_nothing(capsys, model, tmp_path, words, message):
    loop, out, text = (tmp_path / name for name in ("loop", "out", "text.txt"))
    loop.symlink_to(loop)
    text.write_text("some text")
    words = words.format(run=f"--model {model} --out {out}", loop=loop, text=text).split()
    assert message in refused(capsys, *words)
    assert not out.exists()


def test_a_text_that_no_task_reads_is_reported(capsys):
    check_read(EvalRequest(tasks=("latency",), text="t.txt"))
    assert "--text t.txt is read by niah-essay, nll, nll-position alone" in capsys.readouterr().err


def test_a_value_of_a_config_may_hold_commas():
    (method,) = read_configs(["rerope:heads=0:0,3,window=8"], 64).values()
    assert (method.heads, method.window) == (((0, (0, 3)),), 8)
    (spaced,) = read_configs(["leaky-rerope: k=2, log_n = false, window = 8"], 64).values()
    assert (spaced.k, spaced.log_n, spaced.window) == (2, False, 8)
    with pytest.raises(Refused, match=r"--config 'rerope:window': .*'rerope.window' is not"):
        read_configs(["rerope:window"], 64)


@pytest.mark.parametrize("words", ["verify --claim 3.3 --claim 3.2", "probe --length 512 --length=512"])
def test_an_option_given_twice_is_refused(capsys, words):
    assert cli.main(words.split()) == 2
    option = words.split()[1]
    (line,) = capsys.readouterr().err.splitlines()
    assert f"{option} is passed twice; pass one value" in line


def test_a_repeatable_option_is_given_twice():
    words = "probe --set rerope.window=3 --set leaky-rerope.window=4".split()
    assert cli.parser().parse_args(words).set == ["rerope.window=3", "leaky-rerope.window=4"]


@pytest.mark.parametrize(
    "words",
    [
        ("eval", "--task", "passkey", "--samples", "1", "--lengths", "256,1000000000", "--out", "{out}"),
        ("locate", "--lengths", "1000000000", "--out", "{out}"),
        ("anatomy", "--lengths", "1000000000", "--out", "{out}"),
        ("check", "--estimate-window", "--longest", "1000000000"),
    ],
)
def test_prompts_beyond_memory_are_refused_before_one_is_drawn(capsys, model, tmp_path, words):
    out = tmp_path / "out"
    line = refused(capsys, *(word.format(out=out) for word in words), "--model", model, code=1)
    assert all(part in line for part in ("1000000000", "GiB are free", "take a shorter length"))
    assert not out.exists()


@pytest.mark.parametrize(("command", "trained"), [("probe", 2), ("locate", 9)])
def test_a_window_too_short_for_the_analysis_is_refused_before_the_capture(capsys, model, tmp_path, command, trained):
    out = tmp_path / "out"
    lengths = {"probe": ("--samples", 0, "--length", 60), "locate": ("--lengths", 60)}[command]
    words = (command, "--model", model, *lengths, "--trained-length", trained, "--out", out)
    assert f"of the trained window's {trained} positions" in refused(capsys, *words)
    assert not out.exists()


def test_a_link_out_of_a_run_is_not_written_through(capsys, model, tmp_path):
    out, elsewhere = tmp_path / "out", tmp_path / "elsewhere"
    out.mkdir()
    elsewhere.mkdir()
    (elsewhere / "zarr.json").write_text("kept")
    (out / "store.zarr").symlink_to(elsewhere)
    (out / "measured.jsonl").write_text('{"settings": ')  # a run that has just begun
    line = refused(capsys, "probe", "--methods", "origin", "--model", model, "--out", out, "--overwrite")
    assert f"{out / 'store.zarr'} is a link to {elsewhere}, outside" in line
    assert (elsewhere / "zarr.json").read_text() == "kept"


PROBE = "probe --methods origin --samples 0 --texts 0 --length 400"


@pytest.mark.parametrize(
    ("words", "content"),
    [
        (f"{PROBE} --model", "model"),
        (f"{PROBE} --model", "notes"),
        ("eval --task latency --methods origin --samples 1 --lengths 40 --trained-length 40 --model", "notes"),
        ("locate --methods rerope --lengths 400 --model", "notes"),
    ],
)
def test_a_folder_that_holds_other_things_is_not_written_to(capsys, model, tmp_path, words, content):
    out = tmp_path / "out"
    if content == "model":
        shutil.copytree(model, out)
    else:
        out.mkdir()
        (out / "notes.md").write_text("mine")
    before = sorted(path.name for path in out.iterdir())
    line = refused(capsys, *words.split(), *([model] if words.endswith("--model") else []), "--out", out)
    assert str(out) in line
    assert ("holds a model" if content == "model" else "holds other things than a run (notes.md)") in line
    assert sorted(path.name for path in out.iterdir()) == before
