"""`mesa-lens app`: the dashboard over a folder of runs, in the browser."""

import importlib.util
import os
import shutil
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

from pydantic import Field

from mesa.errors import Refused, install_command
from probe.options import InputPath, Integer, Names, Text, option

RUNS = Path("runs")
FEW_ARENAS = {"MALLOC_ARENA_MAX": "2"}
"""Environment of the server: with an arena a thread, glibc keeps hundreds of MB of what was read and let go."""


@dataclass(frozen=True)
class AppOptions:
    """What the server shows, and to whom."""

    store: InputPath = option(
        RUNS, "folder of runs, or one run; without runs/ here, a finished example is copied there"
    )
    host: Text = option("127.0.0.1", "address to listen on; any but this one is open to others")
    allow_host: Names = option((), "further names by which browsers may reach it, e.g. that of a proxy")
    port: Annotated[Integer, Field(ge=1, le=65535)] = option(8501, "port to listen on")
    no_browser: bool = option(False, "do not open a browser")


HELP = "open the dashboard over a folder of runs"
EXAMPLE = "mesa-lens app --store runs"


def run(options: AppOptions) -> int:
    """Starts Streamlit and waits for it."""
    if importlib.util.find_spec("streamlit") is None:
        raise Refused(f"the dashboard needs Streamlit; {install_command('app')}")
    from mesa_lens.dashboard.runs import ROOT_VARIABLE
    from mesa_lens.dashboard.server import HOSTS_VARIABLE, host_name

    try:
        family, *_, address = min(socket.getaddrinfo(options.host, 0, type=socket.SOCK_STREAM))  # IPv4 before IPv6
        with socket.socket(family) as tried:
            tried.bind(address)
    except (OSError, UnicodeError) as error:
        raise Refused(f"--host {options.host!r} is not an address of this machine ({error})") from error
    allowed = [host_name(name) for name in options.allow_host]
    store = _store(options)
    script = Path(__file__).parent / "dashboard" / "server.py"
    settings = {
        "server.address": options.host,
        "server.port": options.port,
        "server.headless": str(options.no_browser).lower(),
        "global.developmentMode": "false",  # which Streamlit takes a folder of `pip install --target` for
        "server.fileWatcherType": "none",
        "server.showEmailPrompt": "false",
        "browser.gatherUsageStats": "false",
        "client.toolbarMode": "viewer",
        "client.showErrorDetails": "none",
        "runner.magicEnabled": "false",
        "theme.light.primaryColor": "#0072B2",
        "theme.dark.primaryColor": "#56B4E9",
    }
    flags = [f"--{name}={value}" for name, value in settings.items()]
    flags += [f"--server.corsAllowedOrigins={scheme}://{name}" for name in allowed for scheme in ("http", "https")]
    environment = {**FEW_ARENAS, **os.environ, ROOT_VARIABLE: str(store.resolve()), HOSTS_VARIABLE: ",".join(allowed)}
    try:
        return subprocess.call([sys.executable, "-m", "streamlit", "run", str(script), *flags], env=environment)
    except KeyboardInterrupt:
        return 0


def _store(options: AppOptions) -> Path:
    """The folder that --store names; Refused for a file, and a folder that is not there."""
    if options.store == RUNS and not RUNS.exists():
        _copy_example()
    if not options.store.is_dir():
        wrong = "is not a folder" if options.store.exists() else "is not there"
        raise Refused(
            f"--store {options.store} {wrong}; give the folder that holds the runs, or leave --store out "
            f"where there is no {RUNS}/ here, for an example"
        )
    return options.store


def _copy_example() -> None:
    """The finished run that comes with the package, in runs/; its report is written here, larger than the run."""
    print(f"no {RUNS}/ is here: the finished example is copied there, and its report written", file=sys.stderr)
    with TemporaryDirectory(prefix=f".{RUNS}-", dir=".") as folder:
        copy = Path(shutil.copytree(Path(__file__).parent / "examples", Path(folder) / RUNS))
        for run in copy.iterdir():
            command = [sys.executable, "-m", "mesa_lens", "report", str(run)]
            if subprocess.run(command, stdout=subprocess.DEVNULL, check=False).returncode:
                again = f"mesa-lens report {RUNS / run.name}"
                print(f"the report of {run.name} could not be written; `{again}` tries again", file=sys.stderr)
        copy.rename(RUNS)
