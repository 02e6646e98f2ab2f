"""Loads causal language models: a shipped one, a fetched checkpoint, a local folder, a GGUF file, or a hub id."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from filelock import FileLock
from huggingface_hub import try_to_load_from_cache
from safetensors import SafetensorError
from transformers import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    AutoConfig,
    AutoTokenizer,
    PreTrainedConfig,
    PreTrainedTokenizerBase,
    __version__ as version,
)
from transformers.utils import logging as transformers_logging

from mesa import families
from mesa.checkpoints.gguf_file import as_plain, check_stored, mend_tokenizer, reading, within
from mesa.checkpoints.place import CACHE, DEFAULT, Place, cache_folder, check_stated, place_of, place_with_options
from mesa.constructed_config import ConstructedConfig  # transformers knows it from then on
from mesa.device import check_finite
from mesa.errors import NotFound, Refused, is_out_of_memory
from mesa.fingerprints import fingerprint_of_file
from mesa.support import note_stated

if TYPE_CHECKING:
    from transformers import PreTrainedModel

DTYPES: dict[str, torch.dtype] = {name: getattr(torch, name) for name in ("float32", "float16", "bfloat16", "float64")}
_PARTS = {
    "tokenizer": (("tokenizer.json", "*vocab*", "*.model", "*.tiktoken"), "copy its files there"),
    "weights": (("*.safetensors",), "copy them there, or convert others (model.save_pretrained writes safetensors)"),
}
"""By part of a model: the files that hold it, of which a folder has one, and what to do where it has none."""
_BUFFERS = ("rotary_emb.inv_freq", "masked_bias", "attention.bias")
"""Ends of names that older checkpoints hold and that models compute themselves."""
_IMAGES = ("vision_model.", "multi_modal_projector.")
"""Starts of names of weights that bring images to a text model."""
_LONGEST_REASON = 300  # characters
_NAMED = 3
"""How many weights a message names."""
_OWN_CODE = "it runs Python code that comes with it; read that code, then give --trust-remote-code"
_DEVICE_MAPS = ("auto", "balanced", "balanced_low_0", "sequential")


@dataclass(frozen=True)
class Loaded:
    """A model with its tokenizer, the name it was asked for by, its revision and, if it had one, its quantization."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    name: str
    revision: str
    quantization: str | None = None


def load(
    name: str | os.PathLike[str] = DEFAULT,
    *,
    dtype: str | None = None,
    device: str = "cpu",
    device_map: str | None = None,
    revision: str | None = None,
    trust_remote_code: bool = False,
) -> Loaded:
    """A causal language model with its tokenizer, in evaluation mode.

    Args:
        name: 'default', 'nope' or 'alibi' (shipped), 'smollm2' (after `mesa-lens fetch smollm2`), a folder, a .gguf
            file or a hub id; default 'default'. Weights are safetensors, or GGUF, which is dequantized.
        dtype: 'float32', 'float16', 'bfloat16' or 'float64'. Default: float32 on 'cpu' and from GGUF, else the
            checkpoint's own, which a constructed model always keeps.
        device: Where the model runs; default 'cpu'.
        device_map: In place of `device`, as in accelerate, e.g. 'auto'.
        revision: Branch, tag or commit on the hub; default the main branch.
        trust_remote_code: Whether Python code that comes with the checkpoint may run; default False.

    Returns:
        A `Loaded`, with `model`, `tokenizer`, `name`, `revision` and `quantization` (of GGUF, else None).

    Raises:
        FileNotFoundError: A folder or file is not there.
        OSError: The hub does not have it.
        Refused: A value or file is wrong, or the model is not supported.

    Examples:
        >>> loaded = mesa.load()
        >>> loaded.model.config.max_position_embeddings, loaded.tokenizer("import os")["input_ids"]
        (256, [0, 945, 844])
    """
    check_placement({"dtype": dtype, "device": device, "device_map": device_map})
    name = os.fspath(name)
    place, options = _place(name, revision, trust_remote_code)
    with _loading(name, place, "tokenizer", "weights"):
        config, stated = _config(place, options)
        tokenizer = _tokenizer(place, options)
        if dtype is None and place.file:
            dtype = "float32"
        elif dtype is None and (device_map or device) == "cpu":
            dtype = chosen_dtype(config, {})
        result: Any = model_class().from_pretrained(
            place.where,
            dtype=DTYPES[dtype] if dtype else "auto",
            device_map=device_map,
            use_safetensors=True,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # its own error names none of them; `_check_keys` does
            **options,
        )
    tokenizer = within(name, tokenizer, getattr(config, "vocab_size", None))
    model, info = result
    _check_keys(name, info)
    if getattr(model, "hf_quantizer", None) is None:
        check_stored(name, _folder(place, options), model)
    note_stated(model.config, stated)
    check_finite(name, model)
    if model.dtype == torch.float64 and getattr(model.config, "_experts_implementation", "") == "grouped_mm":
        model.set_experts_implementation("eager")  # torch's grouped products have no float64
    if device_map is None:
        model.to(torch.device(device))
    commit = origin(name, config, revision)
    return Loaded(model.eval(), tokenizer, name, commit["model_revision"], commit.get("quantization"))


