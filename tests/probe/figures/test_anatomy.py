"""Figures of anatomy: what stands in the maps, what lines hold, the tables, and the export."""

import csv
import io

import anatomized
import numpy as np
import pytest
import xarray as xr

from mesa_lens.cli import main
from probe.figures.anatomy import STATISTICS, component_chart, cosine_chart, head_map, lens_chart, share_chart
from probe.figures.mechanism_export import anatomy_export, head_figures, head_rows, layer_figures
from probe.store.results import Anatomy, find_anatomy, having, read_anatomy

LAYER, HEAD = anatomized.DIES


@pytest.fixture(scope="module")
def attention(tmp_path_factory):
    return read_anatomy(anatomized.write(tmp_path_factory.mktemp("run")))


def test_the_reference_inside_and_beyond_stands_beside_the_method(attention):
    inside, beyond, method_values = head_map(attention, "retrieval", "rerope", 1024).blocks
    assert (inside.title, method_values.title) == ("origin at 256 tokens, head", "rerope at 1024 tokens, head")
    assert [block.values[LAYER, HEAD] for block in (inside, beyond, method_values)] == [0.75, 0.1, 0.75]
    assert method_values.texts[LAYER, HEAD] == "75"
    assert method_values.text(LAYER, HEAD) == "75% [65, 85]"
    titles = [block.title for block in head_map(attention, "distance", "mesa", 1024).blocks]
    assert titles == ["origin inside M, head", "origin beyond M, head", "mesa beyond M, head"]
    assert len(head_map(attention, "distance", "origin", 1024).blocks) == 2
    assert len(head_map(attention, "distance", "mesa", 256).blocks) == 2  # both inside M


def test_every_number_is_in_its_cell(attention):
    for name, statistic in STATISTICS.items():
        block = head_map(attention, name, "rerope", 1024).blocks[-1]
        rows = [
            row
            for row in having(attention.summary[statistic.table], method="rerope", length=1024)
            if row.get("span") != "inside M"
        ]
        assert len(rows) == block.values.size == 32
        for row in rows:
            index = row["layer"], row["head"]
            assert [array[index] for array in (block.values, block.low, block.high)] == row[statistic.column]


def test_the_scale_holds_all_methods_and_fits_what_is_shown(attention):
    for name in STATISTICS:
        origin, mesa = (head_map(attention, name, method, 1024) for method in ("origin", "mesa"))
        assert origin.scale == mesa.scale
        assert origin.scale.low == 0
    distances = [row["mean_distance"][0] for row in attention.summary["heads"] if row["span"] == "beyond M"]
    assert max(distances) <= head_map(attention, "distance", "mesa", 1024).scale.high <= 2 * max(distances)
    assert list(head_map(attention, "retrieval", "mesa", 1024).scale.ticks.values())[::2] == ["0%", "50%", "100%"]
    assert head_map(attention, "unmet", "origin", 1024).scale.high == pytest.approx(0.4)


def test_only_what_has_no_clear_interval_is_muted(attention):
    inside, beyond, _ = head_map(attention, "retrieval", "rerope", 1024).blocks
    assert not inside.muted.any()  # 0 [0, 0], and 0.75 [0.65, 0.85]
    assert beyond.muted.sum() == 1  # 0.1 [0, 0.2]
    assert head_map(attention, "entropy", "mesa", 1024).blocks[-1].muted.all()


def test_the_lens_by_layer_and_by_position(attention):
    by_layer, lowered, by_position = lens_chart(attention, 1024, anatomized.METHODS).panels
    assert [line.label for line in by_layer.lines] == list(anatomized.METHODS)
    np.testing.assert_allclose(by_layer.lines[0].y, [6, 5.5, 5, 4.5])
    np.testing.assert_allclose(by_layer.lines[1].interval[1] - by_layer.lines[1].y, 0.3)
    assert by_layer.lines[2].interval is None  # one prompt
    assert by_layer.lines[0].texts[1] == "origin, layer 1, tokens 512 to 1024: 5.50 [5.20, 5.80] nats/token"
    assert [line.label for line in lowered.lines] == ["rerope"]
    np.testing.assert_allclose(by_position.lines[0].x, [128, 256, 512, 1024])
    np.testing.assert_allclose(by_position.lines[0].y, [3.5, 3.5, 4.5, 4.5])
    assert [rule.at for rule in by_position.rules] == [256]
    assert len(lens_chart(attention, 256, anatomized.METHODS).panels) == 2
    after_first = lens_chart(attention, 1024, anatomized.METHODS, layer=0).panels[-1]
    assert after_first.title == "after layer 0: by position"
    np.testing.assert_allclose(after_first.lines[0].y, [5, 5, 6, 6])


def test_cosines_have_their_reliability_in_the_legend(attention):
    (panel,) = cosine_chart(attention, 1, anatomized.METHODS).panels
    labels = [line.label for line in panel.lines]
    assert labels[0] == "origin (256 texts, reliability 0.90)"
    assert labels[2] == "mesa (64 texts, reliability 0.00)"
    method_values = attention.vectors["cosine"].sel({"method": "rerope", "layer": 1})
    assert panel.lines[1].y[500] == pytest.approx(float(method_values[492:508].mean()), abs=1e-5)


