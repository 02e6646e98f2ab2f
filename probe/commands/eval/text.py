"""What a summary's numbers say, as sentences and tables, and lm-eval's as a table; no torch."""

from __future__ import annotations

from probe.commands.eval.result import Evaluated, HarnessScores
from probe.commands.eval.summary import measure, of_methods, places
from probe.tables import Table


def sentences(result: Evaluated) -> list[str]:
    """What the numbers say at the longest length, task by task, for the first metric."""
    text = []
    cells = of_methods(result.cells)
    for task in dict.fromkeys(cell.task for cell in cells):
        of_task = [cell for cell in cells if cell.task == task]
        longest = max(cell.length for cell in of_task)
        last = [cell for cell in of_task if cell.length == longest]
        last = [cell for cell in last if cell.metric == last[0].metric]
        means = ", ".join(f"{cell.method} {cell.mean:z.{places(last)}f}" for cell in last)
        text.append(f"{measure(last[0])} at {longest} tokens ({longest / result.trained_length:.3g} M): {means}.")
    text += notes(result)
    if result.out_of_memory:
        left_out = ", ".join(f"{task} under {method} at {length}" for task, method, length in result.out_of_memory)
        text.append(f"Did not fit in memory: {left_out}.")
    if result.failed:
        text.append(f"Cells that no worker could finish: {len(result.failed)}.")
    if result.tasks_left:
        text.append(f"Cells that are not run yet: {result.tasks_left}.")
    return text


def notes(result: Evaluated) -> list[str]:
    """The sizes of tasks, as sentences."""
    return [f"{task}: {size}." for task, size in result.sizes.items()]


def harness_table(result: HarnessScores) -> Table:
    """lm-eval's scores, a row a method and task."""
    rows = (
        (method, task, ", ".join(f"{key} {value:.4g}" for key, value in scores.items() if "," in key))
        for method, tasks in result.results.items()
        for task, scores in tasks.items()
    )
    return Table("lm-eval", ("method", "task", "scores"), tuple(rows))
