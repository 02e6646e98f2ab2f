"""Retrieval heads: those that look at the token of the needle which is being emitted (Wu et al. 2025)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
import xarray as xr
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

import mesa
from mesa.engine.rows import rows
from mesa.engine.schedule import Schedule
from mesa.methods import Method
from probe.tasks.retrieval import Prompt


def retrieval_scores(
    model: PreTrainedModel,
    prompts: Sequence[Prompt],
    method: Method,
    *,
    greedy: bool = False,
    offsets: Sequence[int] = (0, 1),
) -> xr.DataArray:
    """How often each head retrieves: (prompt, layer, head, offset), the share of the answer's tokens.

    A head retrieves a token when the key it attends to most stands `offset` tokens after a place in the needle
    (`needle_positions`) that holds the very token that is emitted. Offset 0 is the paper's score. It is blind to heads
    that read the token from the one after it, where an earlier layer has moved it: offset 1 sees those.

    Tokens are decoded one by one with a cache, as the method gives them. What is emitted is the right answer whatever
    the model says (teacher-forced); with `greedy` it is the model's own most likely token, so that a model that answers
    wrongly has low scores for that alone. A head's score is the mean over prompts.
    Raises ValueError for a prompt whose answer does not stand after `key_position`, RuntimeError for logits that are
    not finite.
    """
    if not prompts:
        raise ValueError("prompts is empty; give at least one retrieval prompt")
    attributes = {"long_name": "retrieval score", "units": "share of answer tokens"}
    scores = np.stack([_score(model, prompt, method, greedy, offsets) for prompt in prompts])
    layers, heads = scores.shape[1:3]
    return xr.DataArray(
        scores,
        {"layer": range(layers), "head": range(heads), "offset": list(offsets)},
        ("prompt", "layer", "head", "offset"),
        "retrieval_score",
        {**attributes, "emitted": "greedy" if greedy else "teacher-forced"},
    )


def needle_positions(prompt: Prompt) -> np.ndarray:
    """Whether each prompt token belongs to the answer where it stands in the context, (position,).

    That is every place at or after `key_position` that reads as the answer's tokens do; a passkey's sentence has two.
    """
    ids, answer = np.array(prompt.ids), np.array(prompt.answer_ids)
    found = np.zeros(len(ids), bool)
    for begin in range(prompt.key_position, len(ids) - len(answer) + 1):
        if (ids[begin : begin + len(answer)] == answer).all():
            found[begin : begin + len(answer)] = True
    if not found.any():
        raise ValueError(
            f"the answer {prompt.answer!r} (tokens {list(prompt.answer_ids)}) does not stand in the prompt from "
            f"position {prompt.key_position} on; build the prompt with the model's own tokenizer"
        )
    return found


@torch.no_grad()
def _score(model: PreTrainedModel, prompt: Prompt, method: Method, greedy: bool, offsets: Sequence[int]) -> np.ndarray:
    """Share of the answer's tokens that each head retrieves, (layer, head, offset)."""
    needle, tokens, cache = needle_positions(prompt), list(prompt.ids), DynamicCache()
    top = np.zeros((model.config.num_hidden_layers, model.config.num_attention_heads), int)
    hits = np.zeros((*top.shape, len(offsets)))

    def look(layer: int, heads: Sequence[int], schedule: Schedule, query: Tensor, key: Tensor, scale: float) -> None:
        weights = rows(schedule, query, key, scale, [len(tokens) - 1])[0, :, 0]
        top[layer, heads] = schedule.first_key + weights.argmax(-1).cpu().numpy()

    with mesa.applied(model, method) as attachment:
        attachment.observer = look
        for right in prompt.answer_ids:
            top[:] = -1
            ids = torch.tensor([tokens[cache.get_seq_length() :]], device=model.device)
            logits = model(ids, past_key_values=cache, logits_to_keep=1).logits[0, -1]
            if logits.isnan().any():
                raise RuntimeError(
                    f"{method.name}: logits are not finite; run the model with a wider --dtype (float32, float64)"
                )
            if (top < 0).any():
                raise RuntimeError(f"{method.name}: not every head of every layer was seen")
            emitted = int(logits.argmax()) if greedy else right
            holds = needle & (np.array(prompt.ids) == emitted)
            for number, offset in enumerate(offsets):
                hits[..., number] += np.isin(top - offset, np.flatnonzero(holds))
            tokens.append(emitted)
    return hits / len(prompt.answer_ids)
