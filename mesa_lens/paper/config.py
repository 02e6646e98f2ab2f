"""Reads the YAML config of `mesa-lens paper`, and plans every section before anything runs."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml
from yaml.composer import ComposerError

from mesa.checkpoints.config_file import check_stated
from mesa.methods import Method, make, registry
from mesa.models import bytes_a_number, config_of, in_short
from mesa.settings import make_methods, method_settings, wanted_names
from mesa.support import check_config, check_method
from mesa_lens.paper.sections import SECTIONS, Section
from probe.evaluation.by_length import default_lengths
from probe.evaluation.evaluator import BY_DEFAULT, passes
from probe.evaluation.harness import checked_tasks
from probe.evaluation.plan import TASKS, EvalPlan, memory_bytes, plan
from probe.options import from_values, options
from probe.plan import plan as plan_probe
from probe.request import EvalRequest, LoadOptions, MethodsRequest, ModelRequest, ProbeRequest, tell_left_out
from probe.tasks.base import Setting

_TOP = ("model", "trained_length", "methods", "set", "seed")
"""The options that a config sets for all sections."""
_NESTED = ("load", "architecture", "sections")
_SEE = "see configs/default.yaml"


@dataclass(frozen=True)
class PaperConfig(MethodsRequest):
    """A config, its keys checked. architecture: the model's config, for estimates where the model is not at hand.

    sections: values by section and key.
    """

    trained_length: int = 0
    methods: str = "all"
    title: str = ""
    architecture: Any = None
    sections: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


SHIPPED = Path(__file__).parent / "configs"


class _Loader(yaml.SafeLoader):
    """Reads plain values as YAML 1.2 does, and refuses keys that stand twice, and aliases.

    Its base reads 4:16:4, 012, 1_000, yes and dates as numbers, flags and days: YAML 1.1's.
    """

    def compose_node(self, parent: Any, index: Any) -> Any:
        """Refuses an alias, which can make a small file hold any number of values."""
        if self.check_event(yaml.AliasEvent):
            event = self.peek_event()
            problem = f"the alias *{event.anchor} is not read, write its value out"
            raise ComposerError(problem=problem, problem_mark=event.start_mark)
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
            if key.value in seen:
                problem = f"the key {key.value!r} stands twice, keep one"
                raise yaml.constructor.ConstructorError(problem=problem, problem_mark=key.start_mark)
            seen.add(key.value)
        return super().construct_mapping(node, deep)


_Loader.yaml_implicit_resolvers = {}  # none of the base's


for _tag, _written in {
    "null": r"~|null|Null|NULL|",
    "bool": r"true|True|TRUE|false|False|FALSE",
    "int": r"[-+]?(0|[1-9][0-9]*)",
    "float": r"[-+]?(?!0[0-9])([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?|[-+]?\.inf|\.nan",
}.items():
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(rf"({_written})\Z"), None)


def read(name: str | Path) -> PaperConfig:
    """The config in a YAML file, or the shipped one of that name.

    Raises FileNotFoundError, and ValueError naming the key that cannot be read.
    """
    shipped = {path.stem: path for path in sorted(SHIPPED.glob("*.yaml"))}
    path = shipped.get(str(name), Path(name))
    if not path.is_file():
        raise FileNotFoundError(f"--config {name} is no file and not one of {', '.join(shipped)}")
    try:
        raw = yaml.load(path.read_text(encoding="utf-8"), _Loader)
    except RecursionError as error:
        raise ValueError(f"{path} nests too deep to be read; see configs/default.yaml") from error
    except (yaml.YAMLError, ValueError) as error:  # also text that is not UTF-8, and numbers of too many digits
        raise ValueError(f"{path} is not YAML: {in_short(error)}") from error
    if not isinstance(raw, dict):
        raise ValueError(f"{path} holds no keys; {_SEE}")
    _only(raw, ("title", *_TOP, *_NESTED), str(path))
    for needed in ("model", "trained_length", "sections"):
        if raw.get(needed) is None:
            raise ValueError(f"{path} has no {needed}; {_SEE}")
    nested = {name: _mapping(raw, name, str(path)) for name in _NESTED}
    top = _read_keys(MethodsRequest, {key: raw[key] for key in _TOP if key in raw}, _TOP, str(path))
    loading = tuple(option.key for option in options(LoadOptions))
    load = _read_keys(LoadOptions, nested["load"], loading, f"{path}: load")
    if not nested["sections"]:
        raise ValueError(f"{path}: sections names none; give some of {', '.join(SECTIONS)}")
    _only(nested["sections"], tuple(SECTIONS), f"{path}: sections")
    settings = top.pop("set", ())
    _only(method_settings(settings), tuple(registry()), f"{path}: set")
    for name, parameters in method_settings(settings).items():  # also of methods that no section has
        try:
            make(name, top["trained_length"], **parameters)
        except ValueError as error:
            raise ValueError(f"{path}: set: {error}") from error
    return PaperConfig(
        **top,
        settings=settings,
        load=load,
        title=str(raw.get("title", raw["model"])),
        architecture=_architecture(nested["architecture"], str(path)),
        sections={name: _section(nested["sections"], name, str(path)) for name in nested["sections"]},
    )


def _section(sections: Mapping[str, Any], name: str, where: str) -> dict[str, Any]:
    """The values of a section."""
    section, where = SECTIONS[name], f"{where}: {name}"
    values = _read_keys(section.options, _mapping(sections, name, where), section.keys, where)
    if section.tasks:
        _only(dict.fromkeys(values.get("tasks") or ()), section.tasks, f"{where}: tasks")
    return values


def _read_keys(cls: type, raw: Mapping[str, Any], known: tuple[str, ...], where: str) -> dict[str, Any]:
    """The values of keys that are options of the dataclass; ValueError names the key that cannot be read."""
    declared = {_YAML_KEYS.get(option.key, option.key): option for option in options(cls)}
    _only(raw, known, where)
    values = {}
    for key, value in raw.items():
        try:
            values[key] = declared[key].read(value)
        except ValueError as error:
            raise ValueError(f"{where}: {key} {error}; {_SEE}") from None
    return values


_YAML_KEYS = {"task": "tasks"}


def _mapping(raw: Mapping[str, Any], name: str, where: str) -> dict[str, Any]:
    """What a key holds, which must be keys and values; nothing is none of them."""
    value = raw.get(name)
    if value is not None and not isinstance(value, dict):
        raise ValueError(f"{where}: {name} holds {value!r} in place of keys and values; {_SEE}")
    return dict(value or {})


def _only(values: Mapping[str, Any], known: tuple[str, ...], where: str) -> None:
    for key in values:
        if key not in known:
            raise ValueError(f"{where} has an unknown key {key!r}; known: {', '.join(known)}")


def reason_left_out(section: Section, values: Mapping[str, Any]) -> str:
    """Why a section cannot run as configured; empty where it can."""
    if section.name == "summary" and not values.get("data"):
        return "no documents are given; set `data:` to a .jsonl with document and summary (GovReport: report, summary)"
    if section.name == "longbench" and not values.get("tasks"):
        return "no lm-eval tasks are given; set `tasks:`, e.g. longbench_qasper (its data comes from the hub)"
    return ""


def _common(config: PaperConfig, name: str) -> dict[str, Any]:
    """What the requests of all sections share."""
    names = ("model", "load", "settings", "trained_length", "seed")
    methods = config.sections[name].get("methods") or config.methods
    return {**{field: getattr(config, field) for field in names}, "methods": methods}


def eval_request(config: PaperConfig, name: str) -> EvalRequest:
    """The request of an evaluated section."""
    section, values = SECTIONS[name], config.sections[name]
    common = _common(config, name)
    if name == "longbench":
        return EvalRequest(tasks=(), lengths=(values.get("max_length") or 8 * config.trained_length,), **common)
    return replace(from_values(EvalRequest, values), tasks=values.get("tasks") or section.tasks, **common)


def section_methods(config: PaperConfig, name: str, model: Any) -> tuple[dict[str, Method], dict[str, str]]:
    """The methods of a section by their labels, with what `set` says of them; of 'all', why some are left out.

    model: the model's config. ValueError for a named method that the model cannot have.
    """
    section, values = SECTIONS[name], config.sections[name]
    if section.variants:
        settings = [setting for setting in config.settings if setting.startswith("mesa.")]
        stated = make_methods("mesa", config.trained_length, settings)["mesa"].describe()
        sizes = {key: value for key, value in stated.items() if key not in ("name", "trained_length")}
        methods = {
            label: make(method, config.trained_length, **{**sizes, **changed})
            for label, method, changed in section.variants
        }
        for method in methods.values():
            check_method(model, method)
        return methods, {}
    names = values.get("methods") or config.methods
    settings = [setting for setting in config.settings if setting.partition(".")[0] in wanted_names(names)]
    return ModelRequest(methods=names).fitting_methods(model, config.trained_length, settings)


def plan_section(config: PaperConfig, name: str) -> EvalPlan:
    """The checked plan of an evaluated section; raises what `probe.evaluation.plan.plan` raises."""
    planned = plan(replace(eval_request(config, name), methods="origin", settings=()))
    return replace(planned, methods=section_methods(config, name, planned.config)[0])


def probe_request(config: PaperConfig, model: Any) -> ProbeRequest:
    """The request of the probe section. model: the model's config."""
    methods = section_methods(config, "probe", model)[0]
    defaults = {"texts": 0, "length": 4 * config.trained_length}
    common = {
        **_common(config, "probe"),
        "methods": ",".join(methods),
        "settings": tuple(setting for setting in config.settings if setting.partition(".")[0] in methods),
    }
    return replace(from_values(ProbeRequest, {**defaults, **config.sections["probe"]}), **common)


