"""What is one launch on devices other than CPUs: turning states, merging outputs; by Triton, or by torch's compiler."""

from __future__ import annotations

import functools
import importlib
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from mesa.engine.compiled import one_launch
from mesa.engine.layout import RotaryLayout, turned


def turn(into: Tensor, *given: Any) -> None:
    """States of tokens, turned as `layout.turned` does, written to `into` (batch, head, token, dim) in one launch."""
    kernels = _triton_kernels(into.device, into.dtype)
    kernels.turn(into, *given) if kernels else one_launch(_turned_plainly, into, *given)


def turned_states(states: Tensor, cos: Tensor, sin: Tensor, layout: RotaryLayout) -> Tensor:
    """States (batch, head, token, dim) turned by cos and sin (token, pair), in one launch."""
    if torch.is_grad_enabled():  # Triton's kernels have no gradients
        return one_launch(turned, states, cos, sin, None, None, layout)
    into = states.new_empty(states.shape)
    with torch.cuda.device_of(states):  # Triton launches on the current device
        turn(into, None, states, cos, sin, None, None, layout)
    return into


def _turned_plainly(
    into: Tensor, rows: Tensor | None, states: Tensor, cos: Tensor | None, sin: Tensor | None, *given: Any
) -> None:
    """`turned`, to where it is wanted, by those rows of cos and sin."""
    if rows is not None and cos is not None and sin is not None:
        cos, sin = cos[rows], sin[rows]
    into.copy_(turned(states, cos, sin, *given))


def merge(total: Tensor, *given: Any) -> None:
    """Merges a part's output into `total` (query, head, dim), in place and in one launch; see `merge_plainly`."""
    kernels = _triton_kernels(total.device, total.dtype)
    kernels.merge(total, *given) if kernels else one_launch(merge_plainly, total, *given)


def merge_plainly(total: Tensor, log_sum: Tensor, output: Tensor, other: Tensor, sinks: Tensor | None = None) -> None:
    """Adds a part's output (query, head, dim) and log-sum-exp (head, query) to what is there, over disjoint keys.

    sinks: a further term of each head's softmax as well, as a score (head,).
    """
    both = torch.logaddexp(log_sum, other)
    share = (other - both).exp().nan_to_num(nan=0.0).t().unsqueeze(-1)  # NaN: neither part saw a key
    accurate = total.to(share.dtype)
    accurate = accurate + share * (output.to(share.dtype) - accurate)
    if sinks is not None:
        accurate, both = accurate * _beside(both, sinks), torch.logaddexp(both, _scores_of(sinks, both))
    total.copy_(accurate)
    log_sum.copy_(both)


def add_sinks(total: Tensor, log_sum: Tensor, sinks: Tensor) -> None:
    """Adds each head's sink, a score (head,) without value, to the softmax of `total`, in one launch."""
    one_launch(_sink, total, log_sum, sinks)


def _sink(total: Tensor, log_sum: Tensor, sinks: Tensor) -> None:
    """Takes in a further term of each head's softmax, as a score (head,)."""
    total.copy_(total * _beside(log_sum, sinks))


def _beside(log_sum: Tensor, sinks: Tensor) -> Tensor:
    """What is left to keys beside sinks (query, head, 1)."""
    return (log_sum - _scores_of(sinks, log_sum)).sigmoid().t().unsqueeze(-1)


def _scores_of(sinks: Tensor, log_sum: Tensor) -> Tensor:
    """Sinks (batch * head, 1)."""
    return sinks.to(log_sum).repeat(log_sum.shape[0] // sinks.shape[0]).unsqueeze(1)


@functools.cache
def _triton_kernels(device: torch.device, dtype: torch.dtype) -> Any:
    """The module of Triton kernels where they run on the device and were found to do right; None where not."""
    if device.type not in ("cuda", "xpu") or dtype == torch.float64:
        return None
    return tried_kernels("triton_kernels", lambda kernels: _difference(kernels, device), device)


def tried_kernels(name: str, difference: Callable[[Any], str | None], device: torch.device) -> Any:
    """A module of Triton kernels if it runs on the device and a trial says nothing against it; else None.

    difference: how the kernels differ from plain operations, if they do.
    """
    try:
        kernels = importlib.import_module(f"mesa.engine.{name}")
    except ImportError:
        return None
    try:
        error = difference(kernels)
    except torch.OutOfMemoryError:
        raise
    except Exception as refusal:  # Triton's own errors have no class in common
        error = str(refusal).partition("\n")[0]
    if error is None:
        return kernels
    warnings.warn(f"no {name} on {device}: {error}; other operations in their place", stacklevel=2)
    return None


def _difference(kernels: Any, device: torch.device) -> str | None:
    """How the kernels differ from plain operations, if they do."""
    generator = torch.Generator().manual_seed(0)

    def drawn(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, device="cpu", dtype=torch.float32).to(device)

    pairs = []
    for layout in (RotaryLayout(2, 4), RotaryLayout(0, 6, interleaved=True, backwards=True)):
        given = torch.arange(40, device=device).flip(0), drawn(1, 3, 40, 12), drawn(40, layout.pairs)
        given = *given, drawn(40, layout.pairs), drawn(40, 1), drawn(12), layout
        pairs.append([torch.zeros_like(given[1]) for _ in range(2)])
        _turned_plainly(pairs[-1][0], *given)
        kernels.turn(pairs[-1][1], *given)
    states = drawn(40, 6, 12), drawn(6, 40), drawn(40, 6, 12), drawn(6, 40), drawn(3)
    plain, by_kernel = ([part.clone() for part in states] for _ in range(2))
    merge_plainly(*plain)
    kernels.merge(*by_kernel)
    largest = max(float((one - other).abs().max()) for one, other in [*pairs, *zip(plain, by_kernel, strict=True)])
    return None if largest <= 1e-4 else f"off by {largest:.2g}"
