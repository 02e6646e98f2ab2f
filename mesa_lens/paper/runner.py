"""Runs the sections one after another, each in a folder of its own, and goes on where it was interrupted."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mesa_lens.paper.config import PaperConfig, include_path, reason_left_out
from mesa_lens.paper.sections import SECTIONS
from probe.evaluation.harness import JOURNAL as HARNESS_JOURNAL
from probe.evaluation.harness import open_harness, run_harness
from probe.evaluation.run import JOURNAL, open_journal
from probe.evaluation.run import run as run_cells
from probe.plan import ProbePlan
from probe.run import is_whole, run_probe


def check_folders(config: PaperConfig, plans: Mapping[str, Any], out: Path) -> None:
    """Raises FileExistsError, naming what differs, for a section's folder that holds another run."""
    for name, made in plans.items():
        if name == "probe":
            is_whole(made, out / name)
        elif name == "longbench" and (out / name / HARNESS_JOURNAL).exists():
            open_harness(made, out / name, **_harness_options(config))
        elif name != "longbench" and (out / name / JOURNAL).exists():
            open_journal(made, out / name)


def run_sections(
    config: PaperConfig, plans: Mapping[str, Any], out: Path, *, overwrite: bool = False
) -> dict[str, dict[str, Any]]:
    """What each section of the config gave: a summary, or 'left_out' with the reason.

    Raises FileExistsError, before anything runs, for folders of another run, unless `overwrite`.
    """
    if not overwrite:
        check_folders(config, plans, out)
    found: dict[str, dict[str, Any]] = {}
    for name in (name for name in SECTIONS if name in config.sections):
        reason = reason_left_out(SECTIONS[name], config.sections[name])
        if reason:
            found[name] = {"left_out": reason}
        elif name == "probe":
            found[name] = _probe(plans[name], out / name, overwrite)
        elif name == "longbench":
            tasks, options = config.sections[name]["tasks"], _harness_options(config)
            found[name] = run_harness(plans[name], tasks, out / name, overwrite=overwrite, **options)
        else:
            found[name] = run_cells(plans[name], out / name, overwrite=overwrite)
    return found


def _probe(made: ProbePlan, folder: Path, overwrite: bool) -> dict[str, Any]:
    """The summary of a probe run; a whole one is not run again."""
    if not overwrite and is_whole(made, folder):
        return json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    return run_probe(made.request, folder, overwrite=overwrite)[0]


def _harness_options(config: PaperConfig) -> dict[str, Any]:
    values = config.sections["longbench"]
    return {"include_path": include_path(values), "limit": values.get("limit")}
