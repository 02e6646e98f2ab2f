"""`python -m theory`: verifies the theorems."""

from __future__ import annotations

import argparse
import sys
from typing import NoReturn

from theory.cli import add_arguments, run


class _Parser(argparse.ArgumentParser):
    """Reports misuse in one line."""

    def error(self, message: str) -> NoReturn:
        """Exits with 2."""
        self.exit(2, f"error: {message}\n")


if __name__ == "__main__":
    parser = _Parser(prog="python -m theory", description="Verifies theorems 3.1-3.3 and the corollary numerically.")
    add_arguments(parser)
    sys.exit(run(parser.parse_args()))
