"""The commands that measure: what each is asked for, where it writes, and how an interrupted run of it goes on."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

from mesa.errors import Refused
from probe.commands.anatomy.request import AnatomyRequest
from probe.commands.eval.request import EvalRequest, HarnessOptions
from probe.commands.locate.request import LocateRequest
from probe.commands.predict.request import PredictRequest
from probe.commands.probe.request import ProbeRequest, RuleOptions
from probe.experiment.resume import NEVER_RECORDED
from probe.options import options

_CLASSES: dict[str, tuple[type, ...]] = {
    "probe": (ProbeRequest, RuleOptions),
    "eval": (EvalRequest, HarnessOptions),
    "locate": (LocateRequest,),
    "anatomy": (AnatomyRequest,),
    "predict": (PredictRequest,),
}


def resume_command(command: str, folder: Path, record: Any) -> str:
    """The command line, quoted for a shell; empty where the record is not what `recorded` gives.

    A value stands in one word with its option, so that none is read as another option.
    """
    known = {item.key: item for cls in _CLASSES[command] for item in options(cls) if item.key != NEVER_RECORDED}
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