def _place(
    name: str, revision: str | None, trust_remote_code: bool | None, convert: bool = True
) -> tuple[Place, dict[str, Any]]:
    """As `place_with_options`; of a GGUF file the folder that it was converted to, which `convert` does if missing."""
    place, options = place_with_options(name, revision, trust_remote_code)
    if not place.file:
        return place, options
    known = f"{fingerprint_of_file(place.file)} {version} {metadata.version('gguf')}".encode()
    folder = cache_folder() / "converted" / f"{place.file.stem}-{hashlib.sha256(known).hexdigest()[:16]}"
    if not folder.is_dir():
        if not convert:
            return place, options
        _keep_converted(place, folder)
    options.pop("gguf_file")
    return replace(place, where=str(folder)), options


def _keep_converted(place: Place, folder: Path) -> None:
    """Writes a GGUF file's model to `folder`, at once or not at all."""
    assert place.file
    assert place.header
    needed = 4 * place.header.parameters
    sys.stderr.write(f"converting {place.file} to safetensors once ({needed / 1e6:,.0f} MB, kept in {folder.parent})\n")
    remedy = f"set {CACHE} to a folder with room"
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        if shutil.disk_usage(folder.parent).free < needed:
            raise Refused(f"{folder.parent} has less than {needed / 1e6:,.0f} MB free; {remedy}")
        with FileLock(folder.with_name(f".{folder.name}.lock")):
            if folder.is_dir():  # by another process, meanwhile
                return
            work = folder.with_name(f".{folder.name}")  # what a killed process left there goes
            shutil.rmtree(work, ignore_errors=True)
            try:
                convert_gguf(place.file, work)
                work.rename(folder)
            finally:
                shutil.rmtree(work, ignore_errors=True)
    except PermissionError as error:
        raise Refused(f"cannot write to {folder.parent} ({error.strerror}); {remedy}") from error


def convert_gguf(file: Path, folder: Path) -> None:
    """Writes the model and tokenizer of a GGUF file to a folder, in float32, in which its weights are exact.

    float16 is not enough for sums of scales and minima. Raises as `load`.
    """
    name = str(file)
    place, options = place_with_options(name)
    assert place.header
    with _loading(name, place, "tokenizer", "weights"), reading(file):
        config = AutoConfig.from_pretrained(place.where, **options)
        tokenizer = mend_tokenizer(AutoTokenizer.from_pretrained(place.where, **options), place.header)
        model, info = model_class().from_pretrained(
            place.where,
            config=config,
            dtype=torch.float32,
            output_loading_info=True,
            ignore_mismatched_sizes=True,
            **options,
        )
    _check_keys(name, info)
    tokenizer.init_kwargs["local_files_only"] = False  # else HF_HUB_OFFLINE would change the files
    with quiet():
        try:
            as_plain(model).save_pretrained(folder)
        except SafetensorError as error:
            reason = f"cannot write the weights to {folder} ({in_short(error)})"
            raise OSError(
                f"{reason}; free some space, or choose another cache (--cache of fetch, or ${CACHE})"
            ) from error
        tokenizer.save_pretrained(folder)


def model_class() -> Any:
    """transformers' class of causal language models, which knows those of the theorems.

    Imported here, since it takes longer than torch: configs, tokenizers and plans do without it.
    """
    from transformers import AutoModelForCausalLM

    import mesa.constructed  # noqa: F401

    return AutoModelForCausalLM


def _check_keys(name: str, info: Mapping[str, Any]) -> None:
    """Refused for weights that transformers initialised at random or did not use; info: its loading info."""
    unexpected = [key for key in info["unexpected_keys"] if not (key.endswith(_BUFFERS) or key.startswith(_IMAGES))]
    shapes = {key: f"{key} {tuple(stored)}, not {tuple(model)}" for key, stored, model in info["mismatched_keys"]}
    for keys, problem in (
        (shapes.values(), "has {} of another shape than its config.json says"),
        (info["missing_keys"], "lacks {} of its model"),
        (unexpected, "has {} that its model does not"),
    ):
        if keys:
            first = ", ".join(sorted(keys)[:_NAMED]) + (", ..." if len(keys) > _NAMED else "")
            weights = f"{len(keys)} weight{'s' * (len(keys) > 1)}"
            raise Refused(f"model {name!r} {problem.format(weights)}: {first}; its config.json and weights do not fit")


