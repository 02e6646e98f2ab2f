"""What a study does with a model: failure lengths predicted from hidden states, and what one measured length gives."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import xarray as xr

import mesa
from mesa.finite import states_checked
from mesa.methods import Method
from mesa.models import Loaded
from mesa.plan import Plan
from probe.tasks.base import Setting, Task
from probe.tasks.finding import PASSKEY
from probe.tasks.likelihood import TAIL, tail_prompts
from probe.tasks.retrieval import first_ids
from probe.thresholds.calls import drift_calls
from probe.thresholds.control import false_predictions, negative_control
from probe.thresholds.drift import DriftRule, find_drift, of_plans
from probe.thresholds.failure import onset
from probe.thresholds.predict import best, predict
from probe.thresholds.search import CrossingRule, search
from research.thresholds_predict_failure.plan import MEASURED_SEEDS
from research.thresholds_predict_failure.results import NLL


def predicted_lengths(
    hidden: xr.DataArray, trained: int, rule: CrossingRule, tops: Sequence[int]
) -> tuple[list[int | None], int]:
    """Failure length of the last method of `hidden`, for every number of dims in `tops`, and how many dims qualify.

    hidden: (method, layer, position, dim), Origin first. A method that fails nowhere up to L has L + 1; None: too few
    dims qualify, or can be judged (see `predict`).
    """
    found = search(hidden, trained, rule)
    mine = found.isel(method=[-1])
    lengths: list[int | None] = []
    for top in tops:
        (made,) = predict(mine, top)
        censored = made.captured + 1 if made.known else None
        lengths.append(censored if made.length is None else made.length)
    return lengths, len(best(found, hidden.sizes["dim"]))


def drifting_length(
    hidden: xr.DataArray, trained: int, rule: DriftRule, plan: Plan
) -> tuple[int | None, dict[str, Any]]:
    """The same by the rule `drift`, and its whole call; None: it could not be judged.

    plan: the method's, of the pass.
    """
    method = str(hidden["method"].values[-1])
    call = drift_calls(find_drift(hidden, trained, rule, **of_plans({method: plan})))[-1]
    censored = None if call.reason else call.captured + 1
    found = {name: value for name, value in asdict(call).items() if name != "method"}
    return censored if call.length is None else call.length, found


def length_by_prompt(by_length: Mapping[int, int | None], none: int) -> int | None:
    """The first prompt length from which on a method fails, of what is predicted from a pass of each; `none`: nowhere.

    by_length: by the length of the pass, the predicted failure length, beyond the pass where there is none; None: no
    call, which is left out. None if nothing is called at all.
    """
    called = {length: predicted for length, predicted in sorted(by_length.items()) if predicted is not None}
    fails = np.array([predicted <= length for length, predicted in called.items()])
    return (onset(fails, np.array(list(called))) or none) if called else None


def control_row(hidden: xr.DataArray, trained: int, rule: CrossingRule) -> dict[str, Any] | None:
    """The negative control: what qualifies at each place, at M with as many positions, and the last method's share of
    false predictions; None where it cannot be made."""
    try:
        found = negative_control(hidden, trained, rule)
    except ValueError:
        return None
    counts = {name: found[name].values.tolist() for name in ("place", "qualified", "matched")}
    return {**counts, "searched": found.attrs["searched"], "false": float(false_predictions(found)[-1])}


@dataclass(frozen=True)
class Trial:
    """What one seed measures with: the evaluation's tasks, and as many passkey prompts a length as there are texts."""

    loaded: Loaded
    texts: Sequence[np.ndarray]
    setting: Setting

    @classmethod
    def of(cls, loaded: Loaded, texts: Sequence[np.ndarray], trained: int, lengths: Sequence[int], seed: int) -> Trial:
        """The trial of `seed`, with its runs of text of the longest of `lengths`."""
        return cls(loaded, texts, Setting(trained, tuple(lengths), len(texts), MEASURED_SEEDS + seed))

    def scores(self, task: str, method: Method, length: int) -> list[float]:
        """The method's scores at a length (tokens), one a prompt; raises as `states_checked`, ValueError for a NaN."""
        tokenizer, count = self.loaded.tokenizer, len(self.texts)
        measuring: Task = TAIL if task == NLL else PASSKEY
        prompts: Sequence[Any] = (
            tail_prompts(self.texts, first_ids(tokenizer), length)
            if task == NLL
            else PASSKEY.prepare(tokenizer, length, self.setting, count)
        )
        with mesa.applied(self.loaded.model, method), states_checked(self.loaded.model):
            values = [score.value for score in measuring.measure(self.loaded, length, prompts, self.setting)]
        if any(map(math.isnan, values)):
            raise ValueError(
                f"the tail NLL under {method.name} at {length} tokens is not a number; run the model with a wider "
                "--dtype (float32, float64)"
            )
        return values
