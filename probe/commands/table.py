"""The commands that measure: what each is asked for, what it runs, and how an interrupted run of it goes on."""

from __future__ import annotations

import importlib
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mesa.errors import Refused
from probe.commands.anatomy import AnatomyRequest
from probe.commands.eval import EvalRequest, HarnessOptions
from probe.commands.locate import LocateRequest
from probe.commands.predict import PredictRequest
from probe.commands.probe import ProbeRequest, RuleOptions
from probe.experiment.journal import NEVER_RECORDED
from probe.options import options
from probe.run_folder import LAYOUTS, Layout


@dataclass(frozen=True)
class Command:
    """A command. options: the dataclasses of what it is asked for, the request first.

    about: the first line of its help; help: its line in the list of commands; out: --out's default. timed: whether
    --minutes can end it.
    """

    name: str
    help: str
    about: str
    example: str
    options: tuple[type, ...]
    timed: bool = True

    @property
    def out(self) -> str:
        """The default of --out."""
        return f"runs/{self.name}"

    @property
    def layout(self) -> Layout:
        """Where it writes."""
        return LAYOUTS[self.name]

    def listing(self, *own: Any) -> dict[str, str]:
        """Texts by name that are printed in place of a run, where an option other than the request's asks for them."""
        module = importlib.import_module(f"probe.commands.{self.name}.run")
        return getattr(module, "listing", lambda *_: {})(*own)

    def load(self) -> tuple[Any, Any, Any]:
        """`plan` of what is asked, `estimate` and `run_and_report` of the plan; loads torch."""
        module = importlib.import_module(f"probe.commands.{self.name}.run")
        return module.plan, module.estimate, module.run_and_report


COMMANDS = {
    command.name: command
    for command in (
        Command(
            "probe",
            "measure at which length each method fails, and store hidden states",
            "measures at which length the model fails under each method, and stores its hidden states",
            "--length 2048 --out runs/demo",
            (ProbeRequest, RuleOptions),
            timed=False,
        ),
        Command(
            "predict",
            "predict at which length each method fails, from the unmodified model's loss",
            "predicts the length at which each method fails, from one curve and the method's distances",
            "--config leaky-rerope:k=2,log_n=false --check --out runs/predict",
            (PredictRequest,),
        ),
        Command(
            "locate",
            "apply a method in one layer or head alone: what share of the loss comes back?",
            "finds the layers and heads where a method recovers the loss beyond M",
            "--out runs/demo",
            (LocateRequest,),
        ),
        Command(
            "anatomy",
            "measure what every head attends to under each method",
            "measures what every head attends to under each method, and which heads retrieve a passkey",
            "--out runs/demo",
            (AnatomyRequest,),
        ),
        Command(
            "eval",
            "run passkey, RULER, LongEval, NLL, latency or lm-eval tasks under each method",
            "scores tasks under each method at several lengths, with 95% intervals and curves",
            "--task passkey,nll --samples 10 --out runs/eval",
            (EvalRequest, HarnessOptions),
        ),
    )
}
"""By name."""


def resume_command(command: str, folder: Path, record: Any) -> str:
    """The command line, quoted for a shell; empty where the record is not what `recorded` gives.

    A value stands in one word with its option, so that none is read as another option.
    """
    known = {item.key: item for cls in COMMANDS[command].options for item in options(cls) if item.key != NEVER_RECORDED}
    words = ["mesa-lens", command]
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
