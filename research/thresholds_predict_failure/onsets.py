"""Onsets, read from hidden states: where they drift, or cross thresholds."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
from tqdm import tqdm

from mesa.engine.bridge import bridge as bridge_to
from mesa.methods import Method
from mesa.models import bytes_a_number, load
from probe.capture.capture import capture
from probe.capture.memory import check_memory, peak_bytes
from probe.capture.spec import Selection
from probe.store.store import check_values
from probe.thresholds.drift import DriftRule, find_drift
from probe.thresholds.failure import lasting
from probe.thresholds.onset import best, drift_onsets, false_onsets, negative_control, threshold_onsets
from probe.thresholds.search import CrossingRule, search
from research.script import Journal
from research.thresholds_predict_failure.inputs import Inputs
from research.thresholds_predict_failure.results import DRIFT, REFERENCE
from research.thresholds_predict_failure.study import Study

HOOK = "resid_post"
_COPIES = 24  # of a layer's states, in the search


class States:
    """Hidden states of Origin and one method, of the first prompt and of the mean over prompts, in nameless files.

    A layer is read when it is needed, so that memory holds one captured pass alone.
    """

    def __init__(self, kept: Selection, folder: Path, *, averaged: bool) -> None:
        self.kept = kept
        shape = (2, len(kept.layers), *map(len, kept.axes[HOOK].values()))
        self._first = _zeros_on_disk(shape, np.float32, folder)
        self._mean = _zeros_on_disk(shape, np.float64, folder) if averaged else None

    def fill(self, bridge: Any, prompts: Sequence[Sequence[int]], method: Method, row: int) -> None:
        """Captures the prompts under a method into row 0 (Origin) or 1; prompts may be shorter than L."""
        length = min(len(prompts[0]), len(self.kept.positions))
        positions = self.kept.positions[:length]
        kept = replace(self.kept, axes={HOOK: {**self.kept.axes[HOOK], "position": positions}})
        for number, ids in enumerate(prompts):
            values = capture(bridge, ids, method, kept)[HOOK]
            for layer, states in zip(kept.layers, values, strict=True):
                check_values(states, self._first.dtype, f"layer {layer}")
            if number == 0:
                self._first[row, :, :length] = values
            if self._mean is not None and len(prompts) > 1:
                for layer, states in zip(self._mean[row, :, :length], values, strict=True):
                    layer[:] = states + (layer if number else 0.0)
                    if number + 1 == len(prompts):
                        layer /= len(prompts)
            del values  # before the next pass makes its own

    def hidden(self, *, mean: bool, both: bool, length: int | None = None) -> xr.DataArray:
        """States (method, layer, position, dim) of Origin, or of both, up to `length` tokens."""
        values, count = self._mean if mean else self._first, 2 if both else 1
        coords = {"method": ["origin", "method"][:count]}
        coords |= {name: list(labels) for name, labels in {"layer": self.kept.layers, **self.kept.axes[HOOK]}.items()}
        return xr.DataArray(values[:count], coords, list(coords), name=HOOK).isel(position=slice(length))


def _zeros_on_disk(shape: tuple[int, ...], dtype: type, folder: Path) -> np.memmap:
    """Raises OSError here, and not where they are written, if the disk is too small."""
    with tempfile.TemporaryFile(dir=folder) as file:
        layer = bytes(int(np.prod(shape[2:])) * np.dtype(dtype).itemsize)
        for _ in range(shape[0] * shape[1]):
            file.write(layer)
        file.flush()
        return np.memmap(file, dtype, "r+", shape=shape)


def onsets_left(study: Study, journal: Journal) -> list[tuple[str, str, str, int]]:
    """The missing cells ('onset', prompt, config, seed)."""
    cells = product(study.prompts, study.seeds, study.methods)
    return [cell for prompt, seed, name in cells if (cell := ("onset", prompt, name, seed)) not in journal.rows]


def find_onsets(study: Study, inputs: Inputs, journal: Journal, over: Callable[[], bool]) -> None:
    """Journals every missing onset, until it is `over`. Origin's states serve all configs of a prompt and seed."""
    numbers, layer = bytes_a_number(study.config, study.load), 4 * study.kept.values
    passed = peak_bytes(study.config, study.length, numbers, layer * len(study.kept.layers))
    check_memory(max(passed, _COPIES * layer), study.length)
    loaded = load(study.model, **study.load)
    bridge, current = bridge_to(loaded.model, loaded.tokenizer), None
    averaged = study.windows > 1 and {*study.prompts} != {"repeated"}
    states = States(study.kept, journal.path.parent, averaged=averaged)
    for cell in tqdm(onsets_left(study, journal), desc="capturing hidden states", unit="cell"):
        if over():
            return
        _, prompt, name, seed = cell
        ids = inputs.prompts[prompt][seed]
        if current != (prompt, seed):
            states.fill(bridge, ids, study.methods[REFERENCE], 0)
            current = (prompt, seed)
        readings = []
        for length in study.passes(name):
            if name != REFERENCE:
                states.fill(bridge, [window[:length] for window in ids], study.methods[name], 1)
            readings.append(_onsets(study, states, prompt, name, seed, length, averaged=len(ids) > 1))
        journal.add(cell, {"lengths": _merged(readings, study.passes(name))})


