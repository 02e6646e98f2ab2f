"""`mesa-lens probe` from its plan to its report."""

from __future__ import annotations

from pathlib import Path

from probe.commands.probe.plan import ProbePlan, kept_text
from probe.commands.probe.plan import plan as plan_probe
from probe.commands.probe.request import ProbeRequest, RuleOptions
from probe.commands.probe.stages import work
from probe.experiment.estimate import Estimate, passes_of, work_text
from probe.experiment.run import CommandResult
from probe.experiment.runner import Runner


def plan(request: ProbeRequest, rule: RuleOptions) -> ProbePlan:
    """The plan of a request."""
    return plan_probe(request)


def estimate(planned: ProbePlan, out: Path, rule: RuleOptions, *, overwrite: bool) -> Estimate:
    """What the plan takes, with what is stored."""
    everything, left = work(planned), work(planned, None if overwrite else out)
    return f"{kept_text(planned)}\n{work_text(everything, left, out)}", passes_of(left)


def run_and_report(
    planned: ProbePlan, out: Path, rule: RuleOptions, *, overwrite: bool, until: None, runner: Runner
) -> CommandResult:
    """Measures and captures what the folder `out` lacks of the plan, and writes its report."""
    from probe.commands.probe.run import run_plan  # an estimate needs no report

    return CommandResult(*run_plan(planned, out, overwrite=overwrite, by=rule.rule, runner=runner), 0, "")