def origin(name: str, config: Any, revision: str | None = None) -> dict[str, str]:
    """`model_revision` of a model and, where its weights were quantized, `quantization`; needs no weights.

    Also `tokenizer_note` of what was a GGUF file whose tokenizer may not be the model's own.
    """
    place = place_of(name)
    more = {"quantization": place.quantization, "tokenizer_note": place.tokenizer_note}
    result = {"model_revision": getattr(config, "_commit_hash", None) or place.revision or revision or "local"}
    return result | {key: value for key, value in more.items() if value}


def check_placement(options: Mapping[str, Any]) -> None:
    """Raises Refused for a `dtype` that is not known or a `device` that is not here; options as for `load`."""
    dtype, device = options.get("dtype"), options.get("device")
    device_map = options.get("device_map")
    if dtype is not None and dtype not in DTYPES:
        raise Refused(f"unknown dtype {dtype!r}; known: {', '.join(DTYPES)}")
    if isinstance(device_map, str) and device_map not in _DEVICE_MAPS:
        _check_device(device_map, f"device_map={device_map!r}", f"--device-map {' or '.join(_DEVICE_MAPS)}")
    elif device not in (None, "cpu") and device_map is not None:
        raise Refused(f"--device {device} with --device-map {device_map}, which places the model: leave one out")
    elif device is not None and device_map is None:
        _check_device(device, f"device={device!r}", "--device cpu")


def _check_device(device: str, what: str, remedy: str) -> None:
    try:
        kind = torch.device(device).type
    except RuntimeError as error:
        raise Refused(f"unknown device {device!r}; use e.g. --device cpu or cuda:0") from error
    try:
        there = kind != "meta" and bool(torch.zeros(1, device=device).add(1).item())
    except (AssertionError, ImportError, NotImplementedError, RuntimeError):
        there = False
    if not there:
        raise Refused(f"{what} is not available here; use {remedy}")


def chosen_dtype(config: Any, options: Mapping[str, Any]) -> str:
    """The name of the dtype in which `load` with these options gives a model of this config."""
    on_cpu = (options.get("device_map") or options.get("device") or "cpu") == "cpu"
    on_cpu = on_cpu and not isinstance(config, ConstructedConfig)
    stated = str(getattr(config, "dtype", None) or "float32").removeprefix("torch.")
    return options.get("dtype") or ("float32" if on_cpu else stated)


def bytes_a_number(config: Any, options: Mapping[str, Any]) -> int:
    """Bytes of one number in `chosen_dtype`."""
    return DTYPES.get(chosen_dtype(config, options), torch.float32).itemsize


def config_of(
    name: str, *, revision: str | None = None, trust_remote_code: bool | None = None, convert: bool = True
) -> Any:
    """The Hugging Face config of a model, without its weights; errors as for `load`.

    convert: whether a GGUF file that was not converted is, as by `load`; else its header is read, token by token.
    """
    place, options = _place(name, revision, trust_remote_code, convert)
    unconverted = place.file if "gguf_file" in options else None
    with _loading(name, place), reading(unconverted) if unconverted else contextlib.nullcontext():
        return _config(place, options)[0]


def _config(place: Place, options: Mapping[str, Any]) -> tuple[Any, Mapping[str, Any]]:
    """The config, and what its file states; Refused as by `check_stated`. A GGUF file's header was checked before.

    Of models with images of which AutoModelForCausalLM takes the text model, that one's (Llama-4, Qwen3.5).
    """
    if place.header:
        stated: Any = place.header.metadata
    else:
        try:
            without_trust = {key: value for key, value in options.items() if key != "trust_remote_code"}
            stated = PreTrainedConfig.get_config_dict(place.where, **without_trust)[0]
        except TypeError:  # of a file that holds null, or a number
            stated = None
        check_stated(stated)
    families.registry()  # whose packages may know a type that transformers does not
    config = AutoConfig.from_pretrained(place.where, **options)
    code = {} if options["trust_remote_code"] or place.header else stated.get("auto_map") or {}
    if own := code.get("AutoModelForCausalLM") or code.get("AutoConfig"):
        if type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
            raise ValueError("it needs trust_remote_code")  # as transformers says it of a type that it does not know
        used: Any = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
        _warn_own_code(place.where, own, used.__name__)
    if not place.header and not Path(place.where).is_dir() and not getattr(config, "_commit_hash", None):
        config._commit_hash = _folder(place, options).name or None  # transformers 5.24 keeps none
    kind = config.sub_configs.get("text_config")
    if kind and getattr(MODEL_FOR_CAUSAL_LM_MAPPING.get(type(config), None), "config_class", None) is kind:
        both, config = config, config.get_text_config()
        stated = stated if place.header else stated.get("text_config") or {}
        for name in ("_commit_hash", "_name_or_path", "dtype"):
            setattr(config, name, getattr(config, name, None) or getattr(both, name, None))
    note_stated(config, stated)
    return config, stated


