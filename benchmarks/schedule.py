"""The makespan of many cells over many workers, simulated, against the least that any schedule could take.

Durations are drawn from the cells of committed journals; a try fails with a chance of 1%, at a moment drawn evenly from
its duration, and is tried again, next of all or last of all, at most 3 times. Each free worker takes the next cell.

    python benchmarks/schedule.py                       # 10,000 cells, 64 workers, 20 draws
    python benchmarks/schedule.py --cells 1000 --workers 8 JOURNAL ...
"""

from __future__ import annotations

import argparse
import heapq
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from probe.experiment.journal import JournalFile, read_journal

ROOT = Path(__file__).parents[1] / "research" / "real_model" / "results"
JOURNALS = [ROOT / name / "journal.jsonl" for name in ("nll", "nll-position")] + [ROOT / "real" / "measured.jsonl"]
TRIES = 3


def measured(paths: Sequence[Path]) -> np.ndarray:
    """Seconds of every cell in the journals."""
    return np.array([seconds for path in paths for seconds in cell_seconds(read_journal(path))])


def cell_seconds(journal: JournalFile) -> list[float]:
    """Seconds of the passes of each cell with timed scores; scores of one sample may share a pass."""
    seconds = []
    for row in journal.rows.values():
        samples: dict[Any, float] = {}
        for score in row.get("scores", ()):
            if isinstance(score, dict) and score.get("seconds") is not None:
                samples[score["sample"]] = max(score["seconds"], samples.get(score["sample"], 0.0))
        seconds += [sum(samples.values())] if samples else []
    return seconds


def makespan(
    durations: Sequence[float], workers: int, chance: float, again: str, rng: np.random.Generator
) -> tuple[float, int, int, float]:
    """When the last worker ends; tries that failed, cells that were left out, and seconds that were spent in vain."""
    queue, free = deque((seconds, 1) for seconds in durations), [0.0] * workers
    failed, left_out, vain, waiting = 0, 0, 0.0, []
    end = 0.0
    while queue or waiting:
        now = heapq.heappop(free)
        while waiting and waiting[0][0] <= now:
            (queue.appendleft if again == "next" else queue.append)(heapq.heappop(waiting)[1:])
        if not queue:  # a try that is under way may yet fail
            heapq.heappush(free, waiting[0][0])
            continue
        seconds, tried = queue.popleft()
        fails = rng.random() < chance
        took = seconds * rng.random() if fails else seconds
        heapq.heappush(free, now + took)
        end = max(end, now + took)
        if fails:
            failed, vain = failed + 1, vain + took
            if tried < TRIES:
                heapq.heappush(waiting, (now + took, seconds, tried + 1))
            else:
                left_out += 1
    return end, failed, left_out, vain


def main() -> None:
    """Prints a table: the order of the plan, and the longest cells first."""
    command = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in {"cells": 10_000, "workers": 64, "draws": 20, "seed": 0}.items():
        command.add_argument(f"--{name}", type=int, default=value)
    command.add_argument("--failures", type=float, default=0.01)
    command.add_argument("journals", nargs="*", type=Path)
    args = command.parse_args()
    known = measured(args.journals or JOURNALS)
    print(
        f"{args.cells} cells over {args.workers} workers, {args.draws} draws from {len(known)} measured cells of "
        f"{known.min():.0f} to {known.max():.0f} s (median {np.median(known):.0f} s)\n"
    )
    head = (
        "order | failures, tried again | makespan (h) | bound (h) | above it | tries that failed | left out | in vain"
    )
    print(f"| {head} |\n|{'---|' * (head.count('|') + 1)}")
    for order in ("as planned", "longest first"):
        for chance, again in ((0.0, "never"), (args.failures, "last"), (args.failures, "next")):
            rng, rows = np.random.default_rng(args.seed), []
            for _ in range(args.draws):
                drawn = rng.choice(known, args.cells)
                cells = np.sort(drawn)[::-1] if order == "longest first" else drawn
                seconds, *more, vain = makespan(cells.tolist(), args.workers, chance, again, rng)
                bound = max(drawn.sum() / args.workers, drawn.max())
                rows.append((seconds / 3600, bound / 3600, seconds / bound - 1, *more, vain / drawn.sum()))
            hours, least, above, failed, out, vain = np.mean(rows, axis=0)
            worst = max(row[2] for row in rows)
            print(
                f"| {order} | {chance:.0%}, {again} | {hours:.2f} | {least:.2f} | {above:.2%} (at most {worst:.2%}) | "
                f"{failed:.0f} | {out:.2f} | {vain:.2%} |"
            )


if __name__ == "__main__":
    main()
