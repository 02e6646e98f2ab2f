"""A page as data, and its drawers: text for a terminal, HTML."""

import numpy as np
from markupsafe import Markup

from probe.figures.figure_data import Chart, Line, Panel
from probe.figures.section import Section, Table, as_text, figures_of, page

CHART = Chart(
    "Loss", (Panel("loss", "x", "y", (Line("a", np.arange(3.0), np.arange(3.0), "#0072B2", "solid", "none"),), (0, 2)),)
)
HOSTILE = "<script>alert(1)</script>"
SECTIONS = [
    Section("Found", ["origin fails.", HOSTILE], {"loss": CHART}, [Table("by length", ("n", "loss"), (("1", "2"),))]),
    Section("Terms", parts=[Section("Drift", ["It moves."]), Section("Folded", ["More."], folded=True)]),
    Section("Views", figures={"view": Markup("<i>own</i>")}, links={"all": "all/report.html"}),
]


def test_a_terminal_shows_titles_sentences_and_tables_and_nothing_folded():
    assert as_text(SECTIONS) == (
        f"Found\norigin fails.\n{HOSTILE}\n\nby length\nn  loss\n1  2\n\nTerms\nDrift\nIt moves."
    )


def test_figures_are_those_of_all_parts_without_markup():
    nested = [Section(parts=[Section(parts=SECTIONS)])]
    assert figures_of(nested) == {"loss": CHART}


def test_a_page_escapes_text_explains_terms_and_has_plotly_once():
    text = page(HOSTILE, SECTIONS)
    assert HOSTILE not in text
    assert text.count("plotly.js v") == 1
    assert text.count('class="plotly-graph-div"') == 1
    order = (
        '<abbr title="The unmodified model',
        "<p>By length</p>",
        "<dt>",
        "<summary>Folded",
        "<i>own</i>",
        "all/rep",
    )
    assert sorted(order, key=text.index) == list(order)
