"""Every public docstring has an example that prints what it shows, and lists parameters with their defaults."""

import ast
import copy
import dataclasses
import doctest
import functools
import importlib
import inspect
import re

import numpy as np
import pytest
import xarray as xr

import mesa
import probe
import theory
from probe.options import options

PACKAGES = {"mesa": mesa, "probe": probe, "theory": theory}
PUBLIC = [f"{package}.{name}" for package, module in PACKAGES.items() for name in module.__all__]
NAMES = {**PACKAGES, "np": np, "xr": xr}
"""What examples use without an import; the pages docs/api-*.md say so."""
FIRST = "probe.run_probe"
"""Its example writes the run that later ones open."""


def public(name: str):
    package, _, attribute = name.partition(".")
    return getattr(PACKAGES[package], attribute)


def docstring(name: str) -> str:
    """A name's docstring; of a constant the string below its assignment."""
    value = public(name)
    if value is not mesa.METHODS:
        return inspect.getdoc(value) or ""
    tree = ast.parse(inspect.getsource(importlib.import_module("mesa.methods")))
    (place,) = [
        at for at, line in enumerate(tree.body) if isinstance(line, ast.AnnAssign) and line.target.id == "METHODS"
    ]
    return inspect.cleandoc(tree.body[place + 1].value.value)


def arguments(value) -> list[str]:
    """The names in the section Args of a docstring."""
    return re.findall(r"^    (\w+): ", section(inspect.getdoc(value) or "", "Args"), re.MULTILINE)


def section(text: str, heading: str) -> str:
    """What stands below a heading of a docstring, such as Args."""
    match = re.search(rf"^{heading}:\n((?:    .*\n|\n)*)", text + "\n", re.MULTILINE)
    return match.group(1) if match else ""


def run_examples(name: str) -> doctest.TestResults:
    """Runs the examples of a name, and of the methods of a class, each from a fresh namespace."""
    value, runner = public(name), doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS)
    if isinstance(value, dict):
        tests = [doctest.DocTestParser().get_doctest(docstring(name), dict(NAMES), name, None, None)]
    else:
        tests = doctest.DocTestFinder().find(value, name, extraglobs={}, globs=dict(NAMES))
    for test in tests:
        runner.run(test)
    return runner.summarize(verbose=False)


@pytest.fixture(scope="module")
def session(tmp_path_factory, undrawn):
    """A working folder with the run of the examples; the shipped model is read once."""
    load, known = importlib.import_module("mesa.models").load, {}

    @functools.wraps(load)
    def loaded(*names, **options):
        key = (*names, *options.items())
        if key not in known:
            known[key] = load(*names, **options)
        return copy.deepcopy(known[key])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("mesa.models.load", loaded)
        patch.chdir(tmp_path_factory.mktemp("examples"))
        run_examples(FIRST)
        yield


@pytest.mark.quick_cases(24)
@pytest.mark.usefixtures("session")
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] if name == "probe.predict_failure" else []) for name in PUBLIC]
)
def test_examples_print_what_they_show(name, capsys):
    done = run_examples(name)
    assert done.attempted, "no example"
    assert not done.failed, capsys.readouterr().out


@pytest.mark.parametrize("name", PUBLIC)
def test_a_docstring_begins_with_a_sentence_and_lists_parameters_and_results(name):
    value, text = public(name), docstring(name)
    assert text.partition("\n")[0].endswith("."), "its first line is no sentence"
    if dataclasses.is_dataclass(value):
        generated = {item.path[0] for item in options(value)}  # docs/site/hooks.py makes a table of those
        fields = {field.name for field in dataclasses.fields(value)} - generated
        wanted = [name for name in vars(value).get("__annotations__", ()) if name in fields]
    elif isinstance(value, type):
        wanted = [] if issubclass(value, Exception) else list(inspect.signature(value).parameters)
    elif callable(value):
        wanted = list(inspect.signature(value).parameters)
        assert section(text, "Returns") or section(text, "Yields"), "no Returns"
    else:
        wanted = []
    assert arguments(value) == wanted
    methods = vars(value).items() if isinstance(value, type) else ()
    for method in (getattr(value, key) for key, item in methods if arguments(item)):
        assert arguments(method) == [key for key in inspect.signature(method).parameters if key != "self"], method


@pytest.mark.parametrize("name", list(mesa.METHODS))
def test_defaults_of_methods_are_as_documented(name):
    """`default M/8` and the like, at M = 4096."""
    method, wrong = mesa.make(name, 4096), {}
    lines = re.split(r"^    (?=\w+: )", section(inspect.getdoc(type(method)), "Args"), flags=re.MULTILINE)[1:]
    for line in map(" ".join, map(str.split, lines)):
        field, _, text = line.partition(": ")
        if said := re.search(r"[Dd]efault (.+?)(?:\.$|\. |, (?!i)|;| at every| \(|$)", text):
            formula = re.sub(r"(\d) ?M", r"\1*M", said[1])
            value = eval(formula, {"M": 4096, **dataclasses.asdict(method)})
            if getattr(method, field) not in (value, round(value) if isinstance(value, float) else value):
                wrong[field] = (said[1], getattr(method, field))
    assert wrong == {}
