"""Everything read from a run, worked out once: thresholds, onsets, control, measured failures; and its summary."""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import xarray as xr

from mesa.errors import Refused
from mesa.methods import Method, make
from mesa.plan import Plan, follows_length
from probe.eval_tasks.base import Metric, interval, paired
from probe.eval_tasks.sources import TextSource
from probe.request import reference_method
from probe.statistics import confidence_of, finite
from probe.store.cache import Cache, Derived, uncached
from probe.store.reader import TEXT_SOURCE, StoredRun, hook_values
from probe.store.result_file import having, or_nan
from probe.thresholds import onset, result
from probe.thresholds.drift import DriftRule, find_drift, resolution
from probe.thresholds.failure import Failure, MeasuredFailures, measured_failure
from probe.thresholds.result import Evidence
from probe.thresholds.search import CrossingRule, search
from probe.thresholds.state_distance import find_distance_by_length, find_state_distance
from probe.thresholds.stated_window import NOT_EVALUATED

_METRICS = {"tail_nll": Metric("nll", "nats/token"), "passkey": Metric("accuracy", "share found", binary=True)}
_MULTIPLES = (2, 4)

RULES = ("drift", "paper")
"""What an onset is read from: a layer's joint drift, or thresholds dim by dim, as the paper reads them."""

NOT_CAPTURED = "hidden states are not captured yet"
CROSSINGS, CONTROL = "thresholds", "control"
"""What searches are known by."""


@dataclass(frozen=True)
class Analysis:
    """A run and what was read from it.

    prompt: the first one, whose onsets are shown first. threshold_onsets: by prompt.
    drifts: by prompt or `MEAN` of those of text, or why drift could not be evaluated. rule: of `RULES`.
    distance: `find_state_distance` of the texts; None where fewer than two were stored, or no dims.
    control: the negative control, or why it could not be made. measured: None if nothing was measured by length; where
        it shows that M is stated wrongly, neither drift nor control is made.
    """

    run: StoredRun
    hidden: xr.DataArray
    reference: str
    prompt: str
    crossings: xr.Dataset
    threshold_onsets: dict[str, list[onset.ThresholdOnset]]
    drifts: dict[str, xr.Dataset] | str
    rule: str
    control: xr.Dataset | str
    measured: MeasuredFailures | None
    distance: xr.Dataset | None = None

    @property
    def trained_length(self) -> int:
        """The trained window M, in tokens."""
        return self.run.trained_length

    @property
    def onsets(self) -> Sequence[onset.DriftOnset | onset.ThresholdOnset]:
        """One onset a method, by the rule asked for."""
        if self.rule == "drift" and not isinstance(self.drifts, str):
            return onset.drift_onsets(self.drifts[self.prompt])
        return self.threshold_onsets[self.prompt]

    @property
    def has_states(self) -> bool:
        """Whether hidden states are stored: a run in stages measures losses and passkeys first."""
        return bool(self.hidden.size)

    @property
    def best(self) -> list[tuple[int, int]]:
        """The (layer, dim) pairs that threshold onsets rest on, best first."""
        if not self.has_states:
            return []
        return onset.best(self.crossings.sel(prompt=self.prompt), onset.TOP)


