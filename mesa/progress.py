"""A progress bar: on a terminal a line that moves, in a file a line every few seconds."""

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from tqdm import tqdm

INTERVAL = 5.0
"""Seconds between lines in what is no terminal; what takes less has none."""
TICK, TICK_IN_FILE = 1.0, 60.0
"""Seconds between two looks at the clock while nothing ends: on a terminal, and elsewhere."""
_LINE = "{desc}: {percentage:.0f}% of {total_fmt} [{elapsed}<{remaining}, {rate_fmt}{postfix}]"


class Bar(tqdm):
    """A bar of tqdm, as it is on a terminal and in a notebook; elsewhere full lines, and few of them."""

    def __init__(self, *args: Any, **options: Any) -> None:
        file = options.get("file") or sys.stderr
        self.moves = file.isatty() or type(file).__module__.startswith("ipykernel")
        self._last = self._begun = time.monotonic()
        super().__init__(*args, **options if self.moves else {"bar_format": _LINE, **options, "delay": 0})

    def refresh(self, *args: Any, **options: Any) -> Any:
        """As tqdm's; a line only where the last one is `INTERVAL` ago."""
        if self.moves or self.disable:
            return super().refresh(*args, **options)
        if time.monotonic() - self._last >= INTERVAL:
            self._last = time.monotonic()
            super().refresh(*args, **options)
        return None

    @contextmanager
    def ticking(self) -> Iterator[None]:
        """The elapsed time goes on also while one long step runs, so that it does not look hung."""
        over = threading.Event()

        def tick() -> None:
            while not over.wait(TICK if self.moves else TICK_IN_FILE):
                with self.get_lock():  # tqdm's own refresh keeps its lock where the file cannot be written to
                    try:
                        self.refresh(nolock=True)
                    except (OSError, ValueError):
                        return  # the run's own line ends it

        thread = threading.Thread(target=tick, daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join(timeout=TICK)  # an interrupt may have left the lock taken

    def close(self) -> None:
        """As tqdm's; a last line only where there was one."""
        if self.moves or self.disable:
            return super().close()
        self.disable = True
        self._decr_instances(self)  # pyright: ignore[reportAttributeAccessIssue]
        if self.leave and time.monotonic() - self._begun >= INTERVAL:
            self.sp(str(self))
        return None

    def clear(self, *args: Any, **options: Any) -> None:
        """As tqdm's; nothing where lines stay."""
        if self.moves:
            super().clear(*args, **options)

    def moveto(self, n: int) -> None:
        """As tqdm's; nothing where lines stay."""
        if self.moves:
            super().moveto(n)

    def status_printer(self, file: Any) -> Callable[[str], None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """As tqdm's; where lines stay, one that writes lines."""
        if self.moves:
            return tqdm.status_printer(file)

        def write(line: str) -> None:
            file.write(f"{line}\n")
            file.flush()

        return write
