"""Theorems of our own, checked: the paper's under rotary embedding, and with other slopes, weaves and windows."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from tqdm import tqdm

sys.path.insert(0, str(Path(__file__).parents[2]))

from mesa.errors import Refused
from research.rotary_theory.claims import beyond, rotary, rotary_mesa, rotary_reach
from theory.claim import summary
from theory.claims import VerifyOptions, checks_in, selected

CLAIMS = checks_in((rotary, rotary_reach, rotary_mesa, beyond))
"""Every check by the name of its claim."""


def main(words: list[str] | None = None) -> int:
    """Checks the claims and prints them, as `mesa-lens verify` does; returns 1 where one fails that must hold."""
    parser = argparse.ArgumentParser(prog="python research/rotary_theory/run.py", description=__doc__)
    parser.add_argument("--claim", metavar="NAME", help="check this claim only, with those named NAME-...")
    parser.add_argument("--H", type=float, default=0.5, help="the threshold (default: 0.5)")
    parser.add_argument("--dtype", choices=("float32", "float64"), default="float64")
    parser.add_argument("--seed", type=int, default=0, help="of the weights that a proof leaves open")
    inputs = parser.add_mutually_exclusive_group()
    inputs.add_argument("--quick", action="store_true", help="shorter inputs")
    inputs.add_argument("--full", action="store_true", help="the longest inputs, as for the numbers in README.md")
    parser.add_argument("--json", action="store_true", help="print the claims as JSON")
    args = parser.parse_args(words)
    try:
        settings = VerifyOptions(H=args.H, dtype=args.dtype, seed=args.seed, quick=args.quick, full=args.full)
        checks = selected(args.claim, CLAIMS)
    except Refused as error:
        parser.error(str(error))
    claims = [check(settings) for check in tqdm(checks.values(), unit=" claims", delay=2, leave=False)]
    if args.json:
        print(json.dumps([claim.as_dict() for claim in claims], indent=2))
    else:
        print(
            *(claim.line() for claim in claims),
            summary((claim.name, claim.verdict, claim.whose) for claim in claims),
            sep="\n",
        )
    return 0 if all(claim.ok for claim in claims) else 1


if __name__ == "__main__":
    sys.exit(main())
