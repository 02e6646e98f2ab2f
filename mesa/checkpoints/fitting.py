"""Whether a checkpoint's files fit its model: how weights are stored, and which token ids a tokenizer gives."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from mesa.errors import Refused

_WIDE = ("F64", "F32", "F16", "BF16")


def check_stored(name: str, folder: Path, model: Any) -> None:
    """Raises Refused for weights that files in a folder hold as integers or narrow floats, without their scales.

    For models whose config states no quantization.
    """
    from safetensors import safe_open

    known = {key for key, weight in model.named_parameters() if weight.is_floating_point()}
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, "pt") as file:
            for key in file.keys():  # noqa: SIM118  it is not a mapping
                stored = file.get_slice(key).get_dtype()
                if stored not in _WIDE and (key in known or key.endswith(".weight")):
                    raise Refused(
                        f"model {name!r} stores {key} as {stored}, and its config.json states no quantization that "
                        "says by which scales; get the unquantized checkpoint"
                    )


def within(name: str, tokenizer: Any, rows: int | None) -> Any:
    """The tokenizer; where it has added tokens that a model of so many rows lacks, it refuses texts that hold them.

    Refused where other tokens, or those that it puts around every text, are beyond the rows.
    """
    if not isinstance(rows, int):
        return tokenizer
    beyond = {number: token for token, number in tokenizer.get_vocab().items() if number >= rows}
    if not beyond:
        return tokenizer
    added = tokenizer.added_tokens_decoder
    always = set(tokenizer("a")["input_ids"]) & set(beyond)
    if always or not set(beyond) <= set(added):
        others = min(always or set(beyond) - set(added))
        raise Refused(
            f"model {name!r} knows {rows} tokens and its tokenizer gives {max(beyond) + 1}, e.g. "
            f"{beyond[others]!r} ({others}); its config.json (vocab_size) or its tokenizer is another model's"
        )
    tokenizer.__class__, tokenizer.beyond, tokenizer.whose = _checking(type(tokenizer)), beyond, (name, rows)
    return tokenizer


@cache
def _checking(base: type[Any]) -> type[Any]:
    """A class of tokenizers whose texts hold no token `beyond` a model's rows."""

    class Checking(base):
        def _encode_plus(self, *args: Any, **kwargs: Any) -> Any:
            encoded, (name, rows) = super()._encode_plus(*args, **kwargs), self.whose
            _check_ids(name, rows, encoded["input_ids"], self.beyond)
            return encoded

    Checking.__name__ = base.__name__  # by which a folder names it
    return Checking


def _check_ids(name: str, rows: int, ids: Any, beyond: Mapping[int, str]) -> None:
    unknown = min(set(np.unique(np.concatenate([np.ravel(row) for row in ids] or [[]]))) & set(beyond), default=None)
    if unknown is not None:
        raise Refused(
            f"a text holds {beyond[unknown]!r}, which is token {unknown} of the tokenizer, and model {name!r} knows "
            f"{rows}: it was added and the model not resized; take it out of the text, or get the model that it is for"
        )
