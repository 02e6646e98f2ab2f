"""Ctrl-C that an import or a callback of another package swallowed is raised again at the next check."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_pending = threading.Event()


@contextmanager
def interruptible() -> Iterator[None]:
    """SIGINT and SIGTERM raise KeyboardInterrupt inside, at once and at every `check_interrupt` after.

    Where SIGINT is ignored, as in a shell's background, it stays so. In another thread than the main one nothing
    changes.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    _pending.clear()
    numbers = [signal.SIGTERM, *([signal.SIGINT] if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN else [])]
    former = {number: signal.signal(number, _interrupt) for number in numbers}
    try:
        yield
    finally:
        _pending.clear()
        for number, handler in former.items():
            signal.signal(number, handler)


def _interrupt(number: int, frame: FrameType | None) -> None:
    _pending.set()
    raise KeyboardInterrupt


def check_interrupt() -> None:
    """Raises KeyboardInterrupt where one came and was swallowed."""
    if _pending.is_set():
        raise KeyboardInterrupt
