"""`mesa-lens app`: the dashboard over a folder of runs, in the browser."""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from mesa_lens.arguments import add_options, read_options
from probe.options import InputPath, Place, Text, Whole, option

FEW_ARENAS = {"MALLOC_ARENA_MAX": "2"}
"""Environment of the server: with an arena a thread, glibc keeps hundreds of MB of what was read and let go."""


@dataclass(frozen=True)
class AppOptions:
    """What the server shows, and to whom."""

    store: Place = option(Path("runs"), "folder of runs, or one run; or the URL of either")
    host: Text = option("127.0.0.1", "address to listen on; any but this one is open to others")
    port: Annotated[Whole, Field(ge=1, le=65535)] = option(8501, "port to listen on")
    allow_runs: bool = option(False, "let the page New run start `mesa-lens probe` in the folder of runs")
    inputs: tuple[InputPath, ...] = option(
        (), "with --allow-runs: read models and texts from this folder too", metavar="FOLDER", repeated=True
    )
    no_browser: bool = option(False, "do not open a browser")


def add(commands: Any) -> None:
    """Adds the subcommand."""
    command = commands.add_parser(
        "app",
        example="mesa-lens app --store runs",
        help="open the dashboard over a folder of runs",
        description=__doc__,
    )
    add_options(command, AppOptions)
    command.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Starts Streamlit and waits for it."""
    from mesa_lens.dashboard.run_control import ALLOWED_VARIABLE
    from mesa_lens.dashboard.runs import ROOT_VARIABLE

    args.inputs = read_options(args, AppOptions).inputs
    if importlib.util.find_spec("streamlit") is None:
        raise ValueError("the dashboard needs Streamlit; pip install 'mesa-lens[app]'")
    if isinstance(args.store, str):
        args.store = _remote(args)
    elif args.store.exists() and not args.store.is_dir():
        raise NotADirectoryError(f"--store {args.store} is not a folder; give the folder that holds the runs")
    roots = _roots(args)
    try:
        socket.getaddrinfo(args.host, args.port)
    except (OSError, UnicodeError) as error:
        raise ValueError(f"--host {args.host!r} is no address of this machine ({error})") from error
    script = Path(__file__).parent / "dashboard" / "main.py"
    options = {
        "server.address": args.host,
        "server.port": args.port,
        "server.headless": str(args.no_browser).lower(),
        "server.fileWatcherType": "none",
        "browser.gatherUsageStats": "false",
        "client.toolbarMode": "viewer",
        "client.showErrorDetails": "none",
        "runner.magicEnabled": "false",
        "global.disableWidgetStateDuplicationWarning": "true",  # see `state.follow`
        "theme.light.primaryColor": "#0072B2",
        "theme.dark.primaryColor": "#56B4E9",
    }
    flags = [f"--{name}={value}" for name, value in options.items()]
    environment = {**FEW_ARENAS, **os.environ, ROOT_VARIABLE: str(args.store.resolve())}
    environment.pop(ALLOWED_VARIABLE, None)
    if args.allow_runs:
        environment[ALLOWED_VARIABLE] = json.dumps(roots)
    try:
        return subprocess.call([sys.executable, "-m", "streamlit", "run", str(script), *flags], env=environment)
    except KeyboardInterrupt:
        return 0


def _remote(args: argparse.Namespace) -> Path:
    """What --store names at a URL."""
    from probe.store.location import as_path

    if args.allow_runs:
        raise ValueError(f"--allow-runs starts runs in a folder; --store {args.store} is a URL")
    return as_path(args.store)


def _roots(args: argparse.Namespace) -> list[str]:
    """The folders that a new run may read models and texts from."""
    if args.inputs and not args.allow_runs:
        raise ValueError(f"--inputs {args.inputs[0]} is for --allow-runs, which is not given")
    for folder in args.inputs:
        if not folder.is_dir():
            raise NotADirectoryError(f"--inputs {folder} is not a folder; give one that holds models or texts")
    return [str(folder.resolve()) for folder in (args.store, *args.inputs)]
