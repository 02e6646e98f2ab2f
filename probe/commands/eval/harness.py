"""lm-eval's tasks under methods: what lm-eval cuts is counted, what it leaves to chance is decided. Needs lm_eval."""

from __future__ import annotations

import atexit
import functools
import importlib
import sys
import tempfile
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from transformers import GenerationConfig

import mesa
from mesa.device import states_checked
from mesa.errors import NotFound, Refused, install_command
from mesa.fingerprints import IDENTITY, fingerprint_of_file
from mesa.models import Loaded, bytes_a_number, tokenizer_of
from probe.capture.memory import prompt_bytes, scores_bytes
from probe.commands.eval import HarnessOptions
from probe.commands.eval.page import HARNESS_SCORES, HarnessScores
from probe.eval_tasks.base import EvalKey
from probe.evaluation import EvalPlan, eval_key
from probe.experiment.journal import JournalRows, recorded
from probe.experiment.pool import LOCAL, MeasureTask, Runner, Task
from probe.experiment.run import Experiment, PlanWorker, origin_of, run
from probe.files import JsonObject, checksum
from probe.run_folder import journals, recorded as recorded_run


def harness(module: str = "") -> Any:
    """The package lm_eval, untyped, or a module of it; Refused says how to get it where it is missing."""
    try:
        return importlib.import_module(f"lm_eval{module}")
    except ImportError as error:
        raise Refused(f"--harness needs lm-evaluation-harness ({error}); {install_command('eval')}") from error


_utils = harness(".models.utils")
HFLM: Any = harness(".models.huggingface").HFLM
_GENERATED = 256  # tokens, of a task that states none
_ENDS = ("bos_token_id", "eos_token_id", "pad_token_id")
_CODE = (".yaml", ".yml", ".py")


