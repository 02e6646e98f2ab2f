"""A worker in a process of its own, on whatever machine: loads the model once, then does cell after cell."""

from __future__ import annotations

import os
import platform
import sys
from typing import Any, NamedTuple

from probe.cells.cell import Cell, Function, Outcome, Work


class Place(NamedTuple):
    """Where a worker is, and how many bytes it may take beside the weights."""

    pid: int
    host: str
    room: int


class Worker:
    """What Ray runs as an actor. Errors are handed back, so that a death is told from an error of a cell."""

    _function: Function

    def begin(self, work: Work, room: int, threads: int, folder: str) -> Outcome:
        """Loads the model, after a look at its fingerprints; gives its `Place`. folder: to work in, if it is there.

        Work that needs torch has brought it along.
        """
        try:
            if "torch" in sys.modules:
                sys.modules["torch"].set_num_threads(threads)
            if os.path.isdir(folder):
                os.chdir(folder)
            work.source.check()
            if not work.source.on_gpu:
                self._function = work.start(room)
            else:
                self._function = work.start()
                import torch

                free = sum(torch.cuda.mem_get_info(device)[0] for device in range(torch.cuda.device_count()))
                room = free - sum(each.weights_bytes for each in work.source.beside)  # these are loaded when needed
            return Outcome(Place(os.getpid(), platform.node(), room))
        except Exception as error:
            return Outcome(error=carried(error))

    def run(self, cell: Cell) -> Outcome:
        """What comes of a cell."""
        try:
            return Outcome(self._function(cell))
        except Exception as error:
            return Outcome(error=carried(error))


def carried(error: Exception) -> Exception:
    """The error without its traceback; one of a package of its own as what it is of Python's, in the same words."""
    kind: Any = type(error)
    if kind.__module__ == "builtins":
        return error.with_traceback(None)
    made: Any = next(base for base in kind.__mro__ if base.__module__ == "builtins")(str(error))
    made.__notes__ = getattr(error, "__notes__", [])
    return made
