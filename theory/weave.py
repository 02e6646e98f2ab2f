"""Remaps W (the paper: weave): the effective distance that a query-key pair is passed. Plain operators, no torch.

Each serves Python ints, numpy arrays and torch tensors alike. Distances r = t - i >= 0 and windows N are in tokens.
"""

from typing import Any


def rerope(distance: Any, window: int) -> Any:
    """min(r, N): distances beyond the window are cut to it (ReRoPE, paper section 3; theorem 3.3)."""
    return (distance <= window) * distance + (distance > window) * window


def stair(distance: Any, window: int, width: int) -> Any:
    """r if r <= N, else N + ceil((r - N) / E): one step every `width` (E) tokens (Stair PE, paper eq. 6)."""
    step = window + (distance - window + width - 1) // width
    return (distance <= window) * distance + (distance > window) * step


def self_extend(query: Any, key: Any, window: int, group: int) -> Any:
    """r if r < N, else t // G - i // G + N - N // G, for query position t and key position i (Jin et al. 2024)."""
    distance = query - key
    grouped = query // group - key // group + window - window // group
    return (distance < window) * distance + (distance >= window) * grouped