def check(config: PaperConfig) -> dict[str, Any]:
    """The plans of all sections that can run, by name; everything that can be wrong is checked here."""
    plans: dict[str, Any] = {}
    model, _ = config.checked_model()
    _print_left_out(config, model)
    for name, values in config.sections.items():
        if reason_left_out(SECTIONS[name], values):
            continue
        plans[name] = plan_probe(probe_request(config, model)) if name == "probe" else plan_section(config, name)
        if name == "longbench":
            with checked_tasks(plans[name], values["tasks"], values.get("include_path")):
                pass
    return plans


def _architecture(facts: Mapping[str, Any], where: str) -> Any:
    """The config of a model of this architecture; None for no facts. ValueError for facts that are no model's."""
    from transformers import AutoConfig

    try:
        check_stated(facts)
        return AutoConfig.for_model(**facts) if facts else None
    except Exception as error:  # of validation, of many kinds
        raise ValueError(f"{where}: architecture {dict(facts)} is no model's: {in_short(error)}") from error


def estimate(config: PaperConfig) -> str:
    """Cells, tokens and memory of every section as text, from `architecture` where the config has one. No weights."""
    model = model_of(config)
    check_config(model)
    _print_left_out(config, model)
    width = bytes_a_number(model, config.load)
    lines = [f"{config.title}: weights about {_weights(model) * width / 2**30:z.1f} GiB"]
    for name, values in config.sections.items():
        section = SECTIONS[name]
        reason = reason_left_out(section, values)
        if reason:
            lines.append(f"{name}: left out, {reason}")
            continue
        count = len(_judged(config, name, model))
        lines.append(f"{name} ({section.place}): {_section_estimate(config, name, model, count, width)}")
    return "\n".join(lines)


