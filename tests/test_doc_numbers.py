"""Numbers in the docs stand in the committed data that research/numbers.yaml names as their source.

A source is `FILE [KEY=VALUE,VALUE ...] [: EXPRESSION]`: FILE (CSV, JSON, JSON lines, or a script, whose functions read
them) lies under research/, KEY=VALUE selects rows, and the expression computes from `rows` (or `data`, of JSON) and
from their columns. Tables that a script writes are computed again.
"""

import csv
import importlib
import json
import re
from functools import cache, partial
from pathlib import Path

import numpy as np
import pytest
import yaml

from probe.statistics import wilson
from research.real_model import run as real_model
from research.thresholds_predict_failure.results import read_results
from research.thresholds_predict_failure.score import advantage, score
from research.thresholds_predict_failure.tables import (
    arithmetic,
    measured_lengths,
    onset_lengths,
    tables,
    without_reference,
)
from research.trained_counterpart.run import head_table, held_table

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "research"
INTERVAL = re.compile(r"(?<=%)\s*\[([^],]+), ([^]]+)\]")
"""Of a percentage, whose ends are percentages as well."""
NUMBER = re.compile(r"(?<![\w.])[+-]?(?:\d+\.?\d*|\.\d+)%?(?![\w])")


def numbers_in(value):
    """Every number in a row or in parsed JSON."""
    value = value.tolist() if isinstance(value, (np.ndarray, np.generic)) else value
    if isinstance(value, dict):
        value = value.values()
    if isinstance(value, list) or not isinstance(value, (str, int, float, type(None))):
        return [number for inner in value for number in numbers_in(inner)]
    try:
        return [float(value)]
    except (TypeError, ValueError):
        return []


def data(source):
    """The numbers of a source: those of its rows, or those that its expression gives."""
    selected, _, expression = source.partition(" : ")
    name, *wanted = selected.split()
    if name.endswith(".py"):
        names = vars(importlib.import_module(f"research.{name[:-3].replace('/', '.')}"))
        return numbers_in(eval(expression, {**names, "np": np}))
    text = (RESULTS / name).read_text(encoding="utf-8")
    if name.endswith(".json"):
        names = {
            "np": np,
            "data": json.loads(text),
            "printed": lambda: printed(name),
            "agreement": partial(agreement, name),
        }
        return numbers_in(eval(expression, names))
    rows = [*csv.DictReader(text.splitlines())] if name.endswith(".csv") else [*map(json.loads, text.splitlines())]
    for condition in wanted:
        key, _, values = condition.partition("=")
        rows = [row for row in rows if str(row[key]) in values.split(",")]
    assert rows, f"{source}: no row is left"
    columns = {key: np.array(numbers_in([row[key] for row in rows if key in row])) for key in rows[0]}
    return numbers_in(eval(expression, {**columns, "np": np, "rows": rows}) if expression else rows)


@cache
def agreement(name, prompt="repeated", rule="standard", all_pairs=False):
    """Of onsets with failure lengths: rank correlation, arithmetic's, and the difference, each with its interval.

    all_pairs: a pair without an onset counts as one that never fails; else it is left out.
    """
    results = without_reference(read_results(RESULTS / name))
    onset, measured = onset_lengths(results, prompt=prompt, rule=rule), measured_lengths(results)
    onset = np.where(np.isnan(onset), np.nanmax(onset), onset) if all_pairs else onset
    estimates = (score(onset, measured, ()).correlation, *advantage(onset, arithmetic(results), measured))
    return [[one.value, one.low, one.high] for one in estimates]


@cache
def printed(name):
    """Every number of the tables that a study's results give."""
    return [float(number) for number in re.findall(r"-?\d+\.?\d*", tables(read_results(RESULTS / name)))]


def without_shares(block, labels, values):
    """The block without those intervals that are Wilson's of a count in it, such as '9 of 10 [60%, 98%]'."""
    texts = re.findall(r"(?<![\d.])\d+(?![\d.%])", " ".join([block, *map(str, labels)]))
    counts = {*map(int, texts), *(int(number) for number in values if np.isfinite(number) and number == int(number))}

    def kept(match):
        before = re.findall(r"(?<![\d.])\d+(?![\d.%])", block[max(0, match.start() - 80) : match.start()])
        pairs = [(int(hits), count) for hits in before for count in counts if count >= max(1, int(hits))]
        ends = [tuple(f"{end:.0%}" for end in wilson(*pair)) for pair in pairs]
        return " " if match.groups() in ends else match.group()

    return re.sub(r"(?<!%)\s*\[(\d+%), (\d+%)\]", kept, block)


