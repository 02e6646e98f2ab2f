"""`mesa-lens probe`: measures at which length the model fails under each method, and stores its hidden states."""

from __future__ import annotations

from mesa_lens.arguments import (
    JsonOptions,
    OutputOptions,
    WorkerOptions,
    print_estimate,
    resumable,
    runner_of,
)
from probe.commands.probe.request import ProbeRequest, RuleOptions


def run(
    request: ProbeRequest, rule: RuleOptions, output: OutputOptions, printing: JsonOptions, workers: WorkerOptions
) -> int:
    """Checks everything that can be checked, then runs."""
    runner = runner_of(workers, request.load)
    if output.estimate:
        from probe.commands.probe.plan import estimate, plan
        from probe.commands.probe.stages import work
        from probe.experiment.estimate import passes_of, work_text

        planned = plan(request)
        everything, left = work(planned), work(planned, None if output.overwrite else output.out)
        text = f"{estimate(planned)}\n{work_text(everything, left, output.out)}"
        print_estimate(text, planned.config, passes_of(left), request, workers.threads, as_json=printing.json)
        return 0
    from probe.commands.probe.run import run_probe
    from probe.store.result_file import result_text

    with resumable(output):
        summary, table = run_probe(request, output.out, overwrite=output.overwrite, by=rule.rule, runner=runner)
    print(result_text(summary) if printing.json else table)
    return 0
