"""Loads causal language models: the shipped default, a local folder, or a Hugging Face hub id."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase
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

    @property
    def trained_length(self) -> int:
        """The window that the config states (tokens). Configs can be wrong about it: say so where it is used."""
        return int(self.model.config.max_position_embeddings)


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
    if dtype is not None and dtype not in DTYPES:
        raise ValueError(f"unknown dtype {dtype!r}; known: {', '.join(DTYPES)}")
    if device_map is None and torch.device(device).type == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"device={device!r} is not available here; use --device cpu")
    if dtype is None and device_map is None and device == "cpu":
        dtype = "float32"
    place = str(default_folder()) if name == DEFAULT else name
    _check_place(name, place)
    with _quiet():
        try:
            tokenizer = AutoTokenizer.from_pretrained(place, revision=revision, trust_remote_code=trust_remote_code)
            model = AutoModelForCausalLM.from_pretrained(
                place,
                revision=revision,
                trust_remote_code=trust_remote_code,
                dtype=DTYPES[dtype] if dtype else "auto",
                device_map=device_map,
                use_safetensors=True,
            )
        except OSError as error:
            raise OSError(f"cannot load model {name!r}: {str(error).strip().splitlines()[0]}") from error
    if device_map is None:
        model = model.to(device)
    commit = getattr(model.config, "_commit_hash", None) or revision or "local"
    return Loaded(model.eval(), tokenizer, name, commit)


def _check_place(name: str, place: str) -> None:
    looks_local = name == DEFAULT or place.startswith((".", "/", "~")) or place.count("/") > 1
    folder = Path(place).expanduser()
    if looks_local and not (folder / "config.json").is_file():
        raise FileNotFoundError(f"no model at {str(folder)!r} (no config.json there); give a folder or a hub id")


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keeps transformers' own progress bars off; ours speak."""
    showed = os.environ.get("TRANSFORMERS_VERBOSITY") in ("info", "debug")
    if not showed:
        transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        if not showed:
            transformers_logging.enable_progress_bar()
