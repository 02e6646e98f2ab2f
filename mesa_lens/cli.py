"""The command line: parses, calls the packages, and turns errors into one line and an exit code."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from mesa_lens import __version__


def parser() -> argparse.ArgumentParser:
    """The whole command's parser; every subcommand sets `run`."""
    from mesa_lens import app, eval, export, fetch, methods, probe, study, train, verify
    from mesa_lens.paper import command as paper

    top = argparse.ArgumentParser(
        prog="mesa-lens",
        description="At which length does a language model break, where inside does it show, which method mends it?",
    )
    top.add_argument("--version", action="version", version=f"mesa-lens {__version__}")
    commands = top.add_subparsers(title="commands", required=True, metavar="COMMAND")
    for command in (probe, eval, paper, study, app, export, methods, verify, fetch, train):
        command.add(commands)
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns 0, 2 for misuse or 1 for failure, after one line on stderr."""
    args = parser().parse_args(argv)
    try:
        return args.run(args) or 0
    except BrokenPipeError:  # the reader of our output has gone, e.g. `| head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (ValueError, FileNotFoundError, FileExistsError, NotADirectoryError) as error:
        return _complain(error, 2)
    except (OSError, MemoryError, RuntimeError) as error:
        return _complain(error, 1)
    except KeyboardInterrupt:
        print("mesa-lens: interrupted; nothing half-written was left", file=sys.stderr)
        return 1


def _complain(error: BaseException, code: int) -> int:
    line = " ".join(str(error).split()) or type(error).__name__
    print(f"mesa-lens: {line}", file=sys.stderr)
    return code
