"""`mesa-lens report`: the report of a captured run, written anew from its store; needs no model."""

from __future__ import annotations

from dataclasses import dataclass

from mesa_lens.arguments import JsonOptions
from probe.commands.probe.request import RuleOptions
from probe.options import REQUIRED, InputPath, option


@dataclass(frozen=True)
class ReportOptions:
    """A captured run."""

    store: InputPath = option(
        REQUIRED, "the folder that `mesa-lens probe` wrote, or its store", positional=True, metavar="RUN"
    )


HELP = "rewrite the report, summary and figures of a finished probe run"
EXAMPLE = "mesa-lens report runs/demo"


def run(captured: ReportOptions, rule: RuleOptions, printing: JsonOptions) -> int:
    """Checks that the store is whole, then writes beside it."""
    from probe.commands.probe.report import write_report
    from probe.commands.probe.verdict import terminal_text
    from probe.experiment.lock import owned
    from probe.store.reader import open_run
    from probe.store.result_file import result_text

    folder = open_run(captured.store).folder
    with owned(folder, option="RUN"):
        summary = write_report(captured.store, rule.rule)
    print(result_text(summary) if printing.json else f"{terminal_text(summary)}\n\nwrote {folder / 'report.html'}")
    return 0
