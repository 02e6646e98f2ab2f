"""Do heads of a model do what the theorems' constructed head does, and is that why it fails?"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

sys.path.insert(0, str(Path(__file__).parents[2]))

from probe.options import head_name, parse_lengths
from probe.statistics import shown
from research.figure_numbers import write_numbers
from research.script import Journal, deadline, load_options, make_parser, run

HERE = Path(__file__).parent
THEOREMS = HERE.parent / "theorems"
HEADS, HELD = "| head |", "| length | heads held |"
"""What the tables in research/theorems/results.md begin with."""
_SHOWN = 6
_LINES = (
    ("#000000", "-"),
    ("#0072B2", "--"),
    ("#C47F00", "-."),
    ("#A8326E", (0, (5, 2, 1, 2, 1, 2))),
    ("#009E73", ":"),
)
"""Colour and dash of a head's curve; told apart in grey too."""


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
        lines.append(f"| {head_name(row['layer'], row['head'])} | {numbers} | {where} |")
    return lines


def held_table(summary: Mapping[str, Any]) -> list[str]:
    """What holding each set recovers."""
    lines = [f"{HELD} excess loss | recovered | share of it | beyond random heads |", "|---" * 6 + "|"]
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
    position = [at + 1 for at in summary["curves"]["position"]]  # t of the theorems, from 1
    panel.plot(position, position, color="#888888", lw=3, label="constructed: D(t) = t")
    parts = {head_name(row["layer"], row["head"]): row["part"] for row in summary["heads"]}
    for (color, ls), (name, values) in zip(_LINES, summary["curves"]["D"].items(), strict=False):
        panel.plot(position, values, color=color, ls=ls, lw=1.4, label=f"{name} {parts[name]}")
    panel.axvline(summary["trained_length"], color="#D55E00", ls=":", lw=1.2)
    panel.text(summary["trained_length"] * 1.03, 1.1, f"M = {summary['trained_length']}", color="#D55E00", fontsize=8)
    panel.set(xscale="log", yscale="log", xlabel="position t (tokens)", ylabel="D(t) = 1 / attention on the first key")
    panel.spines[["top", "right"]].set_visible(False)
    panel.grid(alpha=0.25)
    panel.legend(frameon=False, fontsize=8)
    return figure


def draw(summary: Mapping[str, Any]) -> None:
    """Stores the summary, draws the picture and writes the tables."""
    (HERE / "results" / "default.json").write_text(json.dumps(summary) + "\n", encoding="utf-8")
    path = THEOREMS / "counterpart.png"
    picture(summary).savefig(path, metadata={"Software": None})
    position, heads = summary["curves"]["position"], summary["curves"]["D"]
    write_numbers(
        path,
        (
            {"position": at + 1, "constructed": at + 1} | {name: values[number] for name, values in heads.items()}
            for number, at in enumerate(position)
        ),
    )
    page = THEOREMS / "results.md"
    text = page.read_text(encoding="utf-8")
    for lines, begins in ((head_table(summary), HEADS), (held_table(summary), HELD)):
        text = with_table(text, lines, begins)
    page.write_text(text, encoding="utf-8")


def parser() -> argparse.ArgumentParser:
    """The script's parser."""
    top = make_parser(__doc__, "runs/counterpart", Path(__file__).parent.name)
    top.add_argument("--method", default="rerope", help="the method that fixes: shares are of its gap to Origin")
    top.add_argument("--lengths", help="tokens (None: 2 M and 4 M); heads are found at the longest")
    top.add_argument(
        "--samples", type=int, default=8, help="texts to find heads on, and as many others to hold them on"
    )
    top.add_argument("--nearest", type=int, default=4, help="heads held that follow the position best")
    top.add_argument("--draws", type=int, default=10, help="sets of random heads held")
    top.add_argument("--word", default="hello", help="the repeated word on which crossings are counted")
    top.add_argument("--text", help="a file or folder (None: the shipped text)")
    top.add_argument("--seed", type=int, default=0, help="of all that is drawn")
    top.add_argument("--find-only", action="store_true", help="read the heads, hold none")
    top.add_argument(
        "--draw", action="store_true", help="then draw the picture and tables of research/theorems/results.md"
    )
    return top


def main(args: argparse.Namespace) -> None:
    """Runs what is left, writes summary.json and prints it as tables."""
    from research.trained_counterpart import counterpart

    plan = counterpart.plan(
        args.model,
        {name: value for name, value in load_options(args).items() if value},
        args.method,
        args.trained_length,
        args.lengths and parse_lengths(args.lengths),
        args.samples,
        args.nearest,
        args.draws,
        args.word,
        args.text,
        args.seed,
        find_only=args.find_only,
    )
    journal = Journal(args.out / "journal.jsonl", plan.settings, overwrite=args.overwrite)
    counterpart.run(plan, journal, deadline(args.minutes))
    summary = counterpart.summarize(plan, journal)
    (args.out / "summary.json").write_text(json.dumps(summary) + "\n", encoding="utf-8")
    print("\n".join([*head_table(summary), "", *held_table(summary)]))
    for hook, counts in summary["crossed"].items():
        print(f"dims of {hook} that cross: {json.dumps(counts)}")
    if summary["tasks_left"]:
        print(f"{summary['tasks_left']} tasks are left; the same command continues")
    elif args.draw:
        draw(summary)


if __name__ == "__main__":
    run(main, parser())
