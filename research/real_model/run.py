"""Draws what results/ holds of the real model, and writes its tables into results.md.

    python research/real_model/run.py

draws drift beside NLL by position (docs/real-model-break.png); the tables stand between comments that name them.
"""

from __future__ import annotations

import csv
import json
import math
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))

from probe.figures.export import rendered
from probe.figures.figure_data import RED, Chart, Line, Panel, Rule, style, trained_rule
from probe.statistics import shown, student, wilson
from research.correlation import rank_correlation
from research.figure_numbers import of_chart, write_numbers

HERE = Path(__file__).parent
RESULTS = HERE / "results"
PICTURE = HERE.parents[1] / "docs" / "real-model-break.png"
PAGE = HERE / "results.md"
M, LAYER, REFERENCE = 8192, 3, "rerope"
DRAWN = ("origin", "rerope", "dynamic-ntk", "mesa")
AT = (8192, 9216, 10240, 10752, 11264, 12288, 14336, 16384)
LENGTHS, TAIL = (4096, 8192, 10240, 12288, 16384), 2048
FIRST = 2048  # before it states still settle

Column = tuple[str, Callable[[Sequence[float]], str]]
"""A metric's title, and what is told of its samples."""


def cells(section: str) -> Iterator[tuple[str, int, list[dict[str, Any]]]]:
    """Method, prompt length (tokens) and scores of every finished cell of a section; none where there is no journal."""
    journal = RESULTS / section / "journal.jsonl"
    for line in journal.read_text(encoding="utf-8").splitlines() if journal.is_file() else ():
        row = json.loads(line)
        if "cell" in row:
            _, name, length = row["cell"]
            yield name, length, row["scores"]


def by_position() -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """By method: the last positions of the buckets, in tokens, and NLL (text, bucket), nats/token."""
    by_method = {}
    for name, _, scores in cells("nll-position"):
        values = {(score["sample"], score["length"]): score["value"] for score in scores}
        texts, ends = (sorted({key[place] for key in values}) for place in (0, 1))
        by_method[name] = np.array(ends), np.array([[values[text, end] for end in ends] for text in texts])
    return by_method


def nll_panel(by_method: dict[str, tuple[np.ndarray, np.ndarray]]) -> Panel:
    """Mean NLL over position under each method."""
    lines = []
    for name in (name for name in DRAWN if name in by_method):
        ends, nll = by_method[name]
        kept = ends > FIRST
        lines.append(Line(name, ends[kept], nll.mean(0)[kept], *style(name)))
    top = 1.05 * max(float(line.y.max()) for line in lines)
    texts = len(next(iter(by_method.values()))[1])
    return Panel(
        title=f"NLL of the next token, {texts} texts",
        x_title="position (tokens), buckets of 512",
        y_title="NLL (nats/token)",
        lines=tuple(lines),
        points=(),
        rules=(trained_rule(M),),
        y_range=(0.0, top),
    )


def drift_panel() -> Panel:
    """The rms distance of a layer's states from their in-window range, over position, under each method."""
    with (RESULTS / "drift-16k" / "levels.csv").open(encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["layer"] == str(LAYER) and int(row["run"]) >= FIRST]
    lines = []
    for name in DRAWN:
        own = [row for row in rows if row["method"] == name]
        y = [np.nan if row["warm_up"] == "True" else math.sqrt(float(row["level"])) for row in own]
        lines.append(Line(name, np.array([float(row["run"]) for row in own]), np.array(y), *style(name)))
    (limit,) = {math.sqrt(float(row["limit"])) for row in rows if row["method"] == "origin"}
    return Panel(
        title=f"drift of layer {LAYER}, one repeated word (gaps: warm-up)",
        x_title="position (tokens), runs of 64",
        y_title="rms distance from in-window range (ranges)",
        lines=tuple(lines),
        points=(),
        rules=(trained_rule(M), Rule(limit, "origin's limit", RED)),
        y_range=(0.0, 1.05 * max(float(np.nanmax(line.y)) for line in lines)),
    )