def analyse(
    run: StoredRun, hook: str | None = None, rule: CrossingRule | None = None, by: str = "drift", work: Cache = uncached
) -> Analysis:
    """Thresholds, drift, onsets, control and measured failures of a run.

    Args:
        run: An opened run. Its reference is Origin, or its first method.
        hook: Default: the run's first.
        rule: Of thresholds. Default: `CrossingRule.scaled(M)`.
        by: Which onsets are shown first: 'drift' or 'paper' (thresholds); default 'drift'.
        work: Gives what is known of searches under the default rule, or has it made. Default: nothing is known.

    Returns:
        An `Analysis`: `crossings`, `threshold_onsets`, `drifts`, `control`, `measured`, `onsets`.

    Raises:
        Refused: The hook or the rule is not known, or too few positions were captured.

    Examples:
        >>> analysis = probe.analyse(probe.open_run("runs/example"))
        >>> {onset.method: onset.length for onset in analysis.onsets}  # drift onsets in tokens
        {'origin': 316, 'rerope': None}
    """
    if by not in RULES:
        raise Refused(f"unknown rule {by!r}; known: {', '.join(RULES)}")
    trained = run.trained_length
    if hook is None and not run.hidden.data_vars:
        return _of_scores(run, by)
    hidden = hook_values(run, hook)
    reference = reference_method(hidden["method"].values.tolist())
    work, rule = (uncached if rule else work), rule or CrossingRule.scaled(trained)
    name = str(hidden.name)
    measured = measured_of(run, reference)
    unfit = "" if measured is None else measured.stated.unfit

    @cache
    def searched() -> tuple[xr.Dataset, xr.Dataset | str]:
        if unfit:
            return search(hidden, trained, rule, reference), unfit
        return onset.search_and_control(hidden, trained, rule, reference)

    def controlled() -> Derived:
        control = searched()[1]
        return control if isinstance(control, str) else {CONTROL: control}

    crossings = work(f"{name}-{CROSSINGS}", lambda: {CROSSINGS: searched()[0]})[CROSSINGS]
    prompts = hidden["prompt"].values.tolist()
    onsets = {prompt: onset.threshold_onsets(crossings.sel(prompt=prompt)) for prompt in prompts}
    control = unfit or work(f"{name}-{CONTROL}", controlled)
    drifted = evaluated_drifts(run, hidden, reference, measured, work)
    by = "paper" if isinstance(drifted, str) else by
    control = control if isinstance(control, str) else control[CONTROL]
    texts = [name for name in prompts if name.startswith("text-")]
    derived = work(
        f"{name}-distance", lambda: _or_reason(lambda: _distance(hidden.sel(prompt=texts), trained, reference))
    )
    distance = None if isinstance(derived, str) else derived["distance"]
    return Analysis(run, hidden, reference, prompts[0], crossings, onsets, drifted, by, control, measured, distance)


def _distance(texts: xr.DataArray, trained_length: int, reference: str) -> Derived:
    return {"distance": find_state_distance(texts, trained_length, reference=reference)}


def _of_scores(run: StoredRun, by: str) -> Analysis:
    """The analysis of a run whose hidden states are not captured yet: what was measured by length alone."""
    methods, prompts = (run.hidden[name].values.tolist() for name in ("method", "prompt"))
    reference, trained = reference_method(methods), run.trained_length
    measured = measured_of(run, reference)
    rule, length = CrossingRule.scaled(trained), int(run.hidden.attrs["length"])
    attrs = {**vars(rule), "length": length, "hook": NOT_CAPTURED, "searched": 0}
    crossings = xr.Dataset({"qualified": ("prompt", np.zeros(len(prompts), int))}, {"prompt": prompts}, attrs)
    dims = ("method", "prompt", "layer", "position", "dim")
    shape = tuple(run.hidden.sizes.get(name, 0) for name in dims)
    labels = {name: run.hidden[name].values for name in dims[:3]}
    hidden = xr.DataArray(np.empty(shape, np.float32), labels, dims, attrs={"length": length})
    onsets: Any = {prompt: [result.NotEvaluated(name, NOT_CAPTURED) for name in methods] for prompt in prompts}
    return Analysis(run, hidden, reference, prompts[0], crossings, onsets, NOT_CAPTURED, by, NOT_CAPTURED, measured)


def measured_of(run: StoredRun, reference: str) -> MeasuredFailures | None:
    """`measured_failure` of the run; None where nothing was measured by length."""
    return None if run.evaluation is None else measured_failure(run.evaluation, run.trained_length, reference)


def distance_by_length(run: StoredRun) -> xr.Dataset | None:
    """`find_distance_by_length` of the scored texts; None where their states were not read, or M is stated wrongly."""
    reference = reference_method(run.hidden["method"].values.tolist())
    measured = measured_of(run, reference)
    if run.evaluation is None or measured is None or measured.stated.unfit:
        return None
    try:
        return find_distance_by_length(run.evaluation, run.trained_length, reference)
    except Refused:
        return None


def evaluated_drifts(
    run: StoredRun, hidden: xr.DataArray, reference: str, measured: MeasuredFailures | None, work: Cache = uncached
) -> dict[str, xr.Dataset] | str:
    """`drifts`, or why drift could not be evaluated; `measured`: of `measured_of`; `work`: as for `analyse`."""
    unfit = "" if measured is None else measured.stated.unfit
    return unfit or work(f"{hidden.name}-drift", lambda: _or_reason(lambda: drifts(run, hidden, reference)))


