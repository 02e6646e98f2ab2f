"""What a journal or store records of the request, for the command that resumes the run."""

from __future__ import annotations

from typing import Any

from probe.options import options

REQUEST = "request"
"""The key of what `recorded` gives, in a journal and in a store's attributes."""
NEVER_RECORDED = "trust_remote_code"
"""The option that no file gives: a file does not allow code to run."""


def recorded(*parts: Any) -> dict[str, list[str]]:
    """The options of a request that are not at their defaults: by key the values as they are typed; a flag has none."""
    record: dict[str, list[str]] = {}
    for part in parts:
        for item in options(type(part)):
            value = item.of(part)
            if item.key != NEVER_RECORDED and value not in (None, (), item.default):
                record[item.key] = [] if item.is_flag else [*value] if item.repeated else [item.written(value)]
    return record
