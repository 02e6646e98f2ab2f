"""The command line: parses, calls the packages, and turns errors into one line and an exit code."""

import argparse
import errno
import importlib
import os
import re
import shlex
import sys
import traceback
from collections.abc import Sequence
from functools import partial
from typing import Any, NoReturn

from mesa.errors import Failed, Refused, is_out_of_memory
from mesa.methods import meant
from mesa_lens import __version__
from mesa_lens.arguments import add_command
from mesa_lens.running import run_experiment, run_options
from probe.commands import Command, installed
from probe.experiment.lock import interruptible
from probe.request import said


class _Once(argparse._StoreAction):
    """Stores a value; an option that is passed twice is an error, not a silent choice of the last."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        """Raises ArgumentError for the second value."""
        passed = vars(namespace).setdefault("passed", set())
        if option_string and self.dest in passed:
            raise argparse.ArgumentError(None, f"{option_string} is passed twice; pass one value")
        passed.add(self.dest)
        super().__call__(parser, namespace, values, option_string)


class _Commands(argparse._SubParsersAction):
    """Subcommands; an option of the command above that stands before one would be lost."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        """Raises ArgumentError for such an option."""
        for action in parser._actions:
            if action.option_strings and getattr(namespace, action.dest, action.default) != action.default:
                option = action.option_strings[-1]
                raise argparse.ArgumentError(None, f"{option} before {values[0]!r} has no effect: write it behind that")
        super().__call__(parser, namespace, values, option_string)


class Parser(argparse.ArgumentParser):
    """A parser whose complaints are one line, as all others, and that takes an option once."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.register("action", None, _Once)
        self.register("action", "parsers", _Commands)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:  # type: ignore[override]
        """Raises Refused for an option that is not known, and names the one that is most like it."""
        known, extras = super().parse_known_args(args, namespace)
        if extras:
            name = extras[0].partition("=")[0]
            self.error(f"unrecognized arguments: {' '.join(extras)}{meant(name, self._option_string_actions)}")
        return known, extras

    def error(self, message: str) -> NoReturn:
        """Raises Refused, naming the option as it is written."""
        option, colon, text = message.removeprefix("argument ").partition(": ")
        if message.startswith("argument ") and not text[:1].islower():  # it begins with the value, see `probe.options`
            colon = " "
        if choice := re.match(r"invalid choice: '(.*?)' \(choose from (.*)\)", text):
            text += meant(choice[1], re.findall(r"[\w-]+", choice[2]))
        raise Refused(f"{option}{colon}{text}; see `{self.prog} --help`")


_ORDER = """
    check probe predict report config locate anatomy readout eval status app export methods verify fetch
""".split()
_OWN = ("report", "status", "app", "export", "methods", "verify", "fetch")
"""The modules of this package that are commands: each has HELP, and `run` and EXAMPLE or, with subcommands, `add`."""


