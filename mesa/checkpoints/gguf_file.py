"""A GGUF file's header, checked before transformers reads it, and what transformers needs around it: clear errors."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from mesa.errors import NotFound, Refused, install_command

_QUANTIZATION_ATTRIBUTES = ("hf_quantizer", "is_quantized", "quantization_method")
_COMPARED = ("smollm",)  # pre-tokenizers: `mend_tokenizer` gives the tokens of the model's own tokenizer
_UNREAD_TENSORS = {"rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight"}


@dataclass(frozen=True)
class Header:
    """Metadata without its arrays, and the type of the weights, such as 'Q4_1', see `quantization_of`."""

    metadata: dict[str, Any]
    quantization: str

    @property
    def tokenizer_note(self) -> str:
        """That the tokenizer may not be the model's own; empty where it was compared with that."""
        is_compared = self.metadata.get("tokenizer.ggml.pre") in _COMPARED
        return "" if is_compared else "read from the GGUF file, and not compared with the model's own"


def read_header(path: Path) -> Header:
    """The header of a GGUF file that is complete and that transformers reads correctly.

    Raises FileNotFoundError where there is none, else Refused: without the package `gguf`, for a file that is no
    GGUF or is cut short, and for rotary scaling, which transformers ignores silently: another model would result.
    """
    gguf_package()
    if not path.is_file():
        raise NotFound(f"no GGUF file at {str(path)!r}")
    at = path.stat()
    return _read_header(path, at.st_size, at.st_mtime_ns)


@lru_cache(maxsize=8)
def _read_header(path: Path, size: int, changed_ns: int) -> Header:
    """The header of a file of this size, last changed at this time: a large vocabulary takes seconds to read."""
    gguf = gguf_package()
    with path.open("rb") as file:
        if file.read(4) != b"GGUF":
            raise Refused(f"{str(path)!r} is not a GGUF file")
    try:
        reader = gguf.GGUFReader(path)
        metadata = {
            key: field.contents() for key, field in reader.fields.items() if field.types[0] != gguf.GGUFValueType.ARRAY
        }
        header = Header(metadata, quantization_of(metadata.get("general.file_type"), reader.tensors))
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


def quantization_of(file_type: Any, tensors: Iterable[Any]) -> str:
    """The type that a file states, and of which types its weight matrices are, by parameters.

    Such as 'Q4_K_M (63% Q8_0, 37% Q4_K)': a file is named after a recipe that mixes types. Only the name where all are
    of one type of that name, only the types where the file states none that `gguf` knows.
    """
    parameters = Counter[str]()
    for tensor in tensors:
        if len(tensor.shape) > 1:
            parameters[tensor.tensor_type.name] += int(tensor.n_elements)
    try:
        stated = gguf_package().LlamaFileType(file_type).name.removeprefix("MOSTLY_").removeprefix("ALL_")
    except ValueError:
        stated = ""
    if len(parameters) == 1 and stated in ("", *parameters):
        return next(iter(parameters))
    types = ", ".join(_share(count / parameters.total(), name) for name, count in parameters.most_common())
    return f"{stated} ({types})" if stated else types


def _share(share: float, name: str) -> str:
    return f"{100 * share:.0f}% {name}" if share >= 0.01 else f"below 1% {name}"


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
