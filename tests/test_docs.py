"""What README, docs and packages' docstrings name is there: files, folders, links, modules and what is in them."""

import re
import runpy
import sys
from pathlib import Path
from pkgutil import resolve_name
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest
import yaml
from commands import parsers

from mesa import plugins
from mesa_lens import __version__
from mesa_lens.cli import parser
from mesa_lens.dashboard.views import thresholds
from probe import glossary
from probe.evaluation import TASKS

ROOT = Path(__file__).parents[1]
RESULTS = sorted((ROOT / "research").glob("*/results.md"))
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
PACKAGE_FILES = sorted(
    path for package in ("mesa", "probe", "theory", "mesa_lens") for path in (ROOT / package).rglob("__init__.py")
)
_NAMED = re.compile(r"(?<![\w./-])(?:mesa|probe|theory|mesa_lens|tests|docs|configs|benchmarks|research)/[\w./-]*[\w/]")
_CODE = re.compile(r"```.*?```|`[^`]+`|^ {4}[^\n]+", re.DOTALL | re.MULTILINE)
_DOTTED = re.compile(r"(?<![\w./-])(?:mesa|probe|theory|mesa_lens)(?:\.\w+)+")
_LINK = re.compile(r"\]\((?!https?:)([^)#]+)")


def missing(page: Path) -> list[str]:
    """The paths, links and, in code, dotted names of a page that lead nowhere."""
    text = page.read_text(encoding="utf-8")
    paths = [path for path in _NAMED.findall(text) if not (ROOT / path).exists()]
    prose = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    links = [link for link in _LINK.findall(prose) if not (page.parent / link).exists()]
    code = "\n".join(_CODE.findall(text))
    return paths + links + [name for name in dict.fromkeys(_DOTTED.findall(code)) if not is_there(name)]


def is_there(name: str) -> bool:
    """Whether a dotted name is a module of ours or something in one, or a group of entry points."""
    if name in (plugins.METHODS, plugins.TASKS, plugins.FAMILIES, plugins.COMMANDS):
        return True
    try:
        resolve_name(name)
    except (ImportError, AttributeError):
        return False
    return True


@pytest.mark.parametrize("page", PAGES + RESULTS, ids=lambda page: str(page.relative_to(ROOT)))
def test_named_paths_links_and_modules_exist(page):
    assert not missing(page)


def test_every_chart_of_the_docs_has_its_numbers_under_it():
    shown = [
        (page.parent / picture, below.removeprefix("\n\n*"))
        for page in PAGES[1:] + RESULTS
        for picture, below in re.findall(r"\]\(([\w-]+)\.png\)(\n\n.*)?", page.read_text(encoding="utf-8"))
    ]
    assert {picture.with_suffix(".png") for picture, _ in shown} >= {*(ROOT / "docs").glob("*.png")}
    for picture, below in shown:
        if picture.name.startswith("app-"):  # a screenshot
            continue
        if not below.startswith("Numbers, after `make real`: `mesa-lens export "):  # of states that are not shipped
            assert below.startswith(f"[Numbers]({picture.name}.csv)")
            first, *rows = picture.with_suffix(".csv").read_text(encoding="utf-8").splitlines()
            assert len(first.split(",")) > 2
            assert len(rows) > 10


