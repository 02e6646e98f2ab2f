"""What other installed packages add by entry point: methods, tasks, families, commands."""

from collections.abc import Mapping
from functools import cache
from importlib.metadata import EntryPoint, distributions
from typing import Any, TypeVar

from mesa.errors import Refused

METHODS, TASKS, FAMILIES, COMMANDS = (f"mesa_lens.{kind}" for kind in ("methods", "tasks", "families", "commands"))
"""Entry-point groups: of `Method` classes, `EvalTask`s, `Family` rows by model type, `Command`s."""
T = TypeVar("T")


@cache
def named_in(group: str) -> tuple[EntryPoint, ...]:
    """The entry points of a group, looked for once, since every package on the path is opened for it.

    Those of all metadata: an outdated egg-info in a clone would hide the installed package's, of the same name.
    """
    points = {
        (point.name, point.value): point
        for distribution in distributions()
        for point in distribution.entry_points
        if point.group == group
    }
    return tuple(point for _, point in sorted(points.items()))


def registered(group: str, ours: Mapping[str, T]) -> dict[str, T]:
    """Ours by name, then those of installed packages, by their `name` or their entry point's.

    Raises Refused where two share a name, or one cannot be loaded. One whose module is not there is left out: a package
    may be installed without an optional part.
    """
    known: dict[str, Any] = dict(ours)
    for point in named_in(group):
        try:
            value = point.load()
        except Exception as error:
            missing = error.name if isinstance(error, ModuleNotFoundError) else None
            if missing and f"{point.module}.".startswith(f"{missing}."):
                continue
            raise Refused(f"{point.value} of {group} cannot be loaded ({error}); repair or uninstall it") from error
        name = value.name if hasattr(value, "name") else point.name
        if known.get(name, value) is not value:
            raise Refused(f"{point.value} is called {name!r}, as another of {group} is; rename it")
        known[name] = value
    return known
