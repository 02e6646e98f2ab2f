"""The summary beside a store is returned only where it is of that very store and whole."""

import pytest
from synthetic import edit, hidden_states, write_run

from probe.commands.probe.report import full_summary
from probe.commands.probe.verdict import SUMMARY, run_summary
from probe.files import read_result, write_result
from probe.store.reader import open_run
from probe.store.result_file import as_json
from probe.thresholds.analysis import analyse


@pytest.fixture
def reported(tmp_path):
    """A run with a summary of its own."""
    folder = write_run(tmp_path / "run", hidden_states(windows=2, layers=1, dims=2, prompts=("repeated",)))
    SUMMARY.write(folder, full_summary(analyse(open_run(folder))))
    (folder / "report.html").write_text("")
    return folder


def test_a_summary_belongs_to_one_store(reported):
    assert run_summary(reported).prompt == "repeated"
    assert as_json(run_summary(reported, open_run(reported))) == as_json(run_summary(reported))
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


def test_a_summary_of_an_earlier_version_is_none(reported):
    summary = read_result(reported / "summary.json")
    write_result(reported / "summary.json", summary | {"version": 1})
    assert run_summary(reported) is None
    write_result(reported / "summary.json", summary)
    assert run_summary(reported) is not None
