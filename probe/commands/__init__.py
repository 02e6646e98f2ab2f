"""The commands that measure, one a folder: __init__ (request, row), run (plan, tasks, worker), page.

In: the options of a command line or form. Out: a folder of journals and results, and a report of them.
Open first: probe/run.py. All but `probe` are found by entry point, as another package's are.
"""

import importlib
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from mesa import plugins
from mesa.errors import Refused
from probe.experiment.journal import NEVER_RECORDED
from probe.options import options
from probe.run_folder import Layout, in_order


@dataclass(frozen=True, kw_only=True)
class Command:
    """A command that measures. options: the dataclasses of what it is asked for, the request first.

    about: the first line of its help; help: its line in the list of commands. layout: where it writes. package: has the
    module `run`: `plan` of what is asked, `estimate` and `run_and_report` of the plan, and maybe `listing`. tells: the
    functions of the package's module `page` by which a run's report, verdict and dashboard tell of its results (`tell`
    calls them). export: what `mesa-lens export` of this name shows, the parameters of `export` of the module `page`
    (folder, ...) and an example. timed: whether --minutes ends it; else `run` has `plan_in_time`, which chooses what
    fits them.
    """

    name: str
    help: str
    about: str
    example: str
    options: tuple[type, ...]
    layout: Layout
    package: str
    tells: tuple[str, ...] = ()
    export: tuple[str, str, str] | tuple[()] = ()
    timed: bool = True

    @property
    def out(self) -> str:
        """The default of --out."""
        return f"runs/{self.name}"

    @property
    def example_out(self) -> str:
        """The folder that its example writes to."""
        words = shlex.split(self.example)
        return words[words.index("--out") + 1] if "--out" in words[:-1] else self.out

    def listing(self, *own: Any) -> dict[str, str]:
        """Texts by name that are printed in place of a run, where an option other than the request's asks for them."""
        return getattr(self._module("run"), "listing", lambda *_: {})(*own)

    def load(self) -> tuple[Any, Any, Any]:
        """`plan` of what is asked, `estimate` and `run_and_report` of the plan; loads torch."""
        module = self._module("run")
        return module.plan, module.estimate, module.run_and_report

    def plan_in_time(self, *own: Any, **how: Any) -> tuple[Any, float | None]:
        """Of a command that is not `timed`: the plan of what is asked, and the minutes that its run ends after."""
        return self._module("run").plan_in_time(*own, **how)

    def on_page(self, what: str) -> Callable[..., Any]:
        """One of `tells`; Refused for another."""
        if what not in self.tells:
            raise Refused(f"mesa-lens {self.name} tells nothing of {what}")
        return getattr(self._module("page"), what)

    def _module(self, name: str) -> Any:
        return importlib.import_module(f"{self.package}.{name}")


class RunFacts(NamedTuple):
    """What a run is of: model, M, parameters by method, the reference, and whether that is seen to fail.

    fails: None where failure was not measured.
    """

    model: str | None
    trained_length: int
    method_configs: dict[str, Any]
    reference: str
    fails: bool | None = None


class Findings(NamedTuple):
    """What a command adds to a run's verdict: smallest sets of heads and predicted failures by method, and notes."""

    heads: dict[str, Any]
    predicted: dict[str, Any]
    notes: list[str]


def installed() -> dict[str, Any]:
    """Commands by name, in the order of help and reports: `Command`s, and modules with `run`, HELP and EXAMPLE."""
    core = importlib.import_module("probe.commands.probe").COMMAND
    return in_order(plugins.registered(plugins.COMMANDS, {core.name: core}))


def commands() -> dict[str, Command]:
    """Those that measure."""
    return {name: row for name, row in installed().items() if isinstance(row, Command)}


def command(name: str) -> Command:
    """The command of that name; Refused where it is not installed."""
    if (row := commands().get(name)) is None:
        raise Refused(f"mesa-lens {name} is not installed, so its results are not read")
    return row


def tell(what: str) -> dict[str, Callable[..., Any]]:
    """The functions `what` of all that have it, by command.

    `inside` (folder): sections for the report of a run; `findings` (folder, `RunFacts`): `Findings` for its verdict;
    `predicted` (folder, `RunFacts`): predicted failures by method, for its curves;
    `rewrite` (folder): writes the command's own report again.
    """
    return {name: row.on_page(what) for name, row in commands().items() if what in row.tells}


def resume_command(name: str, folder: Path, record: Any) -> str:
    """The command line, quoted for a shell; empty where the record is not what `recorded` gives.

    A value stands in one word with its option, so that none is read as another option.
    """
    known = {item.key: item for cls in command(name).options for item in options(cls) if item.key != NEVER_RECORDED}
    words = ["mesa-lens", name]
    try:
        for key, values in record.items():
            item = known[key]
            if not isinstance(values, list):
                return ""
            if not item.is_flag:
                item.read(values if item.repeated else values[0])
            words += [item.flag] if item.is_flag else [f"{item.flag}={value}" for value in values]
    except (Refused, AttributeError, LookupError, TypeError):
        return ""
    words.append(f"--out={folder}")
    return shlex.join(words) if all(map(str.isprintable, words)) else ""