def model_of(config: PaperConfig) -> Any:
    """The model's config: `architecture` where there is one."""
    return config.architecture or config_of(config.model, **config.source)


def work(config: PaperConfig) -> dict[tuple[Method, int], float]:
    """Passes of all sections that can run, but lm-eval's, by method and length."""
    counts: dict[tuple[Method, int], float] = {}
    model = model_of(config)
    for name, values in config.sections.items():
        if name == "longbench" or reason_left_out(SECTIONS[name], values):
            continue
        for method in _judged(config, name, model).values():
            for length, many in _passes(config, name, model).items():
                counts[method, length] = counts.get((method, length), 0.0) + many
        if name != "probe":
            for length, many in _choosing(config, name).items():
                method = make(BY_DEFAULT, config.trained_length)
                counts[method, length] = counts.get((method, length), 0.0) + many
    return counts


def _print_left_out(config: PaperConfig, model: Any) -> None:
    """Prints on stderr, once, which methods are left out of sections that name none."""
    parts = [section_methods(config, name, model)[1] for name in config.sections]
    tell_left_out({name: reason for part in parts for name, reason in part.items()})


def _judged(config: PaperConfig, name: str, model: Any) -> dict[str, Method]:
    """The methods of a section that it scores: not the one that chooses its key tokens."""
    keyed = any(TASKS[task].keyed for task in SECTIONS[name].tasks)
    methods = section_methods(config, name, model)[0].items()
    return {label: method for label, method in methods if not (keyed and method.name == BY_DEFAULT)}


