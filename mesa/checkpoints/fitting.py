"""Whether a checkpoint's files fit its model: how weights are stored, and which token ids a tokenizer gives."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

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
    encode = tokenizer._encode_plus

    def checked(*args: Any, **kwargs: Any) -> Any:
        encoded = encode(*args, **kwargs)
        _check_ids(name, encoded, beyond, rows)
        return encoded

    tokenizer._encode_plus = checked
    return tokenizer


def _check_ids(name: str, encoded: Mapping[str, Any], beyond: Mapping[int, str], rows: int) -> None:
    ids = encoded["input_ids"]
    ids = ids.tolist() if hasattr(ids, "tolist") else ids
    flat = [number for row in ids for number in row] if ids and isinstance(ids[0], list) else ids
    unknown = min(set(flat) & set(beyond), default=None)
    if unknown is not None:
        raise Refused(
            f"a text holds {beyond[unknown]!r}, which is token {unknown} of the tokenizer, and model {name!r} knows "
            f"{rows}: it was added and the model not resized; take it out of the text, or get the model that it is for"
        )