def table(by_method: dict[str, tuple[np.ndarray, np.ndarray]]) -> Iterator[str]:
    """Lines of Markdown: mean NLL in the bucket that ends at each position, less the reference's by text."""
    yield f"| method | {' | '.join(map(str, AT))} |"
    yield "|---" * (len(AT) + 1) + "|"
    ends, base = by_method[REFERENCE]
    for name, (_, nll) in by_method.items():
        cells = []
        for at in AT:
            bucket = int(np.flatnonzero(ends == at)[0])
            less = nll[:, bucket] - base[:, bucket]
            apart = "" if name == REFERENCE else f" ({shown(float(less.mean()), *student(less.tolist()), '+z.2f')})"
            cells.append(f"{nll[:, bucket].mean():z.2f}{apart}")
        yield f"| `{name}` | {' | '.join(cells)} |"


def lost(name: str, reference: str, at: int) -> tuple[float, float | None, float | None]:
    """NLL less the reference's of the 512 tokens up to `at`, nats/token: mean over texts with its 95% interval."""
    by_method = by_position()
    bucket = int(np.flatnonzero(by_method[name][0] == at)[0])
    less = by_method[name][1][:, bucket] - by_method[reference][1][:, bucket]
    low, high = student(less.tolist())
    return float(less.mean()), low, high


def tail(name: str, length: int) -> float:
    """Mean NLL of the last 2048 tokens at a prompt length, less Origin's there or, beyond M, at M (nats/token)."""
    by_method = by_length(by_position())
    return float((by_method[name][length] - by_method["origin"][min(length, M)]).mean())


def exceeding(layer: int, first: int) -> tuple[float, float]:
    """Of Origin's runs of 64 tokens from `first` on: the share beyond its limit; the median level, in limits."""
    with (RESULTS / "drift-16k" / "levels.csv").open(encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if (row["method"], row["layer"]) == ("origin", str(layer))]
    levels = np.array([float(row["level"]) / float(row["limit"]) for row in rows if int(row["run"]) >= first])
    return float((levels > 1).mean()), float(np.median(levels))


def located(text: int) -> dict[tuple[int, int], float]:
    """The share of a text's loss at 12k that ReRoPE in one (layer, head) alone restores; head -1: the whole layer."""
    lines = (RESULTS / "locate-12k" / "journal.jsonl").read_text(encoding="utf-8").splitlines()
    rows = {tuple(row["cell"]): float(np.mean(row["nll"])) for row in map(json.loads, lines) if "nll" in row}
    origin, rerope = (rows["nll", 12288, name, text, "run"] for name in ("origin", REFERENCE))
    return {
        (cell[-2], cell[-1]): (origin - loss) / (origin - rerope)
        for cell, loss in rows.items()
        if cell[3:6] == (text, "weave", "only")
    }


def by_first_drift(text: int, word: str) -> tuple[float | None, float | None, float | None]:
    """Rank correlation of layers' shares with where Origin's states leave their range on a word; beyond 12k: tied."""
    if word == "hello":
        summary = json.loads((RESULTS / "drift-16k" / "summary.json").read_text(encoding="utf-8"))
        first = next(row["drift_onset"]["layers"] for row in summary["methods"] if row["method"] == "origin")
    else:
        journal = HERE.parent / "thresholds_predict_failure" / "results" / "smollm2" / "journal.jsonl"
        cell = ["onset", "repeated", "origin", 0]
        rows = map(json.loads, journal.read_text(encoding="utf-8").splitlines())
        first = next(row for row in rows if row.get("cell") == cell)["lengths"]["repeated"]["drift"]["call"]["layers"]
    shares = located(text)
    places = [min(first[str(layer)], 12289) for layer in range(30)]
    return rank_correlation(places, [shares[layer, -1] for layer in range(30)])


