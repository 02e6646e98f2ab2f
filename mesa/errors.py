"""What we refuse and what can fail: the errors that end a command in one line. All others are bugs of ours."""

from __future__ import annotations


class Refused(ValueError):
    """What was asked for cannot be done; the message names the value and the remedy. Exit code 2."""


class NotFound(Refused, FileNotFoundError):
    """A file or folder that was named is not there. Exit code 2."""


class Occupied(Refused, FileExistsError):
    """A file or folder is there already and holds something else. Exit code 2."""


class Failed(RuntimeError):
    """What was asked for is right and could not be done: no memory, no worker, no numbers. Exit code 1."""
