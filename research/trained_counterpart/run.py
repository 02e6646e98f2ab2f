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

from mesa_lens.cli import Parser, main
from mesa_lens.model import add_model_options, load_options
from mesa_lens.options import (
    add_lengths,
    add_minutes,
    add_output,
    add_samples,
    add_seed,
    goes_on,
    lengths,
    tell_estimate,
    tell_left,
)
from mesa_lens.values import MOST_PROMPTS, listed, whole, word
from probe.evaluation.intervals import shown
from theory.figures import SERIES, save

HERE, ROOT = Path(__file__).parent, Path(__file__).parents[2]
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


def draw(summary: Mapping[str, Any]) -> None:
    """Stores the summary, draws the picture and writes the tables."""
    (HERE / "results" / "default.json").write_text(json.dumps(summary) + "\n", encoding="utf-8")
    save(picture(summary), ROOT / "docs" / "theory_counterpart.png")
    page = ROOT / "docs" / "theory.md"
    text = page.read_text(encoding="utf-8")
    for lines, begins in ((head_table(summary), HEADS), (held_table(summary), HELD)):
        text = with_table(text, lines, begins)
    page.write_text(text, encoding="utf-8")


def parser() -> Parser:
    """The script's parser."""
    command = Parser(
        prog="python research/trained_counterpart/run.py",
        example="python research/trained_counterpart/run.py --out runs/counterpart",
        description=__doc__,
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add_model_options(command)
    what = command.add_argument_group("what to do")
    what.add_argument(
        "--try", dest="kinds", type=listed, default="find,hold", help="of find, hold (which takes the dense executor)"
    )
    what.add_argument("--methods", type=listed, default="rerope", help="the one that mends: shares are of its gap")
    add_lengths(what, "2 M and 4 M; heads are found at the longest")
    add_samples(what, 8, ": texts that heads are found on, and as many others that holding is judged on")
    what.add_argument("--nearest", type=whole(1, MOST_PROMPTS), default=4, help="heads held beside those found")
    what.add_argument("--draws", type=whole(1, MOST_PROMPTS), default=10, help="sets of random heads held")
    what.add_argument("--prompt", type=word, default="hello", help="the repeated word that shows dims that cross")
    what.add_argument("--text", type=word, help="a file, folder or hub dataset (None: the shipped one)")
    add_seed(what)
    add_output(command, "runs/counterpart", ", may be a probe run's")
    add_minutes(command)
    command.add_argument("--draw", action="store_true", help="then draw the picture and tables of docs/theory.md")
    command.set_defaults(run=run)
    return command


def run(args: argparse.Namespace) -> int:
    """Checks everything that can be checked, then runs."""
    from probe.evaluation.plan import names
    from probe.experiment.progress import deadline
    from probe.experiment.threads import check_threads
    from research.trained_counterpart.request import CounterpartRequest, estimate, plan, work

    request = CounterpartRequest(
        model=args.model,
        load=load_options(args),
        methods=args.methods,
        trained_length=args.trained_length,
        force=args.force,
        seed=args.seed,
        executor="dense",
        kinds=names(args.kinds),
        lengths=lengths(args),
        samples=args.samples,
        nearest=args.nearest,
        draws=args.draws,
        word=args.prompt,
        text=args.text,
    )
    check_threads(args.threads)
    until = deadline(args.minutes)
    made = plan(request)
    if args.estimate:
        tell_estimate(args, estimate(made), [(made.config, work(made))], made.request)
        return 0
    from probe.experiment.lock import owned
    from probe.experiment.threads import computing
    from probe.files import json_text
    from research.trained_counterpart.counterpart import FOLDER, counterpart
    from research.trained_counterpart.results import said, write

    with owned(args.out):
        with goes_on(args), computing(args.threads):
            journal = counterpart(made, args.out, overwrite=args.overwrite, until=until)
        summary = write(made, journal, args.out)
    if summary["cells_left"]:
        tell_left(args, f"{summary['cells_left']} cells are left")
    print(json_text(summary) if args.json else f"{said(summary)}\nwrote {args.out / FOLDER}: summary.json")
    if args.draw:
        draw(summary)
    return 0


if __name__ == "__main__":
    sys.exit(main(build=parser))
