"""What the scripts of claims share: options, lines and the summary, as `mesa-lens verify` prints them."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence

from tqdm import tqdm

from mesa.errors import Refused
from theory.claim import Check, summary
from theory.claims import VerifyOptions, selected


def check_claims(script: str, about: str | None, known: Mapping[str, Check], words: Sequence[str] | None) -> int:
    """Checks the claims and prints them; returns 1 where one fails that must hold."""
    parser = argparse.ArgumentParser(prog=f"python {script}", description=about)
    parser.add_argument("--claim", metavar="NAME", help="check this claim only, with those named NAME-...")
    parser.add_argument("--H", type=float, default=0.5, help="the threshold (default: 0.5)")
    parser.add_argument("--dtype", choices=("float32", "float64"), default="float64")
    parser.add_argument("--seed", type=int, default=0, help="of the weights that a proof leaves open")
    inputs = parser.add_mutually_exclusive_group()
    inputs.add_argument("--quick", action="store_true", help="shorter inputs")
    inputs.add_argument("--full", action="store_true", help="the longest inputs, as for the printed numbers")
    parser.add_argument("--json", action="store_true", help="print the claims as JSON")
    args = parser.parse_args(words)
    try:
        settings = VerifyOptions(H=args.H, dtype=args.dtype, seed=args.seed, quick=args.quick, full=args.full)
        checks = selected(args.claim, known)
    except Refused as error:
        parser.error(str(error))
    claims = [check(settings) for check in tqdm(checks.values(), unit=" claims", delay=2, leave=False)]
    if args.json:
        print(json.dumps([claim.as_dict() for claim in claims], indent=2))
    else:
        for claim in claims:
            print(claim.line())
        print(summary((claim.name, claim.verdict, claim.whose) for claim in claims))
    return 0 if all(claim.ok for claim in claims) else 1
