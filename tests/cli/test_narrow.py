"""Figures on a narrow page."""

from dataclasses import replace

import numpy as np
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
    columns = []
    monkeypatch.setattr(results, "is_narrow", lambda: narrow)
    monkeypatch.setattr(results, "sheet", lambda cells, alt, **options: columns.append(options["column_config"]))
    results.table(Table("", ("prompt", "score"), (("x" * 40, "0.50"),)))
    assert {name: column["width"] for name, column in columns[0].items()} == {"prompt": pixels}


@pytest.mark.parametrize("narrow", [True, False])
def test_a_narrow_page_gets_panels_below_each_other(chart, monkeypatch, narrow):
    figures = []
    monkeypatch.setattr(elements, "_plot", lambda figure, alt, key: figures.append(figure))
    monkeypatch.setattr(elements, "is_narrow", lambda: narrow)
    elements.show(chart, "three panels", "three")
    layout = figures[0].layout
    assert [layout[f"xaxis{n}"].domain == (0, 1) for n in ("", 2, 3)] == [narrow] * 3
    if narrow:
        ends = [end for n in ("", 2, 3) for end in reversed(layout[f"yaxis{n}"].domain)]
        assert ends == sorted(ends, reverse=True)
        assert [ends[0], ends[-1]] == pytest.approx([1, 0])
        assert [title.y for title in layout.annotations] == pytest.approx(ends[::2])  # above their panels
        assert layout.height > untitled(chart).layout.height
