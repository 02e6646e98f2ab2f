"""How far the same passes of SmolLM2 are apart on a GPU and on a CPU, from stored losses.

python research/law/devices.py
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))

from probe.commands.predict.run import FOLDER, JOURNAL
from probe.experiment.journal import read_journal

RESULTS = Path(__file__).parent / "results"


def apart() -> tuple[int, float, float]:
    """How many passes both have; the largest difference of a token, and of a pass's mean, in nats/token."""
    gpu, cpu = (read_journal(RESULTS / name / FOLDER / JOURNAL).rows for name in ("smollm2-twelve", "smollm2"))
    both = [np.subtract(gpu[key]["nll"], cpu[key]["nll"]) for key in gpu if key in cpu]
    tokens, means = (max(float(abs(value).max()) for value in values) for values in (both, [d.mean() for d in both]))
    return len(both), tokens, means


if __name__ == "__main__":
    print("{} passes, a token {:.4f}, a mean {:.6f} nats/token apart at most".format(*apart()))
