"""Another process that writes to a folder until it is killed."""

import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

HOLD = """
import sys, time
from pathlib import Path
from probe.experiment.lock import owned
with owned(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(600)
"""


@contextmanager
def held(folder: Path):
    """Yields the process, which has the folder; it is killed at the end, its lock left behind."""
    command = [sys.executable, "-c", HOLD, str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2]) as holder:
        try:
            assert holder.stdout is not None
            assert holder.stdout.readline() == "held\n"
            yield holder
        finally:
            holder.kill()
