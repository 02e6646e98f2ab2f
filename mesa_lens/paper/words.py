"""What a section's numbers say, as sentences, and lm-eval's as a table; no torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from probe.evaluation.effective import effective_table
from probe.evaluation.summary import Table, key_words, longppl_table, measure, of_methods, places


def words(result: Mapping[str, Any]) -> list[str]:
    """What the numbers say at the longest length, task by task, for the first metric."""
    sentences = []
    cells = of_methods(result["cells"])
    for task in dict.fromkeys(cell["task"] for cell in cells):
        of_task = [cell for cell in cells if cell["task"] == task]
        longest = max(cell["length"] for cell in of_task)
        last = [cell for cell in of_task if cell["length"] == longest]
        last = [cell for cell in last if cell["metric"] == last[0]["metric"]]
        means = ", ".join(f"{cell['method']} {cell['mean']:z.{places(last)}f}" for cell in last)
        ratio = longest / result["trained_length"]
        sentences.append(f"{measure(last[0])} at {longest} tokens ({ratio:.3g} M): {means}.")
    sentences += [f"{task}: {size}." for task, size in result.get("sizes", {}).items()]
    sentences += key_words(result)
    left_out = [f"{task} under {method} at {length}" for task, method, length in result["out_of_memory"]]
    if left_out:
        sentences.append(f"Did not fit in memory: {', '.join(left_out)}.")
    if failed := result.get("failed"):
        sentences.append(f"Cells that no worker could finish: {len(failed)}.")
    if result["tasks_left"]:
        sentences.append(f"Cells that are not run yet: {result['tasks_left']}.")
    return sentences


def summed_up(result: Mapping[str, Any]) -> list[Table]:
    """The tables of effective lengths and of LongPPL, where the tasks were run."""
    tables = (effective_table(result["effective"]), longppl_table(result["longppl"]))
    return [table for table in tables if table]


def harness_table(result: Mapping[str, Any]) -> Table:
    """lm-eval's scores, a row a method and task."""
    rows = (
        (method, task, ", ".join(f"{key} {value:.4g}" for key, value in scores.items() if "," in key))
        for method, tasks in result["results"].items()
        for task, scores in tasks.items()
    )
    return Table("lm-eval", ("method", "task", "scores"), tuple(rows))
