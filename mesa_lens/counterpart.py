"""`mesa-lens counterpart`: do heads of a model do what the theorems' head does, and is that why it fails?"""

from __future__ import annotations

import argparse
from typing import Any

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


def add(commands: Any) -> None:
    """Adds the subcommand."""
    command = commands.add_parser(
        "counterpart",
        example="mesa-lens counterpart --out runs/counterpart",
        help="look for heads that do what the theorems' constructed head does, and hold them",
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
    command.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Checks everything that can be checked, then runs."""
    from probe.cells.threads import check_threads
    from probe.evaluation.clock import deadline
    from probe.evaluation.plan import names
    from probe.mechanism.counterpart.request import CounterpartRequest, estimate, plan, work

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
    from probe.cells.threads import computing
    from probe.files import json_text
    from probe.mechanism.counterpart.results import said, write
    from probe.mechanism.counterpart.run import FOLDER, counterpart
    from probe.ownership import owned

    with owned(args.out):
        with goes_on(args), computing(args.threads):
            journal = counterpart(made, args.out, overwrite=args.overwrite, until=until)
        summary = write(made, journal, args.out)
    if summary["cells_left"]:
        tell_left(args, f"{summary['cells_left']} cells are left")
    print(json_text(summary) if args.json else f"{said(summary)}\nwrote {args.out / FOLDER}: summary.json")
    return 0
