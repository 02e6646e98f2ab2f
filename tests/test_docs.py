"""What README, docs and doors name is there: files, folders, links."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
DOORS = sorted(
    path for package in ("mesa", "probe", "theory", "mesa_lens") for path in (ROOT / package).rglob("__init__.py")
)
_NAMED = re.compile(r"(?<![\w./-])(?:mesa|probe|theory|mesa_lens|tests|docs|configs|benchmarks)/[\w./-]*[\w/]")
_LINK = re.compile(r"\]\((?!https?:)([^)#]+)")


def missing(page: Path) -> list[str]:
    """The paths and links of a page that lead nowhere."""
    text = page.read_text(encoding="utf-8")
    paths = [path for path in _NAMED.findall(text) if not (ROOT / path).exists()]
    return paths + [link for link in _LINK.findall(text) if not (page.parent / link).exists()]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_named_paths_and_links_exist(page):
    assert not missing(page)


def test_a_path_that_moved_and_a_dead_link_are_found(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("see `mesa/plug.py` and mesa/plan.py, probe/figures/, runs/x/y.py [a](gone.md), [b](page.md)")
    assert missing(page) == ["mesa/plug.py", "gone.md"]


@pytest.mark.parametrize("door", DOORS, ids=lambda door: str(door.relative_to(ROOT)))
def test_a_door_says_what_goes_in_and_out_and_where_to_begin(door):
    text = door.read_text(encoding="utf-8").split('"""')[1]
    first = re.search(r"\bIn: .*\bOut: .*\bOpen first: (\S+\.py)\b", text, re.DOTALL)
    assert first, f"{door} lacks In:, Out: or Open first:"
    for name in re.findall(r"[\w/]+\.py\b", text):
        assert (door.parent / name).exists(), name


def test_the_readme_links_the_architecture():
    assert "(docs/architecture.md)" in PAGES[0].read_text(encoding="utf-8")
