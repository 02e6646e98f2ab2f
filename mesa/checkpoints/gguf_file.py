"""What transformers needs around it to load a GGUF file: clear errors, a plain model, digits kept apart."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tokenizers import pre_tokenizers
from transformers import modeling_gguf_pytorch_utils

from mesa.checkpoints.gguf_header import Header

_QUANTIZATION_ATTRIBUTES = ("hf_quantizer", "is_quantized", "quantization_method")


@contextlib.contextmanager
def reading(path: Path) -> Iterator[None]:
    """Keeps the progress bar off that transformers shows while it dequantizes; names the file in what it raises."""
    reader: Any = modeling_gguf_pytorch_utils
    bar = reader.tqdm
    reader.tqdm = lambda tensors, **_: tensors
    try:
        yield
    except (ValueError, NotImplementedError) as error:
        raise ValueError(f"{str(path)!r} cannot be loaded: {error}") from error
    except (LookupError, TypeError, AttributeError) as error:
        raise ValueError(f"{str(path)!r} cannot be loaded; its metadata lacks something: {error!r}") from error
    finally:
        reader.tqdm = bar


def as_plain(model: Any) -> Any:
    """The dequantized model without the quantization attributes that forbid saving it."""
    for owner, names in ((model.config, ("quantization_config",)), (model, _QUANTIZATION_ATTRIBUTES)):
        for name in names:
            if hasattr(owner, name):
                delattr(owner, name)
    return model


def mend_tokenizer(tokenizer: Any, header: Header) -> Any:
    """The tokenizer, with digits kept apart where the file asks for it ('smollm') and transformers does not."""
    if header.metadata.get("tokenizer.ggml.pre") == "smollm":
        tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
        )
    return tokenizer
