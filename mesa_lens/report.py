"""`mesa-lens report`: the reports of a captured run, written again from what is stored; needs no model."""

from dataclasses import dataclass
from typing import Literal

from mesa_lens.arguments import JsonOptions
from probe.options import REQUIRED, InputPath, option


@dataclass(frozen=True)
class ReportOptions:
    """A captured run."""

    store: InputPath = option(
        REQUIRED, "the folder that `mesa-lens probe` wrote, or its store", positional=True, metavar="RUN"
    )
    rule: Literal["drift", "paper"] | None = option(
        None,
        "read onsets from layers' drift, or from thresholds of single dims as in the paper",
        unset="the run's",
    )


HELP = "rewrite the report, summary and figures of a finished probe run, and the reports of other commands there"
EXAMPLE = "mesa-lens report runs/demo"


def run(captured: ReportOptions, printing: JsonOptions) -> int:
    """Checks that the store is complete, then writes next to it."""
    from probe.commands import tell
    from probe.commands.probe.report import write_report
    from probe.commands.probe.verdict import terminal_text
    from probe.experiment.lock import owned
    from probe.store.reader import open_run
    from probe.store.result_file import result_text

    folder = open_run(captured.store).folder
    with owned(folder, option="RUN"):
        for rewrite in tell("rewrite").values():
            rewrite(folder)
        summary = write_report(captured.store, captured.rule)
    print(result_text(summary) if printing.json else f"{terminal_text(summary)}\n\nwrote {folder / 'report.html'}")
    return 0
