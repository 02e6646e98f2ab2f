"""The dashboard on stores that take long to read: a button before the analysis."""

import shutil

import pytest
from pages import drawn, shown_texts
from synthetic import evaluation, hidden_states, write_run

from mesa_lens.dashboard import state
from probe.report import write_report

M = 256


@pytest.fixture(scope="module")
def root(tmp_path_factory, undrawn):
    root = tmp_path_factory.mktemp("large")
    hidden = hidden_states(M, 3, 2, 32, ("repeated",))
    write_run(root / "run", hidden, evaluation(M, 3), trained_length=M)
    write_report(root / "run")
    return root


@pytest.fixture
def opened(monkeypatch):
    def open_page(page, root):
        monkeypatch.setenv("MESA_LENS_RUNS", str(root))
        return drawn(page)

    return open_page


@pytest.fixture
def old(root, tmp_path, monkeypatch):
    """A large run as an older version left it: nothing is stored, and its summary has no verdict."""
    shutil.copytree(root / "run", tmp_path / "old" / "run")
    shutil.rmtree(tmp_path / "old" / "run" / "derived")
    monkeypatch.setattr(state, "_LARGE", 0)
    return tmp_path / "old"


@pytest.mark.slow
@pytest.mark.parametrize("page", ["overview", "heatmaps"])
def test_what_takes_long_is_offered_and_then_stored(page, old, opened):
    (old / "run" / "summary.json").unlink()
    app = opened(page, old)
    assert "was not computed yet, or by another version" in shown_texts(app)
    assert [len(app.error), len(app.get("plotly_chart"))] == [0, 0]
    assert app.code[0].value == f"mesa-lens report {old / 'run'}"
    app.button[0].click().run()
    assert not app.exception
    assert len(app.get("plotly_chart")) > 0
    assert "was not computed yet" not in shown_texts(app)
    assert "resid_post-drift.npz" in {path.name for path in (old / "run" / "derived").iterdir()}


def test_the_verdict_is_drawn_before_the_map_is_computed(old, opened):
    app = opened("overview", old)
    assert any("verdict" in part.proto.body for part in app.get("html"))
    assert len(app.get("plotly_chart")) == 1  # the scores
    assert "was not computed yet" in shown_texts(app)


def test_small_runs_are_read_at_once(old, opened, monkeypatch):
    monkeypatch.setattr(state, "_LARGE", 2**28)
    assert len(opened("overview", old).get("plotly_chart")) == 2
