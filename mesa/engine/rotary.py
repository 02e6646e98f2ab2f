"""A model's rotary modules while a method is attached: copies that keep their frequencies, and what they are asked."""

import copy
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import torch
from accelerate.hooks import remove_hook_from_module
from torch import Tensor, nn

from mesa.decoder import replaced
from mesa.engine import structure
from mesa.engine.rope import OfKind
from mesa.errors import Refused
from mesa.plan import rotary_base


def frozen_rotary(module: nn.Module) -> nn.Module:
    """A copy of a rotary module that keeps its frequencies (dynamic NTK's first ones) until `settle`, at any length."""
    frozen = _unhooked_copy(module)
    if hasattr(frozen, "original_inv_freq"):  # a long input may have changed the others in place
        frozen.inv_freq = frozen.original_inv_freq.clone()
    by_length = getattr(frozen, "rope_type", "default") == "longrope"
    frozen.rope_type = "default"
    frozen.by_length = by_length and _follows(frozen)
    frozen.base = rotary_base(frozen.inv_freq)
    frozen.angle_dtype = getattr(frozen, "angle_dtype", torch.float32)
    return frozen


def _follows(frozen: Any) -> bool:
    """Whether a module gives what its frequencies say: PhiMoE's computes those again for short texts.

    Refused where it then scales long texts otherwise than short ones.
    """

    def given(place: int) -> Tensor:
        device = frozen.inv_freq.device
        return torch.stack(frozen(torch.zeros(1, device=device), torch.tensor([[place]], device=device)))

    before, kept = given(1), frozen.inv_freq
    frozen.inv_freq = 2 * kept
    follows = not torch.equal(given(1), before)
    frozen.inv_freq = kept
    near, far = ((given(place) ** 2).sum(0) for place in (0, 1 << 20))
    if not follows and not torch.allclose(near, far, atol=1e-3):
        raise Refused(
            f"a {type(frozen).__name__} is not supported that scales queries and keys by the length of the text, which "
            "a plan does not know"
        )
    return follows


def fresh_rotary(module: nn.Module) -> nn.Module:
    """A copy of a rotary module as it is before any text."""
    fresh = _unhooked_copy(module)
    restart(fresh)
    return fresh


def _unhooked_copy(module: nn.Module) -> Any:
    """A copy without hooks, which would run a second time after the module's, and may hold what is large."""
    hooks = [hooks for part in module.modules() for hooks in (part._forward_hooks, part._forward_pre_hooks)]
    copied = copy.deepcopy(module, {id(each): type(each)() for each in hooks})
    for part in copied.modules():
        if hasattr(part, "_hf_hook"):  # accelerate's: it would put what comes out on the module's own device
            remove_hook_from_module(part)
    return copied


def restart(fresh: Any) -> None:
    """Has a rotary module forget the longest text so far, which dynamic NTK's base follows."""
    inner = fresh.module if isinstance(fresh, OfKind) else fresh
    if hasattr(fresh, "original_inv_freq"):
        fresh.inv_freq = fresh.original_inv_freq.to(fresh.inv_freq.device, copy=True)
    if hasattr(inner, "original_max_seq_len"):
        inner.max_seq_len_cached = inner.original_max_seq_len
        vars(inner).pop(f"{getattr(fresh, 'kind', None)}_max_seq_len_cached", None)


def settle(frozen: Any, length: int) -> None:
    """Has a frozen LongRoPE choose its frequencies as the model itself does for a prompt of `length` tokens."""
    if frozen.by_length:
        frozen.rope_type = "longrope"
        device = frozen.inv_freq.device
        frozen(torch.zeros(1, device=device), torch.tensor([[length - 1]], device=device))
        frozen.rope_type = "default"
        frozen.base = rotary_base(frozen.inv_freq)


def rotary_replaced(attachment: Any) -> AbstractContextManager[None]:
    """The decoder's rotary modules ask a `plug.Attachment` for as long as this lasts.

    Norms that follow the rotation leave out their weights, which do not commute with further rotation. Queries are
    multiplied with both, so that keys are cached without, and no token divides all of them.
    """
    decoder: Any = attachment.decoder
    forwards = [
        (module, "forward", partial(attachment.rotary_forward, path, module))
        for path, module in attachment.rotary_modules.items()
    ]
    paths = structure.paths(decoder)
    forwards += [(paths[path], "forward", partial(_unweighted, attachment, path)) for path in attachment.norms]
    return replaced(*forwards, *structure.full_prompts(decoder))


def _unweighted(attachment: Any, path: str, states: Tensor) -> Tensor:
    """What a norm gives without its weights."""
    return attachment.norms[path](states) / attachment.norm_weights((path,), states)
