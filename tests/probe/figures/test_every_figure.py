"""A figure that a page draws is exported, and the report knows its files: a new figure that is not is named."""

import re

import anatomized
import located
import pytest
from synthetic import evaluation, hidden_states, write_run

from mesa_lens.export import KINDS
from probe.commands.anatomy import page as anatomy
from probe.commands.anatomy.result import ANATOMY
from probe.commands.locate import page as locate
from probe.commands.probe.report import Maps, drawn_sections, full_summary, report_files, sections, write_figures
from probe.figures.section import figures_of
from probe.run import open_run


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_run(
        tmp_path_factory.mktemp("run"),
        hidden_states(layers=2, dims=12, prompts=("repeated", "text-0", "text-1")),
        evaluation(),
    )


def exports(run):
    """The names of the figures that `mesa-lens export` writes of a run."""
    captured = run.hidden["prompt"].values.tolist()
    for kind, (_, parameters, _) in KINDS.items():
        prompts = [*run.analysis().drifts] if kind == "drift" else captured  # of several texts their mean is evaluated
        for prompt in prompts if "prompt" in parameters.split() else [None]:
            yield from getattr(run, kind)(**({} if prompt is None else {"prompt": prompt})).export.figures


def test_every_figure_of_the_report_is_exported(folder):
    run = open_run(folder)
    summary, drawn = full_summary(run.analysis()), drawn_sections(run.analysis(), full_summary(run.analysis()))
    shown = {re.sub(r"^curves-\d+$", "curves", name) for name in figures_of(sections(summary, run, drawn, {}, {}))}
    assert shown
    assert shown <= {*exports(run)}, "a figure of the report without its export; see `*_export` in report.py"


@pytest.mark.usefixtures("unpainted")
def test_every_figure_file_of_the_report_is_known_as_its_own(folder, monkeypatch):
    monkeypatch.setattr("probe.commands.probe.report.pictures", lambda _, forms: dict.fromkeys(forms, b""))
    analysis = open_run(folder).analysis()
    write_figures(analysis, folder / "figures", Maps.of(analysis), drawn_sections(analysis, full_summary(analysis)))
    written = {path for path in (folder / "figures").iterdir() if path.name != "plotly.min.js"}
    assert written
    assert written <= report_files(folder), "a file that no later report would remove; see _FIGURES in report.py"


def test_every_figure_of_locate_and_anatomy_is_exported(tmp_path):
    summary = located.typed()
    assert {*figures_of(locate.sections(summary))} <= {*locate.located_export(summary).figures}
    summary = ANATOMY.read(anatomized.write(tmp_path))
    assert {*figures_of(anatomy.sections(summary))} <= {*anatomy.anatomy_export(summary).figures}
