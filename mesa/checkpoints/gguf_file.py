"""A GGUF file's header, checked before transformers reads it, and what transformers needs around it: clear errors."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mesa.errors import NotFound, Refused, install_command

_QUANTIZATION_ATTRIBUTES = ("hf_quantizer", "is_quantized", "quantization_method")
_UNREAD_TENSORS = {"rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight"}


@dataclass(frozen=True)
class Header:
    """Metadata without its arrays, and the most frequent type of the weight matrices, e.g. Q4_1."""

    metadata: dict[str, Any]
    quantization: str


def read_header(path: Path) -> Header:
    """The header of a GGUF file that is complete and that transformers reads correctly.

    Raises FileNotFoundError where there is none, else Refused: without the package `gguf`, for a file that is no
    GGUF or is cut short, and for rotary scaling, which transformers ignores silently: another model would result.
    """
    gguf = gguf_package()
    if not path.is_file():
        raise NotFound(f"no GGUF file at {str(path)!r}")
    with path.open("rb") as file:
        if file.read(4) != b"GGUF":
            raise Refused(f"{str(path)!r} is not a GGUF file")
    try:
        reader = gguf.GGUFReader(path)
        metadata = {
            key: field.contents() for key, field in reader.fields.items() if field.types[0] != gguf.GGUFValueType.ARRAY
        }
        matrices = Counter(tensor.tensor_type.name for tensor in reader.tensors if len(tensor.shape) > 1)
        header = Header(metadata, matrices.most_common(1)[0][0])
        scaling = metadata.get(f"{metadata['general.architecture']}.rope.scaling.type", "none")
    except (ValueError, LookupError, TypeError, OverflowError, MemoryError, ArithmeticError) as error:
        reason = "of a version that gguf does not know" if "version" in str(error) else "cut short or damaged"
        raise Refused(f"{str(path)!r} is {reason}: its header cannot be read") from error
    unread = _UNREAD_TENSORS & {tensor.name for tensor in reader.tensors}
    if scaling != "none" or unread:
        raise Refused(
            f"{str(path)!r} scales its rotary positions ({min(unread, default=scaling)}), which transformers does not "
            "read from a GGUF file; use the model's safetensors checkpoint"
        )
    return header


def gguf_package() -> Any:
    """The package `gguf`; Refused where it is not installed."""
    try:
        import gguf
    except ImportError as error:
        raise Refused(f"GGUF files need the package gguf: {install_command('gguf')}") from error
    return gguf


@contextlib.contextmanager
def reading(path: Path) -> Iterator[None]:
    """Keeps the progress bar off that transformers shows while it dequantizes; names the file in what it raises."""
    from transformers import modeling_gguf_pytorch_utils

    reader: Any = modeling_gguf_pytorch_utils
    bar = reader.tqdm
    reader.tqdm = lambda tensors, **_: tensors
    try:
        yield
    except (ValueError, NotImplementedError) as error:
        raise Refused(f"{str(path)!r} cannot be loaded: {error}") from error
    except (LookupError, TypeError, AttributeError) as error:
        raise Refused(f"{str(path)!r} cannot be loaded; its metadata lacks something: {error!r}") from error
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
        from tokenizers import pre_tokenizers

        tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
        )
    return tokenizer
