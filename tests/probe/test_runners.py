"""A probe run gives the same whoever runs its cells; what no worker can finish is tried again."""

import pytest
import tiny
import xarray as xr
from elsewhere import Elsewhere, journal

from probe.capture.spec import CaptureSpec
from probe.experiment.task import TasksLost
from probe.plan import ProbeRequest
from probe.run import run_probe
from probe.status import status_of

pytestmark = pytest.mark.usefixtures("undrawn")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return str(tiny.folder(tmp_path_factory.mktemp("model")))


def failed(folder):
    return {part.what: part.failed for part in status_of(folder).parts}


@pytest.mark.slow
def test_a_probe_run_is_the_same_and_goes_on_after_a_pass_was_lost(model, tmp_path):
    request = ProbeRequest(
        model=model,
        methods="origin,rerope",
        length=300,
        texts=1,
        samples=1,
        lengths=(80, 160),
        spec=CaptureSpec(layers=((0, 2),)),
    )
    run_probe(request, tmp_path / "local")
    with pytest.raises(RuntimeError, match=r"no worker could capture rerope, repeated \(1 of 4 passes failed\)"):
        run_probe(request, tmp_path / "other", runner=Elsewhere(seed=1, lost=(("rerope", "repeated"),)))
    assert failed(tmp_path / "other") == {"measured cells": 0, "captured passes": 1}
    run_probe(request, tmp_path / "other", runner=Elsewhere(seed=2))
    assert failed(tmp_path / "other") == {"measured cells": 0, "captured passes": 0}
    assert journal(tmp_path / "local" / "measured.jsonl") == journal(tmp_path / "other" / "measured.jsonl")
    one, other = (xr.open_zarr(tmp_path / name / "store.zarr") for name in ("local", "other"))
    xr.testing.assert_equal(one["resid_post"], other["resid_post"])


def test_a_probe_run_goes_on_after_a_length_between_was_lost_also_where_all_is_captured(model, tmp_path, monkeypatch):
    monkeypatch.setattr("probe.stages._between", lambda *_: {"rerope": 120})
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
