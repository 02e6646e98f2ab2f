"""What is measured on a model: hidden states under each method, the thresholds in them, and where it really fails.

In: a request (model, methods, lengths, what to keep). Out: a store on disk, the thresholds and failure lengths in it,
figures, a report. Open first: commands/probe/run.py, the full path in one file. Names are loaded when used: reading
needs no torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from mesa_lens.namesakes import check

if TYPE_CHECKING:
    from mesa.engine.bridge import bridge as bridge_to
    from probe.capture.capture import capture_states
    from probe.capture.spec import CaptureSpec
    from probe.commands.anatomy.page import token_losses
    from probe.commands.eval.run import run_evaluation
    from probe.commands.predict import PredictRequest
    from probe.commands.predict.run import predict_failure
    from probe.commands.probe import ProbeRequest
    from probe.commands.probe.report import curves_export, drift_export, threshold_export, write_report
    from probe.commands.probe.run import run_probe
    from probe.commands.readout.plan import control_labels, fit_probe
    from probe.commands.readout.run import lens_readout
    from probe.eval_tasks.sources import heldout
    from probe.evaluation import plan_evaluation
    from probe.figures.export import heatmap_export
    from probe.figures.heatmap import default_regions, regions
    from probe.request import EvalRequest
    from probe.run import Run, open_run
    from probe.store.reader import hook_values
    from probe.thresholds.analysis import analyse, summarize
    from probe.thresholds.drift import DriftRule, find_drift
    from probe.thresholds.failure import measured_failure
    from probe.thresholds.onset import drift_onsets, negative_control, threshold_onsets
    from probe.thresholds.search import CrossingRule, search
    from probe.thresholds.state_distance import StateReference, find_state_distance, state_distance
    from probe.thresholds.watch import watch

check("mesa")

_MODULES = {
    "probe.capture.capture": "capture_states",
    "probe.capture.spec": "CaptureSpec",
    "probe.figures.export": "heatmap_export",
    "probe.figures.heatmap": "default_regions regions",
    "probe.commands.anatomy.page": "token_losses",
    "probe.commands.predict.run": "predict_failure",
    "probe.run": "Run open_run",
    "probe.commands.probe.report": "curves_export drift_export threshold_export write_report",
    "probe.request": "EvalRequest",
    "probe.evaluation": "plan_evaluation",
    "probe.commands.eval.run": "run_evaluation",
    "probe.commands.predict": "PredictRequest",
    "probe.commands.probe": "ProbeRequest",
    "probe.commands.probe.run": "run_probe",
    "probe.commands.readout.run": "lens_readout",
    "probe.commands.readout.plan": "control_labels fit_probe",
    "probe.store.reader": "hook_values",
    "probe.eval_tasks.sources": "heldout",
    "probe.thresholds.analysis": "analyse summarize",
    "probe.thresholds.drift": "DriftRule find_drift",
    "probe.thresholds.failure": "measured_failure",
    "probe.thresholds.onset": "drift_onsets negative_control threshold_onsets",
    "probe.thresholds.search": "CrossingRule search",
    "probe.thresholds.state_distance": "StateReference find_state_distance state_distance",
    "probe.thresholds.watch": "watch",
}
"""The public names by module."""
_LAZY = {
    **{name: module for module, names in _MODULES.items() for name in names.split()},
    "bridge_to": "mesa.engine.bridge:bridge",
}

# fmt: off
__all__ = [
    "CaptureSpec", "CrossingRule", "DriftRule", "EvalRequest", "PredictRequest", "ProbeRequest", "Run",
    "StateReference", "analyse", "bridge_to", "capture_states", "control_labels", "curves_export", "default_regions",
    "drift_export", "drift_onsets", "find_drift", "find_state_distance", "fit_probe", "heatmap_export", "heldout",
    "hook_values", "lens_readout", "measured_failure", "negative_control", "open_run", "plan_evaluation",
    "predict_failure", "regions", "run_evaluation", "run_probe", "search", "state_distance", "summarize",
    "threshold_export", "threshold_onsets", "token_losses", "watch", "write_report",
]
# fmt: on


def __getattr__(name: str) -> object:
    """Loads a public name when it is asked for."""
    if name not in _LAZY:
        raise AttributeError(f"module 'probe' has no attribute {name!r}")
    module, _, attribute = _LAZY[name].partition(":")
    return getattr(importlib.import_module(module), attribute or name)


def __dir__() -> list[str]:
    """The public names."""
    return sorted(__all__)
