"""The dashboard on stores that take long to read: what is asked first, and what is answered first."""

import shutil

import pytest
from pages import drawn, shown_texts
from synthetic import evaluation, hidden_states, write_run

from mesa_lens.dashboard import searches, state
from probe.report import write_report
from probe.thresholds import coarse

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
    """A large run as an older version left it: nothing is kept, and its summary has no verdict."""
    shutil.copytree(root / "run", tmp_path / "old" / "run")
    shutil.rmtree(tmp_path / "old" / "run" / "derived")
    monkeypatch.setattr(state, "_LARGE", 0)
    return tmp_path / "old"


@pytest.mark.slow
@pytest.mark.parametrize("page", ["overview", "heatmaps"])
def test_what_takes_long_is_offered_and_then_kept(page, old, opened):
    (old / "run" / "summary.json").unlink()
    app = opened(page, old)
    assert "was not worked out yet, or by another version" in shown_texts(app)
    assert [len(app.error), len(app.get("plotly_chart"))] == [0, 0]
    assert app.code[0].value == f"mesa-lens report {old / 'run'}"
    app.button[0].click().run()
    assert not app.exception
    assert len(app.get("plotly_chart")) > 0
    assert "was not worked out yet" not in shown_texts(app)
    assert "resid_post-drift.npz" in {path.name for path in (old / "run" / "derived").iterdir()}


def test_the_verdict_is_shown_though_the_map_is_still_to_be_made(old, opened):
    app = opened("overview", old)
    assert any("verdict" in part.proto.body for part in app.get("html"))
    assert len(app.get("plotly_chart")) == 1  # the scores
    assert "was not worked out yet" in shown_texts(app)


def test_small_runs_are_read_without_being_asked(old, opened, monkeypatch):
    monkeypatch.setattr(state, "_LARGE", 2**28)
    assert len(opened("overview", old).get("plotly_chart")) == 2


@pytest.mark.parametrize(("key", "value"), [("smoothing", 16), ("M", 300), ("burn_in", 32)])
def test_a_changed_rule_is_answered_first_and_then_exactly(root, opened, monkeypatch, key, value):
    app = opened("thresholds", root)
    app.number_input(key=key).set_value(value).run()
    exact = shown_texts(app)
    monkeypatch.setattr(coarse, "_LARGE", 0)
    first, said = searches.first_answer, []
    monkeypatch.setattr(searches, "first_answer", lambda *asked: said.append(first(*asked)) or said[-1])
    for of in (searches._alike, searches._first_answer):
        of.clear()
    app.run()
    assert [len(said), said[0].attrs["step"]] == [1, 8]
    assert not app.exception
    assert shown_texts(app) == exact  # nothing of the first answer is left
    app.number_input(key="margin").set_value(2.0).run()  # the same is read for it
    assert len(said) == 1


def test_the_first_answer_says_that_it_is_one(root, opened, monkeypatch):
    app = opened("thresholds", root)
    monkeypatch.setattr(coarse, "_LARGE", 0)

    def stop(*asked, **options):
        raise ValueError("stopped before the exact one")

    monkeypatch.setattr(searches, "search", stop)
    app.number_input(key="smoothing").set_value(24).run()
    assert "read at every 8th position; the exact one follows" in shown_texts(app)
    assert len(app.get("plotly_chart")) == 1
    assert not app.get("download_button")  # a file would not say it
    assert "stopped before" in app.error[0].value
