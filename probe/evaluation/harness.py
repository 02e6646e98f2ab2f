"""lm-evaluation-harness on a model with a method attached: its tasks, cell by cell into a journal."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import Any

from mesa.fingerprints import IDENTITY
from probe.cells.pool import Pool
from probe.cells.runner import LOCAL, Runner
from probe.evaluation.harness_work import HarnessWork, checked_tasks, harness_cells
from probe.evaluation.journal import Journal
from probe.evaluation.journaled import run_journaled
from probe.evaluation.plan import EvalPlan
from probe.evaluation.run import checked_journal
from probe.files import write_json
from probe.ownership import owned, tell_finished

JOURNAL, RESULTS = "harness.jsonl", "harness.json"


def open_harness(made: EvalPlan, out: Path, *, include_path: Path | None, limit: int | None) -> Journal:
    """The folder's journal. Raises FileExistsError for one of other settings, or with other sizes of a method."""
    ours = made.settings
    settings = {name: ours[name] for name in ("model", *IDENTITY, "trained_length", "executor")}
    settings["lengths"] = made.setting.lengths
    placed = {key: value for key, value in made.request.load.items() if value is not None}
    where = None if include_path is None else str(include_path)
    settings |= {**placed, "include_path": where, "limit": limit}
    return checked_journal(out / JOURNAL, settings, made.methods, made.request.force)


def remove_results(out: Path) -> None:
    """Removes what `run_harness` writes into the folder `out`."""
    for name in (JOURNAL, RESULTS):
        (out / name).unlink(missing_ok=True)


def run_harness(
    made: EvalPlan,
    tasks: Sequence[str],
    out: Path,
    *,
    include_path: Path | None = None,
    limit: int | None = None,
    overwrite: bool = False,
    runner: Runner = LOCAL,
) -> dict[str, Any]:
    """Runs what is missing in the folder `out`, task by task; writes and returns harness.json.

    lm-eval cuts prompts to the plan's longest length, on the left; tasks that make their own take all its lengths. A
    batch is one prompt, because methods whose structure follows the length would take padding for prompt. What no
    worker of the `runner` could finish is in `failed`. Errors as for `check_tasks` and `probe.evaluation.run.run`.
    """
    runner.check(made.request.load)
    longest = max(made.setting.lengths)
    cells = [(task, name, longest) for name in made.methods for task in tasks]
    with ExitStack() as stack:
        stack.enter_context(owned(out))

        @cache
        def pool() -> Pool:
            work = HarnessWork.of(
                made, include_path, limit, stack.enter_context(checked_tasks(made, tasks, include_path))
            )
            return stack.enter_context(runner.pool(work, harness_cells(made, cells)))

        if overwrite:  # nothing is removed for a run that cannot be
            pool()
            remove_results(out)
        journal = open_harness(made, out, include_path=include_path, limit=limit)
        missing = [cell for cell in cells if cell not in journal.rows]
        journal.expect(len(journal.rows) + len(missing))
        if not missing:
            tell_finished(out)
        lost = run_journaled(pool(), harness_cells(made, missing), journal, "running lm-eval") if missing else []
    found = {name: {} for name in made.methods}
    for cell in cells:
        if cell in journal.rows:
            found[cell[1]].update(journal.rows[cell]["results"])
    about = {"model": made.request.model, "max_length": longest, "limit": limit, "failed": [cell.key for cell in lost]}
    written = {**about, **journal.told, "results": found}
    write_json(out / RESULTS, written)
    return written
