"""Additional claims, checked: what the paper says next to its theorems, of ALiBi, Self-Extend, DynamicSplit, memory."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from research.claims import check_claims
from research.theorems import additional_claims
from theory.claims import checks_in

CLAIMS = checks_in([additional_claims])
"""Every check by the name of its claim."""


def main(words: list[str] | None = None) -> int:
    """Checks the claims and prints them, as `mesa-lens verify` does; returns 1 where one fails that must hold."""
    return check_claims("research/theorems/run.py", __doc__, CLAIMS, words)


if __name__ == "__main__":
    sys.exit(main())
