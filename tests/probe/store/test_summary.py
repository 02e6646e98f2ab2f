"""A summary is believed where it is of the store beside it, by all that read it."""

import json
from types import SimpleNamespace

import pytest
from probe.store.summary import own_summary
from synthetic import edit, hidden_states, write_run

from probe.interventions.results import _same_model
from probe.store.reader import open_run, store_mark

PLAN = SimpleNamespace(request=SimpleNamespace(model="tiny"), trained_length=64)


@pytest.fixture
def reported(tmp_path):
    """A run with a summary of its own, of which only what tells it is there."""
    folder = write_run(tmp_path / "run", hidden_states(windows=2, layers=1, dims=2, prompts=("repeated",)))
    own = {"store": store_mark(open_run(folder).hidden.attrs), "verdict": {}, "model": "tiny", "trained_length": 64}
    (folder / "summary.json").write_text(json.dumps(own))
    (folder / "report.html").write_text("")
    return folder


def test_a_summary_is_its_own_stores(reported):
    assert own_summary(reported) == own_summary(reported, open_run(reported))
    assert _same_model(PLAN, reported, own_summary)["model"] == "tiny"
    edit(reported, lambda attrs: attrs.update(created="later"))
    assert own_summary(reported) is None
    assert _same_model(PLAN, reported, own_summary) is None


@pytest.mark.parametrize("lacking", ["report.html", "summary.json", "store.zarr/zarr.json"])
def test_nothing_is_believed_beside_nothing(reported, lacking):
    (reported / lacking).unlink()
    assert own_summary(reported) is None


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"verdict": {}}', b"\xff"])
def test_a_summary_that_is_not_whole_is_none(reported, text):
    (reported / "summary.json").write_bytes(text if isinstance(text, bytes) else text.encode())
    assert own_summary(reported) is None