def by_length(positions: dict[str, tuple[np.ndarray, np.ndarray]]) -> dict[str, dict[int, np.ndarray]]:
    """By method and prompt length: NLL of the last 2048 tokens (text,), nats/token; at 16384 by position."""
    by_method: dict[str, dict[int, np.ndarray]] = {}
    for name, length, scores in cells("nll"):
        by_method.setdefault(name, {})[length] = np.array([score["value"] for score in scores])
    for name, (ends, nll) in positions.items():
        by_method.setdefault(name, {}).setdefault(max(LENGTHS), nll[:, ends > max(LENGTHS) - TAIL].mean(1))
    return by_method


def length_table(by_method: dict[str, dict[int, np.ndarray]]) -> Iterator[str]:
    """Lines of Markdown: tail NLL at each length, less Origin's by text: on the same prompt, beyond M on that of M."""
    yield f"| method | {' | '.join(map(str, LENGTHS))} |"
    yield "|---" * (len(LENGTHS) + 1) + "|"
    for name, row in by_method.items():
        cells = []
        for length in LENGTHS:
            less = row[length] - by_method["origin"][min(length, M)] if length in row else np.zeros(0)
            text = f"{row[length].mean():z.2f}" if length in row else ""
            if (abs(less) >= 0.005).any():
                text += f" ({shown(float(less.mean()), *student(less.tolist()), '+z.2f')})"
            cells.append(text)
        yield f"| `{name}` | {' | '.join(cells)} |"


def passkeys(values: Sequence[float]) -> str:
    """How many were found, with Wilson's 95% interval of the share."""
    low, high = wilson(sum(values), len(values))
    return f"{sum(values):z.0f} of {len(values)} [{low:z.2f}, {high:z.2f}]"


PASSKEYS: dict[str, Column] = {"accuracy": ("passkeys found", passkeys)}
COSTS: dict[str, Column] = {
    "prefill": ("prefill (s)", lambda values: f"{np.mean(values):z.1f}"),
    "decode": ("decoding (ms/token)", lambda values: f"{1000 * np.mean(values):z.0f}"),
    "peak_memory": ("peak above the model (MiB)", lambda values: f"{np.mean(values):z.0f}"),
}


def metric_table(section: str, columns: Mapping[str, Column]) -> Iterator[str]:
    """Lines of Markdown: by metric of a section and length, what `columns` makes of the samples, under its title."""
    by_method: dict[str, dict[tuple[str, int], list[float]]] = {}
    for name, length, scores in cells(section):
        for score in scores:
            by_method.setdefault(name, {}).setdefault((score["metric"], length), []).append(score["value"])
    if not by_method:
        yield "*Not run yet.*"
        return
    lengths = sorted({at for row in by_method.values() for _, at in row})
    places = [(metric, at) for metric in columns for at in lengths]
    yield f"| method | {' | '.join(f'{columns[metric][0]} at {at}' for metric, at in places)} |"
    yield "|---" * (len(places) + 1) + "|"
    for name, row in by_method.items():
        text = [columns[metric][1](row[metric, at]) if (metric, at) in row else "" for metric, at in places]
        yield f"| `{name}` | {' | '.join(text)} |"


def written(page: str, name: str, lines: Iterable[str]) -> str:
    """A page with the table `name` in its place, between `<!-- name -->` and `<!-- end -->`."""
    replaced = re.subn(
        f"(<!-- {name} -->\n).*?(<!-- end -->)",
        lambda part: part[1] + "\n".join([*lines, part[2]]),
        page,
        flags=re.S,
    )
    if replaced[1] != 1:
        raise ValueError(f"{PAGE} names the table {name!r} {replaced[1]} times, not once")
    return replaced[0]


def main() -> None:
    """Writes the picture and the tables."""
    by_method = by_position()
    chart = Chart("SmolLM2-135M-Instruct, trained on 8192 tokens", (drift_panel(), nll_panel(by_method)))
    PICTURE.write_bytes(rendered(chart, "png"))
    write_numbers(PICTURE, of_chart(chart))
    page = PAGE.read_text(encoding="utf-8")
    for name, lines in (
        ("by length", length_table(by_length(by_method))),
        ("by position", table(by_method)),
        ("passkeys", metric_table("passkey", PASSKEYS)),
        ("costs", metric_table("latency", COSTS)),
    ):
        page = written(page, name, lines)
    PAGE.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
