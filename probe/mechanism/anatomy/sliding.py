"""Prompts that slide over a text, so that the same tokens stand at every position: far less noise for as many passes.

What tokens say is hundreds of times what their positions say. Between prompts of different text that only falls with
their number. Where each prompt begins `stride` tokens after the one before, position t + stride sees the tokens that
position t sees, all but one, and what is left of them is a pattern that repeats every `stride` positions.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import xarray as xr


def sliding_windows(documents: Sequence[np.ndarray], tokens: int, count: int, stride: int) -> list[np.ndarray]:
    """`count` runs of `tokens` tokens, every second one from the other half of the text, each half slid over.

    The documents are strung together. The halves share no token, so neither do the halves of `collect`. Raises
    ValueError where the text is too short for them.
    """
    text = np.concatenate(documents)
    half = len(text) // 2
    needed = (-(-count // 2) - 1) * stride + tokens
    if needed > half:
        raise ValueError(
            f"the text has {len(text)} tokens; {count} runs of {tokens} that slide by {stride} over each of its "
            f"halves take {2 * needed}; give a longer text, fewer texts or a smaller stride"
        )
    starts = [(number % 2) * half + number // 2 * stride for number in range(count)]
    return [text[start : start + tokens] for start in starts]


def levelled(moments: xr.Dataset, stride: int) -> xr.Dataset:
    """`moments` of prompts that slid by `stride`, without the pattern that repeats: every phase has the same mean.

    So has any motion within `stride` positions: what is left has that resolution. Takes the mean of each phase over
    the whole strides after the first. Raises ValueError where there are fewer than two, or gaps between positions.
    """
    position = moments["position"].values
    cycle, phase = np.divmod(position, stride)
    cycles, sizes = np.unique(cycle, return_counts=True)
    whole = np.isin(cycle, cycles[(sizes == stride) & (cycles > 0)])
    if whole.sum() < 2 * stride or (np.diff(position) != 1).any():
        raise ValueError(
            f"positions {position[0]}-{position[-1]} do not hold two whole strides of {stride} without a gap after "
            "the first; collect all positions, or slide by less"
        )
    halves = moments["half_mean"].copy()
    for half in halves.values:
        for layer in half:
            by_phase = layer[whole].reshape(-1, stride, layer.shape[-1]).mean(0, dtype=np.float64)
            layer -= (by_phase - by_phase.mean(0))[phase]
    return moments.assign(half_mean=halves)
