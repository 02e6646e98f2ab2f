"""lm-evaluation-harness on a model with a method attached."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import mesa
from mesa.methods import Method
from mesa.models import Loaded


def harness() -> Any:
    """The module lm_eval; ValueError says how to get it where it is missing."""
    try:
        return importlib.import_module("lm_eval")
    except ImportError as error:
        raise ValueError(f"--harness needs lm-evaluation-harness ({error}); pip install 'mesa-lens[eval]'") from error


def check_tasks(tasks: Sequence[str], include_path: Path | None) -> Any:
    """lm-eval's task manager; ValueError for a task that it does not know."""
    harness()
    if include_path is not None and not include_path.is_dir():
        raise FileNotFoundError(f"--include-path {include_path} is not a folder")
    manager = importlib.import_module("lm_eval.tasks").TaskManager(
        include_path=None if include_path is None else str(include_path)
    )
    unknown = [task for task in tasks if not manager.match_tasks([task])]
    if unknown:
        raise ValueError(
            f"lm-eval knows no task {unknown[0]!r}; `lm-eval ls tasks` lists them, --include-path adds yours"
        )
    return manager


def run_harness(
    loaded: Loaded,
    methods: dict[str, Method],
    tasks: Sequence[str],
    *,
    manager: Any,
    max_length: int,
    limit: int | None = None,
    executor: str = "fused",
) -> dict[str, dict[str, Any]]:
    """lm-eval's results by method: task, then metric. One prompt at a time.

    max_length: tokens that a prompt may have; lm-eval cuts longer ones on the left. A batch is one prompt, because
    methods whose structure follows the length would take padding for prompt.
    """
    lm_eval = harness()
    models = importlib.import_module("lm_eval.models.huggingface")
    found = {}
    for name, method in methods.items():
        with mesa.applied(loaded.model, method, executor=executor):
            model = models.HFLM(
                pretrained=loaded.model,
                tokenizer=loaded.tokenizer,
                batch_size=1,
                max_length=max_length,
                backend="causal",
            )
            results = lm_eval.simple_evaluate(
                model=model, tasks=list(tasks), task_manager=manager, limit=limit, log_samples=False, verbosity="ERROR"
            )
        found[name] = {
            task: {key: value for key, value in scores.items() if "," in key and isinstance(value, int | float)}
            for task, scores in results["results"].items()
        }
    return found
