"""Methods and their parameters from text, and sizes to draw them with."""

import ast
import re
from collections.abc import Sequence
from typing import Any

from mesa.errors import Refused
from mesa.methods import Method, known_method, make, parameters_of, registry, standard_methods
from mesa.support import check_acts, check_method

ALL = "all"
"""Among names of methods: every one but the experimental."""


def method_settings(settings: Sequence[str], option: str = "--set") -> dict[str, dict[str, Any]]:
    """Parameters by method from texts such as 'rerope.window=512'; Refused names `option` and what it cannot read."""
    result: dict[str, dict[str, Any]] = {}
    for setting in settings:
        target, equals, text = setting.partition("=")
        name, dot, parameter = (part.strip() for part in target.partition("."))
        if not (equals and dot):
            raise Refused(f"{option} {setting!r} is not METHOD.PARAMETER=VALUE, e.g. rerope.window=512")
        text = {"true": "True", "false": "False"}.get(text.strip().lower(), text.strip())
        try:
            value = ast.literal_eval(text)
        except (ValueError, SyntaxError):
            value = text
        if parameter == "trained_length":
            raise Refused(f"{option} {setting!r}: the trained length is the model's; give --trained-length")
        if parameter in result.setdefault(name, {}):
            raise Refused(f"{option} {setting!r} gives {target} a second time")
        result[name][parameter] = value
    return result


def read_config(text: str, trained_length: int, option: str = "--config") -> Method:
    """A method with parameters from a text such as 'leaky-rerope:k=2,log_n=false'; Refused names a wrong one."""
    name, colon, values = text.partition(":")
    if colon and not values:
        raise Refused(f"{option} {text!r} is not METHOD:PARAMETER=VALUE,..., e.g. leaky-rerope:k=2,log_n=false")
    each = re.split(r",(?=\s*\w+\s*=)", values) if values else []  # a value may hold commas, as heads=0:0,3
    try:
        parameters = method_settings([f"{name}.{value}" for value in each], "parameter").get(name, {})
        return make(name, trained_length, **parameters)
    except Refused as error:
        raise Refused(f"{option} {text!r}: {error}") from None


def read_configs(texts: Sequence[str], trained_length: int) -> dict[str, Method]:
    """Methods with parameters, by their texts, such as 'leaky-rerope:k=2,log_n=false'. Refused names a wrong one."""
    methods = dict[str, Method]()
    for text in texts:
        if ":" not in text:
            raise Refused(f"--config {text!r} is not METHOD:PARAMETER=VALUE,..., e.g. leaky-rerope:k=2,log_n=false")
        if text in methods:
            raise Refused(f"--config {text!r} is passed twice")
        methods[text] = read_config(text, trained_length)
    return methods


def requested_names(names: str) -> list[str]:
    """The names in a comma-separated text, first the one named first.

    'all': all that are not named themselves, and not experimental.

    Refused for names that stand twice.

    >>> requested_names("rerope,all")[:3]
    ['rerope', 'origin', 'nope']
    """
    named = _names(names)
    doubled = {name for name in named if named.count(name) > 1}
    if doubled:
        raise Refused(f"--methods names {', '.join(sorted(doubled))} more than once")
    others = [name for name in standard_methods() if name not in named]
    return [chosen for name in named for chosen in (others if name == ALL else [name])]


def make_methods(names: str, trained_length: int, settings: Sequence[str] = ()) -> dict[str, Method]:
    """The methods named in a comma-separated text, by name; 'all' stands for those that are not named themselves.

    Refused for unknown or doubled ones.
    """
    return {name: make(name, trained_length, **parameters) for name, parameters in _parameters(names, settings).items()}


def check_names(names: str, settings: Sequence[str] = ()) -> None:
    """Raises Refused for unknown or doubled methods, and for parameters that they do not have."""
    for name, parameters in _parameters(names, settings).items():
        known_method(name, *parameters)


def fitting_methods(
    names: str, trained_length: int, settings: Sequence[str] = (), config: Any = None, *, by_default: bool = False
) -> tuple[dict[str, Method], dict[str, str]]:
    """As `make_methods`: the methods that can be had, and why others are left out, by name.

    Left out, where 'all' stands for it or nobody chose the names (`by_default`), is what a model with this `config`
    cannot have, and what has no default sizes at this trained length. Refused for a method that is named or that
    `settings` are passed for, and where nothing is left.
    """
    named = [] if by_default else _names(names)
    fitting, left_out = {}, {}
    for name, parameters in _parameters(names, settings).items():
        try:
            method = make(name, trained_length, **parameters)
            if config is not None:
                check_method(config, method)
                check_acts(config, method)
            fitting[name] = method
        except Refused as error:
            if parameters or name in named:
                raise
            left_out[name] = str(error)
    if not fitting:
        raise Refused(next(iter(left_out.values())))
    return fitting, left_out


def _parameters(names: str, settings: Sequence[str]) -> dict[str, dict[str, Any]]:
    """The parameters that `settings` give, by name, of all methods that `names` holds; see `make_methods`."""
    requested = requested_names(names)
    parameters = method_settings(settings)
    for name in parameters:
        if name not in requested:
            raise Refused(f"--set names {name!r}, which is not among the methods {','.join(requested)}")
    return {name: parameters.get(name, {}) for name in requested}


def _names(names: str) -> list[str]:
    return [name.strip() for name in names.split(",")]


def drawing_sizes(name: str, trained_length: int) -> dict[str, int]:
    """Sizes that show a method's shape in a small matrix, in place of the paper's: those of them that it has."""
    sizes = {"window": trained_length * 3 // 8, "width": 2, "group": 2}
    sizes |= {"first": trained_length * 3 // 16, "last": trained_length // 4}
    methods = registry()
    known = parameters_of(methods[name]) if name in methods else ()
    return {size: max(1, value) for size, value in sizes.items() if size in known}