def test_what_moved_or_is_dead_is_reported(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(
        "see `mesa/plug.py` and mesa/plan.py, probe/figures/, runs/x/y.py [a](gone.md), [b](page.md)\n"
        "`probe.figures.export`, `probe.CrossingRule.scaled(64)`, probe.gone, `probe.export` or `from mesa.plug`\n"
        "```python\nimport mesa_lens.gone\nprint(mesa.load, mesa.laod)\n```\n"
    )
    assert missing(page) == ["mesa/plug.py", "gone.md", "probe.export", "mesa.plug", "mesa_lens.gone", "mesa.laod"]


@pytest.mark.parametrize("file", PACKAGE_FILES, ids=lambda file: str(file.relative_to(ROOT)))
def test_a_packages_docstring_says_what_goes_in_and_out_and_where_to_begin(file):
    text = file.read_text(encoding="utf-8").split('"""')[1]
    assert re.search(r"\bIn: .*\bOut: .*\bOpen first: (\S+\.py)\b", text, re.DOTALL)
    assert [name for name in re.findall(r"[\w/]+\.py\b", text) if not (file.parent / name).exists()] == []


def test_the_glossary_page_is_that_of_the_reports():
    written = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
    assert written == glossary.page(), "python -m probe.glossary"


def test_every_task_is_in_the_table_of_tasks():
    rows = re.findall(r"^\| (`.*?) \|", (ROOT / "docs" / "tasks.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert [name for name in TASKS if f"`{name}`" not in "".join(rows)] == []


def test_every_page_is_in_the_nav_and_the_index_has_a_picture():
    nav = re.findall(r": ([\w-]+\.md)$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(nav) == sorted(page.name for page in PAGES[1:])
    assert (ROOT / "docs" / "index.md").read_text(encoding="utf-8").count("![") == 1


def test_no_label_is_an_internal_name():
    """Labels: of the dashboard's widgets, and in every command's help."""
    helps = [command.format_help() for command in parsers(parser()).values()]
    labels = [*thresholds._LABELS.values(), *helps]
    for name in ("warm_up", "held_out", "minimum_score"):
        assert not [label for label in labels if name in label or name.upper() in label], name


def test_the_citation_file_and_the_bibtex_say_the_same():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    text = (ROOT / "README.md").read_text(encoding="utf-8").translate(str.maketrans("", "", "{}"))
    paper = citation["preferred-citation"]
    authors = " and ".join(f"{author['family-names']}, {author['given-names']}" for author in paper["authors"])
    assert (citation["cff-version"], citation["version"]) == ("1.2.0", __version__)
    entries = [paper["title"], authors, citation["title"], citation["authors"][0]["name"], __version__]
    assert [entry for entry in entries if f"= {entry}" not in text] == []
    assert paper["identifiers"][0]["value"] == "arXiv:" + re.search(r"eprint = ([\d.]+)", text).group(1)


def test_a_column_of_losses_minus_truncation_holds_one_number_a_method():
    known: dict[str, set[str]] = {}
    for page in PAGES:
        for table in re.findall(r"(?:^\|.*\n)+", page.read_text(encoding="utf-8"), re.MULTILINE):
            head, _, *rows = ([cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines())
            if "loss at 2048 tokens" in head and "minus truncation" in head:
                for row in rows:
                    known.setdefault(row[0].split(",")[0], set()).add(row[head.index("minus truncation")])
    assert known["`mesa`"] == {"+0.06 [-0.02, +0.15]"}
    assert all(len(numbers) == 1 for numbers in known.values()), known
    assert any(name == "`crop`" for name in known)  # a method with a row of its own, not another name of the column


def test_links_of_notebooks_lead_to_the_pages_of_the_site(monkeypatch, caplog):
    """mkdocs-jupyter leaves a notebook's links as they are, and `mkdocs build --strict` sees none of them."""
    for name in ("latex2mathml.converter", "mkdocs.structure.files"):  # of the extra `docs`
        for part in (name.split(".")[0], name.rpartition(".")[0], name):
            monkeypatch.setitem(sys.modules, part, MagicMock())
    hooks = runpy.run_path(str(ROOT / "docs" / "site" / "hooks.py"))
    sources = {path.name: path.read_text(encoding="utf-8") for path in (ROOT / "docs").glob("*.ipynb")}
    known = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").glob("**/*.*")}

    def file(uri):
        return (
            SimpleNamespace(url_relative_to=lambda _: Path(uri).with_suffix(".html").as_posix())
            if uri in known
            else None
        )

    for name, text in sources.items():
        links = re.findall(r"\]\((?!https?:)([^)\s]+)\)", text)
        html = " ".join(f'<a href="{link}">' for link in [name, "https://x.org/a.md", *links])
        page = SimpleNamespace(file=SimpleNamespace(src_uri=name))
        written = hooks["on_page_content"](html, page, None, SimpleNamespace(get_file_from_path=file))
        expected = [name, "https://x.org/a.md", *(link.replace(".md", ".html") for link in links)]
        assert re.findall('href="(.*?)"', written) == expected
        assert links
    assert not caplog.records
    hooks["on_page_content"]('<a href="gone.md">', page, None, SimpleNamespace(get_file_from_path=file))
    assert "the link to gone.md leads nowhere" in caplog.text  # which strict makes an error
