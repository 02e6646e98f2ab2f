"""What a model's config may state, looked at before transformers builds anything from it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

_MOST = {
    **dict.fromkeys(("num_hidden_layers", "n_layers", "n_layer"), 10_000),
    **dict.fromkeys(("num_attention_heads", "num_key_value_heads", "n_heads", "n_head"), 2**16),
    **dict.fromkeys(("num_local_experts", "num_experts", "num_experts_per_tok"), 2**16),
    **dict.fromkeys(("hidden_size", "d_model", "intermediate_size", "moe_intermediate_size", "head_dim"), 2**22),
    "vocab_size": 2**28,
}
"""The largest sizes by key, far beyond every model there is."""
_POSITIVE = ("rope_theta", "rotary_emb_base", "factor")


def check_stated(stated: Any) -> None:
    """Raises ValueError, naming key and value, for sizes and rotary bases that no model can have.

    stated: a config.json, read. Sizes that are left out, or null, take transformers' own defaults.
    """
    if not isinstance(stated, Mapping):
        raise ValueError("its config.json holds no keys and values; copy the model's own there")
    for key, value in _all(stated):
        if key in _MOST and isinstance(value, int | float) and not 1 <= value <= _MOST[key]:
            raise ValueError(f"{key} is {value}, not within 1 to {_MOST[key]}; mend its config.json")
        wrong = key in _POSITIVE and value is not None and not _is_positive(value)
        if wrong or (isinstance(value, float) and not math.isfinite(value)):
            raise ValueError(f"{key} is {value}, no finite number above 0; mend its config.json")
    heads, shared = stated.get("num_attention_heads"), stated.get("num_key_value_heads")
    if isinstance(heads, int) and isinstance(shared, int) and heads % shared:
        raise ValueError(
            f"num_attention_heads is {heads}, no multiple of num_key_value_heads, {shared}; mend its config.json"
        )


def _is_positive(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value > 0


def _all(stated: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Keys and values, also of mappings in it."""
    for key, value in stated.items():
        yield key, value
        if isinstance(value, Mapping):
            yield from _all(value)
