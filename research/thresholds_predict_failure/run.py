"""`python research/thresholds_predict_failure/run.py`: do thresholds in hidden states predict where a model fails?"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from mesa_lens.cli import Parser, main
from mesa_lens.model import add_model_options, load_options
from mesa_lens.options import (
    add_lengths,
    add_methods,
    add_minutes,
    add_output,
    add_runner,
    add_samples,
    goes_on,
    lengths,
    runner_of,
    tell_estimate,
    tell_left,
)
from mesa_lens.values import MOST_PROMPTS, listed, whole, word


def parser() -> Parser:
    """The script's parser."""
    command = Parser(
        prog="python research/thresholds_predict_failure/run.py",
        example="python research/thresholds_predict_failure/run.py --seeds 1 --out runs/study --estimate",
        description=__doc__,
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add_model_options(command)
    add_methods(command, more="or 'all', each with several parameters")
    command.add_argument(
        "--configs", type=word, help="in place of --methods, e.g. 'rerope,leaky-rerope k=1.25 window=512'"
    )
    command.add_argument("--prompts", type=listed, default="repeated,text,passkey", help="kinds of prompts, by commas")
    command.add_argument("--seeds", type=whole(1, 1000), default=5, help="each with prompts and words of its own")
    says = "judge on seeds from this on: words, passkeys and texts that none of as many seeds from 0 on has"
    command.add_argument("--first-seed", type=whole(0, 999), default=0, help=says)
    command.add_argument(
        "--length", type=word, help="longest length L in tokens, e.g. 16k (None: the last of --lengths, else 8 M)"
    )
    add_lengths(command, "1 to 8 M in 12 steps, up to L")
    command.add_argument("--measure", type=listed, default="nll,passkey", help="what failure is measured by")
    command.add_argument(
        "--tops", type=listed, default="1,3,10,30,100", help="numbers of dims that a prediction is the median of"
    )
    command.add_argument(
        "--windows", type=whole(1, MOST_PROMPTS), default=8, help="texts, or passkey prompts, in an average"
    )
    add_samples(command, 5, " and seed, of passkeys and of texts")
    output = add_output(command, "runs/study", "", shows=False)
    output.add_argument(
        "--estimate", action="store_true", help="print the work, time, memory and disk it takes, and stop"
    )
    add_minutes(command)
    add_runner(command)
    command.set_defaults(run=run)
    return command


def run(args: argparse.Namespace) -> int:
    """Runs or resumes the study, writes its results, tables and figures, and prints the tables."""
    from probe.evaluation.clock import deadline
    from probe.ownership import owned
    from research.thresholds_predict_failure.plan import estimate, plan, work

    runner, request = runner_of(args), _request(args)
    if args.estimate:
        made = plan(request)
        tell_estimate(args, estimate(made), [(made.config, work(made))], request)
        return 0
    until = deadline(args.minutes)
    from research.thresholds_predict_failure.report import write_study
    from research.thresholds_predict_failure.study import run_study

    with owned(args.out), goes_on(args):
        results, left = run_study(request, args.out, overwrite=args.overwrite, until=until, runner=runner)
        if results is None:
            tell_left(args, left)
        else:
            print(write_study(results, args.out))
    return 0


def _request(args: argparse.Namespace) -> Any:
    from probe.evaluation.plan import names
    from probe.options import one_length
    from research.thresholds_predict_failure.plan import StudyRequest

    return StudyRequest(
        model=args.model,
        load=load_options(args),
        methods=args.methods,
        configs=args.configs,
        prompts=tuple(args.prompts.split(",")),
        seeds=args.seeds,
        first_seed=args.first_seed,
        length=None if args.length is None else one_length(args.length, "--length"),
        lengths=lengths(args),
        trained_length=args.trained_length,
        force=args.force,
        measure=names(args.measure),
        tops=_numbers(args.tops),
        windows=args.windows,
        samples=args.samples,
    )


def _numbers(text: str) -> tuple[int, ...]:
    parts = [part.strip() for part in text.split(",")]
    if not all(re.fullmatch("[0-9]{1,9}", part) for part in parts):
        raise ValueError(f"--tops {text!r} is no list of numbers; write e.g. 1,3,10")
    return tuple(int(part) for part in parts)


if __name__ == "__main__":
    sys.exit(main(build=parser))
