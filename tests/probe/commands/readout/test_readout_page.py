"""What a readout's page says and draws."""

from dataclasses import replace

import pytest
import readings
from synthetic import evaluation, hidden_states, write_run

from mesa.errors import Refused
from probe.commands.probe.report import write_report
from probe.commands.readout import page
from probe.commands.readout.result import READOUT, DistanceRead, Interval
from probe.figures.section import figures_of
from probe.run import open_run


def test_the_answer_tells_lost_and_moved_of_the_layer_that_reads_best():
    said = page.answers(readings.summary())
    assert said == [
        "previous-1, layer 1, origin at 1024 tokens: a probe reads 0.90 at M (control 0.30), the same probe 0.50 here, "
        "one trained here 0.70: lost 0.20 [0.15, 0.25] and moved 0.20 [0.15, 0.25].",
        "previous-1, layer 1, rerope at 1024 tokens: a probe reads 0.90 at M (control 0.30), the same probe 0.80 here, "
        "one trained here 0.90: neither lost nor moved beyond chance; the probe trained under origin at M reads "
        "0.80 here, 0.30 [0.25, 0.35] more than under origin.",
        "Lens, origin at 1024 tokens: from layer 0 on the loss is above that at M, in the last layer by "
        "1.00 [0.95, 1.05] nats/token.",
        "Lens, rerope at 1024 tokens: the loss is not clearly above that at M (0.00 [-0.05, 0.05] nats/token).",
    ]


@pytest.mark.parametrize(("kind", "least"), [("classes", ""), ("numbers", ", or 0")])
def test_what_a_probe_is_not_above_is_said(kind, least):
    summary = readings.summary()
    summary.probed["previous-1"] = replace(summary.probed["previous-1"], kind=kind)
    rows = [replace(row, is_read=row.is_read and row.method == "origin", chance=0.92) for row in summary.probes]
    said = page.answers(replace(summary, probes=rows))[1]
    assert said.endswith(f"; not clearly above its control and chance (0.92){least}, so nothing is claimed.")
    first = page.answers(replace(summary, probes=[replace(row, is_read=False) for row in rows]))[0]
    assert f"reads clearly more than its control and chance{least} (best: layer" in first


def test_nothing_is_claimed_of_a_model_that_is_not_trained():
    first, *_, last = page.answers(readings.summary(trained=False))
    assert first == "previous-1: nothing is claimed; the model's own loss at M is not below that of token frequencies."
    assert last.endswith("nothing is claimed of what it knew.")
    assert not any(said.startswith("Lens") for said in page.answers(readings.summary(trained=False)))
    unread = replace(readings.summary(trained=False), loss=readings.NONE, tasks_left=3)
    *said, last = page.answers(unread)
    assert last == "3 passes and probes are left to run."
    assert not any("unknown" in text for text in said)


def test_states_move_most_in_the_clear_layer_that_moved_most():
    def row(layer, ratio, direction):
        return DistanceRead(
            method="origin", length=readings.LONGEST, layer=layer, n=8, distance=ratio.mean, inside=1.0, ratio=ratio,
            direction=direction,
        )  # fmt: skip

    def said(*rows):
        return page.answers(replace(readings.summary(), distances=rows))[-1]

    level = row(2, Interval(0.5, 0.2, 1.25), "level")
    assert "collapse most in layer 5" in said(level, row(5, Interval(0.8, 0.75, 0.853), "collapse"))
    assert "clearly, at most in layer 2" in said(level, row(5, Interval(0.8, 0.65, 0.985), "collapse"))


def test_every_figure_is_exported_and_names_are_escaped(tmp_path):
    hostile = "<script>alert(1)</script>"
    summary = READOUT.read(readings.write(tmp_path, model=hostile))
    assert {*figures_of(page.sections(summary))} == {*page.readout_export(summary).figures}
    text = page.write_readout(tmp_path, summary).read_text()
    assert hostile not in text
    assert text.count("<figure ") == 4  # lost and moved, a map a method, the lens
    assert (tmp_path / "readout" / "probes.csv").read_text().count("\n") == 9
    assert page.probe_map(summary, "previous-1", "origin").cells[0][2].values.tolist() == [[0.8, 0.7], [0.9, 0.7]]
    with pytest.raises(Refused, match="method 'mesa' was not measured; known: origin, rerope"):
        page.readout_export(summary, methods=["mesa"])
    part = page.readout_export(summary, methods=["rerope"], lengths=[readings.M]).figures
    assert [*part] == ["readout-previous-1-rerope", "readout-lens"]
    (panel,) = part["readout-lens"].panels
    assert (panel.title, len(panel.lines)) == ("rerope", 1)


@pytest.mark.usefixtures("undrawn")
def test_the_report_and_a_notebook_have_it(tmp_path):
    folder = write_run(tmp_path, hidden_states(), evaluation())
    with pytest.raises(FileNotFoundError, match="`mesa-lens readout --out"):
        open_run(folder).readout()
    readings.write(folder)
    write_report(folder)
    assert ">Lost or moved</h2>" in (folder / "report.html").read_text()
    said = "(previous-1, layer 1, origin at 1024 tokens; 0.90): lost 0.20 [0.15, 0.25] and moved"
    assert any(said in note for note in open_run(folder).verdict().notes)
    assert "lost 0.20 [0.15, 0.25]" in open_run(folder).readout().text
