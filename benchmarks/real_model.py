"""Draws what results/smollm2 holds of the real model: drift beside NLL by position, docs/real-model-break.png.

    python benchmarks/real_model.py

prints the tables of docs/real-model.md: NLL by position, less ReRoPE's on the same texts; tail NLL at 16384 less that of
crop, and by length less Origin's at M; passkeys found; time and memory.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from probe.evaluation.intervals import shown, student
from probe.figures.marks import Chart, Line, Panel, Rule, trained_rule
from probe.figures.render import rendered
from probe.figures.styles import RED, style

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "smollm2"
PICTURE = HERE.parent / "docs" / "real-model-break.png"
M, LAYER, REFERENCE = 8192, 3, "rerope"
DRAWN = ("origin", "rerope", "dynamic-ntk", "mesa")
AT = (8192, 9216, 10240, 11264, 12288, 14336, 16384)
LENGTHS, TAIL = (4096, 8192, 10240, 12288, 16384), 2048
FIRST = 2048  # before it states still settle


def cells(section: str) -> Iterator[tuple[str, int, list[dict[str, Any]]]]:
    """Method, prompt length (tokens) and scores of every finished cell of a section; none where there is no journal."""
    journal = RESULTS / section / "cells.jsonl"
    for line in journal.read_text(encoding="utf-8").splitlines() if journal.is_file() else ():
        row = json.loads(line)
        if "cell" in row:
            _, name, length = row["cell"]
            yield name, length, row["scores"]


def by_position() -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """By method: the last positions of the buckets, in tokens, and NLL (text, bucket), nats/token."""
    found = {}
    for name, _, scores in cells("nll-position"):
        values = {(score["sample"], score["length"]): score["value"] for score in scores}
        texts, ends = (sorted({key[place] for key in values}) for place in (0, 1))
        found[name] = np.array(ends), np.array([[values[text, end] for end in ends] for text in texts])
    return found


def nll_panel(found: dict[str, tuple[np.ndarray, np.ndarray]]) -> Panel:
    """Mean NLL over position under each method."""
    lines = []
    for name in (name for name in DRAWN if name in found):
        ends, nll = found[name]
        kept = ends > FIRST
        lines.append(Line(name, ends[kept], nll.mean(0)[kept], *style(name)))
    top = 1.05 * max(float(line.y.max()) for line in lines)
    texts = len(next(iter(found.values()))[1])
    return Panel(
        title=f"NLL of the next token, {texts} texts",
        x_title="position (tokens), buckets of 512",
        y_title="NLL (nats/token)",
        lines=tuple(lines),
        points=(),
        rules=(trained_rule(M),),
        y_range=(0.0, top),
        x_range=(FIRST, max(AT)),
    )


def drift_panel() -> Panel:
    """The rms distance of a layer's states from their in-window range, over position, under each method."""
    with (RESULTS / "drift-12k" / "levels.csv").open(encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["layer"] == str(LAYER) and int(row["run"]) >= FIRST]
    lines = []
    for name in DRAWN:
        own = [row for row in rows if row["method"] == name]
        y = [np.nan if row["settling"] == "True" else float(row["level"]) for row in own]
        lines.append(Line(name, np.array([float(row["run"]) for row in own]), np.array(y), *style(name)))
    (limit,) = {float(row["limit"]) for row in rows if row["method"] == "origin"}
    return Panel(
        title=f"drift of layer {LAYER}, one repeated word (gaps: settling)",
        x_title="position (tokens), runs of 64",
        y_title="rms distance from in-window range (ranges)",
        lines=tuple(lines),
        points=(),
        rules=(trained_rule(M), Rule(limit, "limit", RED)),
        y_range=(0.0, 1.05 * max(float(np.nanmax(line.y)) for line in lines)),
        x_range=(FIRST, max(AT)),
    )


def table(found: dict[str, tuple[np.ndarray, np.ndarray]]) -> Iterator[str]:
    """Lines of Markdown: mean NLL in the bucket that ends at each position, less the reference's by text."""
    yield f"| method | {' | '.join(map(str, AT))} |"
    yield "|---" * (len(AT) + 1) + "|"
    ends, base = found[REFERENCE]
    for name, (_, nll) in found.items():
        cells = []
        for at in AT:
            bucket = int(np.flatnonzero(ends == at)[0])
            less = nll[:, bucket] - base[:, bucket]
            apart = "" if name == REFERENCE else f" ({shown(float(less.mean()), *student(less.tolist()), '+z.2f')})"
            cells.append(f"{nll[:, bucket].mean():z.2f}{apart}")
        yield f"| `{name}` | {' | '.join(cells)} |"


