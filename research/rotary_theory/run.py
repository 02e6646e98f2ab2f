"""Theorems of our own, checked: the paper's under rotary embedding, and with other slopes, weaves and windows."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from research.claims import check_claims
from research.rotary_theory.claims import beyond, rotary, rotary_mesa, rotary_reach
from theory.claims import checks_in

CLAIMS = checks_in((rotary, rotary_reach, rotary_mesa, beyond))
"""Every check by the name of its claim."""


def main(words: list[str] | None = None) -> int:
    """Checks the claims and prints them, as `mesa-lens verify` does; returns 1 where one fails that must hold."""
    return check_claims("research/rotary_theory/run.py", __doc__, CLAIMS, words)


if __name__ == "__main__":
    sys.exit(main())
