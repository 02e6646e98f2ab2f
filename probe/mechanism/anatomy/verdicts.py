"""Which heads stop retrieving beyond M and which method revives them; from which layer on methods differ."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from probe.evaluation.intervals import student
from probe.experiment.journal import Journal

if TYPE_CHECKING:
    from probe.mechanism.anatomy.request import AnatomyPlan

RETRIEVES = 0.3
"""The least score inside M of a head that retrieves."""
LEAST = 0.01
"""Nats/token; smaller differences are taken for none."""


def retrieving(summary: dict[str, Any]) -> list[dict[str, Any]]:
    """The heads that retrieve at the longest length up to M under the reference, with their scores beyond it.

    `inside`, and `beyond` by method, are [mean, low, high] at one offset, the one that is better inside. `dies`: under
    the reference the score is less than half, and the intervals are apart. `keeps`: its interval lies above half;
    neither: the prompts do not tell. `revived`: by the methods whose score is at
    least half of that inside, with an interval above the reference's.
    """
    trained, reference = summary["trained_length"], summary["reference"]
    scores = {(row["method"], row["length"], row["layer"], row["head"]): row for row in summary["retrieval"]}
    lengths = sorted({row["length"] for row in summary["retrieval"] if row["method"] == reference})
    within = [length for length in lengths if length <= trained]
    found = []
    for length in (length for length in lengths if length > trained and within):
        for (name, at, layer, head), row in scores.items():
            if (name, at) != (reference, within[-1]) or row["best"][0] < RETRIEVES:
                continue
            offset = f"offset_{row['best_offset']}"
            there = {each: scores.get((each, length, layer, head)) for each in summary["methods"]}
            beyond = {each: other[offset] for each, other in there.items() if other}
            if reference not in beyond:
                continue
            own, half = beyond[reference], row["best"][0] / 2
            dies = own[0] < half and _above(row["best"], own)
            keeps = own[1] is not None and own[1] >= half
            by = [each for each, score in beyond.items() if dies and score[0] >= half and _above(score, own)]
            place = {"length": length, "layer": layer, "head": head, "offset": row["best_offset"]}
            found.append(
                {**place, "inside": row["best"], "beyond": beyond, "dies": dies, "keeps": keeps, "revived": by}
            )
    return found


def differing(made: AnatomyPlan, journal: Journal) -> list[dict[str, Any]]:
    """By method and length beyond M: from which layer on the lens' NLL in the last bucket differs from the reference's.

    It does where the reference's less the method's, paired by prompt, has a 95% interval apart from 0, is `LEAST` or
    more and has one sign at this and every layer above. `half_from_layer`: where at this and every layer above it is
    half or more of that after the last. `by_layer`: the differences, [mean, low, high], nats/token.
    """
    found = []
    for length in (length for length in made.lengths if length > made.trained_length):
        for name in (name for name in made.methods if name != made.reference):
            pairs = [
                [("lens", each, length, number) for each in (made.reference, name)]
                for number in range(made.request.samples)
            ]
            pairs = [
                [journal.rows[cell] for cell in pair] for pair in pairs if all(cell in journal.rows for cell in pair)
            ]
            if len(pairs) < 2:
                continue
            less = np.array([[np.array(each["nll"])[:, -1] for each in pair] for pair in pairs])
            by_layer = [[float(each.mean()), *student(each.tolist())] for each in (less[:, 0] - less[:, 1]).T]
            signs = [0 if low <= 0 <= high or abs(mean) < LEAST else np.sign(mean) for mean, low, high in by_layer]
            halves = [signs[-1] and mean / by_layer[-1][0] >= 0.5 for mean, _, _ in by_layer]
            half = next((row for row in range(len(signs)) if all(halves[row:])), None)
            same = next((row for row in range(len(signs)) if signs[-1] and len({*signs[row:]}) == 1), None)
            found.append(
                {
                    "method": name,
                    "length": length,
                    "n": len(pairs),
                    "from_layer": None if same is None else made.layers[same],
                    "half_from_layer": None if half is None else made.layers[half],
                    "by_layer": [[round(each, 4) for each in one] for one in by_layer],
                }
            )
    return found


def _above(one: list[float | None], other: list[float | None]) -> bool:
    """Whether an interval lies above another; without intervals (one prompt) never."""
    return one[1] is not None and other[2] is not None and one[1] > other[2]
