"""The summary beside a store is returned only where it is of that very store and whole."""

import pytest
from synthetic import edit, hidden_states, write_run

from probe.files import write_result
from probe.store.reader import open_run, store_mark
from probe.store.results import run_summary


@pytest.fixture
def reported(tmp_path):
    """A run with the smallest summary of its own."""
    folder = write_run(tmp_path / "run", hidden_states(windows=2, layers=1, dims=2, prompts=("repeated",)))
    mark = store_mark(open_run(folder).hidden.attrs)
    write_result(folder / "summary.json", {"store": mark, "verdict": {}, "onset_by": "drift"})
    (folder / "report.html").write_text("")
    return folder


def test_a_summary_belongs_to_one_store(reported):
    assert run_summary(reported)["verdict"] == {}
    assert run_summary(reported, open_run(reported)) == run_summary(reported)
    edit(reported, lambda attrs: attrs.update(created="later"))
    assert run_summary(reported) is None


@pytest.mark.parametrize("missing", ["report.html", "summary.json", "store.zarr/zarr.json"])
def test_a_part_of_a_report_is_none(reported, missing):
    (reported / missing).unlink()
    assert run_summary(reported) is None


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"verdict": {}}', b"\xff"])
def test_a_damaged_summary_is_none(reported, text):
    (reported / "summary.json").write_bytes(text if isinstance(text, bytes) else text.encode())
    assert run_summary(reported) is None
