"""The finished run that is shipped: the dashboard's pages are filled by it, without a model."""

import re
import shutil
from pathlib import Path

import pytest
from pages import drawn, shown_texts

from mesa_lens.cli import main
from mesa_lens.dashboard.runs import unfinished
from probe.commands.locate.result import LOCATED
from probe.commands.probe.verdict import SUMMARY
from probe.files import read_result
from probe.status import status_of
from probe.store.reader import open_run, store_mark

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "mesa_lens" / "examples"


@pytest.fixture
def runs(tmp_path, monkeypatch):
    shutil.copytree(EXAMPLES, tmp_path, dirs_exist_ok=True)
    monkeypatch.setenv("MESA_LENS_RUNS", str(tmp_path))


@pytest.mark.usefixtures("runs")
@pytest.mark.parametrize(
    ("page", "text"),
    [
        pytest.param("overview", "At 16384 tokens the mean NLL is"),
        pytest.param("mechanism", "Loss recovered by rerope in one layer alone", marks=pytest.mark.slow),
        pytest.param("thresholds", "of 32 (layer, dim) pairs", marks=pytest.mark.slow),
        pytest.param("heatmaps", "Colour scale ends at", marks=pytest.mark.slow),
    ],
)
def test_a_page_shows_the_shipped_run(page, text):
    app = drawn(page)
    assert text in shown_texts(app)
    assert not app.error


def test_the_summaries_of_the_shipped_run_are_of_this_version():
    folder = EXAMPLES / "smollm2-16k"
    summary = SUMMARY.parse(read_result(folder / SUMMARY.path), folder)
    assert summary.store == store_mark(open_run(folder).hidden.attrs)
    assert LOCATED.read(folder).effects


def test_the_shipped_run_is_small_and_names_no_place_on_a_machine():
    files = [path for path in EXAMPLES.rglob("*") if path.is_file()]
    assert 0 < sum(path.stat().st_size for path in files) < 8 * 2**20
    assert not [path for path in files if b"/work/" in path.read_bytes() or b"/home/" in path.read_bytes()]


@pytest.mark.usefixtures("runs", "undrawn", "unpainted")
def test_every_shipped_run_is_finished_once_its_report_is_written(tmp_path):
    """As `make demo` does; reports are not shipped, they are larger than the run."""
    assert "mesa-lens report $(dir $(OUT))smollm2-16k" in (ROOT / "Makefile").read_text()
    for folder in (path for path in tmp_path.iterdir() if path.is_dir()):
        assert status_of(folder).by == "report"
        assert main(["report", str(folder)]) == 0
        status = status_of(folder)
        assert (status.state, status.lacking) == ("finished", "")
        for page in folder.rglob("report.html"):
            links = re.findall(r'href="([^":]+)"', page.read_text(encoding="utf-8"))
            assert [link for link in links if link[0] != "#" and not (page.parent / link).exists()] == []
    assert unfinished(tmp_path) == []


@pytest.mark.usefixtures("runs")
def test_nothing_is_left_to_do_in_the_shipped_run(tmp_path):
    parts = status_of(tmp_path / "smollm2-16k").parts
    done = [(part.what, part.left, part.done) for part in parts]
    assert done == [("measured cells", 0, 18), ("captured passes", 0, 3), ("cells", 0, 110)]
