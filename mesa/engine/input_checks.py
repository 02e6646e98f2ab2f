"""Which tokens of a batch are there, by the mask and positions that a model is given; all else is refused."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

_PACKED = "texts are packed into a row: a method's plan is for one text, so give texts rows of their own, padded"


def check_positions(position_ids: Tensor | None, real: Tensor, index: Tensor) -> None:
    """ValueError for positions (1 or batch, token) of one's own.

    real: whether each token so far is no padding. index: the given tokens' own positions, below 0 for padding.
    """
    if position_ids is None or not ((position_ids.cpu() != index) & (index >= 0)).any():
        return
    ends = (position_ids.cpu().diff(dim=1) <= 0) & (index[:, 1:] > 0)
    if ends.any():
        row, token = ends.nonzero()[0].tolist()
        raise ValueError(f"position_ids begin anew at token {token + 1} of row {row}: {_PACKED}")
    remedy = "set tokenizer.padding_side='left', or " if (~real[:, 1:] & real[:, :-1]).any() else ""
    raise ValueError(
        f"position_ids differ from the tokens' places, which a method's positions follow; {remedy}leave them out"
    )


def check_unpacked(kwargs: dict[str, Any]) -> None:
    """ValueError for arguments that tell where the texts of a packed row end."""
    for name in ("cu_seq_lens_q", "cu_seq_lens_k", "seq_idx"):
        if kwargs.get(name) is not None:
            raise ValueError(f"{name} says that {_PACKED}")


def real_tokens(mask: Any, batch: int, length: int, prompt_length: int) -> Tensor:
    """Whether each token (batch, token) is no padding, on the CPU; ValueError for a mask of anything else."""
    if mask is None:
        return torch.ones(batch, length, dtype=torch.bool)
    shape = f"has shape {tuple(mask.shape)}" if isinstance(mask, Tensor) else f"is a {type(mask).__name__}"
    if not isinstance(mask, Tensor) or mask.dim() > 2:
        raise ValueError(
            f"attention_mask {shape}: which pairs are seen is the method's plan; give a padding mask "
            f"({batch}, {length}) or none, and packed texts rows of their own"
        )
    if mask.shape != (batch, length):
        raise ValueError(f"attention_mask {shape}; needed is a padding mask ({batch}, {length})")
    mask, real = mask.cpu(), mask.cpu().bool()
    if (mask != real).any():
        value = mask[mask != real][0].item()
        raise ValueError(f"attention_mask holds {value}, neither 0 nor 1; where it says that {_PACKED}")
    if length >= prompt_length and not real.any(1).all():
        row = int(real.any(1).logical_not().nonzero()[0])
        raise ValueError(
            f"row {row} of attention_mask is all padding; drop it from the batch, or, where more of the prompt "
            "follows, state its prompt_length"
        )
    return real


def check_prompt(real: Tensor, past: int, prompt_length: int) -> None:
    """ValueError where a prompt that came in pieces turns out to be shorter in some row than was stated."""
    later = ~real[:, past:prompt_length] & real[:, :past].any(1, keepdim=True)
    if past and later.any():
        row = int(later.any(1).nonzero()[0])
        raise ValueError(
            f"row {row} ends before the prompt of {prompt_length} tokens, the first of which were given before; give a "
            "prompt that is padded on the right in one call, or set tokenizer.padding_side='left'"
        )
