"""lm-evaluation-harness on a model with a method attached."""

from __future__ import annotations

import contextlib
import importlib
import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import mesa
from mesa.fingerprints import IDENTITY
from mesa.finite import states_checked
from mesa.models import load, tokenizer_of
from probe.evaluation.journal import Journal
from probe.evaluation.plan import EvalPlan
from probe.evaluation.run import checked_journal
from probe.files import write
from probe.ownership import owned

JOURNAL, RESULTS = "harness.jsonl", "harness.json"


def harness() -> Any:
    """The module lm_eval; ValueError says how to get it where it is missing."""
    try:
        return importlib.import_module("lm_eval")
    except ImportError as error:
        raise ValueError(f"--harness needs lm-evaluation-harness ({error}); pip install 'mesa-lens[eval]'") from error


def check_tasks(tasks: Sequence[str], include_path: Path | None, metadata: Mapping[str, Any]) -> Any:
    """lm-eval's task manager, with which all `tasks` can be built; they fetch or make their data here.

    Raises ValueError for a task that lm-eval does not know or that lacks a package, FileNotFoundError without the
    folder. `metadata` is for tasks that make their own prompts, as RULER's.
    """
    harness()
    if include_path is not None and not include_path.is_dir():
        raise FileNotFoundError(f"--include-path {include_path} is not a folder")
    manager = importlib.import_module("lm_eval.tasks").TaskManager(
        include_path=None if include_path is None else str(include_path), metadata=dict(metadata)
    )
    unknown = [task for task in tasks if not manager.match_tasks([task])]
    if unknown:
        raise ValueError(
            f"lm-eval knows no task {unknown[0]!r}; `lm-eval ls tasks` lists them, --include-path adds yours"
        )
    for task in tasks:
        try:
            manager.load([task])
        except ImportError as error:
            reason = str(error).partition("\n")[0]
            raise ValueError(f"lm-eval's {task} lacks a package: {reason}; pip install 'mesa-lens[eval]'") from error
    return manager


@contextlib.contextmanager
def checked_tasks(made: EvalPlan, tasks: Sequence[str], include_path: Path | None) -> Iterator[Any]:
    """`check_tasks` for a plan's tokenizer and lengths; the manager serves inside the context."""
    with tempfile.TemporaryDirectory() as folder:  # lm-eval would load a tokenizer by name, with remote code
        tokenizer_of(made.request.model, **made.request.source).save_pretrained(folder)
        yield check_tasks(tasks, include_path, {"tokenizer": folder, "max_seq_lengths": list(made.setting.lengths)})


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
) -> dict[str, Any]:
    """Runs what is missing in the folder `out`, task by task; writes and returns harness.json.

    lm-eval cuts prompts to the plan's longest length, on the left; tasks that make their own take all its lengths. A
    batch is one prompt, because methods whose structure follows the length would take padding for prompt. Errors as
    for `check_tasks` and `probe.evaluation.run.run`.
    """
    with contextlib.ExitStack() as stack:
        stack.enter_context(owned(out))
        manager = None
        if overwrite:  # nothing is removed for a run that cannot be
            manager = stack.enter_context(checked_tasks(made, tasks, include_path))
            remove_results(out)
        journal = open_harness(made, out, include_path=include_path, limit=limit)
        longest = max(made.setting.lengths)
        cells = [(task, name, longest) for name in made.methods for task in tasks]
        missing = [cell for cell in cells if cell not in journal.rows]
        journal.expect(len(journal.rows) + len(missing))
        if missing:
            manager = manager or stack.enter_context(checked_tasks(made, tasks, include_path))
            _run_cells(made, missing, manager, limit, journal)
    found = {name: {} for name in made.methods}
    for cell in cells:
        found[cell[1]].update(journal.rows[cell]["results"])
    written = {"model": made.request.model, "max_length": longest, "limit": limit, **journal.told, "results": found}
    write(out / RESULTS, (json.dumps(written, indent=1) + "\n").encode())
    return written


def _run_cells(
    made: EvalPlan, missing: Sequence[tuple[str, str, int]], manager: Any, limit: int | None, journal: Journal
) -> None:
    loaded = load(made.request.model, **made.request.load)
    models = importlib.import_module("lm_eval.models.huggingface")
    for task, name, longest in missing:
        method = made.methods[name]
        with mesa.applied(loaded.model, method, executor=made.request.executor), states_checked(loaded.model):
            model = models.HFLM(
                pretrained=loaded.model,
                tokenizer=loaded.tokenizer,
                batch_size=1,
                max_length=longest,
                backend="causal",
            )
            results = harness().simple_evaluate(
                model=model, tasks=[task], task_manager=manager, limit=limit, log_samples=False, verbosity="ERROR"
            )
        scores = {
            part: {key: value for key, value in scores.items() if isinstance(value, int | float)}
            for part, scores in results["results"].items()
        }
        journal.add((task, name, longest), {"config": method.describe(), "results": scores})
