"""How long a run may take, for commands with --minutes: no cell is begun after that."""

from __future__ import annotations

import time


def deadline(minutes: float | None) -> float | None:
    """The time of `time.monotonic` in so many minutes; None: there is none. Raises ValueError for 0 and less."""
    if minutes is None:
        return None
    if not minutes > 0:
        raise ValueError(f"--minutes {minutes:g} is not above 0")
    return time.monotonic() + 60 * minutes


def is_over(until: float | None) -> bool:
    """Whether a `deadline` has come."""
    return until is not None and time.monotonic() >= until
