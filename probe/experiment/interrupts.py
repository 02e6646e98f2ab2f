"""Ctrl-C that an import or a callback of another package swallowed is raised again until it is heard."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_AGAIN = 0.2  # seconds
_ALARM = getattr(signal, "SIGALRM", None)  # Windows has none


@contextmanager
def interruptible() -> Iterator[None]:
    """SIGINT and SIGTERM raise KeyboardInterrupt inside, again and again where something swallows it.

    Python drops what is raised in a callback, such as that of a lock that every import ends with, and some packages
    take every error of an import for their own: an error that follows an interrupt is one, with its notes. Where SIGINT
    is ignored, as in a shell's background, it stays so. In another thread than the main one nothing changes.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = [signal.SIGTERM, *([_ALARM] if _ALARM else [])]
    numbers += [signal.SIGINT] if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN else []
    former, tell = {number: signal.signal(number, _interrupt) for number in numbers}, sys.unraisablehook
    sys.unraisablehook = lambda dropped: None if dropped.exc_type is KeyboardInterrupt else tell(dropped)
    try:
        yield
    except Exception as error:
        if not _follows_interrupt(error):
            raise
        interrupt = KeyboardInterrupt()
        interrupt.__notes__ = getattr(error, "__notes__", [])
        raise interrupt from error
    finally:
        if _ALARM:
            signal.signal(_ALARM, signal.SIG_IGN)  # one that comes now would set the timer anew
            signal.setitimer(signal.ITIMER_REAL, 0)
        sys.unraisablehook = tell
        for number, handler in former.items():
            signal.signal(number, handler)


def _interrupt(number: int, frame: FrameType | None) -> None:
    """Raises KeyboardInterrupt, and looks again later; what cleans up after one is left alone."""
    if _ALARM:
        signal.setitimer(signal.ITIMER_REAL, _AGAIN)
    if number != _ALARM or not _follows_interrupt(sys.exception()):
        raise KeyboardInterrupt


def _follows_interrupt(error: BaseException | None) -> bool:
    """Whether an error is, or came up while one handled, an interrupt."""
    return error is not None and (isinstance(error, KeyboardInterrupt) or _follows_interrupt(error.__context__))
