"""Answers by length and depth: counted by where they stand, drawn, exported, and read from earlier summaries."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import results
from results import COMMON
from synthetic import evaluation, hidden_states, write_run

from mesa.errors import Refused
from mesa_lens.cli import main
from probe.commands.eval.page import (
    DEPTHS,
    EVALUATED,
    Evaluated,
    Sample,
    evaluation_export,
    needle_maps,
    needles,
    sections,
    summarize,
)
from probe.eval_tasks.base import Metric
from probe.eval_tasks.tasks import PASSKEY
from probe.evaluation import TASKS
from probe.figures.section import figures_of
from probe.files import write_result


def result(depths, answered):
    """Of both methods at two lengths one sample at each depth; `answered` says which."""
    rows = [
        Sample("passkey", method, length, number, "accuracy", float(answered(method, length, depth)), depth=depth)
        for method in ("origin", "rerope")
        for length in (256, 1024)
        for number, depth in enumerate(depths)
    ]
    common = {**COMMON, "model": "tiny", "trained_length": 256, "tasks_left": 0}
    return Evaluated(**common, cells=summarize(rows, TASKS), needles=needles(rows, TASKS))


EVEN = [(number + 0.5) / 20 for number in range(20)]


def late(method, length, depth):
    """Origin finds beyond M what stands in the last 30% alone."""
    return method == "rerope" or length == 256 or depth > 0.7


def test_answers_are_counted_by_where_they_stand():
    rows = result(EVEN, late).needles
    assert {row.n for row in rows} == {20 // DEPTHS}
    answered = {row.depth: row.mean for row in rows if (row.method, row.length) == ("origin", 1024)}
    assert [*answered.items()] == [(0, 0), (0.2, 0), (0.4, 0), (0.6, 0.5), (0.8, 1)]
    middle = next(row for row in rows if row.mean == 0.5)
    assert 0 < middle.low < 0.5 < middle.high < 1
    (last,) = (row for row in result([1.0], late).needles if (row.method, row.length) == ("origin", 256))
    assert last.depth == 0.8  # an answer at the very end


def test_a_map_has_a_block_a_method_and_says_what_its_tiles_mean():
    grid = needle_maps(result(EVEN, late))["passkey-depth"]
    ((origin, rerope),) = grid.cells
    assert (origin.title, rerope.title) == ("origin", "rerope")
    assert origin.values.tolist() == [[1, 0], [1, 0], [1, 0], [1, 0.5], [1, 1]]
    assert origin.texts[3, 1].startswith("origin, 1024 tokens, depth 60% to 80%: 0.50 [")
    assert origin.y_ticks[3] == "60%"
    assert grid.note == ()  # nothing is hatched, nothing empty
    assert grid.seen.startswith("Least found: origin, 1024 tokens, depth 0% to 20%: 0.00 [")
    assert "passkey-depth" in figures_of(sections(result(EVEN, late)))
    assert needle_maps(result([0.5] * 4, late)) == {}  # --depth 0.5


def test_the_lowest_share_names_ties_and_nothing_where_all_is_alike():
    def seen(answered):
        return needle_maps(result(EVEN, answered))["passkey-depth"].seen

    one = seen(lambda method, length, depth: (method, length) != ("rerope", 1024) or depth < 0.8)
    assert one.startswith("Least found: rerope, 1024 tokens, depth 80% to 100%: 0.00 [")
    assert one.endswith(" of 4.")
    assert seen(late).endswith(" of 4 (and 2 more).")
    assert seen(lambda *_: True) == seen(lambda *_: False) == ""


def test_only_binary_scores_are_mapped():
    """A task of another package may give depths with a loss, of which no share is found."""
    task = replace(PASSKEY, metrics=(Metric("nll", "nats/token"),))
    rows = [Sample("passkey", "origin", 256, n, "nll", 3.0, depth=depth) for n, depth in enumerate(EVEN)]
    assert needles(rows, {"passkey": task}) == []


def test_it_is_exported_and_an_earlier_summary_is_read(tmp_path):
    EVALUATED.write(tmp_path, result(EVEN, late))
    assert main(["export", "eval", str(tmp_path), "--methods", "origin", "--format", "csv,svg"]) == 0
    csv = (tmp_path / "exports" / "passkey-depth.csv").read_text().splitlines()
    assert csv[0] == "method,length,depth,mean,low,high,n"
    assert len(csv) == 1 + 2 * DEPTHS
    assert (tmp_path / "exports" / "passkey.svg").is_file()
    earlier = EVALUATED.read(tmp_path)
    with pytest.raises(Refused, match="length 512 was not measured; known: 256, 1024"):
        evaluation_export(earlier, lengths=[512])
    assert {*evaluation_export(result([0.5], late)).figures} == {"passkey"}


def test_the_summary_of_another_command_is_named(tmp_path):
    summary = write_run(tmp_path / "run", hidden_states(), evaluation()) / "summary.json"
    write_result(summary, {"version": 3})
    of_probe = rf"{summary} is of `mesa-lens probe`, not of `eval`; name a folder that `mesa-lens eval` wrote to"
    with pytest.raises(Refused, match=of_probe):
        EVALUATED.read(summary.parent)
    (tmp_path / "journal.jsonl").touch()
    write_result(tmp_path / "summary.json", {"version": 3})
    with pytest.raises(Refused, match="is of another version of mesa-lens, not of version 1; write it again"):
        EVALUATED.read(tmp_path)


def test_the_depth_is_where_the_answer_stands(monkeypatch):
    monkeypatch.setattr("probe.eval_tasks.tasks.retrieval_hits", lambda _, __, batch: [True] * len(batch))
    prompts = [SimpleNamespace(key_position=position) for position in (0, 96)]
    loaded, setting = SimpleNamespace(model=None, tokenizer=None), SimpleNamespace(batch=2)
    assert [score.depth for score in PASSKEY.measure(loaded, 128, prompts, setting)] == [0.0, 0.75]


def test_files_hold_the_differences_that_the_page_shows():
    shown = results.evaluation()
    (numbers,) = evaluation_export(shown).numbers.values()
    cell = next(cell for cell in shown.cells if cell.difference and cell.length == 512)
    at = numbers.sel({"method": cell.method, "length": 512})
    ends = [float(at[name]) for name in ("difference", "difference_low", "difference_high")]
    assert ends == [cell.difference.mean, cell.difference.low, cell.difference.high]
    assert numbers["difference"].sel({"method": "origin"}).isnull().all()
