"""What a GGUF file says of itself, checked before transformers reads it."""

from __future__ import annotations

import math
import mmap
import struct
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_FORMATS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_VERSIONS = (2, 3)
_UNREAD_TENSORS = {"rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight"}


@dataclass(frozen=True)
class Header:
    """Metadata without its arrays, and the name, number of axes and type of every tensor."""

    values: dict[str, Any]
    tensors: tuple[tuple[str, int, str], ...]

    @property
    def quantization(self) -> str:
        """The most frequent type of the weight matrices, e.g. Q4_1."""
        return Counter(kind for _, axes, kind in self.tensors if axes > 1).most_common(1)[0][0]


def read_header(path: Path) -> Header:
    """The header of a GGUF file that is whole and that transformers reads rightly.

    Raises FileNotFoundError where there is none, else ValueError: without the package `gguf`, for a file that is no
    GGUF or is cut short, and for rotary scaling, which transformers passes over in silence: another model would result.
    """
    if not path.is_file():
        raise FileNotFoundError(f"no GGUF file at {str(path)!r}")
    size = path.stat().st_size
    with path.open("rb") as file:
        if file.read(4) != b"GGUF":
            raise ValueError(f"{str(path)!r} is no GGUF file")
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            try:
                header, end = _parse(data)
            except (struct.error, OverflowError, MemoryError) as error:
                raise ValueError(f"{str(path)!r} is cut short or damaged: its header does not end") from error
            except (UnicodeDecodeError, LookupError, TypeError, ZeroDivisionError) as error:
                raise ValueError(f"{str(path)!r} is damaged, or of a GGUF version that is not known") from error
    if end > size:
        raise ValueError(f"{str(path)!r} is cut short: {size} of at least {end} bytes")
    _check_rotary(path, header)
    return header


def _check_rotary(path: Path, header: Header) -> None:
    scaling = header.values.get(f"{header.values['general.architecture']}.rope.scaling.type", "none")
    unread = _UNREAD_TENSORS & {name for name, _, _ in header.tensors}
    if scaling != "none" or unread:
        raise ValueError(
            f"{str(path)!r} scales its rotary positions ({min(unread, default=scaling)}), which transformers does not "
            "read from a GGUF file; use the model's safetensors checkpoint"
        )


def _parse(data: mmap.mmap) -> tuple[Header, int]:
    """The header, and the byte at which the last tensor ends."""
    version, tensors, count = struct.unpack_from("<IQQ", data, 4)
    if version not in _VERSIONS:
        raise KeyError(version)
    place, values = 24, {}
    for _ in range(count):
        key, place = _string(data, place)
        values[key], place = _value(data, place + 4, *struct.unpack_from("<I", data, place))
    found, place, last = _tensors(data, place, tensors)
    alignment = values.get("general.alignment", 32)
    header = Header(values, tuple(found))
    if not (values["general.architecture"] and header.quantization):
        raise KeyError("general.architecture")
    return header, -(-place // alignment) * alignment + last


def _tensors(data: mmap.mmap, place: int, count: int) -> tuple[list[tuple[str, int, str]], int, int]:
    """Name, axes and type of every tensor, where their table ends, and how far their values reach beyond it."""
    blocks = tensor_types()
    found, last = [], 0
    for _ in range(count):
        name, place = _string(data, place)
        (axes,) = struct.unpack_from("<I", data, place)
        shape = struct.unpack_from(f"<{axes}Q", data, place + 4)
        kind, offset = struct.unpack_from("<IQ", data, place + 4 + 8 * axes)
        place += 16 + 8 * axes
        label, elements, size = blocks[kind]
        found.append((name, axes, label))
        last = max(last, offset + math.prod(shape) // elements * size)
    return found, place, last


def _string(data: mmap.mmap, place: int) -> tuple[str, int]:
    (length,) = struct.unpack_from("<Q", data, place)
    end = place + 8 + length
    return data[place + 8 : end].decode(), end


def _value(data: mmap.mmap, place: int, kind: int) -> tuple[Any, int]:
    """The value of this type and where it ends; None for an array."""
    if kind == _STRING:
        return _string(data, place)
    if kind != _ARRAY:
        form = "<" + _FORMATS[kind]
        return struct.unpack_from(form, data, place)[0], place + struct.calcsize(form)
    kind, count = struct.unpack_from("<IQ", data, place)
    place += 12
    if kind != _STRING:
        return None, place + count * struct.calcsize("<" + _FORMATS[kind])
    for _ in range(count):
        place += 8 + struct.unpack_from("<Q", data, place)[0]
    return None, place


def tensor_types() -> dict[int, tuple[str, int, int]]:
    """Name of every tensor type, and the elements and bytes of its blocks; ValueError without the package `gguf`."""
    try:
        from gguf.constants import GGML_QUANT_SIZES
    except ImportError as error:
        raise ValueError("GGUF files need the package gguf: pip install 'mesa-lens[gguf]'") from error
    return {int(kind): (kind.name, *size) for kind, size in GGML_QUANT_SIZES.items()}
