"""What a study is asked for, and the check of all of it against the model's config: no weights are needed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from mesa.methods import Method
from mesa.models import bytes_a_number, chosen_dtype, tokenizer_of
from mesa.plan import follows_length
from probe.capture.memory import check_prompts, peak_bytes
from probe.capture.spec import CaptureSpec, Kept
from probe.evaluation.by_length import check_lengths
from probe.evaluation.lengths import unfit_length
from probe.evaluation.plan import SCORED_PROMPTS, TASKS, memory_bytes
from probe.request import ModelRequest, tell_left_out
from probe.tasks.base import Setting
from probe.tasks.finding import PASSKEY
from probe.thresholds.drift import DriftRule, resolution
from probe.thresholds.search import CrossingRule, check_positions
from research.thresholds_predict_failure.results import DRIFT, TASK_NAMES
from research.thresholds_predict_failure.variants import chosen, variants

PROMPTS = ("repeated", "text", "passkey")
MULTIPLES = (1, 1.25, 1.5, 1.75, 2, 2.5, 3, 3.5, 4, 5, 6, 8)
"""Lengths measured by default, in trained windows."""

MEASURED_SEEDS = 1000
"""Added to a study's seed for passkey prompts that measure, so that none of them is one that predicts."""
CELLS = 2
"""Raised when what a cell holds changes: 2 has the control, and Dynamic-NTK by prompt length."""
_COPIES = 24
"""Copies of a layer that are held at a time where lengths are predicted: the search's, in both its threads."""


@dataclass(frozen=True)
class StudyRequest(ModelRequest):
    """What a study is asked for. length: L in tokens; None: the longest of `lengths`, else 8 M.

    configs: method configs as in `variants.chosen`, in place of `methods`. lengths: those measured; None: `MULTIPLES`
    of M up to L. measure: the tasks that failure is measured by. windows: prompts that an average is taken over.
    samples: passkey prompts, and text windows, a length and seed. seeds: how many, from `first_seed` on, below which no
    word, passkey or run of text is used.
    """

    configs: str | None = None
    prompts: tuple[str, ...] = PROMPTS
    seeds: int = 5
    first_seed: int = 0
    length: int | None = None
    lengths: tuple[int, ...] | None = None
    measure: tuple[str, ...] = TASK_NAMES
    tops: tuple[int, ...] = (1, 3, 10, 30, 100)
    windows: int = 8
    samples: int = 5


@dataclass(frozen=True)
class StudyPlan:
    """A request, checked against the model's config. rules: by name, of thresholds dim by dim and of drift."""

    request: StudyRequest
    methods: dict[str, Method]
    trained_length: int
    length: int
    lengths: tuple[int, ...]
    kept: Kept
    rules: dict[str, CrossingRule]
    drift: DriftRule
    config: Any

    def settings(self, known: Mapping[str, str]) -> dict[str, Any]:
        """Everything that the lengths depend on, ready for JSON; `known`: fingerprints of what is read."""
        asked = {key: value for key, value in asdict(self.request).items() if key not in ("methods", "load", "force")}
        if not self.request.first_seed:
            del asked["first_seed"]  # older journals lack it
        rules = {name: asdict(rule) for name, rule in self.rules.items()}
        return {
            **asked,
            **known,
            "prompts_version": SCORED_PROMPTS,
            "cells_version": CELLS,
            "load": dict(self.request.load),
            "configs": {name: method.describe() for name, method in self.methods.items()},
            "trained_length": self.trained_length,
            "length": self.length,
            "lengths": self.lengths,
            "rules": {**rules, DRIFT: asdict(self.drift)},
        }

    @property
    def seeds(self) -> range:
        """The seeds that are judged on."""
        return range(self.request.first_seed, self.request.first_seed + self.request.seeds)

    def passes(self, name: str) -> tuple[int, ...]:
        """The lengths of the passes that a config's failure is predicted from: L alone, for most.

        Where its positions or frequencies follow the prompt's length (Dynamic-NTK, LaMPE), no pass stands for a shorter
        prompt: then each measured length that both rules can judge, and L.
        """
        method = self.methods[name]
        if not follows_length(method.plan(self.length), method.plan(self.trained_length)):
            return (self.length,)
        least = self.trained_length + max(rule.sustained for rule in self.rules.values())
        return tuple(sorted({*(each for each in self.lengths if each > least), self.length}))

    @property
    def needed_bytes(self) -> int:
        """Memory beside the weights: of a captured pass, of what is read from it, or of the longest measured prompt."""
        each, layer = bytes_a_number(self.config, self.request.load), 4 * self.kept.values // len(self.kept.layers)
        captured = peak_bytes(self.config, self.length, each, 4 * self.kept.values)
        setting = Setting(self.trained_length, self.lengths)
        return max(captured, _COPIES * layer, memory_bytes(self.config, self.request.measure, setting, each))

    @property
    def scratch_bytes(self) -> int:
        """Disk for states while the study runs: Origin's and a method's, and their means over prompts in float64."""
        averaged = self.request.windows > 1 and any(prompt != "repeated" for prompt in self.request.prompts)
        return 2 * self.kept.values * (12 if averaged else 4)


