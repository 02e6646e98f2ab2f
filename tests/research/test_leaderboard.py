"""The leaderboard's tables are those of the committed samples; the best method at the longest length stands first."""

import json
from pathlib import Path

import pandas as pd
import pytest

from research.leaderboard.run import COLUMNS, PAGE, SCORES, collect, row, tables


def test_the_published_page_and_data_are_those_of_the_samples():
    scores = collect()
    assert tables(scores) in PAGE.read_text(encoding="utf-8")
    pd.testing.assert_frame_equal(pd.read_csv(SCORES), scores.round(4), check_dtype=False, atol=1e-4)


@pytest.mark.parametrize(("task", "best"), [("nll", "low"), ("passkey", "high")])
def test_the_best_method_at_the_longest_length_stands_first(task, best):
    rows = [row("m", 8, task, name, n, {0: v, 1: v}, {}) for n in (8, 16) for name, v in (("high", 0.9), ("low", 0.1))]
    text = tables(pd.DataFrame(rows, columns=pd.Index(COLUMNS)))
    assert text.index(f"| `{best}`") < text.index(f"| `{'low' if best == 'high' else 'high'}`")


def test_the_space_shows_every_model():
    testing = pytest.importorskip("streamlit.testing.v1")
    page = testing.AppTest.from_file(str(Path(SCORES).parent / "app.py"), default_timeout=60).run()
    assert not page.exception
    for model in pd.read_csv(SCORES)["model"].unique():
        page.selectbox[0].set_value(model).run()
        assert not page.exception
        layout = json.loads(page.get("plotly_chart")[0].proto.spec)["layout"]
        (text,), (line,) = layout["annotations"], layout["shapes"]
        assert (10 ** text["x"], text["text"]) == (pytest.approx(line["x0"]), f"M = {line['x0']}")
