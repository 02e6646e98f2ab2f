"""What locate and anatomy found as HTML: a report of its own, and a section in the probe run's report."""

import re

import anatomized
import located
import pytest
from plotly.offline import get_plotlyjs
from synthetic import evaluation, hidden_states, write_run

from probe.commands.probe.report import write_report

HOSTILE = "<script>alert(1)</script>"
SENTENCES = {"locate": "in one layer alone: layer 2 82% [54, 110]", "anatomy": "lost 1: L2H3 (0.75 to 0.10)."}
FIGURES = {  # one a method and length; locate: by measure as well, where a loss is evaluated, and three common ones
    "locate": 1 + (3 * 4 - 2) * 4 + 2 * 4,
    "anatomy": 3 * (7 + 8),  # inside M no key is M away
}
HEADINGS = {"locate": "Where inside", "anatomy": "Attention statistics"}
TABLES = {
    "locate": ("loss_gaps", "effects", "smallest"),
    "anatomy": ("heads", "all_heads", "retrieval", "retrieval_heads"),
}


def figures_in(text):
    return text.count("<figure ")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A run whose summaries bear a hostile name."""
    folder = write_run(tmp_path_factory.mktemp("run"), hidden_states(), evaluation())
    located.write(folder, model=HOSTILE)
    return anatomized.write(folder, model=HOSTILE)


@pytest.fixture(scope="module")
def pages(folder):
    return {"locate": located.report(folder).read_text(), "anatomy": anatomized.report(folder).read_text()}


@pytest.mark.parametrize("command", SENTENCES)
def test_the_report_holds_sentences_and_tables_opens_offline_and_is_escaped(command, folder, pages):
    page = pages[command]
    assert SENTENCES[command] in page
    assert figures_in(page) == FIGURES[command]
    assert HOSTILE not in page
    assert not re.search(r"(?:src|href)=.https?://", page.replace(get_plotlyjs(), ""))
    for name in TABLES[command]:
        assert f'href="{name}.csv"' in page
        assert (folder / command / f"{name}.csv").stat().st_size > 100


@pytest.mark.usefixtures("undrawn")
def test_the_report_of_probe_has_sections_for_locate_and_anatomy(folder, pages):
    write_report(folder)
    text = (folder / "report.html").read_text()
    assert HOSTILE not in text
    order = [text.index(f">{heading}</h2>") for heading in ("Where inside drift shows", *HEADINGS.values(), "Drift")]
    assert order == sorted(order)
    for begin, end, command in zip(order[1:], order[2:], HEADINGS, strict=False):
        section = text[begin:end]
        assert SENTENCES[command] in section
        assert figures_in(section) == (command == "locate")
        assert f'href="{command}/report.html"' in section


def test_where_nothing_is_evaluated_the_report_states_it(tmp_path):
    summary = located.summary()
    for gap in summary["loss_gaps"]:
        gap |= {"significant": False, "low": -1.0}
    text = located.report(tmp_path, located.typed(summary | {"effects": [], "smallest": []})).read_text()
    assert "No loss is clear at any length and measure, so nothing is located." in text
    assert figures_in(text) == 0
