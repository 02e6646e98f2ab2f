"""What gaps that lie beyond Origin's curve do to p, on SmolLM2's stored losses; writes results/beyond.csv."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

sys.path.insert(0, str(Path(__file__).parents[2]))

from mesa.methods import make
from probe.commands.predict.formula import ORIGIN, QUERIES, REFERENCE, Calibration, FarKeys, far_keys, scored_queries
from probe.commands.predict.run import FOLDER, GAP_TOKENS, JOURNAL
from probe.experiment.journal import read_journal

RESULTS = Path(__file__).parent / "results"
TRAINED, LONGEST = 8192, 16384
TEXTS = {"code 1": ("smollm2", 0), "code 2": ("smollm2", 1), "prose": ("smollm2-prose", 0)}
BEYOND = 16384  # a gap, in tokens: the calibration once kept it


def main() -> None:
    """Prints the table and writes it."""
    rows = [row for text, source in TEXTS.items() for row in rows_of(text, *source)]
    table = pd.DataFrame(rows).round(4)
    table.to_csv(RESULTS / "beyond.csv", index=False)
    print(table.to_string(index=False))


def rows_of(text: str, folder: str, number: int) -> Iterator[dict[str, Any]]:
    """p and misfit by the gaps within the curve, and with the one beyond it."""
    rows = read_journal(RESULTS / folder / FOLDER / JOURNAL).rows
    losses = {(str(key[0]), int(key[1])): np.array([row["nll"]]) for key, row in rows.items() if key[2] == number}
    within = Calibration.of(TRAINED, GAP_TOKENS, LONGEST, losses)
    for gaps, calibration in {"within": within, "one beyond": with_gap(within, BEYOND)}.items():
        law = calibration.law(np.ones(1))
        excess = float((losses[ORIGIN, LONGEST] - losses[REFERENCE, LONGEST])[:, -TRAINED // 4 :].mean())
        yield {
            "text": text,
            "gaps": gaps,
            "count": len(calibration.gaps),
            "power": law.power,
            "misfit": calibration.gap_rms(law),
            "largest_cost": max(calibration.gap_cost(at, masked=False).mean() for at in calibration.gaps),
            "origin_excess": excess,
        }


def with_gap(calibration: Calibration, size: int) -> Calibration:
    """The calibration with one more size of gap, at each of its boundaries."""
    boundaries = dict.fromkeys(boundary for boundary, _ in calibration.gaps)
    gaps = (*calibration.gaps, *((boundary, size) for boundary in boundaries))
    queries = scored_queries(calibration.tokens, calibration.tokens, QUERIES)
    keys = [
        far_keys(make("gap", TRAINED, boundary=boundary, gap=gap).plan(calibration.tokens), queries, TRAINED)
        for boundary, gap in gaps
    ]
    return replace(calibration, gaps=gaps, gap_keys=FarKeys.grouped(keys))


if __name__ == "__main__":
    main()
