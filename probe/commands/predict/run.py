"""`mesa-lens predict` from its request to its report: passes, their losses in a journal, and what follows from them."""

import math
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

import mesa
from mesa.device import states_checked
from mesa.engine.structure import acting_layers
from mesa.errors import Refused
from mesa.fingerprints import ids_fingerprint
from mesa.methods import Method, Origin, make
from mesa.models import bytes_a_number, tokenizer_of
from mesa.plan import follows_length, query_scales, relative_positions
from mesa.support import check_method
from probe.capture.memory import check_prompts, peak_bytes, scores_bytes
from probe.commands.predict import PredictRequest, formula, result
from probe.commands.predict.formula import LOG_N, ORIGIN, QUERIES, REFERENCE, Law, Losses
from probe.commands.predict.page import prediction_chart, sections, title
from probe.commands.predict.result import Prediction
from probe.eval_tasks.retrieval import first_ids
from probe.eval_tasks.score import documents_of, logits_bytes, nll, text_windows
from probe.eval_tasks.sources import TextSource
from probe.experiment.estimate import estimated
from probe.experiment.journal import JournalRows
from probe.experiment.lock import owned
from probe.experiment.pool import LOCAL, Key, MeasureTask, Runner, Task
from probe.experiment.run import CommandResult, Experiment, PlanWorker, origin_of, run as run_plan, settings_of
from probe.figures.export import rendered
from probe.figures.section import as_text, page
from probe.files import JsonObject, write as write_file
from probe.store.result_file import or_nan
from probe.thresholds.stated_window import NATS_ABOVE

GAP_TOKENS = 4096
"""A calibration prompt has M tokens, and no more than these."""
_TIMES = (1.25, 1.5, 2, 3, 4, 6, 8)
_PART = 16  # tokens, of which runs are compared


@dataclass(frozen=True)
class PlannedPass:
    """A prompt under a method. scored: how many of its last tokens are scored."""

    method: Method
    length: int
    scored: int


