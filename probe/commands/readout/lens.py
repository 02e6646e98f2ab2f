"""Lens readouts (nostalgebraist 2020): a model's own final norm and unembedding on the states of any layer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from mesa.decoder import layers_of, removed
from mesa.errors import Failed, Refused
from mesa.methods import Method
from mesa.outside import with_last_logits
from probe.capture.capture import capture_states
from probe.capture.spec import CaptureSpec

Lens = Callable[[Tensor, int], Tensor]
"""From states (token, dim) of a layer, which is the second argument, to logits (token, vocabulary)."""
QUANTITIES = {
    "loss": "nats/token",
    "rank": "place of the next token, from 1",
    "probability": "of the next token",
    "entropy": "nats",
    "kl": "nats, of the last layer's distribution from this one",
}
"""What is read at each token, with its unit."""


class LogitLens:
    """What the model computes after its last layer, of other states in place of that layer's output.

    The model itself does it, in a pass of no more tokens than the states are: norm, projection, scale and soft cap are
    those that it has. No method is to be attached.
    """

    def __init__(self, model: Any) -> None:
        self.model = model

    @torch.no_grad()
    def __call__(self, states: Tensor, layer: int = -1) -> Tensor:
        """Logits (token, vocabulary) of states (token, dim). Raises Refused where they are not of the model's width."""
        ids = torch.arange(len(states), device=self.model.device)[None] % self.model.config.get_text_config().vocab_size

        def replace(module: Any, args: Any, output: Any) -> Any:
            former = output[0] if isinstance(output, tuple) else output
            if former.shape != (1, *states.shape):
                raise Refused(
                    f"the last layer of this {self.model.config.model_type} model gives {tuple(former.shape)}, which a "
                    f"lens cannot put states {tuple(states.shape)} in place of"
                )
            new = states[None].to(former)
            return (new, *output[1:]) if isinstance(output, tuple) else new

        with removed([layers_of(self.model)[-1].register_forward_hook(replace)]):
            return self.model(ids, use_cache=False, **with_last_logits(self.model, len(states))).logits[0]


def read_lens(lens: Lens, states: Tensor, layers: Sequence[int], next_ids: Sequence[int]) -> Mapping[str, np.ndarray]:
    """`QUANTITIES` (layer, token) of states (layer, token, dim); the last layer comes last.

    next_ids: of each token the one after it.
    """
    right = torch.as_tensor(np.asarray(next_ids))[:, None]
    values = {name: np.empty((len(layers), len(right)), np.float64) for name in QUANTITIES}
    last: Tensor | None = None
    for row in reversed(range(len(layers))):
        logits = lens(states[row, : len(right)], layers[row]).float().cpu()
        if not logits.isfinite().all():
            raise Failed(f"the lens of layer {layers[row]} is not finite; try a wider --dtype (float32, float64)")
        logs = logits.log_softmax(-1)
        last = logs if last is None else last
        chosen = logs.gather(-1, right)
        read = {
            "loss": -chosen[:, 0],
            "rank": 1 + (logs > chosen).sum(-1),
            "probability": chosen[:, 0].exp(),
            "entropy": -(logs.exp() * logs).sum(-1),
            "kl": (last.exp() * (last - logs)).sum(-1),
        }
        for name, each in read.items():
            values[name][row] = each.numpy()
    return values


def lens_readout(
    bridge: Any,
    token_ids: Sequence[int],
    method: Method,
    *,
    tokens: int = 96,
    layers: Sequence[int] | None = None,
    lens: Lens | None = None,
    executor: str = "fused",
) -> xr.Dataset:
    """What a lens reads in each layer, of the last tokens of a prompt under a method.

    Args:
        bridge: What `mesa.bridge` or `mesa.engine.bridge.hooked` returns.
        token_ids: The prompt.
        method: The method.
        tokens: How many of the last tokens are read; of the very last no next token is known. Default 96.
        layers: Default: all.
        lens: A function from states (token, dim) and their layer to logits (token, vocabulary), such as a tuned lens.
            Default: the model's own norm and unembedding (`LogitLens`).
        executor: As in `mesa.applied`.

    Returns:
        A Dataset of `QUANTITIES` (layer, token); the token is its position.

    Raises:
        Refused: The prompt has no two tokens to read, or a layer is not there.

    Examples:
        >>> loaded = mesa.load()
        >>> bridge = mesa.bridge(loaded.model, loaded.tokenizer)
        >>> ids = loaded.tokenizer(probe.heldout()[0])["input_ids"][:256]
        >>> read = probe.lens_readout(bridge, ids, mesa.Origin(trained_length=256))
        >>> dict(read.sizes), bool((read["loss"].mean("token").diff("layer") < 0).all())
        ({'layer': 4, 'token': 95}, True)
    """
    length, count = len(token_ids), bridge.original_model.config.num_hidden_layers
    if not 2 <= tokens <= length:
        raise Refused(f"tokens={tokens} is not between 2 and the prompt's {length}")
    read = sorted({*(range(count) if layers is None else layers), count - 1})
    spec = CaptureSpec(layers=tuple((layer, layer + 1) for layer in read), positions=((length - tokens, length),))
    states = torch.from_numpy(capture_states(bridge, token_ids, method, spec, executor=executor)["resid_post"].values)
    values = read_lens(lens or LogitLens(bridge.original_model), states, read, token_ids[length - tokens + 1 :])
    return xr.Dataset(
        {name: (("layer", "token"), each, {"units": QUANTITIES[name]}) for name, each in values.items()},
        {"layer": read, "token": range(length - tokens, length - 1), "method": method.name},
        {"trained_length": method.trained_length},
    )
