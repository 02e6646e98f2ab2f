"""`mesa-lens probe`: captures hidden states under each method, and measures where the model fails."""

from __future__ import annotations

import argparse
import json
from typing import Any

from mesa_lens.model import add_model_options, load_options
from mesa_lens.options import (
    add_lengths,
    add_methods,
    add_output,
    add_runner,
    add_samples,
    add_seed,
    add_settings,
    goes_on,
    lengths,
    runner_of,
    tell_estimate,
    url,
)
from mesa_lens.values import MOST_PROMPTS, listed, path, tokens, whole, word
from probe.request import METHODS

RULES = ("drift", "paper")
"""Those of probe.thresholds.analysis, which stays unloaded until the command runs."""


def add(commands: Any) -> None:
    """Adds the subcommand."""
    command = commands.add_parser(
        "probe",
        example="mesa-lens probe --length 2048 --out runs/demo",
        help="capture hidden states under each method, find thresholds, measure the real failure",
        description=__doc__,
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add_model_options(command)
    what = command.add_argument_group("what to run")
    add_methods(what, METHODS, "or 'all'; first: the reference")
    add_settings(what)
    what.add_argument("--length", type=tokens, help="tokens captured (None: 4 M)")
    what.add_argument("--prompt", type=word, default="hello", help="the word that is repeated")
    what.add_argument("--text", type=path, help="a text or .jsonl file for text prompts (None: the shipped text)")
    what.add_argument(
        "--texts", type=whole(0, MOST_PROMPTS), default=2, help="held-out prompts beside the repeated word"
    )
    keep = command.add_argument_group("what to keep")
    keep.add_argument("--hooks", type=listed, default="resid_post", help="e.g. resid_post,attn_out")
    keep.add_argument("--layers", default="all", help="e.g. 0-10, ends included")
    keep.add_argument("--dims", default="all", help="e.g. 0-639")
    keep.add_argument("--positions", default="all", help="e.g. 1024-3071,4096-5119; drift needs M/4 to 3M/4 and beyond")
    keep.add_argument("--store-dtype", default="float32", help="float32 or float16")
    measure = command.add_argument_group("measuring the real failure")
    add_samples(measure, 20, "; 0: do not measure", least=0)
    add_lengths(measure, "0.5, 1, 1.5, 2, 3, 4, 6, 8 M up to --length, less what holds no prompt")
    measure.add_argument(
        "--refine",
        type=whole(0, MOST_PROMPTS),
        metavar="N",
        help="measure N further lengths of each method that fails, halving; each takes as long as one of "
        "--lengths (None: 1 where a pass takes at most 100 GFLOP, as on the shipped model, else 0)",
    )
    add_seed(measure)
    command.add_argument("--rule", default="drift", choices=RULES, help="what failures are predicted by")
    out = add_output(command, "runs/probe", " for store, report and figures")
    out.add_argument("--store", type=url, help="URL that the store goes to, e.g. s3://bucket/run (None: into --out)")
    add_runner(command)
    command.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Checks everything that can be checked, then runs."""
    from probe.capture.spec import CaptureSpec
    from probe.options import parse_ranges
    from probe.plan import ProbeRequest, estimate, plan, work
    from probe.run import run_probe

    runner = runner_of(args)
    request = ProbeRequest(
        model=args.model,
        load=load_options(args),
        methods=args.methods,
        settings=tuple(args.set),
        trained_length=args.trained_length,
        force=args.force,
        length=args.length,
        word=args.prompt,
        text=args.text,
        texts=args.texts,
        spec=CaptureSpec(
            hooks=tuple(args.hooks.split(",")),
            layers=parse_ranges(args.layers, "--layers"),
            positions=parse_ranges(args.positions, "--positions"),
            dims=parse_ranges(args.dims, "--dims"),
            dtype=args.store_dtype,
        ),
        samples=args.samples,
        lengths=lengths(args),
        refine=args.refine,
        seed=args.seed,
        executor=args.executor,
        store=args.store,
    )
    if args.estimate:
        made = plan(request)
        tell_estimate(args, estimate(made), [(made.config, work(made))], request)
        return 0
    with goes_on(args):
        summary, table = run_probe(request, args.out, overwrite=args.overwrite, by=args.rule, runner=runner)
    print(json.dumps(summary, indent=1) if args.json else table)
    return 0