@dataclass(frozen=True)
class PredictPlan:
    """A request, checked. methods: by name; refused: those that nothing is predicted of, and why. texts: token ids."""

    request: PredictRequest
    config: Any
    trained_length: int
    lengths: tuple[int, ...]
    methods: dict[str, Method]
    refused: dict[str, str]
    texts: tuple[np.ndarray, ...]
    text_source: TextSource

    @property
    def longest(self) -> int:
        """The longest prompt, in tokens."""
        return max(self.lengths)

    @property
    def gap_tokens(self) -> int:
        """Tokens of a calibration prompt."""
        return min(self.trained_length, GAP_TOKENS)

    @cached_property
    def passes(self) -> dict[formula.PassAt, PlannedPass]:
        """Every pass over a text, by the name of its method and its tokens."""
        trained, longest, tokens = self.trained_length, self.longest, self.gap_tokens
        predicted = {name: method for name, method in self.methods.items() if name not in self.refused}
        fixed = {ORIGIN: make(ORIGIN, trained), REFERENCE: make(REFERENCE, trained)}
        if any((query_scales(method.plan(longest)) != 1).any() for method in predicted.values()):
            fixed[LOG_N] = make(ORIGIN, trained, log_n=True)
        passes = {(name, longest): PlannedPass(method, longest, longest - 1) for name, method in fixed.items()}
        for name, method in (
            formula.gap_methods(trained, tokens, longest) | formula.moved_methods(trained, tokens, longest)
        ).items():
            passes[name, tokens] = PlannedPass(method, tokens, tokens // 4)
        for name, method in {ORIGIN: fixed[ORIGIN], **predicted}.items():
            passes[name, trained] = PlannedPass(method, trained, trained // 4)
        for name, method in self.methods.items() if self.request.check else ():
            for length in self.checked_lengths(method):
                scored = length - 1 if length == longest else trained // 4
                passes.setdefault((name, length), PlannedPass(method, length, scored))
        return passes

    def checked_lengths(self, method: Method) -> tuple[int, ...]:
        """The prompts that measure a method: the longest alone, where a shorter one is its beginning."""
        full = method.plan(self.longest)
        for length in self.lengths:
            plan, queries = method.plan(length), formula.scored_queries(length, self.trained_length, 4)
            keys = np.arange(length)
            same = np.array_equal(relative_positions(plan, queries, keys), relative_positions(full, queries, keys))
            if not same or (length < self.longest and follows_length(plan, full)):
                return self.lengths
        return (self.longest,)

    @property
    def settings(self) -> JsonObject:
        """Everything that losses depend on in addition to method, length and text, as JSON."""
        return settings_of(self, self.longest, documents=ids_fingerprint(self.texts))


def plan(request: PredictRequest) -> PredictPlan:
    """Checks the request and cuts the texts. Raises Refused or FileNotFoundError, naming the value."""
    config, trained = request.checked_model()
    lengths = tuple(
        sorted({round(trained * times) for times in _TIMES} if request.lengths is None else {*request.lengths})
    )
    if lengths[0] <= trained:
        raise Refused(f"--lengths {lengths[0]} is not beyond the trained length {trained}; nothing is predicted there")
    if lengths[-1] < (least := trained + min(trained, GAP_TOKENS)):
        raise Refused(
            f"--lengths up to {lengths[-1]}: the longest must be at least {least}, so that gaps of M/2 and of M "
            "tokens, which p is fitted to, give no distance that Origin does not have there"
        )
    if trained < 16:
        raise Refused(f"--trained-length {trained} is below 16, too short for the calibration")
    if request.samples < 2:
        raise Refused(f"--samples {request.samples}: one text has no interval; give at least 2")
    check_prompts(lengths[-1], request.samples)
    methods = {ORIGIN: make(ORIGIN, trained), **request.checked_methods(config, trained)}
    for name in (ORIGIN, REFERENCE):  # their losses are what predictions rest on
        if methods.get(name, make(name, trained)) != make(name, trained):
            raise Refused(
                f"--set gives {name} parameters, but predictions rest on it as it is; give the variant a line of its "
                f"own, such as --config {name}:log_n=true"
            )
    for method in methods.values():
        check_method(config, method)
    refused = {name: reason for name, method in methods.items() if (reason := unsupported_reason(method))}
    tokenizer = tokenizer_of(request.model, **request.source)
    first = np.array(first_ids(tokenizer), np.int64)
    documents, text_source = documents_of(tokenizer, request.text)
    needed = lengths[-1] - len(first)
    windows = text_windows(documents, needed, request.samples, scored=needed)  # without overlap
    if len(windows) < 2:
        raise Refused(f"the text holds one run of {lengths[-1]} tokens; give a longer --text or shorter --lengths")
    parts = [window[at : at + _PART].tobytes() for window in windows for at in range(0, needed - _PART, _PART)]
    if len({*parts}) < len(parts) / 2:
        raise Refused(
            f"the text repeats itself: of {len(parts)} runs of {_PART} tokens only {len({*parts})} differ, so its "
            "parts are not independent texts; give another --text"
        )
    texts = tuple(np.concatenate([first, window]) for window in windows)
    return PredictPlan(request, config, trained, lengths, methods, refused, texts, text_source)


def unsupported_reason(method: Method) -> str:
    """Why the law says nothing of a method; empty where it does."""
    if method.needs_rotary:
        return "rotary frequencies are changed, and predictions use distances alone"
    if method.layers is not None or method.heads is not None:
        return "some layers or heads alone have the method, and predictions are for all of them"
    return ""


def needed_bytes(plan: PredictPlan) -> int:
    """Estimate of the memory in addition to the weights: a pass at the longest length, and its logits."""
    number_bytes = bytes_a_number(plan.config, plan.request.load)
    logits = logits_bytes(plan.config.vocab_size, plan.longest, number_bytes)
    scores = scores_bytes(plan.config, plan.longest, plan.request.executor)
    return peak_bytes(plan.config, plan.longest, number_bytes, logits + scores)


FOLDER, SUMMARY = result.PREDICTION.path.parts
JOURNAL = "journal.jsonl"
"""The folder of the results below --out, and what is in it next to tables and figures."""
_DIGITS = 4


class PassKey(NamedTuple):
    """What a row of the journal is of: a pass of the plan by its name and length in tokens; text: its number."""

    name: str
    length: int
    text: int


class PredictWorker(PlanWorker):
    """A plan and its model, as plain data."""

    def start(self, memory_bytes: int | None = None) -> MeasureTask:
        """Loads the model; a task gives its journal row."""
        loaded, passes, texts = self.source.loaded(), self.plan.passes, self.plan.texts
        for part in passes.values():
            _check_acts(loaded.model, part.method)

        def row(task: Task) -> JsonObject:
            name, length, text = task.key
            part = passes[name, length]
            with (
                mesa.applied(loaded.model, part.method, executor=self.plan.request.executor),
                states_checked(loaded.model),
            ):
                losses = nll(loaded.model, texts[text][:length], part.scored).double().numpy()
            return {"nll": losses.round(_DIGITS).tolist()}

        return row


def _check_acts(model: Any, method: Method) -> None:
    """Refused, before the first pass, where a method of the calibration would change nothing on a model."""
    if not isinstance(method, Origin) and not acting_layers(model, method):
        raise Refused(
            f"predict rests on distances beyond M = {method.trained_length}, and no layer of this "
            f"{model.config.model_type} model has positions and sees so far ({method.name} would change nothing); "
            "measure with `mesa-lens probe`"
        )


@dataclass(frozen=True)
class Predict(Experiment):
    """Every pass over every text, texts in order: after some time the first ones have all passes."""

    plan: PredictPlan
    title, unit, remedy = "measuring", "token", "shorten --lengths"
    worker_class, columns = PredictWorker, PassKey
    folder, written, needed = FOLDER, (SUMMARY, "prediction.csv", "prediction.png", "prediction.html"), ("nll",)

    def tasks(self, rows: JournalRows) -> Sequence[Task]:
        """Those without a row."""
        memory = needed_bytes(self.plan)
        texts, passes = range(len(self.plan.texts)), self.plan.passes
        missing = [key for text in texts for place in passes if (key := PassKey(*place, text)) not in rows]
        return [Task("nll", key, memory, memory, weight=key.length, length=key.length) for key in missing]

    def method(self, key: Key) -> Method | None:
        """As for Experiment: of the pass."""
        row = PassKey(*key)  # type: ignore[arg-type]
        part = self.plan.passes.get((row.name, row.length))
        return part and part.method


def losses_of(plan: PredictPlan, rows: JournalRows) -> Losses:
    """NLL (text, token) of each pass that was run over every text."""
    texts = range(len(plan.texts))
    return {
        key: np.array([rows[(*key, text)]["nll"] for text in texts])
        for key in plan.passes
        if all((*key, text) in rows for text in texts)
    }


DRAWS = 200
"""Resamplings of the texts for every interval."""
_CURVE = 200  # stored points of Origin's excess


def predict(plan: PredictPlan, losses: Losses) -> Prediction:
    """Everything that follows from the losses of all passes."""
    calibration = formula.Calibration.of(plan.trained_length, plan.gap_tokens, plan.longest, losses)
    weights = formula.resampled(len(plan.texts), DRAWS)
    refusal, law, misfit, draws, factors = calibration.refusal(), None, None, list[Law](), [1.0]
    if not refusal:
        draws = [calibration.law(weight) for weight in weights]
        needed = calibration.needed_factors(draws[0])
        factors += np.random.default_rng(0).choice(needed, DRAWS).tolist()
        law, misfit = _law(calibration, draws, needed), _misfit(calibration, draws[0])
        law = replace(law, kind=formula.kind_of(losses, plan.trained_length, plan.gap_tokens, plan.longest))
    methods = {}
    for name, method in plan.methods.items():
        why, values = plan.refused.get(name, "") or refusal, {}
        if not why:
            why, values = _predicted(plan, losses, name, method, draws, factors, weights)
        if plan.request.check or name == ORIGIN:
            values |= _measured(plan, losses, name)
        methods[name] = result.MethodPrediction(method.describe(), why, **values)
    agreement = _agreements(methods, plan.lengths) if plan.request.check and not refusal else {}
    return replace(started(plan), refusal=refusal, misfit=misfit, methods=methods, law=law, agreement=agreement)


def started(plan: PredictPlan, tasks_left: int = 0) -> Prediction:
    """What is known before everything is measured."""
    request, lengths = plan.request, list(plan.lengths)
    return Prediction(
        model=request.model,
        trained_length=plan.trained_length,
        lengths=lengths,
        texts=len(plan.texts),
        refusal="",
        misfit=None,
        methods={},
        tasks_left=tasks_left,
        origin=origin_of(plan),
        text_source=plan.text_source,
    )


def agreement(methods: Collection[result.MethodPrediction], lengths: Sequence[int]) -> result.Agreement:
    """Predicted against measured excess of these methods."""
    if not methods:
        return result.Agreement(0, 0)
    predicted, measured = (
        np.array([[entry.excess for entry in getattr(row, side)] for row in methods])
        for side in ("predicted", "measured")
    )
    steps = [abs(_step(one, lengths) - _step(other, lengths)) for one, other in zip(predicted, measured, strict=True)]
    errors = predicted - measured
    return result.Agreement(
        methods=len(methods),
        points=errors.size,
        fails=sum(formula.failure_length(lengths, row) is not None for row in measured),
        rms=float(np.sqrt((errors**2).mean())),
        bias=float(errors.mean()),
        auc=or_nan(auc(predicted.ravel(), measured.ravel() >= NATS_ABOVE)),
        exact=sum(step == 0 for step in steps),
        within_one_step=sum(step <= 1 for step in steps),
    )


def _agreements(methods: Mapping[str, result.MethodPrediction], lengths: Sequence[int]) -> dict[str, result.Agreement]:
    both = [row for name, row in methods.items() if name not in (ORIGIN, REFERENCE) and row.predicted and row.measured]
    both = list({str(row.config): row for row in reversed(both)}.values())  # a config that has two names counts once
    return {"those with distances beyond M": agreement(both, lengths)}


def _step(excess: np.ndarray, lengths: Sequence[int]) -> int:
    length = formula.failure_length(lengths, excess)
    return len(lengths) if length is None else list(lengths).index(length)


def auc(scores: np.ndarray, positive: np.ndarray) -> float | None:
    """The share of (positive, negative) pairs in which the positive has the higher score, ties half."""
    above, below = scores[positive], scores[~positive]
    if not len(above) or not len(below):
        return None
    difference = above[:, None] - below[None, :]
    return float(((difference > 0) + (difference == 0) / 2).mean())


def _misfit(calibration: formula.Calibration, law: Law) -> result.Misfit:
    rms = calibration.gap_rms(law)
    return result.Misfit(
        rms, rms >= NATS_ABOVE, "nats/token", len(calibration.gaps), float(calibration.costs()[0].max())
    )


def _law(calibration: formula.Calibration, draws: Sequence[Law], needed: np.ndarray) -> result.FittedLaw:
    first = draws[0]
    raw, controlled = calibration.fit_powers(first.excess, np.ones(calibration.texts))
    positions = np.unique(np.geomspace(1, len(first.excess), _CURVE).round().astype(int)) - 1
    low, high = np.quantile([law.excess[positions] for law in draws[1:]], [0.025, 0.975], axis=0).tolist()
    return result.FittedLaw(
        power=_estimate([law.power for law in draws]),
        power_over_no_gap=raw,
        power_over_masked=controlled,
        scale_power=_estimate([law.scale_power for law in draws]) if calibration.has_log_n else None,
        needed_factors=_ends(needed),
        origin_fails=formula.failure_length(range(calibration.trained_length, calibration.longest), first.excess),
        excess=result.Curve(
            (positions + calibration.trained_length - 1).tolist(), first.excess[positions].tolist(), (low, high)
        ),
        gaps=[
            result.GapCost(*at, value, *costs)
            for at, value, costs in zip(
                calibration.gaps, first.at(calibration.gap_keys).tolist(), calibration.costs().T.tolist(), strict=True
            )
        ],
    )


def _predicted(
    plan: PredictPlan,
    losses: Losses,
    name: str,
    method: Method,
    draws: Sequence[Law],
    factors: Sequence[float],
    weights: Sequence[np.ndarray],
) -> tuple[str, dict[str, Any]]:
    """Why nothing is predicted, else empty; and fields of a `MethodPrediction`: intervals over texts and gaps."""
    trained, longest = plan.trained_length, plan.longest
    inside = [formula.window_means(losses[key, trained], trained, trained, trained) for key in (name, ORIGIN)]
    costs = [float(np.average(inside[0] - inside[1], weights=weight)) for weight in weights]
    grid = formula.length_grid(plan.lengths, trained)
    far = formula.far_keys_by_length(method, grid, QUERIES)
    if any(law.is_beyond(far) for law in draws):
        return f"keys are further away than any of Origin's within {longest} tokens; try longer --lengths", {}
    if not far.sums.any():
        return f"{result.NOT_COVERED} up to {longest} tokens; measure it, since more keys alone can raise the loss", {
            "cost_inside": costs[0]
        }
    excess = np.array([law.at(far, times) + cost for law, times, cost in zip(draws, factors, costs, strict=True)])
    rows = []
    for length in plan.lengths:
        values = excess[:, grid.index(length)]
        level = formula.window_means(losses[REFERENCE, longest], longest, length, trained)
        levels = [float(np.average(level, weights=weight)) for weight in weights]
        rows.append(result.AtLength(length, float(values[0]), _estimate(values).ends, _estimate(values + levels)))
    return "", {
        "cost_inside": costs[0],
        "has_far_keys": True,
        "predicted": rows,
        "failure": _failure([formula.failure_length(grid, row) for row in excess], longest),
    }


def _measured(plan: PredictPlan, losses: Losses, name: str) -> dict[str, Any]:
    """Fields of a `MethodPrediction`, as they were measured: Student's intervals."""
    rows = []
    for length in plan.lengths:
        prompt = length if (name, length) in losses else plan.longest
        nll = formula.window_means(losses[name, prompt], prompt, length, plan.trained_length)
        excess = nll - formula.window_means(losses[REFERENCE, plan.longest], plan.longest, length, plan.trained_length)
        difference = formula.student_estimate(excess)
        rows.append(result.AtLength(length, difference.value, difference.ends, formula.student_estimate(nll)))
    failure = formula.failure_length(plan.lengths, np.array([row.excess for row in rows]))
    return {"measured": rows, "measured_failure": failure}


def _failure(failures: Sequence[int | None], longest: int) -> result.FailureEstimate:
    first, *others = (longest + 1 if length is None else length for length in failures)
    low, high = np.quantile(others, [0.025, 0.975], method="nearest")
    low, high = (None if end > longest else int(end) for end in (min(low, first), max(high, first)))
    return result.FailureEstimate(failures[0], (low, high))


def _estimate(values: Sequence[float] | np.ndarray) -> result.Estimate:
    """The first value, of all texts, with the 95% interval of the others, of resampled texts, and at least itself.

    Fewer texts are drawn than there are, so a fit to them may be off to one side.
    """
    low, high = _ends(values[1:])
    return result.Estimate(float(values[0]), (min(low, float(values[0])), max(high, float(values[0]))))


def _ends(values: Sequence[float] | np.ndarray) -> result.Interval:
    low, high = np.quantile(values, [0.025, 0.975]).tolist()
    return low, high


__all__ = ["estimate", "plan", "run_and_report"]
estimate = partial(estimated, Predict)
"""What a plan takes."""


def predict_failure(
    request: PredictRequest,
    out: str | os.PathLike[str],
    *,
    overwrite: bool = False,
    until: float | None = None,
    runner: Runner = LOCAL,
) -> Prediction:
    """Predicts the length at which each method fails by loss, from one measured curve (docs/law.md).

    Measures what is missing in the folder and writes `predict/` there; the same call continues an interrupted one.

    Args:
        request: What to predict.
        out: The folder, e.g. of a run.
        overwrite: Whether what is there is removed first; default False.
        until: No task begins after this time, in seconds of `time.monotonic`. Default: no limit.
        runner: Who runs the tasks. Default: this process.

    Returns:
        A `Prediction`: `methods` by name, each with `failure.length` in tokens (None: none up to the longest) and
        `predicted` excess loss in nats/token; `misfit` of the law; `refusal`, why nothing is predicted (of a method
        that gives no distance of M or more: "not covered"), else empty;
        `tasks_left`, where something is missing.

    Raises:
        Refused: A value is wrong.
        FileExistsError: The folder holds another run.

    Examples:
        >>> request = probe.PredictRequest(methods="self-extend,rerope", lengths=(2048,), samples=2)
        >>> prediction = probe.predict_failure(request, "runs/example")
        >>> prediction.methods["self-extend"].failure.length is None  # 8x the trained length
        True
        >>> round(prediction.methods["self-extend"].predicted[0].excess, 2)  # nats/token at 2048
        0.25
        >>> prediction.methods["rerope"].refusal[:50]
        'not covered, since no key is at a distance of M or'
    """
    planned, out = plan(request), Path(out)
    with owned(out):
        return run_and_report(planned, out, overwrite=overwrite, until=until, runner=runner).summary


def run_and_report(plan: PredictPlan, out: Path, **how: Any) -> CommandResult:
    """Measures what the folder `out` lacks of the plan, and writes its results and report. how: as `run` takes it."""
    journal, failed = run_plan(experiment := Predict(plan), out, **how)
    if left := len(experiment.tasks(journal.rows)):
        return CommandResult(started(plan, left), "", len(failed), str(left))
    prediction, written = write(plan, journal.rows, out)
    files = f"wrote {out / FOLDER}: {', '.join(path.name for path in written)}"
    return CommandResult(prediction, f"{as_text(sections(prediction))}\n\n{files}", 0, "")


def write(planned: PredictPlan, rows: JournalRows, out: Path) -> tuple[Prediction, list[Path]]:
    """Writes prediction.json, .csv (excess by length), .png and .html; returns the prediction and the paths."""
    prediction, path = predict(planned, losses_of(planned, rows)), out / result.PREDICTION.path
    result.PREDICTION.write(out, prediction)
    if prediction.refusal:
        return prediction, [path]
    paths = [path, *(path.with_suffix(f".{form}") for form in ("csv", "png", "html"))]
    write_file(paths[1], pd.DataFrame(_csv_rows(prediction)).to_csv(index=False).encode())
    write_file(paths[2], rendered(prediction_chart(prediction), "png"))
    write_file(paths[3], page(title(prediction), sections(prediction)).encode())
    return prediction, paths


def _csv_rows(prediction: Prediction) -> Iterator[dict[str, str | int]]:
    for name, row in prediction.methods.items():
        for number, length in enumerate(prediction.lengths):
            cells: dict[str, str | int] = {"method": name, "length": length}
            for side, entries in (("predicted", row.predicted), ("measured", row.measured)):
                values = entries[number].with_ends if entries else (math.nan,) * 3
                texts = ["" if math.isnan(value) else f"{value:z.4f}" for value in values]
                cells |= dict(zip((side, f"{side}_low", f"{side}_high"), texts, strict=True))
            yield cells