def parser(chosen: str | None = None) -> Parser:
    """The full command's parser; every subcommand sets `run`. chosen: the only one whose options are added."""
    top = Parser(
        prog="mesa-lens",
        epilog="example: mesa-lens probe --length 2048 --out runs/demo",
        description="At which length does a language model fail, which method fixes it, where inside does it arise? "
        "`mesa-lens -` runs the commands on stdin, one a line without `mesa-lens`, in one process.",
    )
    top.add_argument("--version", action="version", version=f"mesa-lens {__version__}")
    top.add_argument("--debug", action="store_true", help="with any command: show where an error comes from")
    commands = top.add_subparsers(title="commands", required=True, metavar="COMMAND")
    by_name = installed()
    for name in [name for name in _OWN if name in by_name]:
        package = getattr(by_name[name], "package", None) or by_name[name].__name__
        raise Refused(f"{package} is called {name!r}, as a command of mesa-lens is; rename or uninstall it")
    by_name |= {name: importlib.import_module(f"mesa_lens.{name.replace('-', '_')}") for name in _OWN}
    for name in sorted(by_name, key=lambda name: _ORDER.index(name) if name in _ORDER else len(_ORDER)):
        command = by_name[name]
        if chosen not in (None, name):  # all options take 25 ms
            about = command.help if isinstance(command, Command) else getattr(command, "HELP", None)
            commands.add_parser(name, help=about)
            continue
        if isinstance(command, Command):
            add_command(
                commands,
                name,
                partial(run_experiment, command),
                option_classes=(*command.options, run_options(command)),
                example=f"mesa-lens {name} {command.example}",
                help=command.help,
                description=f"`mesa-lens {name}`: {command.about}.",
                out=command.out,
            )
            continue
        if hasattr(command, "add"):  # those with subcommands
            command.add(commands)
            continue
        add_command(
            commands,
            name,
            command.run,
            example=command.EXAMPLE,
            help=command.HELP,
            description=command.__doc__,
        )
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns 0, 2 for misuse or 1 for failure, after one line on stderr.

    A fault of ours keeps its traceback; --debug shows it for every error. For `-` it runs the commands on stdin.
    """
    argv = list(sys.argv[1:] if argv is None else argv)
    words = [word for word in argv if word != "--debug"]
    debug = words != argv
    said.clear()
    args = argparse.Namespace()
    if "OMP_WAIT_POLICY" not in os.environ:  # threads that spin for each other on busy cores keep each other from work
        os.environ.setdefault("GOMP_SPINCOUNT", "1000")  # read as torch is loaded
    try:
        with interruptible():
            if words == ["-"]:
                return _run_lines(debug)
            parser(next((word for word in words if not word.startswith("-")), "")).parse_args(words, args)
            return args.run(args) or 0
    except BrokenPipeError:  # the reader of our output has gone, e.g. `| head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Refused as error:
        return _complain(error, 2, debug)
    except (Failed, MemoryError) as error:
        return _complain(error, 1, debug)
    except OSError as error:
        return _complain(_with_remedy(error, args), 1, debug)
    except KeyboardInterrupt as error:
        *_, note = ["nothing half-written was left", *getattr(error, "__notes__", [])]
        print(f"\nmesa-lens: interrupted; {note}", file=sys.stderr)
        return 1
    except Exception as error:
        if is_out_of_memory(error):
            return _complain(error, 1, debug)
        print(
            f"mesa-lens: this is a fault of mesa-lens {__version__}; please report it with these lines:",
            file=sys.stderr,
        )
        traceback.print_exception(error)
        return 1


def _run_lines(debug: bool) -> int:
    """Runs commands, one a line of stdin, in this process up to the first that fails; its exit code.

    Torch and transformers are imported once, which takes several seconds. Raises Refused for a line with an open quote,
    and for bytes that are not UTF-8.
    """
    former, flags = sys.argv[1:], ["--debug"] * debug
    try:
        for number, line in enumerate(sys.stdin, 1):
            try:
                words = shlex.split(line, comments=True)
            except ValueError as error:
                raise Refused(f"line {number} of stdin cannot be read ({error}): {line.strip()}") from error
            if not words or set(words) <= {"-", "--debug"}:
                continue
            sys.stderr.write(f"mesa-lens {shlex.join(words)}\n")
            sys.argv[1:] = words  # a folder's lock names its command
            try:
                code = main([*words, *flags])
            except SystemExit as done:  # --help, --version
                code = done.code if isinstance(done.code, int) else 1
            if code:
                return code
    except UnicodeDecodeError as error:
        raise Refused(
            f"stdin is not UTF-8 (byte {error.object[error.start]:#04x}); save the commands as UTF-8"
        ) from error
    finally:
        sys.argv[1:] = former
    return 0


def _with_remedy(error: OSError, args: argparse.Namespace) -> OSError:
    """The error, with what can be done where a disk is full or not to be written on."""
    remedies = dict.fromkeys((errno.ENOSPC, errno.EDQUOT), "free some space")
    remedies |= dict.fromkeys((errno.EROFS, errno.EACCES, errno.EPERM), "fix its permissions")
    remedies |= {errno.EISDIR: "move this folder away, a file is to be there"}
    if error.errno not in remedies or "--out" in str(error):
        return error
    elsewhere = next((f" or choose another --{name}" for name in ("out", "cache") if name in args), "")
    described = OSError(
        f"{error.filename or 'a file of this run'}: {error.strerror}; {remedies[error.errno]}{elsewhere}"
    )
    described.__notes__ = getattr(error, "__notes__", [])
    return described


def _complain(error: BaseException, code: int, debug: bool) -> int:
    """Prints the error in one line, after its traceback for --debug; returns the exit code."""
    if debug:
        traceback.print_exception(error)
    line = " ".join(str(error).split()) or type(error).__name__
    print("; ".join([f"mesa-lens: {line}", *getattr(error, "__notes__", [])[-1:]]), file=sys.stderr)
    return code