class HarnessModel(HFLM):
    """A loaded model whose prompts have `longest` tokens at most; longer ones are cut on the left, and counted.

    Unlike lm-eval's own: a rolling loss does not score the first token after itself (its issue 3333), log-likelihoods
    are summed in float32, and decoding follows the task alone, not the checkpoint's generation_config.json.
    """

    def __init__(self, loaded: Loaded, longest: int) -> None:
        options: dict[str, Any] = {"batch_size": 1, "backend": "causal", "softmax_dtype": "float32"}
        super().__init__(pretrained=loaded.model, tokenizer=loaded.tokenizer, max_length=longest, **options)
        self._documents, self._cut = defaultdict[str, set[int]](set), defaultdict[str, set[int]](set)
        self._requests: Sequence[Any] = ()  # of what is scored now, but for a rolling loss
        self._is_rolling = False

    def counts(self, task: str) -> dict[str, int]:
        """How many documents of a task were read, and of how many a prompt was cut; empty where none was."""
        if task not in self._documents:
            return {}
        return {"documents": len(self._documents[task]), "documents_cut": len(self._cut[task])}

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **options: Any) -> list[int]:
        """Token ids; of a rolling loss without the first token, which lm-eval puts there itself."""
        if not self._is_rolling:
            return super().tok_encode(string, add_special_tokens, **options)
        ids = super().tok_encode(string, False, **options)
        return ids[1:] if ids[:1] == [self.prefix_token_id] else ids

    def loglikelihood(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
        """As lm-eval's. Raises Refused, before any pass, for an answer without tokens or beyond the longest length."""
        for request in requests:
            if not request.args[1]:
                raise _no_tokens(request, "an answer")
        self._requests = requests
        return super().loglikelihood(list(requests), disable_tqdm)

    def _loglikelihood_tokens(self, requests: Sequence[Any], *args: Any, **options: Any) -> list[tuple[float, bool]]:
        if not self._is_rolling:
            for request, (_, context, answer) in zip(self._requests, requests, strict=True):
                if not answer:
                    raise _no_tokens(request, "an answer")
                if len(answer) > self.max_length:
                    raise Refused(
                        f"document {request.doc_id} of lm-eval's {request.task_name} has an answer of {len(answer)} "
                        f"tokens, above the longest length, {self.max_length}; take longer --lengths"
                    )
                self._count(request, len(context) + len(answer) > self.max_length + 1)
        return super()._loglikelihood_tokens(list(requests), *args, **options)

    def loglikelihood_rolling(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[float]:
        """As lm-eval's: windows of the longest length, each of which scores its own tokens; nothing is cut."""
        for request in requests:
            self._count(request, False)
        self._is_rolling = True
        try:
            return super().loglikelihood_rolling(list(requests), disable_tqdm)
        finally:
            self._is_rolling = False

    def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[str]:
        """As lm-eval's, decoded as the task says. Raises Refused, before any pass, for a prompt without tokens."""
        for request in requests:
            prompt, stated = request.args
            if not (ids := self.tok_encode(prompt)):
                raise _no_tokens(request, "a prompt")
            self._count(request, len(ids) > room(request.task_name, stated, self.max_length))
        former: GenerationConfig = self.model.generation_config
        stated = former.to_diff_dict()
        known = {name: stated[name] for name in _ENDS if name in stated}
        _warn_left_out(", ".join(f"{name}={value}" for name, value in _decoding(stated).items()))
        self.model.generation_config = GenerationConfig(**known)
        try:
            return super().generate_until(list(requests), disable_tqdm)
        finally:
            self.model.generation_config = former

    def _count(self, request: Any, is_cut: bool) -> None:
        self._documents[request.task_name].add(request.doc_id)
        if is_cut:
            self._cut[request.task_name].add(request.doc_id)


def room(task: str, stated: Mapping[str, Any], longest: int) -> int:
    """Tokens of a prompt in addition to those that are generated. stated: the task's generation_kwargs.

    Raises Refused where there are none, and for a `max_length`, which would hold for both together.
    """
    if "max_length" in stated:
        raise Refused(f"lm-eval's {task} states max_length; give max_gen_toks in its task file, tokens of an answer")
    generated = _utils.normalize_gen_kwargs(dict(stated), _GENERATED)["max_gen_toks"]
    if generated >= longest:
        raise Refused(
            f"lm-eval's {task} generates {generated} tokens (max_gen_toks), which leaves no room for a prompt in the "
            f"longest length, {longest}; take longer --lengths"
        )
    return longest - generated


def check_tokenizer(model: str, tokenizer: Any, *, generates: bool) -> None:
    """Raises Refused for a tokenizer with which lm-eval fails, or scores other tokens than a task's answer."""
    if tokenizer.eos_token_id is None and (generates or tokenizer.bos_token_id is None):
        raise Refused(f"the tokenizer of {model} has no end token (eos), which lm-eval needs; state it in its files")
    plain, ids = (tokenizer("a", add_special_tokens=special)["input_ids"] for special in (False, True))
    if ids[-1:] != plain[-1:]:
        raise Refused(
            f"the tokenizer of {model} puts {tokenizer.decode(ids[-1:])!r} after every text, and lm-eval would take it "
            "for a part of each prompt; turn that off in its files (add_eos_token)"
        )


def _decoding(stated: Mapping[str, Any]) -> dict[str, Any]:
    """The numbers that a generation config states of decoding, its end tokens aside."""
    return {
        name: value
        for name, value in stated.items()
        if name not in _ENDS and isinstance(value, int | float | list) and not isinstance(value, bool)
    }


@cache
def _warn_left_out(stated: str) -> None:
    """Says on stderr, once, what of a checkpoint's generation config is not followed."""
    if stated:
        sys.stderr.write(f"lm-eval's tasks say how to decode; left out of generation_config.json: {stated}\n")


def _no_tokens(request: Any, what: str) -> Refused:
    return Refused(
        f"document {request.doc_id} of lm-eval's {request.task_name} has {what} without tokens; change its task file"
    )


JOURNAL, RESULTS = "harness.jsonl", HARNESS_SCORES.path.name
SCORED = 2
"""Version of how lm-eval's tasks are scored; raised with every change that gives other scores of the same settings."""


def run_harness(
    plan: EvalPlan,
    names: Sequence[str],
    out: Path,
    *,
    include_path: Path | None = None,
    limit: int | None = None,
    overwrite: bool = False,
    runner: Runner = LOCAL,
) -> HarnessScores:
    """Runs what is missing of the tasks `names` in the folder `out`; writes and returns harness.json.

    lm-eval cuts prompts to the plan's longest length, on the left, which is counted; tasks that build their prompts
    take all its lengths.
    A batch is one prompt, because methods whose structure follows the length would take padding for prompt. What no
    worker could finish is in `failed`. Raises what `checked_tasks` and `probe.experiment.run.run` raise.
    """
    experiment = Harness(plan, names, include_path, limit)
    journal, lost = run(experiment, out, overwrite=overwrite, runner=runner)
    results: dict[str, JsonObject] = {name: {} for name in plan.methods}
    for key in experiment.keys:
        if key in journal.rows:
            results[key.method].update(journal.rows[key]["results"])
    failed = [eval_key(task) for task in lost]
    scores = HarnessScores(plan.request.model, max(plan.setting.lengths), results, limit, failed, origin_of(plan))
    HARNESS_SCORES.write(out, scores)
    return scores


class Harness(Experiment):
    """Every (lm-eval task, method, longest length). include_path: folder of further tasks; limit: documents a task."""

    title, journal, written, needed = "running lm-eval", JOURNAL, (RESULTS,), ("results",)
    columns = EvalKey

    def __init__(self, plan: EvalPlan, names: Sequence[str], include_path: Path | None, limit: int | None) -> None:
        self.plan, self.names, self.include_path, self.limit = plan, names, include_path, limit
        longest = max(plan.setting.lengths)
        self.keys = [EvalKey(name, method, longest) for method in plan.methods for name in names]

    @property
    def worker(self) -> HarnessWorker:
        """What measures the tasks, which are checked first."""
        checked_tasks(self.plan, self.names, self.include_path)
        return HarnessWorker.of(self.plan, include_path=self.include_path, limit=self.limit)

    @property
    def settings(self) -> JsonObject:
        """As for Experiment."""
        plan = self.plan
        settings = {name: plan.settings[name] for name in ("model", *IDENTITY, "trained_length", "executor")}
        settings |= {"lengths": plan.setting.lengths, "scored": SCORED}
        settings |= {key: value for key, value in plan.request.load.items() if value is not None}
        sums = _sums_of_tasks(self.include_path) if self.include_path else []
        settings |= {"lm_eval": version("lm_eval"), "tasks": checksum(sums)}
        return settings | {"include_path": self.include_path and str(self.include_path), "limit": self.limit}

    @property
    def request(self) -> dict[str, list[str]]:
        """As for Experiment."""
        return recorded(self.plan.request, HarnessOptions(False, tuple(self.names), self.include_path, self.limit))

    def tasks(self, rows: JournalRows) -> Sequence[Task]:
        """Those without a row, with the memory of one prompt and the logits of all its tokens."""
        config, tokens = self.plan.config, max(self.plan.setting.lengths)
        number = bytes_a_number(config, self.plan.request.load)
        size = prompt_bytes(config, tokens, number) + tokens * config.vocab_size * (number + 4)  # and in float32
        size += scores_bytes(config, tokens, self.plan.request.executor)
        return [Task("harness", key, size, size) for key in self.keys if key not in rows]


def _sums_of_tasks(folder: Path) -> list[tuple[str, str]]:
    """Names and sums of files below a folder of tasks: data too, but no hidden ones, caches of Python, or runs."""
    there = [path.relative_to(folder) for path in sorted(folder.rglob("*")) if path.is_file()]
    there = [path for path in there if not any(part[0] == "." or part == "__pycache__" for part in path.parts)]
    runs = {path.parent for path in there if path.name in journals() and recorded_run(folder / path)}
    there = [path for path in there if path.suffix in _CODE or runs.isdisjoint(path.parents)]
    return [(path.as_posix(), fingerprint_of_file(folder / path)) for path in there]


@dataclass(frozen=True)
class HarnessWorker(PlanWorker):
    """A plan, the model, the folder of further tasks, and documents a task."""

    include_path: Path | None
    limit: int | None

    def start(self, memory_bytes: int | None = None) -> MeasureTask:
        """Loads the model; a task gives its journal row."""
        loaded = self.source.loaded()

        def row(task: Task) -> JsonObject:
            name, method, _ = eval_key(task)
            return {"results": self._scores(loaded, name, method)}

        return row

    def _scores(self, loaded: Loaded, name: str, method: str) -> dict[str, JsonObject]:
        """lm-eval's numbers, by part of the task."""
        model, executor = loaded.model, self.plan.request.executor

        with mesa.applied(model, self.plan.methods[method], executor=executor), states_checked(model):
            wrapped = HarnessModel(loaded, max(self.plan.setting.lengths))
            evaluated = harness().simple_evaluate(
                model=wrapped,
                tasks=[name],
                task_manager=_manager_of(self.plan, self.include_path),
                limit=self.limit,
                log_samples=False,
                verbosity="ERROR",
            )
        shots = evaluated["n-shot"]
        return {
            part: {key: value for key, value in scores.items() if isinstance(value, int | float)}
            | ({"shots": shots[part]} if part in shots else {})
            | wrapped.counts(part)
            for part, scores in evaluated["results"].items()
        }


def checked_tasks(plan: EvalPlan, tasks: Sequence[str], include_path: Path | None) -> Any:
    """lm-eval's task manager, with which all `tasks` can be built; they fetch or make their data here.

    Raises Refused for a task that lm-eval does not know, that lacks a package, needs images or runs code of the model,
    or that generates as many tokens as the longest length; FileNotFoundError without the folder.
    """
    harness()
    if include_path is not None and not include_path.is_dir():
        raise NotFound(f"--include-path {include_path} is not a folder")
    manager = _manager_of(plan, include_path)
    for task in tasks:
        if not manager.match_tasks([task]):
            raise Refused(f"lm-eval knows no task {task!r}; `lm-eval ls tasks` lists them, --include-path adds yours")
        try:
            parts = manager.load([task])["tasks"]
        except ImportError as error:
            reason = str(error).partition("\n")[0]
            raise Refused(f"lm-eval's {task} lacks a package: {reason}; {install_command('eval')}") from error
        _check_parts(plan, parts)
    return manager


def _check_parts(plan: EvalPlan, parts: Mapping[str, Any]) -> None:
    """Raises Refused for what lm-eval would fail at only after the model is loaded, or run into another number."""

    generating = {name: part.config for name, part in parts.items() if part.OUTPUT_TYPE == "generate_until"}
    for name, part in parts.items():
        if getattr(part, "MULTIMODAL", False):
            raise Refused(f"lm-eval's {name} needs a model of images; take a task of text")
        if getattr(part, "UNSAFE_CODE", False):
            raise Refused(
                f"lm-eval's {name} runs code that the model writes, which is not done here; take another task"
            )
    for name, config in generating.items():
        room(name, config.generation_kwargs or {}, max(plan.setting.lengths))
    tokenizer = tokenizer_of(plan.request.model, **plan.request.source)
    check_tokenizer(plan.request.model, tokenizer, generates=bool(generating))


def _manager_of(plan: EvalPlan, include_path: Path | None) -> Any:
    request = plan.request
    return _manager(include_path, request.model, tuple(request.source.items()), plan.setting.lengths)


@functools.cache  # it takes seconds
def _manager(include_path: Path | None, model: str, source: tuple[tuple[str, Any], ...], lengths: Sequence[int]) -> Any:
    """lm-eval's task manager. lengths: of tasks that make their own prompts, as RULER's.

    The tokenizer is a copy: lm-eval would load one by name, with remote code.
    """
    folder = tempfile.TemporaryDirectory()
    atexit.register(folder.cleanup)
    tokenizer_of(model, **dict(source)).save_pretrained(folder.name)
    return importlib.import_module("lm_eval.tasks").TaskManager(
        include_path=include_path and str(include_path),
        metadata={"tokenizer": folder.name, "max_seq_lengths": list(lengths)},
    )
