"""Runs the sections one after another, each in a folder of its own, and goes on where it was interrupted."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mesa.evaluation.harness import run_harness
from mesa.evaluation.plan import EvalPlan
from mesa.evaluation.run import run as run_cells
from mesa_lens.paper.config import PaperConfig, probe_request, reason_left_out
from mesa_lens.paper.sections import SECTIONS
from probe.reader import open_run
from probe.run import ProbePlan, run_probe


def run_sections(config: PaperConfig, plans: Mapping[str, Any], out: Path) -> dict[str, dict[str, Any]]:
    """What each section of the config gave: a summary, or 'left_out' with the reason."""
    found: dict[str, dict[str, Any]] = {}
    for name in (name for name in SECTIONS if name in config.sections):
        reason = reason_left_out(SECTIONS[name], config.sections[name])
        if reason:
            found[name] = {"left_out": reason}
        elif name == "probe":
            found[name] = _probe(config, plans[name], out / name)
        elif name == "longbench":
            found[name] = _longbench(config, plans[name], out / name)
        else:
            found[name] = run_cells(plans[name], out / name)
    return found


def _probe(config: PaperConfig, made: ProbePlan, folder: Path) -> dict[str, Any]:
    """The summary of a probe run; a whole one of the same settings is not run again."""
    path = folder / "summary.json"
    wanted = json.loads(json.dumps({name: method.describe() for name, method in made.methods.items()}))
    if path.is_file():
        summary = json.loads(path.read_text(encoding="utf-8"))
        same = summary["method_configs"] == wanted and summary["captured_length"] == made.length
        if same and summary["measured_lengths"] == (list(made.lengths) if made.request.samples else []):
            open_run(folder)
            return summary
    return run_probe(probe_request(config), folder, overwrite=True)[0]


def _longbench(config: PaperConfig, made: EvalPlan, folder: Path) -> dict[str, Any]:
    values = config.sections["longbench"]
    include = Path(values["include_path"]) if values.get("include_path") else None
    return run_harness(made, values["tasks"], folder, include_path=include, limit=values.get("limit"))