def _or_reason(make: Callable[[], Derived]) -> Derived:
    """What `make` returns, or the words of its Refused."""
    try:
        return make()
    except Refused as error:
        return str(error)


def drifts(run: StoredRun, hidden: xr.DataArray, reference: str) -> dict[str, xr.Dataset]:
    """`find_drift` of the first prompt, of every other that is not text, and of the mean over texts (`MEAN`).

    Raises Refused where too few positions were captured.
    """
    trained, attrs = run.trained_length, run.hidden.attrs
    prompts = hidden["prompt"].values.tolist()
    texts = [name for name in prompts if name.startswith("text-")]
    evaluated = {name: hidden.sel(prompt=name) for name in prompts if name == prompts[0] or name not in texts}
    if texts:
        evaluated[result.MEAN if len(texts) > 1 else texts[0]] = hidden.sel(prompt=texts)
    resolved, period = resolution(attrs.get("source_dtype"), str(hidden.dtype)), int(attrs.get("period", 1))
    rules = {
        name: DriftRule.scaled(trained, resolved, 1 if name in (result.MEAN, *texts) else period) for name in evaluated
    }
    plans = plans_of(run, hidden)
    return {
        name: find_drift(values, trained, rules[name], plans=plans, reference=reference)
        for name, values in evaluated.items()
    }


def _length(run: StoredRun, hidden: xr.DataArray) -> int:
    """Tokens of the passes, of which not all positions need be kept."""
    length = run.hidden.attrs.get("length")
    return int(hidden["position"].values[-1] + 1 if length is None else length)


def plans_of(run: StoredRun, hidden: xr.DataArray) -> dict[str, Plan]:
    """By method, the plan of the passes that the hidden states are of, where the run tells."""
    length = _length(run, hidden)
    return {name: method.plan(length) for name, method in _methods(run).items()}


def _methods(run: StoredRun) -> dict[str, Method]:
    """The run's methods as it was made with, where it tells and they are installed."""
    configs = json.loads(run.hidden.attrs.get("method_configs", "{}"))
    return {name: method for name, config in configs.items() if (method := recorded_method(config))}


def recorded_method(config: Mapping[str, Any]) -> Method | None:
    """The method of a record; None for one of a package that is not installed here, or of another version."""
    options: dict[str, Any] = {k: tuple(value) if isinstance(value, list) else value for k, value in config.items()}
    try:
        return make(options.pop("name"), **options)
    except (KeyError, Refused, TypeError):
        return None


def _following(analysis: Analysis) -> list[str]:
    """The methods whose positions follow a pass's length: what one shows is not of prompts of other lengths."""
    length = _length(analysis.run, analysis.hidden)
    methods = _methods(analysis.run).items()
    return [name for name, method in methods if follows_length(method.plan(length), method.plan(method.trained_length))]


def summarize(analysis: Analysis) -> Evidence:
    """An analysis as numbers and strings, as summary.json holds it.

    Args:
        analysis: What `analyse` returns.

    Returns:
        An `Evidence`: `methods` with onsets, scores and measured failure, `control`, `drift`, `level` and the settings.

    Examples:
        >>> evidence = probe.summarize(probe.analyse(probe.open_run("runs/example")))
        >>> [(result.method, str(result.drift_onset)) for result in evidence.methods]
        [('origin', '316 (descriptive)'), ('rerope', 'none up to 512')]
    """
    crossings, attrs, measured = analysis.crossings, analysis.run.hidden.attrs, analysis.measured
    at_best = crossings.sel(prompt=analysis.prompt)
    names = ("score", "threshold", "limit")
    return Evidence(
        model=attrs.get("model"),
        model_revision=attrs.get("model_revision"),
        trained_length=analysis.trained_length,
        trained_length_by=attrs.get("trained_length_by", ""),
        as_trained=attrs.get("as_trained", ""),
        captured_length=crossings.attrs["length"],
        hook=crossings.attrs["hook"],
        prompt=analysis.prompt,
        word=attrs.get("word"),
        reference=analysis.reference,
        rule=CrossingRule(**{name: crossings.attrs[name] for name in CrossingRule.__dataclass_fields__}),
        onset_by=analysis.rule,
        pass_length=_length(analysis.run, analysis.hidden),
        follows_length=_following(analysis),
        drift=analysis.drifts if isinstance(analysis.drifts, str) else _drift_result(analysis, analysis.drifts),
        searched=crossings.attrs["searched"],
        qualified={prompt: int(crossings["qualified"].sel(prompt=prompt)) for prompt in analysis.threshold_onsets},
        best=[
            result.ThresholdDim(*pair, *(float(at_best[name].sel(layer=pair[0], dim=pair[1])) for name in names))
            for pair in analysis.best
        ],
        methods=[_method_result(analysis, name) for name in analysis.hidden["method"].values.tolist()],
        control=_control(analysis.control),
        failure_rule=None if measured is None else measured.rule,
        evaluated_by=[] if measured is None else list(measured.evaluated_by),
        at_chance=[] if measured is None else list(measured.chance),
        level=None if measured is None else level_of(analysis.run.evaluation, measured),
        stated_window=None if measured is None else measured.stated,
        measured_lengths=[] if measured is None else list(measured.lengths),
        method_configs=json.loads(attrs.get("method_configs", "{}")),
        versions=json.loads(attrs.get("versions", "{}")),
        created=attrs.get("created"),
        quantization=attrs.get("quantization"),
        tokenizer_note=attrs.get("tokenizer_note"),
        text_source=TextSource(**json.loads(attrs[TEXT_SOURCE])) if TEXT_SOURCE in attrs else None,
    )


