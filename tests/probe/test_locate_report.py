"""Where inside, as HTML: the section in a probe run's report, and the report of its own."""

import re

import located
import pytest
from plotly.offline import get_plotlyjs
from synthetic import evaluation, hidden_states, write_run

from probe.mechanism_report import located_section, write_locate_report
from probe.report import write_report
from probe.store.results import read_located

HOSTILE = "<script>alert(1)</script>"
SAID = "rerope in one layer alone restores: layer 2 82% [54, 110]"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A run of which locate's summary, too, bears a hostile name."""
    folder = tmp_path_factory.mktemp("run")
    write_run(folder, hidden_states(), evaluation())
    return located.write(folder, model=HOSTILE)


@pytest.fixture(scope="module")
def page(folder):
    return write_locate_report(read_located(folder), folder).read_text()


def test_the_report_holds_words_figures_and_tables(folder, page):
    assert SAID in page
    assert "is not significant (" in page
    assert re.search(r"<td>rerope</td><td>1024</td><td>tail NLL</td><td>12</td>\s*<td>\d", page)
    assert "built-in method" not in page
    assert page.count("<h2>") == 4 + 3 + 1  # two lengths by two measures; lost, made, tables, provenance
    figures = page.count('class="plotly-graph-div"')
    own, common = 3 * 4 - 2, 2 * 4  # methods by length and measure, less those not judged
    assert figures == 1 + own * 8 + common
    for name in ("gaps", "effects", "smallest", "attribution", "agreement"):
        assert f'href="{name}.csv"' in page
        assert (folder / "locate" / f"{name}.csv").stat().st_size > 100


def test_the_report_opens_offline_and_is_escaped(page):
    assert HOSTILE not in page
    assert not re.search(r"(?:src|href)=.https?://", page.replace(get_plotlyjs(), ""))


@pytest.mark.usefixtures("undrawn")
def test_the_probes_report_answers_where_inside(folder, page):
    write_report(folder)
    text = (folder / "report.html").read_text()
    where, drift = text.index("<h2>Where inside</h2>"), text.index("<h2>Drift</h2>")
    assert text.index("<h2>Where inside drift shows</h2>") < where < drift
    section = text[where:drift]
    assert SAID in section
    assert section.count('class="plotly-graph-div"') == 1
    assert 'href="locate/report.html"' in section
    assert HOSTILE not in text


@pytest.mark.usefixtures("undrawn")
def test_a_report_without_locate_has_no_such_section(tmp_path):
    assert located_section(tmp_path) is None
    folder = write_run(tmp_path / "run", hidden_states(layers=2), evaluation())
    write_report(folder)
    assert "<h2>Where inside</h2>" not in (folder / "report.html").read_text()


def test_where_nothing_is_judged_the_section_says_so(tmp_path):
    summary = located.summary()
    for gap in summary["gaps"]:
        gap |= {"judged": False, "low": -1.0}
    folder = tmp_path / "run"
    text = write_locate_report(summary | {"effects": [], "smallest": [], "attribution": []}, folder).read_text()
    assert "No loss is clear at any length and measure, so nothing is located." in text
    assert 'class="plotly-graph-div"' not in text
