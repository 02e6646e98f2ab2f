"""Reads the YAML config of run.py, and plans every section before anything runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

from mesa.errors import NotFound, Refused
from mesa.methods import Method, make, registry
from mesa.methods.chunked import WEAVES
from mesa.models import in_short
from mesa.settings import method_settings, requested_names
from probe import evaluation as evaluation_plan
from probe.commands.probe import ProbeRequest, plan as probe_plan
from probe.commands.probe.plan import ProbePlan, work as probe_work
from probe.evaluation import EvalPlan, Evaluation
from probe.experiment.estimate import passes_of, work_of, work_text
from probe.options import from_values, options
from probe.request import EvalRequest, LoadOptions, MethodsRequest, warn_skipped
from research.paper.sections import SECTIONS

_TOP = ("model", "trained_length", "methods", "set", "seed")
"""The options that a config sets for all sections."""
_SEE = "see research/paper/configs/default.yaml"
SHIPPED = Path(__file__).parent / "configs"


@dataclass(frozen=True)
class PaperConfig(MethodsRequest):
    """A config, its keys checked. sections: values by section and key."""

    trained_length: int = 0
    methods: str = "all"
    title: str = ""
    sections: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


class _Loader(yaml.BaseLoader):
    """Reads every value as text, so that 4:16:4, 012 or yes stay what is written; refuses keys that stand twice."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        doubled = [key for key, count in Counter(key.value for key, _ in node.value).items() if count > 1]
        if doubled:
            problem = f"the key {doubled[0]!r} stands twice, keep one"
            raise yaml.constructor.ConstructorError(problem=problem, problem_mark=node.start_mark)
        return super().construct_mapping(node, deep)


def read(name: str | Path) -> PaperConfig:
    """The config in a YAML file, or the shipped one of that name.

    Values are read as they are written, as those of flags are. Raises FileNotFoundError, and Refused naming the key
    that cannot be read.
    """
    shipped = {path.stem: path for path in sorted(SHIPPED.glob("*.yaml"))}
    path = shipped.get(str(name), Path(name))
    if not path.is_file():
        raise NotFound(f"--config {name} is neither a file nor one of {', '.join(shipped)}")
    try:
        raw = yaml.load(path.read_text(encoding="utf-8"), _Loader)
    except (RecursionError, yaml.YAMLError, ValueError) as error:  # also text that is not UTF-8
        raise Refused(f"{path} is not YAML: {in_short(error)}") from error
    if not isinstance(raw, dict):
        raise Refused(f"{path} holds no keys; {_SEE}")
    _only(raw, ("title", *_TOP, "load", "sections"), str(path))
    for needed in ("model", "trained_length", "sections"):
        if not raw.get(needed):
            raise Refused(f"{path} has no {needed}; {_SEE}")
    top = _read_keys(MethodsRequest, {key: raw[key] for key in _TOP if key in raw}, _TOP, str(path))
    load = _read_keys(LoadOptions, _mapping(raw, "load", str(path)), _keys(LoadOptions), f"{path}: load")
    sections = _mapping(raw, "sections", str(path))
    _only(sections, tuple(SECTIONS), f"{path}: sections")
    settings = top.pop("set", ())
    try:
        by_method = method_settings(settings)
    except ValueError as error:
        raise Refused(f"{path}: {error}") from error
    _only(by_method, tuple(registry()), f"{path}: set")
    for method, parameters in by_method.items():  # also of methods that no section has
        try:
            make(method, top["trained_length"], **parameters)
        except ValueError as error:
            raise Refused(f"{path}: set: {error}") from error
    return PaperConfig(
        **top,
        method_settings=settings,
        load=load,
        title=str(raw.get("title", raw["model"])),
        sections={section: _section_values(sections, section, f"{path}: {section}") for section in sections},
    )


def _section_values(sections: Mapping[str, Any], name: str, where: str) -> dict[str, Any]:
    """The values of a section."""
    section = SECTIONS[name]
    known = [key for key in _keys(section.options) if key not in ("model", "trained_length", "set", "seed")]
    if section.methods:
        known.remove("methods")
    values = _read_keys(section.options, _mapping(sections, name, where), known, where)
    if section.tasks:
        _only(dict.fromkeys(values.get("tasks") or ()), section.tasks, f"{where}: tasks")
    return values


def _keys(cls: type) -> list[str]:
    """The keys of a dataclass's options; those of loading stand under `load`."""
    nested = {option.key for option in options(LoadOptions)} if cls is not LoadOptions else set()
    return [_YAML_KEYS.get(option.key, option.key) for option in options(cls) if option.key not in nested]


_YAML_KEYS = {"task": "tasks"}