def test_a_break_at_the_window_is_not_smeared_over_it(attention):
    """Nor is what the first token, unlike any other, has."""
    position = attention.vectors["position"]
    step = xr.where(position < 256, 0.9, 0.2).where(position > 0, -1.0).astype(np.float32)
    vectors = attention.vectors.assign(
        cosine=step.broadcast_like(attention.vectors["cosine"]).transpose(..., "position")
    )
    (panel,) = cosine_chart(Anatomy(attention.summary, vectors), 1, ["origin"]).panels
    np.testing.assert_allclose(panel.lines[0].y, np.where(np.arange(1024) < 256, 0.9, 0.2), atol=1e-6)


def test_components_stand_apart_by_method_and_the_first_token_is_cut(attention):
    panels = component_chart(attention, 2, ["mesa", "origin"]).panels
    assert [panel.title for panel in panels] == ["mesa: 61% and 22%", "origin: 61% and 22%"]
    assert panels[0].x_title == "position (reliability 0.00)"
    first, second = panels[0].lines
    np.testing.assert_array_equal(
        second.y, attention.vectors["score"].sel({"method": "mesa", "layer": 2, "component": 2})
    )
    assert first.y[0] == -80
    assert panels[0].y_range[0] > -5
    assert panels[0].y_range == panels[1].y_range


def test_shares_stand_beside_reliability(attention):
    inside, beyond, reliability = share_chart(attention, anatomized.METHODS).panels
    np.testing.assert_allclose(inside.lines[0].y, 100 * attention.vectors["share"].values[0, :, 0])
    assert inside.y_range == beyond.y_range
    assert [line.y[0] for line in reliability.lines] == pytest.approx([0.9, 0.5, 0.0])
    assert [rule.at for rule in reliability.rules] == [0.8]


def test_what_was_not_run_is_no_figure(attention):
    tables = ("heads", "all_heads", "retrieval", "unmet", "frequencies", "lens")
    nothing = Anatomy(attention.summary | {name: [] for name in tables} | {"vectors": None}, None)
    assert head_figures(nothing, "rerope", 1024) == {}
    assert layer_figures(nothing, 0, anatomized.METHODS) == {}
    assert share_chart(nothing, anatomized.METHODS) is lens_chart(nothing, 1024, anatomized.METHODS) is None
    assert head_rows(nothing.summary) == []
    assert "beyond" not in head_figures(attention, "rerope", 256)  # no key is M away
    with pytest.raises(ValueError, match="nothing is there for method origin, rerope, mesa; length 256, 1024"):
        anatomy_export(nothing)


@pytest.mark.slow
def test_the_command_writes_figures_and_tables(tmp_path):
    folder = anatomized.write(tmp_path / "run")
    options = ["--methods", "rerope", "--lengths", "1024", "--layers", "1-2", "--format", "svg,csv"]
    assert main(["export", "anatomy", str(folder), *options]) == 0
    names = {path.name for path in (folder / "exports").iterdir()}
    drawn = {name for name in names if name.endswith("svg")}
    by_layer = {f"anatomy-{name}-layer{layer}.svg" for name in ("cosine", "components") for layer in (1, 2)}
    maps = {f"anatomy-{name}-rerope-1024.svg" for name in STATISTICS}
    assert drawn == by_layer | maps | {"anatomy-lens-1024.svg", "anatomy-shares.svg"}

    def rows(name):
        return list(csv.DictReader(io.StringIO((folder / "exports" / f"{name}.csv").read_text())))

    assert len(rows("heads")) == 2 * 2 * 8  # spans, layers, heads
    (score,) = having(rows("retrieval"), layer=str(LAYER), head=str(HEAD))
    assert [score[name] for name in ("best", "best_low", "best_high")] == ["0.75", "0.65", "0.85"]
    assert len(rows("positions")) == 2 * 1024
    assert rows("retrieval_heads")[0]["revived"] == "True"
    assert [row["lower_by"] for row in rows("lens_differs")] == ["0.6", "0.7"]
    assert {row["method"] for row in rows("vectors")} == {"rerope"}


def test_damaged_files_are_named(tmp_path):
    folder = anatomized.write(tmp_path)
    assert isinstance(find_anatomy(folder).vectors, xr.Dataset)
    (folder / "anatomy" / "vectors.npz").write_bytes(b"PK")
    with pytest.raises(ValueError, match=r"vectors\.npz is damaged"):
        find_anatomy(folder)
    (folder / "anatomy" / "summary.json").write_text('{"model": 1}')
    with pytest.raises(ValueError, match=r"summary\.json is damaged \(KeyError\('trained_length'\)\)"):
        find_anatomy(folder)
    assert find_anatomy(tmp_path / "nothing") is None
