"""A run that was cut goes on to the same bytes; one that is whole, or another's, is left alone."""

import errno
import importlib.metadata
import json
import shutil
import signal
from types import SimpleNamespace

import pytest
import tiny
import xarray as xr
from commands import main
from elsewhere import Elsewhere

from probe.capture import capture, capture as capturing
from probe.capture.spec import CaptureSpec
from probe.commands.probe import plan as planning, run as running
from probe.commands.probe.plan import ProbeRequest
from probe.commands.probe.run import run_probe
from probe.eval_tasks import tasks
from probe.experiment import run as source
from probe.experiment.journal import Journal
from probe.experiment.pool import TasksLost
from probe.files import read_result
from probe.store import store
from probe.store.reader import complete_passes

pytestmark = pytest.mark.usefixtures("undrawn")


def interrupt_at(monkeypatch, place, name, count):
    """Terminates the command in the `count`-th call of place.name; counts go on in what is returned."""
    calls, original = [], getattr(place, name)

    def interrupted(*args, **kwargs):
        calls.append(args)
        if len(calls) == count:
            signal.raise_signal(signal.SIGTERM)
        return original(*args, **kwargs)

    monkeypatch.setattr(place, name, interrupted)
    return calls


def command_line(model, out, *more):
    options = "--length 300 --texts 0 --samples 1 --methods origin,rerope --lengths 80:160:80 --layers 0-1"
    return ["probe", "--model", model, "--out", str(out), *options.split(), *more]


@pytest.fixture(scope="module")
def uninterrupted(model, tmp_path_factory, undrawn):
    out = tmp_path_factory.mktemp("uninterrupted") / "run"
    assert main(command_line(model, out)) == 0
    return out


def files(folder):
    """Contents by path of a store, less its attributes, which hold the time."""
    paths = [path.relative_to(folder) for path in folder.rglob("*") if path.is_file()]
    return {path: (folder / path).read_bytes() for path in paths if path.name != "zarr.json"}


def scored(out):
    """The journal's scores by cell, without times."""
    rows = map(json.loads, (out / "measured.jsonl").read_text().splitlines()[1:])
    return {tuple(row["cell"]): [score["value"] for score in row["scores"]] for row in rows}


def same(out, other):
    assert scored(out) == scored(other)
    assert files(out / "store.zarr") == files(other / "store.zarr")
    first, second = (read_result(folder / "summary.json") for folder in (out, other))
    assert first | {"created": "", "store": ""} == second | {"created": "", "store": ""}
    assert {path.name for path in out.iterdir()} == {path.name for path in other.iterdir()}


def test_a_run_that_is_terminated_early_leaves_nothing(model, tmp_path, capsys, monkeypatch):
    interrupt_at(monkeypatch, capture, "capture", 1)
    words = [word for word in command_line(model, tmp_path / "out", "--samples", "0") if ":80" not in word]
    words.remove("--lengths")
    assert main(words) == 1
    assert capsys.readouterr().err.endswith("mesa-lens: interrupted; nothing half-written was left\n")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("place", "name", "calls_before", "calls"),
    [(capture, "capture", 2, 3), (tasks, "nll", 4, 5), (running, "write_report", 1, 2)],
)
def test_a_terminated_run_goes_on_to_the_same_bytes(
    model, uninterrupted, tmp_path, capsys, monkeypatch, place, name, calls_before, calls
):
    out = tmp_path / "out"
    calls_seen = interrupt_at(monkeypatch, place, name, calls_before)
    assert main(command_line(model, out)) == 1
    assert f"interrupted; what is done is kept: the same command continues from {out}\n" in capsys.readouterr().err
    assert name != "capture" or complete_passes(out / "store.zarr.partial") == {("origin", "repeated")}
    assert main(command_line(model, out)) == 0
    assert len(calls_seen) == calls  # nothing but the interrupted call is repeated
    same(out, uninterrupted)


def test_a_finished_run_loads_no_weights(model, uninterrupted, capsys, monkeypatch):
    monkeypatch.setattr(source, "load", None)
    assert main(command_line(model, uninterrupted)) == 0
    printed = capsys.readouterr()
    assert f"finished already: {uninterrupted}; --overwrite begins again" in printed.err
    assert f"wrote {uninterrupted / 'report.html'}" in printed.out


def test_measured_cells_of_other_sizes_are_refused(model, uninterrupted, tmp_path, capsys):
    out = tmp_path / "out"
    out.mkdir()
    shutil.copy(uninterrupted / "measured.jsonl", out)
    assert main(command_line(model, out, "--set", "rerope.window=2")) == 2
    assert "measured.jsonl holds rerope with other parameters; use --overwrite" in capsys.readouterr().err
    assert [path.name for path in out.iterdir()] == ["measured.jsonl"]


