"""Seconds of what a user waits for before anything is computed: the help, an estimate, and the imports.

`python benchmarks/commands.py` prints the table: of three runs in processes of their own the one of least CPU time.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time

COMMANDS = {
    "`import torch`": ["-c", "import torch"],
    "`import torch, transformers` and the model class": [
        "-c",
        "import torch; from transformers import LlamaForCausalLM",
    ],
    "`mesa-lens --help`": ["-m", "mesa_lens", "--help"],
    "`mesa-lens probe --help`": ["-m", "mesa_lens", "probe", "--help"],
    "`mesa-lens probe --estimate` (the shipped model)": ["-m", "mesa_lens", "probe", "--estimate"],
}
RUNS = 3


def measured(words: list[str]) -> tuple[float, float]:
    """CPU seconds of a process and its children, and seconds; RuntimeError where it fails."""
    begin, before = time.perf_counter(), os.times()
    result = subprocess.run([sys.executable, *words], capture_output=True, text=True)
    after = os.times()
    if result.returncode:
        raise RuntimeError(f"{' '.join(words)}: {result.stderr}")
    cpu = after.children_user + after.children_system - before.children_user - before.children_system
    return cpu, time.perf_counter() - begin


if __name__ == "__main__":
    print("| | s of CPU time | s |\n|---|---|---|")
    for name, words in COMMANDS.items():
        cpu, wall = min(measured(words) for _ in range(RUNS))
        print(f"| {name} | {cpu:.1f} | {wall:.1f} |", flush=True)