def level_of(evaluation: xr.Dataset | None, measured: MeasuredFailures) -> result.Level:
    """What failures are measured against."""
    assert evaluation is not None
    vocabulary, passkeys = evaluation.attrs.get("vocabulary"), evaluation.get("passkey")
    at = {"method": measured.reference, "length": measured.level_length}
    level = result.Level(
        tail_nll=measured.level,
        length=measured.level_length,
        guess=None if vocabulary is None else math.log(vocabulary),
        passkeys=None if passkeys is None else int(passkeys.sel(at).sum()),
        prompts={str(name): size for name, size in evaluation.sizes.items() if name in ("window", "sample")},
    )
    if "looks" not in evaluation.attrs:
        return level
    scores = [evaluation[name] for name in _METRICS if name in evaluation]
    counts = {str(values.dims[-1]): values.notnull().sum(str(values.dims[-1])) for values in scores}
    return result.LevelByStages(
        **{**vars(level), "prompts": {name: int(count.sel(at)) for name, count in counts.items()}},
        fewest={name: int(count.values[count.values > 0].min()) for name, count in counts.items()},
        most={name: int(count.max()) for name, count in counts.items()},
        looks=[*map(int, evaluation.attrs["looks"])],
        by_position=str(evaluation.attrs.get("by_position", "")),
    )


def _drift_result(analysis: Analysis, drifts: dict[str, xr.Dataset]) -> result.DriftResult:
    """The rule, and by prompt each method's onset and the dims that carry the reference's drift."""
    prompts = {}
    for prompt, drift in drifts.items():
        at, names = drift.sel({"method": drift.attrs["reference"]}), ("share", "centre", "range")
        dims = [
            result.DriftDim(layer, dim, *(float(at[name].sel(layer=layer, dim=dim)) for name in names))
            for layer, dim in onset.top_dims(drift, onset.TOP)
        ]
        prompts[prompt] = result.PromptDrift(onset.drift_onsets(drift), dims)
    rule = DriftRule(**{name: drifts[analysis.prompt].attrs[name] for name in DriftRule.__dataclass_fields__})
    return result.DriftResult(rule, prompts)


def _method_result(analysis: Analysis, method: str) -> result.MethodResult:
    """A method's onsets, its measured failure, its scores at the lengths of the table and the longest."""
    measured, evaluation, drifts = analysis.measured, analysis.run.evaluation, analysis.drifts
    unfit = measured is not None and measured.stated.is_wrong
    by_prompt = {
        prompt: result.NotEvaluated(method, NOT_EVALUATED) if unfit else having(onsets, method=method)[0]
        for prompt, onsets in analysis.threshold_onsets.items()
    }
    if isinstance(drifts, str):
        drift_onset = result.NotEvaluated(method, NOT_EVALUATED if unfit else f"not evaluated: {drifts}")
    else:
        drift_onset = having(onset.drift_onsets(drifts[analysis.prompt]), method=method)[0]
    texts = {prompt: str(row) for prompt, row in by_prompt.items()}
    onsets = method, drift_onset, by_prompt[analysis.prompt], texts
    if evaluation is None or measured is None:
        return result.MethodResult(*onsets)
    return result.MethodResult(*onsets, *scored(evaluation, measured, method, analysis.reference))


