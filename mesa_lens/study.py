"""`mesa-lens study`: do thresholds in hidden states predict where a model fails?"""

from __future__ import annotations

import argparse
from typing import Any

from mesa_lens.model import add_model_options, load_options
from mesa_lens.options import add_methods, add_output, add_samples, goes_on


def add(commands: Any) -> None:
    """Adds the subcommand."""
    command = commands.add_parser(
        "study",
        help="compare predicted with measured failure lengths over prompts, methods and seeds",
        description=__doc__,
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add_model_options(command)
    add_methods(command, more="or 'all', each with several parameters")
    command.add_argument("--prompts", default="repeated,text,passkey", help="kinds of prompts, by commas")
    command.add_argument("--seeds", type=int, default=5, help="each with prompts and words of its own")
    command.add_argument("--length", type=int, help="longest length L in tokens (None: 8 M)")
    command.add_argument("--tops", default="1,3,10,30,100", help="numbers of dims that a prediction is the median of")
    command.add_argument("--windows", type=int, default=8, help="texts, or passkey prompts, in an average")
    add_samples(command, 5, " and seed, of passkeys and of texts")
    add_output(command, "runs/study", "", shows=False)
    command.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Runs or resumes the study, writes its results, tables and figures, and prints the tables."""
    from probe.study.report import write_study
    from probe.study.run import StudyRequest, run_study

    request = StudyRequest(
        model=args.model,
        load=load_options(args),
        methods=args.methods,
        prompts=tuple(args.prompts.split(",")),
        seeds=args.seeds,
        length=args.length,
        trained_length=args.trained_length,
        tops=_numbers(args.tops),
        windows=args.windows,
        samples=args.samples,
    )
    with goes_on(args):
        print(write_study(run_study(request, args.out, overwrite=args.overwrite), args.out))
    return 0


def _numbers(text: str) -> tuple[int, ...]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdigit() for part in parts):
        raise ValueError(f"--tops {text!r} is no list of numbers; write e.g. 1,3,10")
    return tuple(int(part) for part in parts)
