"""Figures of anatomy: what stands in the maps, the tables, and the export."""

import anatomized
import pytest

from probe.commands.anatomy.page import STATISTICS, head_map
from probe.commands.anatomy.result import ANATOMY
from probe.store.result_file import having

LAYER, HEAD = anatomized.LOST


@pytest.fixture(scope="module")
def attention(tmp_path_factory):
    return ANATOMY.read(anatomized.write(tmp_path_factory.mktemp("run")))


def blocks(*names):
    return head_map(*names).cells[0]


def test_the_reference_inside_and_beyond_stands_beside_the_method(attention):
    inside, beyond, method_values = blocks(attention, "retrieval", "rerope", 1024)
    assert (inside.title, method_values.title) == ("origin at 256 tokens, head", "rerope at 1024 tokens, head")
    assert [block.values[LAYER, HEAD] for block in (inside, beyond, method_values)] == [0.75, 0.1, 0.75]
    assert method_values.numbers[LAYER, HEAD] == "75"
    assert method_values.texts[LAYER, HEAD].endswith(": 75% [65, 85]")
    titles = [block.title for block in blocks(attention, "distance", "mesa", 1024)]
    assert titles == ["origin inside M, head", "origin beyond M, head", "mesa beyond M, head"]
    assert len(blocks(attention, "distance", "origin", 1024)) == 2
    assert len(blocks(attention, "distance", "mesa", 256)) == 2  # both inside M
    assert not inside.muted.any()  # 0 [0, 0], and 0.75 [0.65, 0.85]
    assert beyond.muted.sum() == 1  # 0.1 [0, 0.2]
    assert blocks(attention, "entropy", "mesa", 1024)[-1].muted.all()


@pytest.mark.parametrize(("name", "statistic"), STATISTICS.items())
def test_every_number_is_in_its_cell_on_one_scale(attention, name, statistic):
    block = blocks(attention, name, "rerope", 1024)[-1]
    rows = having(getattr(attention, statistic.table), method="rerope", length=1024)
    rows = [row for row in rows if getattr(row, "span", "") != "inside M"]
    assert len(rows) == block.values.size == 32
    assert all(block.values[row.layer, row.head] == getattr(row, statistic.column).mean for row in rows)
    scales = {
        (block.low, block.high) for method in ("origin", "mesa") for block in blocks(attention, name, method, 1024)
    }
    assert scales == {(0, block.high)}
