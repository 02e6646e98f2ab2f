"""`make counterpart`: what docs/theory.md says of the shipped model's heads, from the run to its picture and tables.

`python benchmarks/counterpart.py RUNS` runs `mesa-lens counterpart` into RUNS/counterpart; interrupted, the same
command goes on. Then it keeps the summary in benchmarks/results/counterpart.json, draws docs/theory_counterpart.png
and writes the two tables of docs/theory.md anew. With --draw it runs nothing and takes what is there.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from pictures import ROOT

from mesa_lens.cli import main
from probe.evaluation.intervals import shown
from theory.figures import SERIES, save

HEADS, HELD = "| head |", "| length | heads held |"
"""What the tables in docs/theory.md begin with."""
_SHOWN = 6


def head_table(summary: Mapping[str, Any]) -> list[str]:
    """The heads that play the part, and those that follow the position best."""
    rows = sorted(summary["heads"], key=lambda row: (row["part"] == "", -row["monotone"][0]))[:_SHOWN]
    lines = [
        f"{HEADS} t read linearly | rank correlation | carried | first crossing | pretended | part |",
        "|---" * 7 + "|",
    ]
    for row in rows:
        numbers = " | ".join(shown(*row[name], form="z.2f") for name in ("linear", "monotone", "carried"))
        where = f"{row['crossing'] or 'none'} | {row['pretended']:.0%} | {row['part'] or 'none'}"
        lines.append(f"| {row['layer']}.{row['head']} | {numbers} | {where} |")
    return lines


def held_table(summary: Mapping[str, Any]) -> list[str]:
    """What holding each set restores."""
    lines = [f"{HELD} gap | restored | share of the gap | beyond random heads |", "|---" * 6 + "|"]
    for row in summary["held"]:
        count = len(summary["sets"][row["set"]])
        share = f"{row['share'][0]:.1%}" if row["share"] else ""
        beside = shown(*row["beyond_random"], form="+z.4f") if "beyond_random" in row else ""
        numbers = f"{shown(*row['gap'], form='z.2f')} | {shown(*row['restored'], form='+z.4f')} | {share} | {beside}"
        lines.append(f"| {row['length']} | {row['set']} ({count}) | {numbers} |")
    return lines


def with_table(page: str, lines: list[str], begins: str) -> str:
    """The page with these lines in place of its table that begins so."""
    before, after = page.split(f"\n{begins}", 1)
    return f"{before}\n" + "\n".join(lines) + "\n\n" + after.split("\n\n", 1)[1]


def picture(summary: Mapping[str, Any]) -> Figure:
    """D over the position for the heads that were held, beside the constructed head's."""
    figure = Figure(figsize=(8, 4.2), layout="constrained", dpi=130)
    panel = figure.add_subplot()
    position = summary["curves"]["position"]
    panel.plot(position, [each + 1 for each in position], color="#888888", lw=3, label="constructed: D(t) = t")
    parts = {f"{row['layer']}.{row['head']}": row["part"] for row in summary["heads"]}
    for style, (name, values) in zip(SERIES, summary["curves"]["D"].items(), strict=False):
        line = {key: style[key] for key in ("color", "ls")}
        panel.plot(position, values, lw=1.4, label=f"head {name} {parts[name]}", **line)
    panel.axvline(summary["trained_length"], color="#D55E00", ls=":", lw=1.2)
    panel.text(summary["trained_length"] * 1.03, 1.1, f"M = {summary['trained_length']}", color="#D55E00", fontsize=8)
    panel.set(xscale="log", yscale="log", xlabel="position t (tokens)", ylabel="D(t) = 1 / attention on the first key")
    panel.spines[["top", "right"]].set_visible(False)
    panel.grid(alpha=0.25)
    panel.legend(frameon=False, fontsize=8)
    return figure


def draw(run: Path, docs: Path, results: Path) -> None:
    """Keeps the summary, draws the picture and writes the tables."""
    stored = run / "counterpart" / "summary.json"
    summary = json.loads(stored.read_text(encoding="utf-8"))
    (results / "counterpart.json").write_text(json.dumps(summary) + "\n", encoding="utf-8")
    save(picture(summary), docs / "theory_counterpart.png")
    page = docs / "theory.md"
    text = page.read_text(encoding="utf-8")
    for lines, begins in ((head_table(summary), HEADS), (held_table(summary), HELD)):
        text = with_table(text, lines, begins)
    page.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path)
    parser.add_argument("--draw", action="store_true", help="run nothing, draw what is there")
    asked = parser.parse_args()
    place = asked.runs / "counterpart"
    if not asked.draw and (code := main(["counterpart", "--out", str(place)])):
        raise SystemExit(code)
    draw(place, ROOT / "docs", ROOT / "benchmarks" / "results")
