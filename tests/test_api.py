"""The reference has every public name and option."""

import importlib
import re
import runpy
from pathlib import Path

import pytest
from commands import parsers

from mesa_lens.cli import parser

ROOT = Path(__file__).parents[1]
PACKAGES = ("mesa", "probe", "theory")
TABLES = runpy.run_path(str(ROOT / "docs" / "site" / "reference.py"))
"""What writes these pages."""


@pytest.mark.parametrize("package", PACKAGES)
def test_the_reference_has_every_public_name_once(package):
    public = importlib.import_module(package)
    page = (ROOT / "docs" / f"api-{package}.md").read_text(encoding="utf-8")
    names = re.findall(rf"^### {package}\.(\w+)$", page, re.MULTILINE)
    assert sorted(names) == sorted(public.__all__) == dir(public)


def test_the_reference_has_every_option_of_every_command():
    sections = {part.partition("\n")[0]: part for part in ("\n" + TABLES["commands"]()).split("\n## ")[1:]}
    for name, command in parsers(parser()).items():
        flags = {flag for action in command._actions for flag in action.option_strings} - {"-h", "--help"}
        assert [flag for flag in flags if f"| `{flag}" not in sections[name]] == [], name


def test_the_pages_are_those_that_the_code_makes():
    for name, text in TABLES["pages"]().items():
        assert (ROOT / "docs" / name).read_text(encoding="utf-8") == text, f"{name}: run `make docs-pages`"


def test_a_methods_page_has_its_formula_and_defaults_as_they_resolve():
    section = TABLES["described"]("mesa.ReRoPE")
    assert "Formula: `R = min(r, N)`" in section
    assert "| `window` | 512 | N, the largest distance, in tokens; default M/8. |" in section


def test_results_have_their_fields_with_types():
    table = TABLES["fields_of"]("mesa.models.Loaded")
    assert "| `model` | `PreTrainedModel` |" in table


def test_fields_of_a_request_have_their_defaults():
    rows = TABLES["options_of"]("probe.ProbeRequest").splitlines()
    assert "| `length` | `--length` | 4x M | tokens of the prompts whose hidden states are stored |" in rows
    assert [row for row in rows if row.startswith("| `spec.hooks` | `--hooks` | resid_post | ")]


@pytest.mark.parametrize("package", PACKAGES)
def test_public_names_are_there_and_none_is_a_folders_or_a_files(package):
    public = importlib.import_module(package)
    for name in public.__all__:
        assert getattr(public, name) is not None
        assert not (ROOT / package / name).exists()
        assert not (ROOT / package / f"{name}.py").exists()
    with pytest.raises(AttributeError, match=f"module '{package}' has no attribute 'serach'"):
        _ = public.serach


@pytest.mark.parametrize("package", PACKAGES)
def test_names_for_type_checkers_are_those_loaded_lazily(package):
    text = (ROOT / package / "__init__.py").read_text(encoding="utf-8")
    block = text.partition("if TYPE_CHECKING:\n")[2].partition("\n\n")[0]
    stated = {}
    for module, names in re.findall(r"from ([\w.]+) import (.*)", block):
        for name, _, alias in (item.partition(" as ") for item in names.split(", ")):
            stated[alias or name] = f"{module}:{name}" if alias else module
    assert stated == importlib.import_module(package)._LAZY
