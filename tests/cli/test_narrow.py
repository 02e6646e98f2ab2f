"""Figures on a narrow page."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import plotly.graph_objects as go
import pytest

from mesa_lens.dashboard import elements
from mesa_lens.dashboard.views import results
from probe.evaluation.summary import Table
from probe.figures.figure_data import Chart, Line, Panel
from probe.figures.mobile_layout import mobile_layout
from probe.figures.render import untitled


@pytest.fixture
def chart():
    line = Line("origin", np.arange(3.0), np.arange(3.0), "#000000", "solid", "circle")
    panels = [Panel(f"panel {n}", "x", "y", (line,), (0, 3)) for n in range(3)]
    return Chart("three", tuple(panels))


def test_panels_below_each_other_do_not_overlap(chart):
    drawn = untitled(chart)
    height = drawn.layout.height
    drawn.plotly_relayout(mobile_layout(chart, drawn))
    layout = drawn.layout
    assert [layout[f"xaxis{n}"].domain for n in ("", 2, 3)] == [(0, 1)] * 3
    ends = [end for n in ("", 2, 3) for end in reversed(layout[f"yaxis{n}"].domain)]
    assert ends == sorted(ends, reverse=True)
    assert [ends[0], ends[-1]] == pytest.approx([1, 0])
    assert [each.y for each in layout.annotations] == pytest.approx(ends[::2])  # titles above their panels
    assert layout.height > height


def test_lengths_stand_apart_on_a_narrow_page(chart):
    lengths = (64, 128, 256, 384, 512, 768, 1024, 1536, 2048)
    panels = tuple(replace(panel, x_ticks=lengths, x_range=(64, 2048), log_x=True) for panel in chart.panels)
    figure = replace(chart, panels=panels)
    changed = mobile_layout(figure, untitled(figure))
    assert changed["xaxis2.tickvals"] == [64, 128, 256, 512, 1024, 2048]
    assert changed["xaxis2.ticktext"] == ["64", "128", "256", "512", "1024", "2048"]
    assert "xaxis.tickvals" not in mobile_layout(chart, untitled(chart))


@pytest.mark.parametrize(("narrow", "pixels"), [(True, 160), (False, 320)])
def test_a_phones_table_shows_more_than_names(monkeypatch, narrow, pixels):
    shown = []
    monkeypatch.setattr(results, "is_narrow", lambda: narrow)
    monkeypatch.setattr(results, "sheet", lambda cells, alt, **options: shown.append(options["column_config"]))
    results.table(Table("", ("prompt", "score"), (("x" * 40, "0.50"),)))
    assert {name: each["width"] for name, each in shown[0].items()} == {"prompt": pixels}


@pytest.mark.parametrize("stacked", [True, False])
def test_a_narrow_page_gets_panels_below_each_other(chart, monkeypatch, stacked):
    drawn = []
    monkeypatch.setattr(elements, "_plot", lambda figure, alt, key: drawn.append(figure))
    monkeypatch.setattr(elements, "is_narrow", lambda: stacked)
    elements.show(chart, "three panels", "three")
    assert isinstance(drawn[0], go.Figure)
    assert (drawn[0].layout.xaxis2.domain == (0, 1)) == stacked


@pytest.mark.parametrize(
    ("agent", "width", "narrow"), [("Mobile", None, True), ("X11", None, False), ("Mobile", False, False)]
)
def test_a_phone_is_known_before_its_width(monkeypatch, agent, width, narrow):
    monkeypatch.setattr(elements.st, "context", SimpleNamespace(headers={"User-Agent": f"Mozilla/5.0 ({agent})"}))
    monkeypatch.setattr(
        elements.st, "session_state", {} if width is None else {"page width": SimpleNamespace(narrow=width)}
    )
    assert elements.is_narrow() == narrow
