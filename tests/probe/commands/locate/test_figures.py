"""Figures of where inside: what is coloured, muted, written and told; both renderers; files and tables."""

import csv
import io
from dataclasses import replace

import anatomized
import located
import numpy as np
import pytest

from mesa_lens.cli import main
from probe.commands.locate.page import recovery_map, sections
from probe.commands.locate.result import LOCATED
from probe.figures import interactive, static
from probe.store.result_file import having

AT = ("rerope", 1024, "nll")


@pytest.fixture(scope="module")
def summary():
    return located.typed()


def effects(summary, **labels):
    return having(summary.effects, **dict(zip(("method", "length", "measure"), AT, strict=True)), **labels)


def blocks(figure):
    return figure.cells[0]


def test_the_map_holds_the_shares_of_layers_and_heads(summary):
    layer, heads = blocks(recovery_map(summary, *AT))
    assert (layer.values.shape, heads.values.shape) == ((4, 1), (4, 8))
    for row in effects(summary, kind="patch", way="only"):
        block, column = (layer, 0) if row.head is None else (heads, row.head)
        np.testing.assert_equal(block.values[row.layer, column], row.share)
        clear = row.is_clear or row.low == row.high == 0
        assert block.muted[row.layer, column] == (np.isfinite(row.share) and not clear)
    without = blocks(recovery_map(summary, *AT, way="without"))[0]
    np.testing.assert_allclose(without.values, 0.8 * layer.values)
    assert heads.muted[0, 1]  # a share without an interval
    assert heads.texts[0, 1].endswith("(no interval)")
    assert not heads.muted[0, 0]  # no share: empty


def test_both_renderers_draw_the_cells(summary):
    cells = recovery_map(summary, *AT)
    figure = interactive.draw(cells)
    heatmaps = [trace for trace in figure.data if trace.type == "heatmap"]
    np.testing.assert_allclose(heatmaps[1].z, blocks(cells)[1].values)
    assert {(trace.zmin, trace.zmax) for trace in heatmaps} == {(-1, 1)}
    assert heatmaps[1].customdata[2][3].startswith("layer 2, head 3: 41% [")
    drawn = [trace for trace in figure.data if trace.type == "scatter"]
    strokes = [len(trace.x) for trace in drawn if trace.mode == "lines"]
    assert strokes == [9 * block.muted.sum() for block in blocks(cells)]  # three strokes: two ends and a break
    numbers = [[text for text in block.numbers.flat if text] for block in blocks(cells)]
    assert [list(trace.text) for trace in drawn if trace.mode == "text"] == numbers
    for axis, block, written in zip(static.draw(cells).axes, blocks(cells), numbers, strict=False):
        assert len(axis.patches) == block.muted.sum()
        assert [text.get_text() for text in axis.texts] == written
        assert axis.images[0].get_clim() == (-1, 1)


def test_the_command_writes_figures_and_tables(tmp_path, capsys):
    folder = located.write(tmp_path / "run")
    options = ["--methods", "rerope", "--lengths", "1024", "--measures", "nll", "--format", "svg,csv"]
    assert main(["export", "locate", str(folder), *options]) == 0
    names = {path.name for path in (folder / "exports").iterdir()}
    assert {"locate-map-rerope-1024-nll.svg", "locate-smallest-1024-nll.svg", "effects.csv", "loss_gaps.csv"} <= names
    assert not [name for name in names if "mesa" in name or "512" in name]
    rows = list(csv.DictReader(io.StringIO((folder / "exports" / "effects.csv").read_text())))
    assert len(rows) == len(effects(LOCATED.read(folder)))
    (best,) = located.matching(rows, kind="patch", way="only", layer="2", head="3")
    assert float(best["share"]) == pytest.approx(0.41)
    assert len(located.matching(rows, kind="patch", way="only", layer="2", head="")) == 1


@pytest.mark.parametrize(
    ("command", "options", "message"),
    [
        ("locate", ["--methods", "stair"], "method 'stair' was not located; known: rerope, mesa, dynamic-ntk"),
        ("locate", ["--methods", "dynamic-ntk", "--lengths", "512"], "do not differ, or it was not run"),
        ("anatomy", ["--methods", "stair"], "method 'stair' was not measured; known: origin, rerope, mesa"),
        ("anatomy", ["--lengths", "3"], "length 3 was not measured; known: 256, 1024"),
    ],
)
def test_bad_options_of_the_export_are_one_line(tmp_path, capsys, command, options, message):
    folder = {"locate": located, "anatomy": anatomized}[command].write(tmp_path / "run")
    assert main(["export", command, str(folder), *options]) == 2
    assert message in capsys.readouterr().err
    assert not (folder / "exports").exists()


def test_one_loss_is_reported_once(summary):
    def figures(section):
        return [*section.figures, *(name for part in section.parts for name in figures(part))]

    one = replace(summary, loss_gaps=having(summary.loss_gaps, method="rerope", length=1024, measure="nll"))
    for each, begins in ((one, "default, 1024 tokens"), (summary, "")):
        parts = sections(each)
        drawn = [name for part in parts for name in figures(part)]
        assert parts[0].title.startswith(begins)
        assert (len(drawn) == len({*drawn})) == (each is one)
