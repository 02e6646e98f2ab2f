"""The command that resumes a run, from the request that its journal or store recorded, and never from text."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

from mesa.errors import Refused
from probe.options import options
from probe.request import (
    AnatomyRequest,
    EvalRequest,
    HarnessOptions,
    LocateRequest,
    PredictRequest,
    ProbeRequest,
    RuleOptions,
)

REQUEST = "request"
"""The key of what `recorded` gives, in a journal and in a store's attributes."""
_CLASSES: dict[str, tuple[type, ...]] = {
    "probe": (ProbeRequest, RuleOptions),
    "eval": (EvalRequest, HarnessOptions),
    "locate": (LocateRequest,),
    "anatomy": (AnatomyRequest,),
    "predict": (PredictRequest,),
}
_NEVER = "trust_remote_code"  # a file does not allow code to run


def recorded(*parts: Any) -> dict[str, list[str]]:
    """The options of a request that are not at their defaults: by key the values as they are typed; a flag has none."""
    record: dict[str, list[str]] = {}
    for part in parts:
        for item in options(type(part)):
            value = item.of(part)
            if item.key != _NEVER and value not in (None, (), item.default):
                record[item.key] = [] if item.is_flag else [*value] if item.repeated else [item.written(value)]
    return record


def resume_command(command: str, folder: Path, record: Any) -> str:
    """The command line, quoted for a shell; empty where the record is not what `recorded` gives.

    A value stands in one word with its option, so that none is read as another option.
    """
    known = {item.key: item for cls in _CLASSES[command] for item in options(cls) if item.key != _NEVER}
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
