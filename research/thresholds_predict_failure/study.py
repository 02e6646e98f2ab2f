"""What is studied: methods with their parameters, lengths, rules; and lengths by arithmetic."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from mesa.methods import Method, make
from mesa.models import check_placement, chosen_dtype, config_of
from mesa.plan import BASE, follows_length, reach
from mesa.settings import fitting_methods, method_settings
from mesa.support import check_config, check_method, is_rotary, trained_length
from probe.capture.spec import CaptureSpec, Selection
from probe.commands.probe.plan import check_lengths
from probe.evaluation import SCORED_PROMPTS
from probe.thresholds.drift import DriftRule, resolution
from probe.thresholds.search import CrossingRule, check_positions
from research.phases import first_unmet
from research.thresholds_predict_failure.results import BOUNDS, DRIFT, REFERENCE, TASKS

PROMPTS = ("repeated", "text", "passkey")
MULTIPLES = (1, 1.25, 1.5, 1.75, 2, 2.5, 3, 3.5, 4, 5, 6, 8)
"""Lengths measured by default, in trained windows."""
VARIED: dict[str, tuple[dict[str, Any], ...]] = {
    "leaky-rerope": ({"k": 1.5}, {"k": 2}, {"k": 4}, {"k": 8}),
    "pi": ({"factor": 2},),
    "dynamic-ntk": ({"factor": 1}, {"factor": 2}),
    "ntk-mixed": ({"k": 2}, {"k": 4}),
    "yarn": ({"factor": 2},),
    "self-extend": ({"group": 2}, {"group": 4}),
    "stair": ({"width": 2}, {"width": 4}),
    "mesa": ({"width": 4},),
}
"""Parameters beside the defaults; those of slowed distances put their reach of M between 1.4 and 7 M."""
MEASURED_SEEDS = 1000
"""Added to a seed for the passkey prompts that measure, so that none of them is one that onsets are read on."""
CELLS = 2
"""Raised when what a cell holds changes: 2 has the control, and Dynamic-NTK by prompt length."""


@dataclass(frozen=True)
class Study:
    """What is studied. Lengths in tokens; `length` is L, up to which onsets are read."""

    model: str
    load: Mapping[str, Any]
    config: Any
    trained_length: int
    methods: dict[str, Method]
    prompts: tuple[str, ...]
    seeds: range
    length: int
    lengths: tuple[int, ...]
    measure: tuple[str, ...]
    tops: tuple[int, ...]
    windows: int
    samples: int

    @property
    def kept(self) -> Selection:
        """The states that are read: every layer, position and dim."""
        return CaptureSpec().resolve(self.config, self.length)

    @property
    def rules(self) -> dict[str, CrossingRule]:
        """The threshold rules by name."""
        standard = CrossingRule.scaled(self.trained_length)
        return {"standard": standard, "wide": replace(standard, smoothing=max(1, self.trained_length // 4))}

    @property
    def drift(self) -> DriftRule:
        """The drift rule."""
        return DriftRule.scaled(self.trained_length, resolution(chosen_dtype(self.config, self.load), "float32"))

    def passes(self, name: str) -> tuple[int, ...]:
        """The lengths of the passes that a config's onsets are read in: L alone, for most.

        Where positions or frequencies follow the prompt's length (Dynamic-NTK, LaMPE), no pass stands for a shorter
        prompt: then each measured length that both rules can judge, and L.
        """
        method = self.methods[name]
        if not follows_length(method.plan(self.length), method.plan(self.trained_length)):
            return (self.length,)
        least = self.trained_length + max(rule.sustained for rule in self.rules.values())
        return tuple(sorted({*(length for length in self.lengths if length > least), self.length}))

    def settings(self, fingerprints: Mapping[str, str]) -> dict[str, Any]:
        """Everything that the results depend on, ready for JSON."""
        names = ("model", "trained_length", "prompts", "length", "lengths", "measure", "tops", "windows", "samples")
        rules = {name: asdict(rule) for name, rule in {**self.rules, DRIFT: self.drift}.items()}
        return {
            **{name: getattr(self, name) for name in names},
            "seeds": len(self.seeds),
            **({"first_seed": self.seeds.start} if self.seeds.start else {}),
            **fingerprints,
            "prompts_version": SCORED_PROMPTS,
            "cells_version": CELLS,
            "load": dict(self.load),
            "configs": {name: method.describe() for name, method in self.methods.items()},
            "rules": rules,
        }


def plan(
    model: str = "default",
    load: Mapping[str, Any] | None = None,
    methods: str | None = None,
    configs: str | None = None,
    trained: int | None = None,
    prompts: tuple[str, ...] = PROMPTS,
    seeds: int = 5,
    first_seed: int = 0,
    length: int | None = None,
    lengths: tuple[int, ...] | None = None,
    measure: tuple[str, ...] = TASKS,
    tops: tuple[int, ...] = (1, 3, 10, 30, 100),
    windows: int = 8,
    samples: int = 5,
) -> Study:
    """The study, checked against the model's config. Raises ValueError or FileNotFoundError, naming the value.

    methods: names, each with the parameters of `VARIED`; configs: as `named_configs` reads them, in place of methods.
    """
    options = {"revision": None, "dtype": None, "device": "cpu", "device_map": None, "trust_remote_code": False}
    options |= load or {}
    check_placement(options)
    config = config_of(model)
    check_config(config)
    trained = trained or trained_length(config)
    for name, values, known in (("prompts", prompts, PROMPTS), ("measure", measure, TASKS)):
        if unknown := {*values} - {*known}:
            raise ValueError(f"unknown --{name} {min(unknown)!r}; known: {', '.join(known)}")
    if min(seeds, windows, samples, *tops) < 1 or first_seed < 0 or first_seed + seeds > MEASURED_SEEDS:
        raise ValueError(f"--seeds, --windows, --samples and --tops start at 1, and seeds end below {MEASURED_SEEDS}")
    length = length or max(lengths or (MULTIPLES[-1] * trained,))
    if length < 2 * trained:
        raise ValueError(f"--length {length} is below twice the trained length {trained}")
    lengths = tuple(sorted(lengths or (int(trained * many) for many in MULTIPLES if trained * many <= length)))
    check_lengths(lengths, trained)
    if lengths[-1] > length:
        raise ValueError(f"--lengths {lengths[-1]} is beyond --length {length}, up to which onsets are read")
    if configs is None:
        fitting, _ = fitting_methods(methods or "all", trained, (), config, by_default=methods is None)
        chosen = variants(fitting, trained)
    else:
        chosen = named_configs(configs, trained, config)
    if len(chosen) < 4:
        raise ValueError(f"{len(chosen) - 1} configs beside origin are too few to correlate; name 3 or more")
    study = Study(
        model,
        options,
        config,
        trained,
        chosen,
        prompts,
        range(first_seed, first_seed + seeds),
        length,
        lengths,
        measure,
        tops,
        windows,
        samples,
    )
    for rule in study.rules.values():
        check_positions(range(length), trained, rule)
    return study


def variants(methods: Mapping[str, Method], trained: int) -> dict[str, Method]:
    """Configs by label, such as 'leaky-rerope k=2': every method with its defaults and as `VARIED`; Origin first."""
    result: dict[str, Method] = {REFERENCE: make(REFERENCE, trained)}
    varied = {"rerope": ({"window": trained // 2},), **VARIED}
    for name, method in methods.items():
        result[name] = method
        for parameters in varied.get(name, ()):
            label = " ".join([name, *(f"{key}={value}" for key, value in parameters.items())])
            result[label] = make(name, trained, **parameters)
    return result


def named_configs(configs: str, trained: int, config: Any) -> dict[str, Method]:
    """Configs by label from a text such as 'rerope,mesa layers=[0,1] window=512'; Origin first, named or not.

    Raises ValueError for what cannot be read or made, and for methods that a model with this `config` cannot have.
    """
    result: dict[str, Method] = {REFERENCE: make(REFERENCE, trained)}
    for part in re.split(r",(?![^\[]*])", configs):  # no comma within [...]
        name, *parameters = part.split() or [""]
        label = " ".join([name, *parameters])
        settings = method_settings([f"{name}.{parameter}" for parameter in parameters]).get(name, {})
        result[label] = make(name, trained, **settings)
        check_method(config, result[label])
    return result


def estimate(study: Study) -> str:
    """Passes and tokens of the whole study, in words."""
    prompts = len(study.seeds) * sum(1 if prompt == "repeated" else study.windows for prompt in study.prompts)
    passes = [length for name in study.methods for length in study.passes(name)]
    measured = len(study.methods) * len(study.seeds) * study.samples * len(study.measure)
    return (
        f"{len(study.methods)} configs x {len(study.seeds)} seeds: {', '.join(study.methods)}\n"
        f"onsets: {prompts * len(passes)} passes, {prompts * sum(passes):,} tokens\n"
        f"measured: {measured * len(study.lengths)} prompts, {measured * sum(study.lengths):,} tokens"
    )


def arithmetic(study: Study, name: str) -> dict[str, int]:
    """For each of `BOUNDS`, the first position in any of a config's passes that sees such a distance; L + 1: none.

    Models without rotary embeddings have the first two bounds.
    """
    firsts = [_first_beyond(study, study.methods[name], length) for length in study.passes(name)]
    return {
        bound: min((at[bound] for at in firsts if at[bound] is not None), default=study.length + 1)
        for bound in firsts[0]
    }


def _first_beyond(study: Study, method: Method, length: int) -> dict[str, Any]:
    plan, trained, config = method.plan(length), study.trained_length, study.config
    largest = reach(plan)
    beyond = [largest >= trained, largest > trained]
    rotary = is_rotary(config.model_type)
    if rotary:
        dims = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        base = (getattr(config, "rope_parameters", None) or {}).get("rope_theta", BASE)
        slowest = plan.frequency_scale(np.float64(dims // 2 - 1), dims, base) if plan.frequency_scale else 1.0
        beyond.append(largest * slowest >= trained)
    firsts: list[int | None] = [int(reached.argmax()) if reached.any() else None for reached in beyond]
    if rotary:
        firsts.append(first_unmet(method, config, length))
    return dict(zip(BOUNDS, firsts, strict=False))