@cache
def _warn_own_code(where: str, own: str, used: str) -> None:
    """Says on stderr, once, that a class of transformers takes the place of one that comes with a model."""
    sys.stderr.write(
        f"{where} comes with Python code of its own ({own}), which is not run: transformers' {used} is used in its "
        "place; to run it, read it, then give --trust-remote-code\n"
    )


def _folder(place: Place, options: Mapping[str, Any]) -> Path:
    """Where a model's files lie, in the cache of the hub or elsewhere."""
    if Path(place.where).is_dir():
        return Path(place.where)
    return Path(str(try_to_load_from_cache(place.where, "config.json", revision=options["revision"]))).parent


def tokenizer_of(name: str, *, revision: str | None = None, trust_remote_code: bool | None = None) -> Any:
    """The tokenizer of a model, without its weights; errors as for `load`."""
    place, options = _place(name, revision, trust_remote_code)
    with _loading(name, place, "tokenizer"):
        tokenizer, config = _tokenizer(place, options), _config(place, options)[0]
    return within(name, tokenizer, getattr(config, "vocab_size", None))


def _tokenizer(place: Place, options: Mapping[str, Any]) -> Any:
    tokenizer = AutoTokenizer.from_pretrained(place.where, **options)
    code = {} if options["trust_remote_code"] else tokenizer.init_kwargs.get("auto_map") or {}
    if own := [name for name in code.get("AutoTokenizer") or () if name]:
        _warn_own_code(place.where, own[-1], type(tokenizer).__name__)
    if place.header is None:
        return tokenizer
    if note := place.header.tokenizer_note:
        _warn_tokenizer(str(place.file), note)
    return tokenizer


@cache
def _warn_tokenizer(file: str, note: str) -> None:
    """Says on stderr, once, that a file's tokenizer may give other tokens than the model's own."""
    sys.stderr.write(
        f"the tokenizer of {file} is {note}: it may give other tokens, and so other losses; to be sure save the model "
        "to a folder (docs/models.md) and copy the model's own tokenizer files there\n"
    )


def _no_table(record: logging.LogRecord) -> bool:
    return "LOAD REPORT" not in record.getMessage()


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keeps transformers' own progress bars off, and its table of weights that do not fit, which we name."""
    bars, logger = transformers_logging.is_progress_bar_enabled(), logging.getLogger("transformers.modeling_utils")
    transformers_logging.disable_progress_bar()
    logger.addFilter(_no_table)
    try:
        yield
    finally:
        logger.removeFilter(_no_table)
        if bars:
            transformers_logging.enable_progress_bar()


@contextlib.contextmanager
def _loading(name: str, place: Place, *parts: str) -> Iterator[None]:
    """Quiet, and turns transformers' long errors into one line, which says what part of a model is not there."""
    try:
        with quiet():
            yield
    except OSError as error:
        _check_parts(name, place, parts)
        raise OSError(f"cannot load model {name!r}: {str(error).strip().splitlines()[0]}") from error
    except ImportError as error:
        raise Refused(
            f"cannot load model {name!r}: a package that it needs is not installed, or of another version: "
            f"{in_short(error)}"
        ) from error
    except Exception as error:  # a damaged file raises whatever its reader met
        if is_out_of_memory(error):
            raise
        _check_parts(name, place, parts)
        if isinstance(error, ValueError) and "trust_remote_code" in str(error):
            raise Refused(f"cannot load model {name!r}: {_OWN_CODE}") from error
        if "does not recognize this architecture" in str(error):
            unknown = f"its model type is not known to transformers {version}"
            raise Refused(f"cannot load model {name!r}: {unknown}") from error
        raise Refused(f"cannot load model {name!r}, a file of it is damaged or wrong: {in_short(error)}") from error


def _check_parts(name: str, place: Place, parts: Sequence[str]) -> None:
    """FileNotFoundError for a folder that lacks one of `_PARTS`."""
    folder = Path(place.where)
    for part in parts if folder.is_dir() and not place.file else ():
        files, remedy = _PARTS[part]
        if not any(path.is_file() for file in files for path in folder.glob(file)):
            raise NotFound(
                f"cannot load model {name!r}: no {part} in {folder} ({', '.join(files)}); {remedy}"
            ) from None


def in_short(error: Exception) -> str:
    """What an error of a library says, in one line that is not too long."""
    message = " ".join(str(error).split()) or "nothing said"
    message = f"{message} is not known" if isinstance(error, KeyError) else message
    return message if len(message) <= _LONGEST_REASON else f"{message[:_LONGEST_REASON]} ..."