def unfounded(block, labels, values):
    """The numbers of a block that none of the values rounds to."""
    block = without_shares(block, labels, values)
    for label in sorted(filter(None, labels), key=len, reverse=True):
        block = re.sub(rf"(?<![\d.]){re.escape(label)}(?!\d)", " ", block)
    unknown = []
    block = INTERVAL.sub(r" \1% \2%", re.sub(r"`[^`]*`|\]\([^)]*\)", " ", block))
    for match in NUMBER.finditer(block):
        text = match.group()
        scale = 100 if text.endswith("%") else 1
        shown = float(text.rstrip("%"))
        decimals = len(text.rstrip("%").partition(".")[2])
        if not any(abs(number * scale - shown) <= 0.5001 * 10.0**-decimals for number in values):
            unknown.append(text)
    return unknown


TIED = yaml.safe_load((RESULTS / "numbers.yaml").read_text(encoding="utf-8"))
COMPLETE = TIED.pop("complete")


def part(text, entry):
    """The part of a page that an entry is about: its quote, or from where it begins to the next blank line."""
    quoted = " ".join((entry.get("quote") or "").split())
    if quoted:
        assert " ".join(text.split()).count(quoted) == 1, f"not once on the page: {quoted}"
        return quoted
    assert text.count(entry["begins"]) == 1, f"not once on the page: {entry['begins']}"
    return entry["begins"] + text.split(entry["begins"])[1].split("\n\n")[0]


def counterparts(name):
    """What research/trained_counterpart gives of a model."""
    return json.loads((RESULTS / f"trained_counterpart/results/{name}.json").read_text(encoding="utf-8"))


BY_SCRIPT = {  # folder of a results.md: the tables that a script writes into it; others are compared in tests/research
    "real_model": lambda: (
        real_model.length_table(real_model.by_length(real_model.by_position())),
        real_model.table(real_model.by_position()),
        real_model.metric_table("passkey", real_model.PASSKEYS),
        real_model.metric_table("latency", real_model.COSTS),
    ),
    "theorems": lambda: (
        head_table(counterparts("default")),
        held_table(counterparts("default")),
        head_table(counterparts("nope"))[:-1],  # the last is no kin
    ),
}


@pytest.mark.parametrize("folder", BY_SCRIPT)
def test_a_table_that_a_script_writes_is_what_the_data_give(folder):
    text = (RESULTS / folder / "results.md").read_text(encoding="utf-8")
    assert [lines for lines in map("\n".join, BY_SCRIPT[folder]()) if lines not in text] == []


def known(entry):
    """The numbers of an entry's sources."""
    return [number for source in entry["data"] for number in data(source)]


@pytest.mark.parametrize(
    ("page", "entry"),
    [
        pytest.param(
            page,
            entry,
            id=f"{page}: {entry.get('quote', entry.get('begins'))[:30]}",
            marks=[pytest.mark.slow] if any("printed()" in source for source in entry["data"]) else [],
        )
        for page, entries in TIED.items()
        for entry in entries
    ],
)
def test_numbers_stand_in_their_data(page, entry):
    text = (ROOT / page).read_text(encoding="utf-8")
    assert unfounded(part(text, entry), entry.get("labels", []), known(entry)) == []


@pytest.mark.parametrize("page", COMPLETE)
def test_every_number_of_a_complete_page_is_tied_or_a_label(page):
    text = re.sub(
        r"^(?: {4}|!\[|#+ )[^\n]*$|```.*?```|\$\$.*?\$\$|\$[^$]+\$",
        "",
        (ROOT / page).read_text("utf-8"),
        flags=re.M | re.S,
    )
    for entry in TIED.get(page, []):
        text = text.replace(part(text, entry), "") if "begins" in entry else without(text, entry["quote"])
    assert unfounded(text, COMPLETE[page], []) == []


def without(text, quote):
    """The text without a phrase, over which lines may break."""
    return re.sub(r"\s+".join(map(re.escape, quote.split())), "", text)


def test_a_number_without_data_is_reported():
    assert unfounded("40% of `4` heads, .12 at 4 M", ["4 M"], [0.39, 0.12]) == ["40%"]
    assert unfounded("39%", [], [0.394]) == []
    assert unfounded("9 of 10 [60%, 98%]", [], [9, 10]) == []
    assert unfounded("9 of 10 [60%, 99%]", [], [9, 10]) == ["60%", "99%"]
    assert unfounded("-0.66", [], [0.66]) == ["-0.66"]
