"""The method configs a study goes over: every method, with parameters that let it fail early, late or not at all."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from mesa.methods import Method, make
from mesa.settings import method_settings
from mesa.support import check_method

REFERENCE = "origin"


def variants(methods: Mapping[str, Method], trained_length: int) -> dict[str, Method]:
    """Configs by label, such as 'leaky-rerope k=2', of methods by name; Origin first.

    Each method comes with its defaults and as `_varied` says.
    """
    result: dict[str, Method] = {REFERENCE: make(REFERENCE, trained_length)}
    varied = _varied(trained_length)
    for name, method in methods.items():
        result[name] = method
        for parameters in varied.get(name, ()):
            words = " ".join(f"{key}={value}" for key, value in parameters.items())
            result[f"{name} {words}"] = make(name, trained_length, **parameters)
    return result


def chosen(configs: str, trained_length: int, config: Any) -> dict[str, Method]:
    """Configs by label from a text such as 'rerope,mesa layers=[0,1] window=512'; Origin first, asked for or not.

    Raises ValueError for what cannot be read or made, for doubles, and for methods that a model with this `config`
    cannot have.
    """
    result: dict[str, Method] = {REFERENCE: make(REFERENCE, trained_length)}
    labels = [" ".join(part.split()) for part in re.split(r",(?![^\[]*])", configs)]  # none within [...]
    for label in labels:
        if not label:
            raise ValueError(f"--configs {configs!r} names an empty config; separate them by one comma each")
        if labels.count(label) > 1:
            raise ValueError(f"--configs {configs!r} names {label!r} more than once")
        name, *words = label.split()
        for word in words:
            if "=" not in word:
                raise ValueError(f"--configs {label!r}: {word!r} is no PARAMETER=VALUE, as in 'leaky-rerope k=2'")
        parameters = method_settings([f"{name}.{word}" for word in words]).get(name, {})
        result[label] = make(name, trained_length, **parameters)
        check_method(config, result[label])
    return result


def _varied(trained_length: int) -> dict[str, tuple[dict[str, Any], ...]]:
    """Parameters beside the defaults; those of slowed distances put their reach of M between 1.4 and 7 M."""
    return {
        "rerope": ({"window": trained_length // 2},),
        "leaky-rerope": ({"k": 1.5}, {"k": 2}, {"k": 4}, {"k": 8}),
        "pi": ({"factor": 2},),
        "dynamic-ntk": ({"factor": 1}, {"factor": 2}),
        "ntk-mixed": ({"k": 2}, {"k": 4}),
        "yarn": ({"factor": 2},),
        "self-extend": ({"group": 2}, {"group": 4}),
        "stair": ({"width": 2}, {"width": 4}),
        "mesa": ({"width": 4},),
    }
