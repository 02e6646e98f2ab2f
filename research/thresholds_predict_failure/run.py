"""Do thresholds in hidden states predict the length at which a model fails?"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from probe.options import Length, parse_lengths, read_as
from research.script import Journal, deadline, load_options, make_parser, names, run


def parser() -> argparse.ArgumentParser:
    """The script's parser."""
    top = make_parser(__doc__, "runs/study", Path(__file__).parent.name)
    top.add_argument("--methods", help="by commas, each with several parameters (None: all that the model can have)")
    top.add_argument("--configs", help="in place of --methods, e.g. 'rerope,leaky-rerope k=1.25 window=512'")
    top.add_argument("--prompts", type=names, default="repeated,text,passkey", help="prompts that onsets are read on")
    top.add_argument("--seeds", type=int, default=5, help="each has words, passkeys and texts of its own")
    top.add_argument("--first-seed", type=int, default=0, help="none of the prompts of seeds below it are used")
    top.add_argument("--length", help="the longest length L in tokens (None: the last of --lengths, else 8 M)")
    top.add_argument("--lengths", help="measured, e.g. 256,1k (None: 1 to 8 M in 12 steps, up to L)")
    top.add_argument("--measure", type=names, default="nll,passkey", help="what failure is measured by")
    top.add_argument("--tops", default="1,3,10,30,100", help="numbers of dims that an onset is the median of")
    top.add_argument("--windows", type=int, default=8, help="texts or passkey prompts in an average")
    top.add_argument("--samples", type=int, default=5, help="prompts that measure, by length and seed")
    top.add_argument("--estimate", action="store_true", help="print the number of passes and tokens, and stop")
    return top


def main(args: argparse.Namespace) -> None:
    """Runs the study, or what is left of it; writes results, tables and figures once nothing is left."""
    from research.thresholds_predict_failure import measure, onsets
    from research.thresholds_predict_failure.figures import write_study
    from research.thresholds_predict_failure.inputs import read_inputs
    from research.thresholds_predict_failure.results import gather
    from research.thresholds_predict_failure.study import arithmetic, estimate, plan

    study = plan(
        args.model,
        load_options(args),
        args.methods,
        args.configs,
        args.trained_length,
        args.prompts,
        args.seeds,
        args.first_seed,
        args.length and read_as(Length, args.length),
        args.lengths and parse_lengths(args.lengths),
        args.measure,
        tuple(map(int, names(args.tops))),
        args.windows,
        args.samples,
    )
    if args.estimate:
        print(estimate(study))
        return
    over = deadline(args.minutes)
    inputs = read_inputs(study)
    settings = study.settings(inputs.fingerprints)
    journal = Journal(args.out / "journal.jsonl", settings, overwrite=args.overwrite)
    if onsets.onsets_left(study, journal):
        onsets.find_onsets(study, inputs, journal, over)
    if measure.measurements_left(study, journal) and not over():
        measure.measure(study, inputs, journal, over)
    unread, scores = onsets.onsets_left(study, journal), measure.measurements_left(study, journal)
    if unread or scores:
        print(f"{len(unread)} onsets and {len(scores)} scores are left; the same command continues")
        return
    bounds = {name: arithmetic(study, name) for name in study.methods}
    print(write_study(gather(journal.rows, {**settings, **measure.judging(study)}, bounds), args.out))


if __name__ == "__main__":
    run(main, parser())