def scored(
    evaluation: xr.Dataset, measured: MeasuredFailures, method: str, reference: str
) -> tuple[Failure | None, dict[int, result.Scores], result.LongestScores]:
    """`measured`, `scores` and `longest` of a `MethodResult`."""
    longest = measured.lengths[-1]
    at = evaluation.sel(length=longest)
    last, truncation = _scores(at, method, reference), None
    if not measured.stated.is_wrong and longest > measured.level_length and not math.isnan(last.tail_nll):
        # truncation: the reference within its window, of the same tokens
        within = evaluation.sel({"method": measured.reference, "length": measured.level_length})
        truncation = _difference(at.sel({"method": method}), within, "tail_nll")
    scores = {length: _scores(evaluation.sel(length=length), method, reference) for length in _table_lengths(measured)}
    of_longest = result.LongestScores(
        **vars(last), length=longest, tail_nll_to_truncation=truncation, less=_less_others(at, method)
    )
    failure = next(iter(having(measured.failures, method=method)), None)
    return failure, scores, of_longest


def _table_lengths(measured: MeasuredFailures) -> list[int]:
    """The longest measured length up to M and up to three beyond: of more, those nearest 2x and 4x M, and the last."""
    beyond = [length for length in measured.lengths if length > measured.stated.stated]
    if len(beyond) > 3:
        near = [min(beyond, key=lambda length: abs(length - m * measured.stated.stated)) for m in _MULTIPLES]
        beyond = sorted({*near, beyond[-1]})
    return [measured.level_length, *beyond]


def _scores(at: xr.Dataset, method: str, reference: str) -> result.Scores:
    """A method's scores at one length; NaN where it was not measured."""
    scores, others = at.sel({"method": method}), at.sel({"method": reference})
    if np.isnan(scores["tail_nll"]).all():
        return result.Scores()
    confidence = confidence_of(at.attrs)
    values: dict[str, Any] = {}
    for name in (name for name in _METRICS if name in at and np.isfinite(scores[name]).any()):
        there = finite(scores[name].values)
        values[name] = float(scores[name].mean())
        values[f"{name}_interval"] = interval(there.tolist(), _METRICS[name], confidence)
        compared = method != reference and np.isfinite(scores[name].values - others[name].values).any()
        values[f"{name}_difference"] = _difference(scores, others, name) if compared else None
    return result.Scores(**values)


def _less_others(at: xr.Dataset, method: str) -> dict[str, result.Difference]:
    """The method's tail NLL less every other's, text by text at one length; without methods not measured there."""
    nll = at[["tail_nll"]].dropna("method", how="all")
    scores = {name: nll.sel({"method": name}) for name in nll["method"].values.tolist()}
    others = [name for name in scores if name != method] if method in scores else []
    return {name: _difference(scores[method], scores[name], "tail_nll") for name in others}


def _difference(scores: xr.Dataset, others: xr.Dataset, name: str) -> result.Difference:
    """A method's score less another's on the same prompts."""
    both = np.isfinite(scores[name].values - others[name].values)
    values, reference = (of[name].values[both].tolist() for of in (scores, others))
    mean = float(np.mean(np.subtract(values, reference)))
    ends = paired(values, reference, _METRICS[name], confidence_of(scores.attrs))
    return result.Difference(mean, *map(or_nan, ends))


def _control(control: xr.Dataset | str) -> result.Control | str:
    """The settings and places, and by prompt what was found there, onsets included, which are false."""
    if isinstance(control, str):
        return control
    prompts = {}
    for prompt in control["prompt"].values.tolist():
        at = control.sel(prompt=prompt)
        detected = {name: at["detected"].sel({"method": name}).values for name in at["method"].values.tolist()}
        prompts[prompt] = result.PromptControl(
            qualified=at["qualified"].values.tolist(),
            matched=at["matched"].values.tolist(),
            as_many=float(onset.as_many(at)),
            detected={name: [None if np.isnan(at) else int(at) for at in of] for name, of in detected.items()},
            false_onsets=dict(zip(detected, onset.false_onsets(at).values.tolist(), strict=True)),
        )
    settings = (control.attrs[name] for name in ("searched", "top", "least"))
    return result.Control(*settings, place=control["place"].values.tolist(), prompts=prompts)
