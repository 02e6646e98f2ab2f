"""`mesa-lens anatomy`: what the inside looks like under each method: heads, frequencies, logit lens, positions."""

from __future__ import annotations

import argparse
from typing import Any

from mesa_lens.model import add_model_options, load_options
from mesa_lens.options import (
    add_lengths,
    add_methods,
    add_minutes,
    add_output,
    add_runner,
    add_samples,
    add_seed,
    add_settings,
    goes_on,
    lengths,
    runner_of,
    tell_estimate,
    tell_failed,
    tell_left,
)
from mesa_lens.values import MOST_PROMPTS, listed, whole, word
from probe.request import METHODS


def add(commands: Any) -> None:
    """Adds the subcommand."""
    command = commands.add_parser(
        "anatomy",
        example="mesa-lens anatomy --out runs/demo",
        help="measure heads, frequencies, logit lens and positional vectors under each method",
        description=__doc__,
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add_model_options(command)
    what = command.add_argument_group("what to measure")
    what.add_argument("--parts", type=listed, default="all", help="of heads, retrieval, frequencies, lens, vectors")
    add_methods(what, METHODS)
    add_settings(what)
    what.add_argument("--layers", type=word, default="all", help="that are kept, e.g. 0-10, ends included")
    add_lengths(what, "M and 4 M; positional vectors are taken at the longest")
    what.add_argument(
        "--texts",
        type=whole(1, MOST_PROMPTS),
        help="that slide, for positional vectors; more can follow (None: 256, or all there are)",
    )
    add_samples(what, 4, ", for all but positional vectors")
    add_seed(what)
    what.add_argument("--text", type=word, help="text to read: a file, folder or hub dataset (None: the shipped one)")
    add_output(command, "runs/anatomy", ", may be a probe run's")
    add_minutes(command)
    add_runner(command)
    command.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Checks everything that can be checked, then runs."""
    from probe.evaluation.plan import names
    from probe.experiment.progress import deadline
    from probe.mechanism.anatomy.request import AnatomyRequest, estimate, plan, work

    request = AnatomyRequest(
        model=args.model,
        load=load_options(args),
        methods=args.methods,
        settings=tuple(args.set),
        trained_length=args.trained_length,
        seed=args.seed,
        executor=args.executor,
        parts=names(args.parts),
        lengths=lengths(args),
        texts=args.texts,
        samples=args.samples,
        layers=args.layers,
        text=args.text,
        force=args.force,
    )
    runner, until = runner_of(args), deadline(args.minutes)
    made = plan(request)
    if args.estimate:
        tell_estimate(args, estimate(made), [(made.config, work(made))], made.request)
        return 0
    from probe.anatomy_report import write_anatomy_report
    from probe.experiment.lock import owned
    from probe.files import json_text
    from probe.mechanism.anatomy.files import FOLDER
    from probe.mechanism.anatomy.results import write
    from probe.mechanism.anatomy.run import anatomy
    from probe.report import write_report
    from probe.store.anatomy import find_anatomy
    from probe.store.reader import store_of

    with owned(args.out):
        with goes_on(args):
            journal, failed = anatomy(made, args.out, overwrite=args.overwrite, until=until, runner=runner)
        summary, said = write(made, journal, args.out)
        found = find_anatomy(args.out)
        if found is not None:
            write_anatomy_report(found, args.out)
            if store_of(args.out).exists():
                write_report(args.out)
    if failed:
        tell_failed(args, f"{len(failed)} cells")
    elif summary["cells_left"] or summary["texts_left"]:
        tell_left(args, f"{summary['cells_left']} cells and {summary['texts_left']} texts are left")
    if args.json:
        print(json_text(summary))
        return 1 if failed else 0
    print(said)
    if found is not None:
        print(f"wrote {args.out / FOLDER}: report.html, summary.json, tables")
    return 1 if failed else 0
