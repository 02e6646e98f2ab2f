"""docs/api.md lists all public names of the packages; its examples, the README's and the guides' do what they say."""

import importlib
import itertools
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("guide-*.md"))]
SECTIONS = {part.partition("\n")[0]: part.partition("\n")[2] for part in PAGE.split("\n## ")[1:]}


def test_every_package_has_its_section():
    assert list(SECTIONS) == ["mesa", "probe", "theory"]


@pytest.mark.parametrize("package", list(SECTIONS))
def test_the_page_lists_every_public_name(package):
    public = importlib.import_module(package)
    rows = re.findall(r"^\| `(\w+)` \| (.*) \|$", SECTIONS[package], re.MULTILINE)
    assert sorted(name for name, _ in rows) == sorted(public.__all__) == dir(public)
    assert all(line for _, line in rows)


@pytest.mark.parametrize("package", list(SECTIONS))
def test_public_names_are_there_and_none_is_a_folders_or_a_files(package):
    public = importlib.import_module(package)
    for name in public.__all__:
        assert getattr(public, name) is not None
        assert not (ROOT / package / name).exists()
        assert not (ROOT / package / f"{name}.py").exists()
    with pytest.raises(AttributeError, match=f"module '{package}' has no attribute 'serach'"):
        _ = public.serach


@pytest.mark.parametrize("package", list(SECTIONS))
def test_names_for_type_checkers_are_those_loaded_lazily(package):
    text = (ROOT / package / "__init__.py").read_text(encoding="utf-8")
    block = text.partition("if TYPE_CHECKING:\n")[2].partition("\n\n")[0]
    stated = {}
    for module, names in re.findall(r"from ([\w.]+) import (.*)", block):
        for name, _, alias in (item.partition(" as ") for item in names.split(", ")):
            stated[alias or name] = f"{module}:{name}" if alias else module
    assert stated == importlib.import_module(package)._LAZY


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize("package", list(SECTIONS))
def test_examples_print_what_they_say(package, tmp_path, monkeypatch, capsys):
    """The blocks of a section run one after another, in one session."""
    code = "\n".join(re.findall(r"^```python\n(.*?)^```$", SECTIONS[package], re.MULTILINE | re.DOTALL))
    printed = re.findall(r"^\s*print\(.*\)  # (.*)$", code, re.MULTILINE)
    assert len(printed) == code.count("print(") >= 1
    monkeypatch.chdir(tmp_path)
    exec(compile(code, f"docs/api.md, {package}", "exec"), {})
    assert capsys.readouterr().out.splitlines() == printed


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize(
    "page", [page for page in PAGES if "```python" in page.read_text(encoding="utf-8")], ids=lambda page: page.name
)
def test_examples_of_readme_and_guides_run_as_printed(page, tmp_path, monkeypatch, capsys):
    text, printed = page.read_text(encoding="utf-8"), r"^print\(.*\)  # (.*)$"
    blocks = re.findall(r"^```python\n(.*?)^```$(?:\n\n^```\n(.*?)^```$)?", text, re.MULTILINE | re.DOTALL)
    monkeypatch.chdir(tmp_path)
    exec(compile("\n".join(code for code, _ in blocks), str(page), "exec"), {})
    expected = [re.findall(printed, code, re.MULTILINE) or output.splitlines() for code, output in blocks]
    assert [line for line in capsys.readouterr().out.splitlines() if line] == [*itertools.chain(*expected)]


def test_the_apis_examples_are_all_in_a_section_that_runs():
    assert sum(section.count("```python") for section in SECTIONS.values()) == PAGE.count("```python")