def _choosing(config: PaperConfig, name: str) -> dict[int, int]:
    """Passes of a section's evaluator, which chooses key tokens, by length."""
    setting = _setting(config, request := eval_request(config, name))
    counts: Counter[int] = Counter()
    for task in request.tasks:
        for length in TASKS[task].passes(setting) if TASKS[task].keyed else ():
            counts.update(
                {tokens: many * setting.samples for tokens, many in passes(length, setting.trained_length).items()}
            )
    return counts


def _passes(config: PaperConfig, name: str, model: Any) -> dict[int, float]:
    """Passes of a section under one method, by length."""
    if name == "probe":
        request = probe_request(config, model)
        length = request.length or 0
        lengths = request.lengths or tuple(default_lengths(config.trained_length, length))
        counts = dict.fromkeys(lengths, 2.0 * request.samples)
        counts[length] = counts.get(length, 0.0) + 1 + request.texts
        return counts
    setting = _setting(config, request := eval_request(config, name))
    counts = {}
    for task in request.tasks:
        for length in TASKS[task].passes(setting):
            counts[length] = counts.get(length, 0.0) + TASKS[task].tokens(length, setting) / length
    return counts


def _setting(config: PaperConfig, request: EvalRequest) -> Setting:
    lengths = request.lengths or tuple(config.trained_length * multiple for multiple in (1, 2, 4, 8))
    return Setting(config.trained_length, lengths, request.samples, batch=request.batch)


def _section_estimate(config: PaperConfig, name: str, model: Any, methods: int, width: int) -> str:
    if name == "probe":
        request = probe_request(config, model)
        captured = request.spec.resolve(model, request.length or 0)
        numbers = captured.values * methods * (1 + request.texts)
        size = numbers * (2 if request.spec.dtype == "float16" else 4) / 2**20
        passes = methods * (1 + request.texts)
        lengths = request.lengths or default_lengths(config.trained_length, request.length or 0)
        tokens = passes * (request.length or 0) + 2 * methods * request.samples * sum(lengths)
        passes += 2 * methods * request.samples * len(lengths)
        return f"{methods} methods, {passes:,} passes, about {tokens:,} prompt tokens, store {size:,.0f} MiB"
    request = eval_request(config, name)
    if name == "longbench":
        return f"{methods} methods, lm-eval {', '.join(config.sections[name]['tasks'])}"
    setting = _setting(config, request)
    cells = [(task, length) for task in request.tasks for length in TASKS[task].passes(setting)]
    read = [(TASKS[task].tokens(length, setting), length) for task, length in cells]
    tokens, count = methods * sum(many for many, _ in read), methods * sum(many // length for many, length in read)
    chosen = _choosing(config, name)
    tokens, count = tokens + sum(length * many for length, many in chosen.items()), count + sum(chosen.values())
    memory = memory_bytes(model, request.tasks, setting, width) / 2**30
    return (
        f"{methods * len(cells)} cells, {count:,} passes, about {tokens:,} prompt tokens, "
        f"memory beside the weights {memory:z,.1f} GiB"
    )


def _weights(model: Any) -> int:
    """Parameters of a model with this config, built without memory."""
    import torch
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        return sum(weight.numel() for weight in AutoModelForCausalLM.from_config(model).parameters())
