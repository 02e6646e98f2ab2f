"""`make test-versions`: the quick engine and check suites with the oldest and the newest releases that are allowed.

And `mesa-lens check` on six tiny families, whose cached decode must equal one pass. The oldest of `ENDS` on the oldest
Python that is found, the newest of all dependencies on each other one.
"""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
PYTHONS = ("3.11", "3.12", "3.13")
ENDS = ("accelerate", "numpy", "scipy", "torch", "transformer-lens", "transformers", "xarray", "zarr")
NEEDED = ("gguf", "hypothesis", "jaxtyping", "peft", "pytest", "pytest-xdist")
SUITES = ("tests/mesa/engine", "tests/mesa/checking", "tests/mesa/test_golden.py", "tests/mesa/test_outside.py")


def python(version: str) -> str | None:
    """An interpreter of this version on this machine, if there is one."""
    known = sorted(map(str, (Path.home() / ".pyenv/versions").glob(f"{version}.*/bin/python")))
    return known[-1] if known else shutil.which(f"python{version}")


def requirements(oldest: bool) -> list[str]:
    """What pip is given: the ranges of pyproject.toml; of `ENDS` the least release where the oldest is meant."""
    ranges = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    least = [re.sub(r"^([\w-]+)>=([\d.]+).*", r"\1==\2.*", given) for given in ranges]
    return [
        low if oldest and low.partition("==")[0] in ENDS else given for given, low in zip(ranges, least, strict=True)
    ]


def main() -> int:
    """Runs all; the largest exit status."""
    entry = [(version, path) for version in PYTHONS if (path := python(version))]
    entry += entry[:1] if len(entry) == 1 else []  # the one that is there has both ends
    if not entry:
        sys.exit(f"none of Python {', '.join(PYTHONS)} is on this machine")
    codes = []
    for number, (version, path) in enumerate(entry):
        name = f"{version}-{'newest' if number else 'oldest'}"
        folder = ROOT / "build" / "versions" / name
        subprocess.run([path, "-m", "venv", folder], check=True)
        install = [folder / "bin/python", "-m", "pip", "install", "--quiet", "--upgrade"]
        subprocess.run([*install, "--upgrade-strategy", "eager", *requirements(not number), *NEEDED], check=True)
        print(f"\n{name}", flush=True)
        tests = [folder / "bin/python", "-m", "pytest", "-q", "-n", "auto", "-p", "no:cacheprovider", *SUITES]
        alone = {**os.environ, "PYTHONPATH": str(ROOT)}  # the project is not installed there
        for command in (tests, [folder / "bin/python", ROOT / "tests/version_check.py"]):
            codes.append(subprocess.run(command, cwd=ROOT, env=alone).returncode)
    return max(codes)


if __name__ == "__main__":
    sys.exit(main())
