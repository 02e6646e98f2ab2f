"""Loads causal language models: the shipped default, a local folder, or a Hugging Face hub id."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import logging as transformers_logging

DEFAULT = "default"
DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


@dataclass(frozen=True)
class Loaded:
    """A model with its tokenizer, the name it was asked for by, and its revision."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    name: str
    revision: str


def default_folder() -> Path:
    """Where the shipped checkpoint lies."""
    return Path(str(resources.files("mesa") / "default"))


def load(
    name: str = DEFAULT,
    *,
    dtype: str | None = None,
    device: str = "cpu",
    device_map: str | None = None,
    revision: str | None = None,
    trust_remote_code: bool = False,
) -> Loaded:
    """The model called `name` ('default', a folder, or a hub id), in evaluation mode. Safetensors only.

    dtype: 'float32', 'float16' or 'bfloat16'; by default float32 on a CPU, else the checkpoint's own.
    device_map: as in accelerate (e.g. 'auto'), in place of `device`.
    Raises FileNotFoundError for a missing folder, OSError for what the hub does not have, ValueError for bad values.
    """
    check_placement({"dtype": dtype, "device": device, "device_map": device_map})
    if dtype is None and device_map is None and device == "cpu":
        dtype = "float32"
    place = _place(name)
    with _loading(name):
        tokenizer = AutoTokenizer.from_pretrained(place, revision=revision, trust_remote_code=trust_remote_code)
        model: Any = AutoModelForCausalLM.from_pretrained(
            place,
            revision=revision,
            trust_remote_code=trust_remote_code,
            dtype=DTYPES[dtype] if dtype else "auto",
            device_map=device_map,
            use_safetensors=True,
        )
    if device_map is None:
        model.to(torch.device(device))
    commit = getattr(model.config, "_commit_hash", None) or revision or "local"
    return Loaded(model.eval(), tokenizer, name, commit)


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
    place = _place(name)
    with _loading(name):
        return AutoConfig.from_pretrained(place, revision=revision, trust_remote_code=bool(trust_remote_code))


def tokenizer_of(name: str, *, revision: str | None = None, trust_remote_code: bool | None = None) -> Any:
    """The tokenizer of a model, without its weights; errors as for `load`."""
    place = _place(name)
    with _loading(name):
        return AutoTokenizer.from_pretrained(place, revision=revision, trust_remote_code=bool(trust_remote_code))


def _place(name: str) -> str:
    """Folder or hub id of a model; FileNotFoundError for a folder without one."""
    place = str(default_folder()) if name == DEFAULT else name
    looks_local = name == DEFAULT or place.startswith((".", "/", "~")) or place.count("/") > 1
    folder = Path(place).expanduser()
    if looks_local and not (folder / "config.json").is_file():
        raise FileNotFoundError(f"no model at {str(folder)!r} (no config.json there); give a folder or a hub id")
    return str(folder) if looks_local else place


@contextlib.contextmanager
def _loading(name: str) -> Iterator[None]:
    """Keeps transformers' own progress bars off, and turns its long errors into one line."""
    bars = transformers_logging.is_progress_bar_enabled()
    transformers_logging.disable_progress_bar()
    try:
        yield
    except OSError as error:
        raise OSError(f"cannot load model {name!r}: {str(error).strip().splitlines()[0]}") from error
    finally:
        if bars:
            transformers_logging.enable_progress_bar()
