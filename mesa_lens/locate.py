"""`mesa-lens locate`: where inside a model length breaks it, and which heads a method must reach to mend it."""

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


def add(commands: Any) -> None:
    """Adds the subcommand."""
    command = commands.add_parser(
        "locate",
        example="mesa-lens locate --out runs/demo",
        help="intervene layer by layer and head by head: where does length break the model, what mends it?",
        description=__doc__,
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add_model_options(command)
    what = command.add_argument_group("what to try")
    what.add_argument(
        "--try",
        dest="kinds",
        type=listed,
        default="weave,patch,clamp",
        help="of weave, patch, clamp, attribution, smallest",
    )
    add_methods(what, "rerope", "or 'all'; each is held against Origin")
    add_settings(what)
    what.add_argument("--layers", type=word, default="all", help="e.g. 0-10, ends included")
    what.add_argument(
        "--heads", type=word, help="layers whose heads are tried: e.g. 15-19, all, none (None: all up to 64 heads)"
    )
    what.add_argument("--hooks", type=listed, default="resid_post,attn_out,mlp_out,z", help="places of patches")
    what.add_argument("--spans", type=listed, default="all", help="positions of patches: of all, inside, beyond, last")
    what.add_argument(
        "--ways",
        type=listed,
        default="only,without,mend,break",
        help="of weaves: only there, without it; of patches: mend, break",
    )
    what.add_argument(
        "--dims", type=whole(1, MOST_PROMPTS), default=10, help="observable dims that are clamped, a layer"
    )
    what.add_argument("--prompt", type=word, default="hello", help="the repeated word that shows observable dims")
    what.add_argument(
        "--candidates", type=whole(1, MOST_PROMPTS), default=64, help="best heads that the smallest set is made of"
    )
    measure = command.add_argument_group("measured by")
    measure.add_argument("--measure", type=listed, default="nll", help="of nll, passkey")
    add_lengths(measure, "4 M")
    add_samples(measure, 8)
    add_seed(measure)
    measure.add_argument(
        "--text", type=word, help="text for NLL: a file, folder or hub dataset (None: the shipped one)"
    )
    add_output(command, "runs/locate", ", may be a probe run's")
    add_minutes(command)
    add_runner(command)
    command.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Checks everything that can be checked, then runs."""
    from probe.evaluation.plan import names
    from probe.experiment.progress import deadline
    from probe.mechanism.request import LocateRequest, estimate, plan, work

    request = LocateRequest(
        model=args.model,
        load=load_options(args),
        methods=args.methods,
        settings=tuple(args.set),
        trained_length=args.trained_length,
        force=args.force,
        seed=args.seed,
        executor=args.executor,
        kinds=names(args.kinds),
        measures=names(args.measure),
        lengths=lengths(args),
        samples=args.samples,
        layers=args.layers,
        heads=args.heads,
        hooks=names(args.hooks),
        spans=names(args.spans),
        ways=names(args.ways),
        dims=args.dims,
        candidates=args.candidates,
        word=args.prompt,
        text=args.text,
    )
    runner, until = runner_of(args), deadline(args.minutes)
    made = plan(request)
    if args.estimate:
        tell_estimate(args, estimate(made), [(made.config, work(made))], made.request)
        return 0
    from probe.experiment.lock import owned
    from probe.files import json_text
    from probe.locate_report import write_locate_report
    from probe.mechanism.cells import FOLDER
    from probe.mechanism.results import write
    from probe.mechanism.run import locate
    from probe.mechanism.words import located_findings
    from probe.report import write_report
    from probe.store.reader import store_of

    with owned(args.out):
        with goes_on(args):
            journal, failed = locate(made, args.out, overwrite=args.overwrite, until=until, runner=runner)
        summary = write(made, journal, args.out)
        if journal.rows:
            write_locate_report(summary, args.out)
            if store_of(args.out).exists():
                write_report(args.out)
    if failed:
        tell_failed(args, f"{len(failed)} cells")
    elif summary["cells_left"] and args.minutes:
        tell_left(args, f"{summary['cells_left']} cells are left")
    if args.json:
        print(json_text(summary))
        return 1 if failed else 0
    for heading, sentences in located_findings(summary):
        print("\n  ".join([heading, *sentences]) + "\n")
    if journal.rows:
        print(f"wrote {args.out / FOLDER}: report.html, summary.json, tables")
    return 1 if failed else 0