def by_length(positions: dict[str, tuple[np.ndarray, np.ndarray]]) -> dict[str, dict[int, np.ndarray]]:
    """By method and prompt length: NLL of the last 2048 tokens (text,), nats/token; at 16384 by position."""
    found: dict[str, dict[int, np.ndarray]] = {}
    for name, length, scores in cells("nll"):
        found.setdefault(name, {})[length] = np.array([score["value"] for score in scores])
    for name, (ends, nll) in positions.items():
        found.setdefault(name, {}).setdefault(max(LENGTHS), nll[:, ends > max(LENGTHS) - TAIL].mean(1))
    return found


def length_table(found: dict[str, dict[int, np.ndarray]]) -> Iterator[str]:
    """Lines of Markdown: tail NLL at each length, less Origin's at M by text."""
    yield f"| method | {' | '.join(map(str, LENGTHS))} |"
    yield "|---" * (len(LENGTHS) + 1) + "|"
    base = found["origin"][M]
    for name, row in found.items():
        cells = []
        for length in LENGTHS:
            if length in row and (name, length) != ("origin", M):
                less = row[length] - base
                apart = shown(float(less.mean()), *student(less.tolist()), "+z.2f")
                cells.append(f"{row[length].mean():z.2f} ({apart})")
            else:
                cells.append(f"{row[length].mean():z.2f}" if length in row else "")
        yield f"| `{name}` | {' | '.join(cells)} |"


def crop_table(found: dict[str, dict[int, np.ndarray]]) -> Iterator[str]:
    """Lines of Markdown: tail NLL at the longest length, less crop's by text, the best first."""
    yield f"| method | NLL, last {TAIL} | less `crop` [95%, t, n = 3] |"
    yield "|---" * 3 + "|"
    ends = {name: row[max(LENGTHS)] for name, row in found.items() if max(LENGTHS) in row}
    base = ends.pop("crop")
    yield f"| `crop` | {base.mean():.3f} | |"
    for name, nll in sorted(ends.items(), key=lambda each: each[1].mean()):
        less = nll - base
        yield f"| `{name}` | {nll.mean():.3f} | {shown(float(less.mean()), *student(less.tolist()), '+z.3f')} |"


def metric_table(section: str, shown_as: Mapping[str, Callable[[list[float]], str]]) -> Iterator[str]:
    """Lines of Markdown: a column for each metric of a section and length. shown_as: by metric, samples as text."""
    found: dict[str, dict[tuple[str, int], list[float]]] = {}
    for name, length, scores in cells(section):
        for score in scores:
            found.setdefault(name, {}).setdefault((score["metric"], length), []).append(score["value"])
    columns = [(metric, at) for metric in shown_as for at in sorted({at for row in found.values() for _, at in row})]
    yield f"| method | {' | '.join(f'{metric} at {at}' for metric, at in columns)} |"
    yield "|---" * (len(columns) + 1) + "|"
    for name, row in found.items():
        texts = [shown_as[key[0]](row[key]) if key in row else "" for key in columns]
        yield f"| `{name}` | {' | '.join(texts)} |"


PASSKEYS = {"accuracy": lambda values: f"{sum(values):.0f} of {len(values)}"}
COSTS = {
    "prefill": lambda values: f"{np.mean(values):.3g}",
    "decode": lambda values: f"{np.mean(values):.2g}",
    "peak_memory": lambda values: f"{np.mean(values):.0f}",
}
"""Seconds, seconds a token, and MiB above the model."""


def main() -> None:
    """Writes the picture, prints the tables."""
    found = by_position()
    chart = Chart("SmolLM2-135M-Instruct, trained on 8192 tokens", (drift_panel(), nll_panel(found)))
    PICTURE.write_bytes(rendered(chart, "png"))
    lengths = by_length(found)
    tables = (
        table(found),
        crop_table(lengths),
        length_table(lengths),
        metric_table("passkey", PASSKEYS),
        metric_table("latency", COSTS),
    )
    print("\n\n".join("\n".join(lines) for lines in tables))


if __name__ == "__main__":
    main()
