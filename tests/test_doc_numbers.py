"""Numbers in the docs stand in the committed data that a page names as their source.

A comment `<!-- data: FILE [KEY=VALUE,VALUE ...]; beside: TEXT, TEXT -->` stands above a paragraph or a table. FILE (CSV
or JSON lines) lies under research/, KEY=VALUE selects rows, and the texts beside are labels, no results.
"""

import csv
import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "research"
MARK = re.compile(
    r"<!-- data: (?P<source>[^;]*?)(?:; beside: (?P<beside>.*?))? -->\n(?P<block>.*?)(?=\n\n|\Z)", re.DOTALL
)
INTERVAL = re.compile(r"(?<=%)\s*\[([^],]+), ([^]]+)\]")
"""Of a percentage, whose ends are percentages as well."""
NUMBER = re.compile(r"(?<![\w.])[+-]?(?:\d+\.?\d*|\.\d+)%?(?![\w])")


def numbers_in(value):
    """Every number in a row or in parsed JSON."""
    if isinstance(value, dict):
        value = value.values()
    if isinstance(value, list) or not isinstance(value, (str, int, float, type(None))):
        return [number for inner in value for number in numbers_in(inner)]
    try:
        return [float(value)]
    except (TypeError, ValueError):
        return []


def data(source):
    """The numbers of a source's rows."""
    name, *wanted = source.split()
    path = RESULTS / name
    text = path.read_text(encoding="utf-8")
    rows = [*csv.DictReader(text.splitlines())] if path.suffix == ".csv" else [*map(json.loads, text.splitlines())]
    for condition in wanted:
        key, _, values = condition.partition("=")
        rows = [row for row in rows if str(row[key]) in values.split(",")]
    assert rows, f"{source}: no row is left"
    return [number for row in rows for number in numbers_in(row)]


def unfounded(block, beside, known):
    """The numbers of a block that no known number rounds to."""
    for label in sorted(beside, key=len, reverse=True):
        block = block.replace(label, " ")
    unknown = []
    block = INTERVAL.sub(r" \1% \2%", re.sub(r"`[^`]*`|\]\([^)]*\)", " ", block))
    for match in NUMBER.finditer(block):
        text = match.group()
        scale = 100 if text.endswith("%") else 1
        shown = float(text.rstrip("%"))
        decimals = len(text.rstrip("%").partition(".")[2])
        if not any(abs(number * scale - shown) <= 0.5001 * 10.0**-decimals for number in known):
            unknown.append(text)
    return unknown


MARKED = [
    pytest.param(match, id=f"{page.stem}-{number}")
    for page in sorted((ROOT / "docs").glob("*.md"))
    for number, match in enumerate(MARK.finditer(page.read_text(encoding="utf-8")))
]


@pytest.mark.parametrize("match", MARKED)
def test_numbers_of_a_marked_paragraph_stand_in_its_data(match):
    known = [number for source in match["source"].split(" + ") for number in data(source)]
    assert unfounded(match["block"], (match["beside"] or "").split(", "), known) == []


def test_a_number_without_data_is_reported():
    assert unfounded("40% of `4` heads, .12 at 4 M", ["4 M"], [0.39, 0.12]) == ["40%"]
    assert unfounded("39%", [], [0.394]) == []
    assert unfounded("-0.66", [], [0.66]) == ["-0.66"]
