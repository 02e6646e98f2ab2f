"""Layers that carry a state from token to token next to attention: convolution, linear attention, state space.

A method's plan covers attention only. What such a layer makes of padding, and of several tokens after a cache, is the
model's own; some models compute it as if padding were text. It is tried on the model with attention that sees nothing
but its own token, so that no other layer can hide it.
"""

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mesa.errors import Refused, is_out_of_memory
from mesa.outside import attention_called, cache_in, with_cache

TOLERANCE = 1e-3
"""What may differ of states that should be equal, as a share of the largest; in half precision rounding is more."""
_NAME = "mesa_lens_state_"
_TOKENS, _PROMPT, _PADDING = 20, 14, 7


class CarriedState(NamedTuple):
    """What a model's layers with a state do as they would without padding, in one pass.

    layers: their numbers. left_padding: of rows that are padded on the left. several_cached: of several tokens after a
    cache; None where the model returns no cache.
    """

    layers: tuple[int, ...]
    left_padding: bool
    several_cached: bool | None

    def __str__(self) -> str:
        """As a sentence."""
        cannot = [
            "rows with padding between their tokens",
            "passes of one token before a row begins" if self.left_padding else "left-padded rows",
            *(["several tokens after a cache"] if self.several_cached is False else []),
        ]
        layers = ", ".join(map(str, self.layers))
        return f"layers {layers} carry a state from token to token; refused on them: {', '.join(cannot)}"

    def check(self, real: Tensor, past: int, kind: str) -> None:
        """Refused for a pass that these layers get wrong.

        Args:
            real: Whether each token so far is not padding, (batch, token) of bool.
            past: Tokens in the cache, padding included.
            kind: The model type.
        """
        where = f"layer {self.layers[0]} of this {kind} model carries a state from token to token"
        started = real.cumsum(1) > 0
        inside = started & ~real & (real.flip(1).cumsum(1).flip(1) > 0)
        if inside.any():
            row = int(inside.any(1).nonzero()[0])
            raise Refused(
                f"row {row} has padding between its tokens, and {where}, which padding would change: set "
                "tokenizer.padding_side='left', or give rows of one length"
            )
        if not self.left_padding and not bool(started.all()):
            row = int((~started).any(1).nonzero()[0])
            raise Refused(
                f"row {row} is padded on the left, and {where}, which this model's padding changes: give rows of one "
                "length, or one row at a time"
            )
        if real.shape[1] - past == 1 and not bool(started[:, -1].all()):
            row = int((~started[:, -1]).nonzero()[0])
            raise Refused(
                f"row {row} is padding alone up to a pass of one token, and {where}, which takes such padding for "
                "text: pass several tokens at a time, or rows of one length"
            )
        if past and real.shape[1] - past > 1 and self.several_cached is False:
            raise Refused(
                f"{real.shape[1] - past} tokens come after a cache of {past}, and {where}, which this model continues "
                "by one token only: give them one at a time, or the full text in one pass without a cache"
            )


def carried_state(model: Any, decoder: Any, layers: tuple[int, ...], device: torch.device) -> CarriedState:
    """What the model's `layers` with a state get right, tried on short random prompts."""
    vocabulary = model.get_input_embeddings().weight.shape[0]
    generator = torch.Generator().manual_seed(1)
    padded = torch.randint(0, vocabulary, (1, _PADDING + _TOKENS), generator=generator).to(device)
    ids, real = padded[:, _PADDING:], (torch.arange(_PADDING + _TOKENS, device=device) >= _PADDING).long()[None]
    takes_positions = "position_ids" in inspect.signature(decoder.forward).parameters

    def run(
        tokens: Tensor, mask: Tensor | None = None, cache: Any = None, *, keep: bool = False, positions: bool = False
    ) -> tuple[Tensor, Any]:
        given: dict[str, Any] = {} if cache is None else with_cache(model, cache)
        if mask is not None:
            given["attention_mask"] = mask
        if mask is not None and positions:
            given["position_ids"] = (mask.cumsum(1) - 1).clamp(min=0)[:, -tokens.shape[1] :]
        output = decoder(input_ids=tokens, use_cache=keep, **given)
        return output[0], cache_in(output) if keep else None

    def is_right(read: Callable[[], Tensor], expected: Tensor) -> bool:
        try:
            states = read()
        except Exception as error:  # of the model's code, which may never have been called like this
            if is_out_of_memory(error):
                raise
            return False
        allowed = max(TOLERANCE, 4 * torch.finfo(expected.dtype).eps)
        return bool((states - expected).abs().max() <= allowed * expected.abs().max())

    def after(first: Tensor, last: Tensor, mask: Tensor | None = None) -> Tensor:
        """The states of the last tokens, after a cache of the first."""
        masks = (None, None) if mask is None else (mask[:, : first.shape[1]], mask)
        _, cache = run(first, masks[0], keep=True)
        return run(last, masks[1], cache, keep=True)[0]

    with attention_called(model, f"{_NAME}{id(model):x}", _own_value, lambda *_, **__: None):
        expected, _ = run(ids)
        left = all(  # `generate` states positions, others may not
            is_right(lambda at=at: run(padded, real, positions=at)[0][:, _PADDING:], expected)
            for at in (False, True)[: 1 + takes_positions]
        )
        if run(ids[:, :_PROMPT], keep=True)[1] is None:
            return CarriedState(layers, left, None)
        rest, end = expected[:, _PROMPT:], _PADDING + _PROMPT
        several = is_right(lambda: after(ids[:, :_PROMPT], ids[:, _PROMPT:]), rest)
        for last in (end + 1, None if several else end + 1):  # and goes on
            text, mask = padded[:, :last], real[:, :last]
            left = left and is_right(lambda: after(text[:, :end], text[:, end:], mask), rest[:, : text.shape[1] - end])  # noqa: B023
    return CarriedState(layers, left, several)


def _own_value(module: Any, query: Tensor, key: Tensor, value: Tensor, *_: Any, **__: Any) -> tuple[Tensor, None]:
    """Attention that sees its own token only: output (batch, query, head, dim)."""
    own = value[:, :, -query.shape[2] :]
    return own.repeat_interleave(query.shape[1] // own.shape[1], 1).transpose(1, 2), None
