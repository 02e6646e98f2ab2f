"""Packages on the index that share a folder's name with one of ours, which pip installs over it without a word."""

from __future__ import annotations

import warnings
from importlib.metadata import PackageNotFoundError, distribution

PACKAGES = ("mesa", "probe", "theory")


def warn_of_namesakes() -> None:
    """Warns where a distribution called as one of our packages is installed here, such as Mesa (agent-based models).

    Looked up by name: reading what every installed distribution owns would take longer than importing ours.
    """
    for name in PACKAGES:
        try:
            other = distribution(name)
        except PackageNotFoundError:
            continue
        warnings.warn(
            f"the package {other.name} {other.version} shares the folder {name}/ with mesa-lens, and one overwrites "
            "the other; install mesa-lens into an environment of its own",
            stacklevel=3,
        )
