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


def main() -> int:
    """The exit code: 0 if everything that must hold holds, 1 if not, 2 for misuse."""
    parser = _Parser(prog="python -m theory", description="Verifies theorems 3.1-3.3 and the corollary numerically.")
    add_arguments(parser)
    return run(parser.parse_args())


if __name__ == "__main__":
    sys.exit(main())
