"""What the shipped models lose without <bos>: NLL of the last 128 of 255 held-out tokens with it, and the difference.

    python benchmarks/first_token.py

prints nats/token, means of 16 windows with Student's 95% interval of the difference.
"""

from __future__ import annotations

import numpy as np

import mesa
from mesa.checkpoints.place import SHIPPED
from probe.eval_tasks.score import heldout_ids, nll, text_windows
from probe.statistics import shown, student

TOKENS, JUDGED, WINDOWS = 255, 128, 16


def main() -> None:
    """Prints a row a model."""
    for name in SHIPPED:
        loaded = mesa.load(name)
        first, own, less = loaded.tokenizer.bos_token_id, [], []
        for ids in text_windows(heldout_ids(loaded.tokenizer), TOKENS, WINDOWS):
            whole, bare = (nll(loaded.model, each, JUDGED).mean().item() for each in (np.r_[first, ids], ids))
            own.append(whole)
            less.append(bare - whole)
        print(f"{name:8} {np.mean(own):.2f}  {shown(float(np.mean(less)), *student(less), '+.2f')}")


if __name__ == "__main__":
    main()
