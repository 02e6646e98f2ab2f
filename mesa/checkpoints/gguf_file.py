"""A GGUF file: its header, checked before transformers reads it, and whether its weights fit the config."""

import contextlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, cast

import numpy as np

from mesa.errors import NotFound, Refused, install_command
from mesa.progress import Bar

_QUANTIZATION_ATTRIBUTES = ("hf_quantizer", "is_quantized", "quantization_method")
_COMPARED = ("smollm",)  # pre-tokenizers: `mend_tokenizer` gives the tokens of the model's own tokenizer
_UNREAD_TENSORS = {"rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight"}


@dataclass(frozen=True)
class Header:
    """Metadata without its arrays, the type of the weights, such as 'Q4_1', see `quantization_of`, and their number."""

    metadata: dict[str, Any]
    quantization: str
    parameters: int

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
    """The header of a file of this size, last changed at this time."""
    gguf = gguf_package()
    with path.open("rb") as file:
        if file.read(4) != b"GGUF":
            raise Refused(f"{str(path)!r} is not a GGUF file")
    try:
        reader = _without_arrays(path)
        metadata = {
            key: field.contents() for key, field in reader.fields.items() if field.types[0] != gguf.GGUFValueType.ARRAY
        }
        quantization = quantization_of(metadata.get("general.file_type"), reader.tensors)
        header = Header(metadata, quantization, sum(int(tensor.n_elements) for tensor in reader.tensors))
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


def _without_arrays(path: Path) -> Any:
    """A `GGUFReader` that skips arrays: it takes half a minute for a vocabulary of 262,000 tokens, token by token."""
    gguf = gguf_package()

    class Reader(gguf.GGUFReader):
        def _get_field_parts(self, orig_offs: int, raw_type: int) -> tuple[int, list[Any], list[int], list[Any]]:
            if raw_type != gguf.GGUFValueType.ARRAY:
                return super()._get_field_parts(orig_offs, raw_type)
            kind = gguf.GGUFValueType(self._get(orig_offs, np.uint32)[0])
            length, at = int(self._get(orig_offs + 4, np.uint64)[0]), int(orig_offs) + 12
            if kind == gguf.GGUFValueType.STRING:
                data, order = memoryview(self.data), "little" if self.endianess == gguf.GGUFEndian.LITTLE else "big"
                for _ in range(length):
                    at += 8 + int.from_bytes(data[at : at + 8], order)
                    if at > len(data):
                        raise ValueError("a string ends beyond the file")
            elif kind in self.gguf_scalar_to_np:
                at += length * np.dtype(self.gguf_scalar_to_np[kind]).itemsize
            else:  # an array of arrays
                return super()._get_field_parts(orig_offs, raw_type)
            return at - int(orig_offs), [], [], [gguf.GGUFValueType.ARRAY]

    return Reader(path)


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
    """While transformers reads a file: one reader for all its parts, our progress bar, errors that name the file."""
    from transformers import modeling_gguf_pytorch_utils

    gguf, reader = gguf_package(), cast("Any", modeling_gguf_pytorch_utils)
    read, bar = gguf.GGUFReader, reader.tqdm
    gguf.GGUFReader = cache(read)
    reader.tqdm = lambda tensors, **_: Bar(tensors, desc="dequantizing", unit="tensor", leave=False)
    try:
        yield
    except (ValueError, NotImplementedError) as error:
        raise Refused(f"{str(path)!r} cannot be loaded: {error}") from error
    except (LookupError, TypeError, AttributeError) as error:
        raise Refused(f"{str(path)!r} cannot be loaded; its metadata lacks something: {error!r}") from error
    finally:
        gguf.GGUFReader, reader.tqdm = read, bar


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