def _onsets(
    study: Study, states: States, prompt: str, name: str, seed: int, length: int, *, averaged: bool
) -> dict[str, Any]:
    """By kind of prompt (single or mean) and rule, from a pass of `length` tokens: onsets, qualifying dims.

    With the negative control of the pass of L tokens: Origin's for every seed, the others' for the first.
    """
    trained, plan = study.trained_length, study.methods[name].plan(length)
    controlled = length == study.length and (name == REFERENCE or seed == study.seeds.start)
    readings: dict[str, Any] = {}
    for kind in (prompt, f"{prompt}-mean") if averaged else (prompt,):
        hidden = states.hidden(mean=kind != prompt, both=name != REFERENCE, length=length)
        readings[kind] = {}
        for rule, crossing in study.rules.items():
            lengths, count = threshold_lengths(hidden, trained, crossing, study.tops)
            control = control_row(hidden, trained, crossing) if controlled else None
            readings[kind][rule] = {"lengths": lengths, "qualified": count, "control": control}
        begins, onset = drift_length(hidden, trained, study.drift, plan)
        readings[kind][DRIFT] = {"lengths": [begins] * len(study.tops), "qualified": None, "call": onset}
    return readings


def threshold_lengths(
    hidden: xr.DataArray, trained: int, rule: CrossingRule, tops: Sequence[int]
) -> tuple[list[int | None], int]:
    """Threshold onset of the last method of `hidden`, for every number of dims in `tops`, and how many dims qualify.

    A method that crosses nowhere up to L has L + 1; None: too few dims qualify, or can be judged.
    """
    readings = search(hidden, trained, rule)
    lengths: list[int | None] = []
    for top in tops:
        (onset,) = threshold_onsets(readings.isel(method=[-1]), top)
        nowhere = onset.captured + 1 if onset.known else None
        lengths.append(nowhere if onset.length is None else onset.length)
    return lengths, len(best(readings, hidden.sizes["dim"]))


def drift_length(hidden: xr.DataArray, trained: int, rule: DriftRule, plan: Any) -> tuple[int | None, dict[str, Any]]:
    """The drift onset, and all that is known of it; None: it could not be judged. plan: the method's, of the pass."""
    method = str(hidden["method"].values[-1])
    onset = drift_onsets(find_drift(hidden, trained, rule, plans={method: plan}))[-1]
    nowhere = None if onset.reason else onset.captured + 1
    row = {name: value for name, value in asdict(onset).items() if name != "method"}
    return nowhere if onset.length is None else onset.length, row


def control_row(hidden: xr.DataArray, trained: int, rule: CrossingRule) -> dict[str, Any] | None:
    """The negative control: dims that qualify at each place inside the window, and at M with as many positions.

    With the last method's share of false onsets; None where it cannot be made.
    """
    try:
        readings = negative_control(hidden, trained, rule)
    except ValueError:
        return None
    counts = {name: readings[name].values.tolist() for name in ("place", "qualified", "matched")}
    return {**counts, "searched": readings.attrs["searched"], "false": float(false_onsets(readings)[-1])}


def _merged(readings: Sequence[dict[str, Any]], passes: Sequence[int]) -> dict[str, Any]:
    """The onset in the longest pass or, of several, by prompt length, with each pass's lengths beside."""
    if len(readings) > 1:
        for kind, rules in readings[-1].items():
            for rule, row in rules.items():
                by_pass = [one[kind][rule]["lengths"] for one in readings]
                row["by_pass"] = dict(zip(map(str, passes), by_pass, strict=True))
                row["lengths"] = [
                    length_by_prompt(dict(zip(passes, lengths, strict=True)), passes[-1] + 1)
                    for lengths in zip(*by_pass, strict=True)
                ]
    return readings[-1]


def length_by_prompt(by_length: Mapping[int, int | None], none: int) -> int | None:
    """The first prompt length from which on a pass of it has its onset in it; `none`: nowhere.

    None stands for no call, which is left out; None if nothing is called at all.
    """
    called = {length: onset for length, onset in sorted(by_length.items()) if onset is not None}
    within = np.array([onset <= length for length, onset in called.items()])
    return (lasting(within, np.array(list(called))) or none) if called else None
