"""What a GGUF file says of itself, checked before transformers reads it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_UNREAD_TENSORS = {"rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight"}


@dataclass(frozen=True)
class Header:
    """Metadata without its arrays, and the most frequent type of the weight matrices, e.g. Q4_1."""

    metadata: dict[str, Any]
    quantization: str


def read_header(path: Path) -> Header:
    """The header of a GGUF file that is complete and that transformers reads correctly.

    Raises FileNotFoundError where there is none, else ValueError: without the package `gguf`, for a file that is no
    GGUF or is cut short, and for rotary scaling, which transformers ignores silently: another model would result.
    """
    gguf = gguf_package()
    if not path.is_file():
        raise FileNotFoundError(f"no GGUF file at {str(path)!r}")
    with path.open("rb") as file:
        if file.read(4) != b"GGUF":
            raise ValueError(f"{str(path)!r} is no GGUF file")
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
        raise ValueError(f"{str(path)!r} is {reason}: its header cannot be read") from error
    unread = _UNREAD_TENSORS & {tensor.name for tensor in reader.tensors}
    if scaling != "none" or unread:
        raise ValueError(
            f"{str(path)!r} scales its rotary positions ({min(unread, default=scaling)}), which transformers does not "
            "read from a GGUF file; use the model's safetensors checkpoint"
        )
    return header


def gguf_package() -> Any:
    """The package `gguf`; ValueError where it is not installed."""
    try:
        import gguf
    except ImportError as error:
        raise ValueError("GGUF files need the package gguf: pip install 'mesa-lens[gguf]'") from error
    return gguf
