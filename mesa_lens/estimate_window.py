"""`mesa-lens estimate-window`: the trained length M, from the model itself: configs can be wrong about it."""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from typing import Any

from mesa_lens.model import add_model_options, load_options
from mesa_lens.options import add_samples
from mesa_lens.values import path, whole

_TIMES = 4  # of the stated M: the longest context, unless it is given
_TAIL = 32  # tokens that are scored


def add(commands: Any) -> None:
    """Adds the subcommand."""
    command = commands.add_parser(
        "estimate-window",
        example="mesa-lens estimate-window --model default",
        help="estimate the trained length M: up to which length a longer context does not make the model worse",
        description=__doc__,
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add_model_options(command)
    how = command.add_argument_group("what to measure")
    says = f"the longest context in tokens (None: {_TIMES} times the stated M)"
    how.add_argument("--longest", type=whole(128), help=says)
    add_samples(how, 20, ", of text", least=2)
    how.add_argument("--text", type=path, help="a text file (None: the shipped held-out text)")
    how.add_argument("--estimate", action="store_true", help="print the time and memory it takes, and stop")
    how.add_argument("--json", action="store_true", help="print JSON in place of a table")
    command.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Prints the estimate, whatever it is."""
    from mesa.models import bytes_a_number, check_placement, config_of, tokenizer_of
    from mesa.support import check_config, trained_length
    from probe.capture.memory import check_beside, check_prompts, prompt_bytes
    from probe.experiment.threads import check_threads
    from probe.tasks import score, sources
    from probe.thresholds.window_estimate import SHORTEST

    check_threads(args.threads)
    options = load_options(args)
    check_placement(options)
    source = {"revision": args.revision, "trust_remote_code": args.trust_remote_code}
    config = config_of(args.model, **source)
    check_config(config)
    longest = args.longest
    if longest is None:
        longest = max(2 * SHORTEST, _TIMES * (args.trained_length or trained_length(config)))
    check_prompts(longest, args.samples, "--longest")
    needed = prompt_bytes(config, longest, bytes_a_number(config, options))
    check_beside(needed, options, "give a shorter --longest")
    texts = None if args.text is None else sources.texts(str(_file(args.text)))
    tokenizer: Any = tokenizer_of(args.model, **source)
    windows = score.text_windows(score.heldout_ids(tokenizer, texts), longest, args.samples, _TAIL)
    if len(windows) < 2:
        raise ValueError(f"--longest {longest}: the text has {len(windows)} run of so many tokens, 2 are needed")
    if args.estimate:
        return _tell_time(args, config, longest, needed, options, len(windows))
    found = _measured(args, config, longest, options, windows)
    print(json.dumps(found.record(), indent=1) if args.json else f"{found}\n\n{found.table()}")
    return 0


def _file(given: Path) -> Path:
    if not given.is_file():
        raise FileNotFoundError(f"--text {given} is not a file")
    return given


def _tell_time(
    args: argparse.Namespace, config: Any, longest: int, needed: int, options: dict[str, Any], texts: int
) -> int:
    """Prints the time of the lengths tried first, and of four more."""
    from mesa.methods import make
    from probe.experiment.estimate import time_of
    from probe.experiment.threads import computing
    from probe.thresholds.window_estimate import doubled

    origin = make("origin", longest)
    work = {(origin, length): float(texts) for length in doubled(longest)}
    work[origin, longest] *= 2
    print(f"model {args.model}, contexts of up to {longest} tokens, {texts} texts each")
    print(f"memory for one pass, beside the weights: about {needed / 2**20:.0f} MiB")
    with computing(args.threads):
        print(time_of([(config, work)], options, "fused"))
    return 0


def _measured(args: argparse.Namespace, config: Any, longest: int, options: dict[str, Any], windows: Any) -> Any:
    import numpy as np
    from tqdm import tqdm

    from mesa.models import load
    from probe.experiment.threads import computing
    from probe.tasks.likelihood import tail_prompts
    from probe.tasks.retrieval import first_ids
    from probe.tasks.score import nll
    from probe.thresholds.failure import CHANCE_NATS
    from probe.thresholds.window_estimate import estimate_window

    with computing(args.threads), tqdm(desc="measuring NLL", unit="text") as bar:
        loaded = load(args.model, **options)
        first = first_ids(loaded.tokenizer)

        def measure(length: int) -> np.ndarray:
            bar.set_postfix_str(f"{length} tokens")
            values = []
            for ids in tail_prompts(windows, first, length):
                values.append(float(nll(loaded.model, ids, _TAIL, reduction="mean")))
                bar.update()
            if not np.isfinite(values).all():
                raise ValueError(f"the NLL at {length} tokens is not a number; run the model with --dtype float32")
            return np.array(values)

        return estimate_window(measure, longest, math.log(config.vocab_size) - CHANCE_NATS)
