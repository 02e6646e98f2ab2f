"""What is kept beside a store: the same numbers again, and never those of other values."""

from functools import partial
from pathlib import Path

import numpy as np
import pytest
import xarray as xr
from synthetic import hidden_states, write_run

from probe.store import cache
from probe.store.cache import DERIVED, cached, load, save
from probe.store.reader import open_run
from probe.store.result_file import as_json
from probe.thresholds.analysis import analyse, summarize


def halves(**of):
    """Hidden states as halves, with a gap in what was captured."""
    hidden = hidden_states(**of)
    return hidden.isel(position=np.r_[0:150, 170 : hidden.sizes["position"]]).astype(np.float16)


@pytest.fixture
def run(tmp_path):
    return open_run(write_run(tmp_path / "run", halves(), dtype="float16"))


@pytest.fixture
def number():
    return {"all": xr.Dataset({"number": ("method", np.arange(2))}, {"method": np.array(["a", "b"], object)})}


def test_an_analysis_from_the_cache_has_the_same_numbers(run):
    first = analyse(run)
    analyse(run, work=partial(cached, run))
    assert len(list((run.path.parent / DERIVED).iterdir())) == 4
    again = analyse(run, work=lambda name, make: load(run, name))
    for one, other in ((first.crossings, again.crossings), (first.control, again.control)):
        xr.testing.assert_identical(one, other)
    assert list(first.drifts) == list(again.drifts)
    for prompt, drift in first.drifts.items():
        xr.testing.assert_identical(drift, again.drifts[prompt])
    assert as_json(summarize(first)) == as_json(summarize(again))


def test_the_cache_of_other_values_is_not_used(run, number, tmp_path):
    save(run, "a/name", number)
    xr.testing.assert_identical(load(run, "a/name")["all"], number["all"])
    again = open_run(write_run(tmp_path / "again", halves(), dtype="float16"))
    other = open_run(write_run(tmp_path / "other", halves(seed=1), dtype="float16"))  # with the same attributes
    for copy in (again, other):
        (run.path.parent / DERIVED).rename(copy.path.parent / DERIVED)
        assert (load(copy, "a/name") is None) == (copy is other)
        (copy.path.parent / DERIVED).rename(run.path.parent / DERIVED)


def test_a_damaged_or_linked_cache_is_recomputed(run, number):
    save(run, "one", number)
    path = run.path.parent / DERIVED / "one.npz"
    whole = path.read_bytes()
    at = whole.index(np.arange(2).tobytes())
    damaged = whole[:at] + bytes([255]) + whole[at + 1 :]
    for content in (b"", whole[:-30], damaged):
        path.write_bytes(content)
        assert load(run, "one") is None
    xr.testing.assert_identical(cached(run, "one", lambda: number)["all"], number["all"])
    assert path.read_bytes() == whole
    path.rename(path.with_name("elsewhere"))
    path.symlink_to("elsewhere")
    assert load(run, "one") is None


def test_the_mark_is_of_the_methods_that_are_installed(run, monkeypatch):
    before = cache.mark(run)
    monkeypatch.setattr(cache, "registry", lambda: {"coarse": None})
    assert cache.mark(run) != before


def test_the_mark_is_of_all_code_that_values_depend_on(monkeypatch):
    paths = []
    monkeypatch.setattr(Path, "read_bytes", lambda path: paths.append(path.as_posix()) or b"")
    cache._code.__wrapped__()
    for name in ("probe/store/cache.py", "probe/thresholds/drift.py", "probe/statistics.py", "mesa/plan.py"):
        assert any(path.endswith(name) for path in paths)
    assert any("/mesa/methods/" in path for path in paths)
