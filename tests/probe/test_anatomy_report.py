"""Anatomy as HTML: the section in a probe run's report, and the report of its own."""

import re

import anatomized
import pytest
from plotly.offline import get_plotlyjs
from synthetic import evaluation, hidden_states, write_run

from probe.mechanism_report import anatomy_section, render_anatomy, write_anatomy_report
from probe.report import write_report
from probe.store.results import Anatomy, read_anatomy

HOSTILE = "<script>alert(1)</script>"
SAID = "lost 1: 2.3 (0.75 to 0.10)."


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A run of which anatomy's summary, too, bears a hostile name."""
    folder = tmp_path_factory.mktemp("run")
    write_run(folder, hidden_states(), evaluation())
    return anatomized.write(folder, model=HOSTILE)


@pytest.fixture(scope="module")
def page(folder):
    return write_anatomy_report(read_anatomy(folder), folder).read_text()


def test_the_report_holds_words_figures_and_tables(folder, page):
    assert SAID in page
    assert re.findall(r"<h2>(.*?)</h2>", page)[0] == "All heads"
    assert page.count("<h2>") == 1 + 2 + 1 + 3  # heads; lengths; vectors; made, tables, provenance
    maps = 3 * (8 + 9)  # methods by length; inside M no key is M away
    assert page.count('class="plotly-graph-div"') == maps + 2 + 1 + 3 * 2  # lens, shares, layers
    assert "<td>0.40 [0.36, 0.44]</td>" in page
    for name in ("heads", "all_heads", "retrieval", "unmet", "lens", "vectors", "positions", "retrieval_heads"):
        assert f'href="{name}.csv"' in page
        assert (folder / "anatomy" / f"{name}.csv").stat().st_size > 100


def test_the_report_opens_offline_and_is_escaped(page):
    assert HOSTILE not in page
    assert not re.search(r"(?:src|href)=.https?://", page.replace(get_plotlyjs(), ""))


def test_parts_that_were_not_run_are_left_out():
    summary = anatomized.summary()
    parts = {name: [] for name in ("heads", "all_heads", "unmet", "frequencies", "lens", "lens_differs")}
    text = render_anatomy(Anatomy(summary | parts | {"vectors": None}, None))
    assert SAID in text
    assert text.count('class="plotly-graph-div"') == 3 * 2  # retrieval alone
    assert "All heads" not in text
    assert "Positional vectors" not in text.replace(get_plotlyjs(), "")


@pytest.mark.usefixtures("undrawn")
def test_the_probes_report_shows_anatomy(folder, page):
    write_report(folder)
    text = (folder / "report.html").read_text()
    section = text[text.index("<h2>Anatomy</h2>") : text.index("<h2>Drift</h2>")]
    assert SAID in section
    assert section.count('class="plotly-graph-div"') == 1
    assert 'href="anatomy/report.html"' in section
    assert HOSTILE not in text


@pytest.mark.usefixtures("undrawn")
def test_a_run_without_anatomy_has_no_section(tmp_path):
    assert anatomy_section(tmp_path) is None
    folder = write_run(tmp_path / "run", hidden_states(layers=2), evaluation())
    write_report(folder)
    assert "<h2>Anatomy</h2>" not in (folder / "report.html").read_text()