def cut_short(monkeypatch, model, out, *more):
    with monkeypatch.context() as patch:
        interrupt_at(patch, capture, "capture", 2)
        assert main(command_line(model, out, *more)) == 1


def test_an_unfinished_run_does_not_go_on_with_other_texts_weights_or_libraries(tmp_path, capsys, monkeypatch):
    folder, out, text = tmp_path / "model", tmp_path / "out", tmp_path / "held.txt"
    tiny.folder(folder)
    text.write_text(written := " ".join(f"Sentence {number} says nothing." for number in range(400)))
    arguments = (str(folder), out, "--text", str(text), "--texts", "1")
    cut_short(monkeypatch, *arguments)
    capsys.readouterr()
    text.write_text(written.replace("says", "said"))
    assert main(command_line(*arguments)) == 2
    differs = "an unfinished run with another config: inputs (the texts and prompts, as token ids) differs; use"
    assert differs in capsys.readouterr().err
    text.write_text(written)
    with monkeypatch.context() as patch:
        patch.setattr(planning, "version", lambda name: "0.0" if name == "torch" else importlib.metadata.version(name))
        assert main(command_line(*arguments)) == 2
    assert "with another config: the version of torch differs; use --overwrite" in capsys.readouterr().err
    weights = folder / "model.safetensors"
    weights.write_bytes((before := weights.read_bytes())[:-4] + b"\0\0\0\1")
    assert main(command_line(*arguments)) == 2
    assert "with other weights (" in capsys.readouterr().err
    weights.write_bytes(before)
    assert main(command_line(*arguments)) == 0


def test_overwriting_removes_nothing_for_a_run_that_cannot_be(model, tmp_path, capsys, monkeypatch):
    def broken(error):
        return lambda *_, **__: (_ for _ in ()).throw(error)

    out = tmp_path / "out"
    cut_short(monkeypatch, model, out)
    again = command_line(model, out, "--overwrite", "--dims", "0-31", "--hooks", "resid_post,attn_out")
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    for place, name, instead in (
        (running, "check_memory", broken(MemoryError("no memory"))),
        (shutil, "disk_usage", lambda path: SimpleNamespace(free=1)),
        (source, "load", broken(OSError("no weights"))),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(place, name, instead)
            assert main(again) == 1
        assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before, name
    capsys.readouterr()
    assert main(command_line(model, out)) == 0


def test_a_probe_run_goes_on_after_a_length_between_was_lost_also_where_all_is_captured(model, tmp_path, monkeypatch):
    monkeypatch.setattr("probe.commands.probe.plan._between", lambda *_: {"rerope": 120})
    options = {"methods": "origin,rerope", "length": 300, "texts": 0, "samples": 1, "lengths": (80, 160), "refine": 1}
    request = ProbeRequest(model=model, spec=CaptureSpec(layers=((0, 2),)), **options)
    lost = [("nll", "rerope", 120), ("rerope", "repeated")]
    with pytest.raises(TasksLost, match=r"finish nll under rerope at 120 .*; no worker could capture rerope") as error:
        run_probe(request, tmp_path, runner=Elsewhere(lost=tuple(lost)))
    assert error.value.keys == lost
    with pytest.raises(TasksLost, match="finish nll under rerope at 120 tokens"):
        run_probe(request, tmp_path, runner=Elsewhere(lost=tuple(lost[:1])))
    run_probe(request, tmp_path)
    assert 120 in xr.open_zarr(tmp_path / "store.zarr", group="evaluation")["length"]


def full():
    return OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize(
    ("place", "name", "count", "error", "more"),
    [
        (capturing, "_index", 1, KeyError("the first pass"), ()),
        pytest.param(capturing, "_index", 2, KeyError("the second pass"), (), marks=pytest.mark.slow),
        pytest.param(store, "_disk_full", 1, full(), (), marks=pytest.mark.slow),  # the template
        (store, "_disk_full", 2, full(), ("--overwrite",)),  # the tokens
        pytest.param(store, "_seal", 1, full(), (), marks=pytest.mark.slow),  # of the tokens
        (store, "check_values", 7, full(), ()),  # between the layers of a pass
        pytest.param(store, "_consolidate", 3, full(), (), marks=pytest.mark.slow),  # all is captured
        (Journal, "_write", 3, full(), ()),
    ],
)
def test_what_an_error_leaves_is_removed_or_resumed_by_the_same_command(
    place, name, count, error, more, model, uninterrupted, tmp_path, capsys, monkeypatch
):
    out, calls, original = tmp_path / "out", [], getattr(place, name)

    def failing(*args, **kwargs):
        calls.append(args)
        if len(calls) == count:
            raise error
        return original(*args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(place, name, failing)
        assert main(command_line(model, out, *more)) == 1
    assert out.exists() == ("same command continues" in capsys.readouterr().err)
    assert main(command_line(model, out)) == 0
    same(out, uninterrupted)