def _read_keys(cls: type, raw: Mapping[str, Any], known: Collection[str], where: str) -> dict[str, Any]:
    """The values of keys that are options of the dataclass; Refused names the key that cannot be read."""
    declared = {_YAML_KEYS.get(option.key, option.key): option for option in options(cls)}
    _only(raw, known, where)
    values = {}
    for key, value in raw.items():
        if declared[key].is_flag:
            value = {"true": True, "false": False}.get(value, value)
        try:
            values[key] = declared[key].read(value)
        except ValueError as error:
            raise Refused(f"{where}: {key} {error}; {_SEE}") from None
    return values


def _mapping(raw: Mapping[str, Any], name: str, where: str) -> dict[str, Any]:
    """What a key holds, which must be keys and values; nothing is none of them."""
    value = raw.get(name) or {}
    if not isinstance(value, dict):
        raise Refused(f"{where}: {name} holds {value!r} in place of keys and values; {_SEE}")
    return value


def _only(values: Mapping[str, Any], known: Collection[str], where: str) -> None:
    for key in values:
        if key not in known:
            raise Refused(f"{where} has an unknown key {key!r}; known: {', '.join(known)}")


def reason_left_out(name: str, values: Mapping[str, Any]) -> str:
    """Why a section cannot run as configured; empty where it can."""
    if SECTIONS[name].by_lm_eval and not values.get("tasks"):
        example = "longbench_gov_report" if name == "summary" else "longbench_qasper"
        return f"no lm-eval tasks are given; set `tasks:`, e.g. {example} (its data comes from the hub)"
    return ""


def section_request(config: PaperConfig, name: str) -> EvalRequest | ProbeRequest:
    """The request of a section: its values, and what all sections share."""
    section, values = SECTIONS[name], config.sections[name]
    methods = section.methods or values.get("methods") or config.methods
    common: dict[str, Any] = {key: getattr(config, key) for key in ("model", "load", "trained_length", "seed")}
    common["methods"] = methods
    common["method_settings"] = _settings_of(config, methods)
    if name == "probe":
        return replace(from_values(ProbeRequest, {"texts": 0, **values}), **common)
    if section.by_lm_eval:
        return EvalRequest(tasks=(), lengths=(values.get("max_length") or 8 * config.trained_length,), **common)
    return replace(from_values(EvalRequest, values), tasks=values.get("tasks") or section.tasks, **common)


def _settings_of(config: PaperConfig, methods: str) -> tuple[str, ...]:
    return tuple(setting for setting in config.method_settings if setting.partition(".")[0] in requested_names(methods))


def plan_section(config: PaperConfig, name: str) -> EvalPlan | ProbePlan:
    """The checked plan of a section; raises what the `plan` of its command raises."""
    request = section_request(config, name)
    if isinstance(request, ProbeRequest):
        return probe_plan.plan(request)
    planned = evaluation_plan.plan_evaluation(request)
    if name == "ablation":
        mesa = planned.methods["mesa"]
        return replace(planned, methods={f"mesa, {weave}": replace(mesa, weave=weave) for weave in WEAVES})
    return planned


def check(config: PaperConfig) -> dict[str, Any]:
    """The plans of all sections that can run, by name; everything that can be wrong is checked here, but lm-eval's.

    Of methods 'all' those that the model cannot have are left out; stderr names them once.
    """
    model, _ = config.checked_model()
    methods, left_out = config.fitting_methods(model, config.trained_length, _settings_of(config, config.methods))
    warn_skipped(left_out)
    config = replace(config, methods=",".join(methods))
    return {
        name: plan_section(config, name)
        for name, values in config.sections.items()
        if not reason_left_out(name, values)
    }


def estimate(config: PaperConfig) -> tuple[str, dict[tuple[Method, int], float]]:
    """Tasks, tokens and memory of every section as text; and their passes, as `time_text` takes them."""
    plans, lines, everything = check(config), [config.title], list[Any]()
    for name, values in config.sections.items():
        if name not in plans:
            lines.append(f"{name}: left out, {reason_left_out(name, values)}")
            continue
        if SECTIONS[name].by_lm_eval:
            text = f"{len(plans[name].methods)} methods, lm-eval {', '.join(values['tasks'])}"
        else:
            planned, is_probe = plans[name], name == "probe"
            work = probe_work(planned) if is_probe else work_of(each := Evaluation(planned), each.tasks({}))
            text = "\n".join([*([probe_plan.kept_text(planned)] if is_probe else []), work_text(work, work)])
            everything += work
        lines.append(f"{name} ({SECTIONS[name].place}): {text}")
    return "\n".join(lines), passes_of(everything)
