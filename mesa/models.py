"""Loads causal language models: the shipped default, a fetched checkpoint, a local folder, a GGUF file, or a hub id."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import logging as transformers_logging

from mesa.checkpoints.gguf_file import as_plain, mend_tokenizer, reading
from mesa.checkpoints.place import DEFAULT, Place, place_of

DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


@dataclass(frozen=True)
class Loaded:
    """A model with its tokenizer, the name it was asked for by, its revision and, if it had one, its quantization."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    name: str
    revision: str
    quantization: str | None = None


def load(
    name: str = DEFAULT,
    *,
    dtype: str | None = None,
    device: str = "cpu",
    device_map: str | None = None,
    revision: str | None = None,
    trust_remote_code: bool = False,
) -> Loaded:
    """The model called `name` in evaluation mode: 'default', 'smollm2' once fetched, a folder, .gguf file or hub id.

    Weights are safetensors, or GGUF, which is dequantized.
    dtype: 'float32', 'float16' or 'bfloat16'; by default float32 on a CPU and from GGUF, else the checkpoint's own.
    device_map: as in accelerate (e.g. 'auto'), in place of `device`.
    Raises FileNotFoundError for a missing folder or file, OSError for what the hub does not have, ValueError for bad
    values and files.
    """
    check_placement({"dtype": dtype, "device": device, "device_map": device_map})
    place = place_of(name)
    if dtype is None and (place.file or (device_map is None and device == "cpu")):
        dtype = "float32"
    options = {"revision": revision, "trust_remote_code": trust_remote_code, **place.arguments}
    with _loading(name, place):
        tokenizer = _tokenizer(place, options)
        found: Any = AutoModelForCausalLM.from_pretrained(
            place.where,
            dtype=DTYPES[dtype] if dtype else "auto",
            device_map=device_map,
            use_safetensors=True,
            output_loading_info=True,
            **options,
        )
    model, info = found
    if place.file:
        as_plain(model, info["missing_keys"], place.file)
    if device_map is None:
        model.to(torch.device(device))
    commit = origin(name, model.config, revision)
    return Loaded(model.eval(), tokenizer, name, commit["model_revision"], commit.get("quantization"))


def origin(name: str, config: Any, revision: str | None = None) -> dict[str, str]:
    """`model_revision` of a model and, where its weights were quantized, `quantization`; needs no weights."""
    place = place_of(name)
    found = {"model_revision": getattr(config, "_commit_hash", None) or place.revision or revision or "local"}
    return found | ({"quantization": place.quantization} if place.quantization else {})


def check_placement(options: Mapping[str, Any]) -> None:
    """Raises ValueError for a `dtype` that is not known or a `device` that is not here; options as for `load`."""
    dtype, device = options.get("dtype"), options.get("device")
    if dtype is not None and dtype not in DTYPES:
        raise ValueError(f"unknown dtype {dtype!r}; known: {', '.join(DTYPES)}")
    if device is None or options.get("device_map") is not None:
        return
    try:
        kind = torch.device(device).type
    except RuntimeError as error:
        raise ValueError(f"unknown device {device!r}; use e.g. --device cpu or cuda:0") from error
    if kind == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"device={device!r} is not available here; use --device cpu")


def chosen_dtype(config: Any, options: Mapping[str, Any]) -> str:
    """The name of the dtype in which `load` with these options gives a model of this config."""
    on_cpu = options.get("device", "cpu") == "cpu" and not options.get("device_map")
    stated = str(getattr(config, "dtype", None) or "float32").removeprefix("torch.")
    return options.get("dtype") or ("float32" if on_cpu else stated)


def bytes_a_number(config: Any, options: Mapping[str, Any]) -> int:
    """Bytes of one number in `chosen_dtype`."""
    return 2 if chosen_dtype(config, options).endswith("16") else 4


def config_of(name: str, *, revision: str | None = None, trust_remote_code: bool | None = None) -> Any:
    """The Hugging Face config of a model, without its weights; errors as for `load`."""
    place = place_of(name)
    options = {"revision": revision, "trust_remote_code": bool(trust_remote_code), **place.arguments}
    with _loading(name, place):
        return AutoConfig.from_pretrained(place.where, **options)


def tokenizer_of(name: str, *, revision: str | None = None, trust_remote_code: bool | None = None) -> Any:
    """The tokenizer of a model, without its weights; errors as for `load`."""
    place = place_of(name)
    with _loading(name, place):
        return _tokenizer(
            place, {"revision": revision, "trust_remote_code": bool(trust_remote_code), **place.arguments}
        )


def _tokenizer(place: Place, options: Mapping[str, Any]) -> Any:
    tokenizer = AutoTokenizer.from_pretrained(place.where, **options)
    return mend_tokenizer(tokenizer, place.header) if place.header else tokenizer


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keeps transformers' own progress bars off."""
    bars = transformers_logging.is_progress_bar_enabled()
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        if bars:
            transformers_logging.enable_progress_bar()


@contextlib.contextmanager
def _loading(name: str, place: Place) -> Iterator[None]:
    """Quiet, and turns transformers' long errors into one line."""
    try:
        with quiet(), reading(place.file) if place.file else contextlib.nullcontext():
            yield
    except OSError as error:
        raise OSError(f"cannot load model {name!r}: {str(error).strip().splitlines()[0]}") from error
