"""What we refuse and what can fail: the errors that end a command in one line. All others are bugs of ours."""

import re
from importlib.metadata import PackageNotFoundError, requires


class Refused(ValueError):
    """The error for a wrong argument, file or model: its message names the value and the remedy.

    A `ValueError`. Commands print the message in one line and end with exit code 2.

    Examples:
        >>> mesa.ReRoPE(trained_length=256, window=300)
        Traceback (most recent call last):
        ...
        mesa.errors.Refused: rerope: window=300 is not below the trained length 256
    """


class NotFound(Refused, FileNotFoundError):
    """A file or folder that was named is not there. Exit code 2."""


class Occupied(Refused, FileExistsError):
    """A file or folder is there already and holds something else. Exit code 2."""


class Failed(RuntimeError):
    """What was asked for is right and could not be done: no memory, no worker, no numbers. Exit code 1."""


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that a machine or device has no more memory: Python's, or torch's of a GPU or a CPU.

    Torch, which need not be loaded, has a class of errors for GPUs alone.
    """
    is_torch = type(error).__name__ == "OutOfMemoryError" or "DefaultCPUAllocator" in str(error)
    return isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and is_torch)


def install_command(extra: str) -> str:
    """What installs the packages of an extra, at the versions that we ask for, e.g. "pip install 'gguf>=0.17'"."""
    try:
        requirements = requires("mesa-lens") or []
    except PackageNotFoundError:  # run from a folder that was never installed
        requirements = []
    marked = [re.fullmatch(r"([^;]+?)\s*;.*extra == ['\"](.+)['\"]", line) for line in requirements]
    packages = [match[1] for match in marked if match and match[2] == extra]
    return f"pip install {' '.join(map(repr, packages))}" if packages else f"pip install '.[{extra}]' in the clone"