def plan(request: StudyRequest) -> StudyPlan:
    """Checks the request against the model's config. Raises ValueError or FileNotFoundError, naming the value."""
    _check(request)
    config, trained = request.checked_model()
    longest = max(request.lengths or (MULTIPLES[-1] * trained,))
    length = longest if request.length is None else request.length
    if length < 2 * trained:
        raise ValueError(f"--length {length} is below twice the trained length {trained}; take e.g. {8 * trained}")
    lengths = request.lengths or tuple(
        dict.fromkeys(int(trained * many) for many in MULTIPLES if trained * many <= length)
    )
    check_lengths(lengths, trained)
    if max(lengths) > length:
        raise ValueError(f"--lengths {max(lengths)} is beyond --length {length}, up to which failure is predicted")
    if request.configs is None:
        chosen_methods, left_out = request.fitting_methods(config, trained)
        tell_left_out(left_out)
        asked, methods = f"--methods {','.join(chosen_methods)}", variants(chosen_methods, trained)
    else:
        asked, methods = f"--configs {request.configs!r}", chosen(request.configs, trained, config)
    if len(methods) < 4:
        raise ValueError(
            f"{asked} gives {len(methods) - 1} configs beside origin, too few to correlate; name 3 or more"
        )
    check_prompts(length, max(request.samples, request.windows) * request.seeds, "--length")
    if PASSKEY.name in request.measure:
        tokenizer = tokenizer_of(request.model, **request.source)
        setting = Setting(trained, lengths, request.samples, request.first_seed)
        if reason := unfit_length([PASSKEY], tokenizer, min(lengths), setting):
            raise ValueError(f"{reason}; or leave passkey out of --measure")
    kept = CaptureSpec().resolve(config, length)
    standard = CrossingRule.scaled(trained)
    rules = {"standard": standard, "wide": replace(standard, smoothing=max(1, trained // 4))}
    for rule in rules.values():
        check_positions(range(length), trained, rule)
    drift = DriftRule.scaled(trained, resolution(chosen_dtype(config, request.load), "float32"))
    return StudyPlan(request, methods, trained, length, tuple(sorted(lengths)), kept, rules, drift, config)


def _check(request: StudyRequest) -> None:
    for name, values, known in (
        ("prompts", request.prompts, PROMPTS),
        ("tops", request.tops, request.tops),
        ("measure", request.measure, TASK_NAMES),
    ):
        if not values or len(set(values)) < len(values):
            raise ValueError(f"--{name} {','.join(map(str, values))!r} is empty or repeats one")
        if unknown := {*values} - {*known}:
            raise ValueError(f"unknown --{name} {min(unknown)!r}; known: {', '.join(map(str, known))}")
    least = min(request.seeds, request.windows, request.samples, *request.tops)
    if least < 1:
        raise ValueError(f"--seeds, --windows, --samples and --tops must be at least 1, not {least}")
    if request.first_seed < 0 or request.first_seed + request.seeds > MEASURED_SEEDS:
        asked = f"--first-seed {request.first_seed} with --seeds {request.seeds}"
        raise ValueError(f"{asked} leaves 0 to {MEASURED_SEEDS - 1}; passkeys that measure have those beyond")
    if request.configs is not None and request.methods not in (None, "all"):
        raise ValueError(f"--configs {request.configs!r} stands in place of --methods {request.methods}; give one")


def work(made: StudyPlan) -> dict[tuple[Method, int], float]:
    """Passes of a whole study by method and length."""
    request = made.request
    prompts = request.seeds * sum(1 if prompt == "repeated" else request.windows for prompt in request.prompts)
    setting = Setting(made.trained_length, made.lengths, request.samples)
    found: dict[tuple[Method, int], float] = {}
    for name, method in made.methods.items():
        for length in made.passes(name):
            found[method, length] = prompts
        for length in made.lengths:
            measured = request.seeds * sum(TASKS[task].tokens(length, setting) for task in request.measure) / length
            found[method, length] = found.get((method, length), 0.0) + measured
    return found


def estimate(made: StudyPlan) -> str:
    """Passes, tokens, memory and disk of a whole study, as text."""
    request, count = made.request, len(made.methods) * made.request.seeds
    prompts = sum(1 if prompt == "repeated" else request.windows for prompt in request.prompts)
    passes = [length for name in made.methods for length in made.passes(name)]
    measured = count * request.samples * len(request.measure)
    setting = Setting(made.trained_length, made.lengths)
    tokens = sum(
        TASKS[task].tokens(each, replace(setting, samples=1)) for task in request.measure for each in made.lengths
    )
    return (
        f"{len(made.methods)} method configs x {request.seeds} seed(s){_since(request)}: {', '.join(made.methods)}\n"
        f"predicted: {request.seeds * prompts * len(passes)} passes of up to {made.length} tokens, "
        f"{request.seeds * prompts * sum(passes):,} in all\n"
        f"measured: {measured * len(made.lengths)} prompts of {', '.join(map(str, made.lengths))} tokens, "
        f"{count * request.samples * tokens:,} in all\n"
        f"memory beside the weights: about {made.needed_bytes / 2**20:,.0f} MiB; disk for states while it runs: "
        f"{made.scratch_bytes / 2**20:,.0f} MiB"
    )


def _since(request: StudyRequest) -> str:
    return f" from {request.first_seed} on" if request.first_seed else ""
