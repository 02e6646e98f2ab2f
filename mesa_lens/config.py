"""`mesa-lens config`: prints what serves a method: keys of config.json, options of vLLM, SGLang and llama.cpp.

Each line was read in the source of the version that it names. What no server computes, Python generates.
"""

import copy
import json
import math
import shlex
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from types import MappingProxyType
from typing import Annotated, Any, ClassVar

import numpy as np
from pydantic import Field

from mesa.checkpoints.place import place_with_options
from mesa.errors import Refused
from mesa.methods import Method, make
from mesa.settings import check_names, read_config
from mesa.support import as_trained, check_acts, check_method, is_rotary, layers_text, windows_of
from mesa_lens.arguments import JsonOptions
from probe.options import MAX_TOKENS, REQUIRED, Length, Text, option, options_in
from probe.request import ModelOptions, SourceOptions

CHECKED = {
    "transformers": "5.24.0",
    "vLLM": "0.33.0",
    "SGLang": "0.5.23",
    "llama.cpp": "commit 0c1e57098",
}
"""The version of each server whose source was read; the first is also tested."""
_DUAL_CHUNK = {"version": "0.5.18", "types": ("qwen2", "qwen2_moe", "qwen3_moe", "glm4")}
"""SGLang's last release with a backend for `dual_chunk_attention_config`, and the models that it hands it to."""
_OWN_ROTARY = ("phimoe", "recurrent_gemma")
"""Their rotary modules are not transformers' common ones, and take fewer keys."""
_NORMED = ("hunyuan_v1_dense", "hunyuan_v1_moe", "nanochat")
_WITHOUT_POSITIONS = ("afmoe", "beam", "cohere2", "cohere2_moe", "exaone4", "exaone_moe", "flint", "kolibri1")
"""Models whose full-attention layers have no positions."""
_NEVER = 1e30  # divides a frequency that is to be 0; JSON has no infinity


@dataclass(frozen=True)
class ServeOptions:
    """What is served."""

    method: Text = option(
        REQUIRED, "a method, with parameters where they are not the defaults: yarn, yarn:factor=8", positional=True
    )
    length: Annotated[Length, Field(ge=1, le=MAX_TOKENS)] = option(REQUIRED, "tokens of the longest text, e.g. 16k")


@dataclass(frozen=True)
class ServedModel(ModelOptions):
    """A model by its config: none of its weights are loaded, so no option says how."""

    load: Mapping[str, Any] = options_in(SourceOptions, build=dict, default=dict)
    converts: ClassVar[bool] = False


HELP = "print what serves a method: config.json, vLLM, SGLang, llama.cpp"
EXAMPLE = "mesa-lens config yarn:factor=8 --model default --length 2048"


@dataclass(frozen=True)
class Serving:
    """How a method is served. It prints itself.

    Args:
        model: The model, as it was named.
        method: The method's parameters, with its name.
        trained_length: M, tokens.
        length: Tokens of the longest text.
        config: Keys of config.json for transformers; None where they cannot state the method.
        commands: What starts each other server that can compute it.
        notes: Where what is served differs from what Mesa Lens computes, and why a server is missing.
        python: Lines that generate under the method, which always work.
        checked: The versions whose source was read, by server.
    """

    model: str
    method: dict[str, Any]
    trained_length: int
    length: int
    python: str
    config: dict[str, Any] | None = None
    commands: dict[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    checked: Mapping[str, str] = field(default_factory=lambda: dict(CHECKED))

    def __str__(self) -> str:
        """The same in words."""
        name = self.method["name"]
        parts = [f"{name} on {self.model}: M = {self.trained_length}, texts up to {self.length} tokens"]
        if self.config is not None:
            change = f"in config.json set\n{_indented(json.dumps(self.config))}" if self.config else "config.json as is"
            parts.append(f"transformers ({self.checked['transformers']}): {change}")
        parts += [f"{server} ({self.checked[server]}):\n    {line}" for server, line in self.commands.items()]
        if self.config is None and not self.commands:
            parts.append("cannot be served by options: generate in Python")
        parts += [f"note: {note}" for note in self.notes]
        return "\n\n".join([*parts, f"Python:\n{_indented(self.python)}"])


def _indented(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.splitlines())


def run(options: ServeOptions, request: ServedModel, printing: JsonOptions) -> int:
    """Prints what serves the method."""
    check_names(options.method.partition(":")[0])
    config, trained = request.checked_model()
    method = read_config(options.method, trained, "METHOD")
    check_method(config, method)
    check_acts(config, method)
    place = place_with_options(request.model, **request.source)[0]
    where = str(place.file or place.where)
    served = serving(method, config, options.length, request.model, where, request.source)
    print(json.dumps(asdict(served), indent=1) if printing.json else served)
    return 0


def serving(
    method: Method,
    config: Any,
    length: int,
    model: str = "MODEL",
    where: str = "",
    source: Mapping[str, Any] = MappingProxyType({}),
) -> Serving:
    """What serves a method on a model.

    Args:
        method: The method.
        config: The model's config, as transformers reads it.
        length: Tokens of the longest text.
        model: Its name.
        where: Its folder, file or hub id, for the servers' commands; default `model`.
        source: `revision` and `trust_remote_code` of `mesa.load`, where they are set.

    Raises:
        Refused: The method's own factor does not reach this length.
    """
    trained = method.trained_length
    default = make(method.name, trained).describe()
    changed = {key: value for key, value in method.describe().items() if value != default.get(key)}
    parameters = "".join(f", {key}={value!r}" for key, value in changed.items())
    options = {key: value for key, value in source.items() if value}
    loading = "".join(f", {key}={value!r}" for key, value in options.items())
    python = (
        f"loaded = mesa.load({model!r}{loading})\n"
        f"with mesa.applied(loaded.model, mesa.make({method.name!r}, trained_length={trained}{parameters})):\n"
        '    output = loaded.model.generate(**loaded.tokenizer(prompt, return_tensors="pt"))'
    )
    served: dict[str, Any] = {
        "model": model, "method": method.describe(), "trained_length": trained, "length": length, "python": python
    }  # fmt: skip
    if (recipe := _RECIPES.get(method.name)) is None:
        return Serving(**served, notes=(f"no server computes {method.name}",))
    if why := _unserved(method, config):
        return Serving(**served, notes=(why,))
    flags = [f"--{key.replace('_', '-')}" + ("" if value is True else f"={value}") for key, value in options.items()]
    quoted = shlex.join([where or model, *flags])  # the recipes' `model`, as a shell reads it
    result = recipe(method, config, length, quoted)
    if why := _not_taken(config, result.get("config") or {}):
        return Serving(**served, notes=(why,))
    return Serving(**served, **result)


def _not_taken(config: Any, keys: Mapping[str, Any]) -> str:
    """Why a config.json with these keys cannot be read, as the validators of its class say; empty where it can."""
    if not keys:
        return ""
    from huggingface_hub.errors import StrictDataclassError
    from transformers.utils import logging as transformers_logging

    verbosity = transformers_logging.get_verbosity()
    transformers_logging.set_verbosity_error()
    try:
        type(config).from_dict(copy.deepcopy({**config.to_dict(), **keys}))
    except (ValueError, KeyError, TypeError, AttributeError, StrictDataclassError) as error:
        why = str(error).strip() or type(error).__name__
        return f"{type(config).__name__} does not take it: {why.splitlines()[-1].strip()}"
    finally:
        transformers_logging.set_verbosity(verbosity)
    return ""


def _unserved(method: Method, config: Any) -> str:
    """Why options cannot state a method on a model; empty where they can."""
    if method.log_n:
        return f"log_n scales each query by its position, which no server does; {method.name}:log_n=false can be served"
    if method.heads is not None or (method.layers is not None and len(method.layers) < config.num_hidden_layers):
        return "some layers or heads alone have the method, and a config states it for all"
    return ""


def _rope(method: Method, config: Any, length: int) -> dict[str, Any] | str:
    """`rope_parameters` of a method that changes rotary frequencies, or why there are none."""
    if not is_rotary(config.model_type):
        return "ALiBi has no rotary parameters"
    stated = {
        key: value for key, value in (getattr(config, "rope_parameters", None) or {}).items() if value is not None
    }
    kind = config.model_type
    if not stated or kind in _OWN_ROTARY:
        return f"models of type {kind} read no such rotary parameters" if stated else "it rotates nothing"
    if method.name == "yarn" and kind in _NORMED:
        return "its queries and keys are normed after they are rotated, so that servers cannot raise them"
    if method.name == "yarn" and (
        kind in _WITHOUT_POSITIONS or not all(getattr(config, "no_rope_layers", None) or [1])
    ):
        return "some layers have no positions: servers leave their scores, Mesa Lens raises them"
    kept = as_trained(windows_of(config), method)
    kinds = getattr(config, "layer_types", None) or ["full_attention"] * config.num_hidden_layers
    by_kind = {key: value for key, value in stated.items() if isinstance(value, Mapping)}
    if not by_kind:
        if kept:
            return (
                f"{layers_text([*kept])} stay as trained under the method (sliding windows), and share their rotary "
                f"parameters with the others; {method.name}:layers={tuple(range(config.num_hidden_layers))} is served"
            )
        return _part(method, config, stated, length)
    parts: dict[str, Any] = {}
    for kind, part in by_kind.items():
        layers = {layer for layer, name in enumerate(kinds) if name == kind}
        changed = part if layers <= kept.keys() else _part(method, config, part, length)
        if isinstance(changed, str):
            return changed
        parts[kind] = dict(changed)
    return {**config.rope_parameters, **parts} if parts != by_kind else "no layer that rotates has the method"


def _part(method: Method, config: Any, part: Mapping[str, Any], length: int) -> dict[str, Any] | str:
    """The rotary parameters of one kind of layers under a method, or why there are none."""
    way = part.get("rope_type", "default")
    if way == "linear" and method.name == "pi":  # two factors are one
        return {**part, "factor": float(part["factor"] * _factor(method, length))}
    if way != "default":
        return f"its config scales rotary frequencies already (rope_type {way!r}), and has room for one way"
    dims = _rotary_dims(config, part)
    if isinstance(dims, str):
        return dims
    if method.name == "pi":
        return {**part, "rope_type": "linear", "factor": float(_factor(method, length))}
    if method.name == "dynamic-ntk":
        return {**part, "rope_type": "dynamic", "factor": float(_factor(method, length))}
    if method.name == "yarn":
        if dims < _head_dim(config):
            return (
                f"it rotates {dims} of the {_head_dim(config)} dims of a head: servers raise these alone by "
                "0.1 ln s + 1, Mesa Lens the full score"
            )
        original = {"original_max_position_embeddings": method.trained_length}
        return {**part, "rope_type": "yarn", "factor": float(_factor(method, length)), **original}
    scale = method.plan(length).frequency_scale
    assert scale is not None
    factors = [1 / max(float(value), 1 / _NEVER) for value in scale(np.arange(dims // 2), dims, part["rope_theta"])]
    longrope = {"short_factor": factors, "long_factor": factors, "factor": 1.0, "attention_factor": 1.0}
    original = {"original_max_position_embeddings": method.trained_length}
    return {**part, "rope_type": "longrope", **longrope, **original}


def _head_dim(config: Any) -> int:
    return getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads


def _rotary_dims(config: Any, part: Mapping[str, Any]) -> int | str:
    """Dims of a head that are rotated, or why that is not one number."""
    each = getattr(config, "per_layer_config", None)
    sizes = {getattr(each[layer], "head_dim", None) for layer in range(config.num_hidden_layers)} if each else {0}
    dims = 0 if len(sizes) > 1 else int(_head_dim(config) * (part.get("partial_rotary_factor") or 1.0))
    if dims < 4 or dims % 2 or hasattr(config, "qk_rope_head_dim"):
        return "the rotated dims of its heads are not stated by one even number"
    return dims


def _factor(method: Any, length: int) -> float:
    """s; of PI without a factor that of a prompt of this length."""
    return method.factor or max(1.0, length / method.trained_length)


def _check_reach(method: Any, length: int) -> None:
    reach = round((method.factor or math.inf) * method.trained_length, 6)  # 2.3 x 3000 is 6900
    if length > reach:
        least = math.ceil(length / method.trained_length)
        raise Refused(
            f"{method.name} with factor={method.factor:g} reaches {reach:g} tokens, {method.factor:g} M, not --length "
            f"{length}; give {method.name}:factor={least}"
        )


def _by_frequencies(method: Method, config: Any, length: int, model: str) -> dict[str, Any]:
    """PI, YaRN, CoPE, NTK-mixed: the same frequencies at every length."""
    if method.name in ("pi", "yarn"):
        _check_reach(method, length)
    rope = _rope(method, config, length)
    if isinstance(rope, str):
        return {"notes": (rope,)}
    positions = length if method.name != "pi" or "gemma3" in config.model_type else _positions(method, length)
    mscale = {"short_mscale": 1.0, "long_mscale": 1.0} if method.name in ("cope", "ntk-mixed") else {}
    commands = _servers(config, {**rope, **mscale}, positions, length, model)
    flat = not any(isinstance(part, Mapping) for part in rope.values())
    if method.name in ("pi", "yarn") and (flat or _slides_alone(config, rope)):
        scale = f"{(rope if flat else rope['full_attention'])['factor']:g}"
        way = "linear" if method.name == "pi" else f"yarn --yarn-orig-ctx {method.trained_length}"
        commands["llama.cpp"] = f"llama-server -m MODEL.gguf -c {length} --rope-scaling {way} --rope-scale {scale}"
    notes = ["its frequencies hold at every length, inside M too"]
    if not flat:
        notes.append("SGLang does not read the scaling of models with rotary parameters by kind of layer")
    return {"config": {"rope_parameters": rope, **_more(method, config)}, "commands": commands, "notes": tuple(notes)}


def _slides_alone(config: Any, rope: Mapping[str, Any]) -> bool:
    """Whether full-attention layers alone are changed: llama.cpp keeps sliding ones as trained."""
    return {kind for kind, part in rope.items() if part != config.rope_parameters[kind]} == {"full_attention"}


def _positions(method: Any, length: int) -> int:
    """The length that servers multiply by PI's factor."""
    return max(method.trained_length, math.ceil(length / _factor(method, length)))


def _more(method: Method, config: Any) -> dict[str, Any]:
    """Other keys of config.json on which the rotary parameters depend."""
    keys: dict[str, Any] = {}
    trained, original = method.trained_length, "original_max_position_embeddings"
    if method.name == "dynamic-ntk" and config.max_position_embeddings != trained:
        keys["max_position_embeddings"] = trained
    if getattr(config, original, trained) != trained:
        keys[original] = trained
    if hasattr(config, "head_dim") and config.head_dim is None and method.name != "pi":
        keys["head_dim"] = _head_dim(config)
    return keys


def _servers(config: Any, rope: Mapping[str, Any], positions: int, length: int, model: str) -> dict[str, str]:
    """vLLM's and SGLang's commands for these rotary parameters; SGLang's only where all layers share them."""
    keys = {"rope_parameters": rope, "max_position_embeddings": positions}
    commands = {"vLLM": _vllm(model, length, keys)}
    if not any(isinstance(part, Mapping) for part in rope.values()):
        commands["SGLang"] = _sglang(model, length, keys)
    return commands


def _sglang(model: str, length: int, keys: Mapping[str, Any]) -> str:
    line = f"python -m sglang.launch_server --model-path {model} --context-length {length}"
    return f"{line} --json-model-override-args '{json.dumps(keys)}'" if keys else line


def _vllm(model: str, length: int, keys: Mapping[str, Any]) -> str:
    line = f"vllm serve {model} --max-model-len {length}"
    return f"{line} --hf-overrides '{json.dumps(keys)}'" if keys else line


def _dynamic(method: Any, config: Any, length: int, model: str) -> dict[str, Any]:
    """Dynamic NTK: transformers follows the length, the other servers have one base."""
    rope = _rope(method, config, length)
    if isinstance(rope, str):
        return {"notes": (rope,)}
    growth = max(1.0, method.factor * length / method.trained_length - (method.factor - 1))

    def with_base(part: Any, stated: Any) -> Any:
        if not part or part.get("rope_type") != "dynamic":
            return part
        dims: Any = _rotary_dims(config, stated)  # a number, as `_rope` saw
        return {**stated, "rope_theta": stated["rope_theta"] * growth ** (dims / (dims - 2))}

    flat = "rope_type" in rope
    stated = config.rope_parameters
    fixed = with_base(rope, stated) if flat else {kind: with_base(part, stated[kind]) for kind, part in rope.items()}
    commands = _servers(config, fixed, length, length, model)
    if flat or _slides_alone(config, rope):
        base = (fixed if flat else fixed["full_attention"])["rope_theta"]
        commands["llama.cpp"] = f"llama-server -m MODEL.gguf -c {length} --rope-freq-base {base:.8g}"
    note = f"but for transformers the base is fixed at that of a text of {length} tokens, for shorter ones too"
    later = "transformers keeps the base of each cached key's own step: after the first token its answers can differ"
    return {
        "config": {"rope_parameters": rope, **_more(method, config)}, "commands": commands, "notes": (note, later)
    }  # fmt: skip


def _as_is(method: Method, config: Any, length: int, model: str) -> dict[str, Any]:
    """Origin, and Crop, which is Origin on fewer tokens."""
    if method.name == "crop":
        length = method.trained_length
        note = f"send the last {length} tokens of a text alone"
        commands = _plain(config, length, model)
        return {"config": {}, "commands": commands, "notes": (note,)}
    return {"config": {}, "commands": _plain(config, length, model)}


def _plain(config: Any, length: int, model: str) -> dict[str, str]:
    stated = [key for key in ("max_position_embeddings", "max_seq_len", "seq_length") if hasattr(config, key)]
    keys = {key: length for key in stated[:1] if length > (getattr(config, key) or 0)}
    return {
        "vLLM": _vllm(model, length, keys),
        "SGLang": _sglang(model, length, keys),
        "llama.cpp": f"llama-server -m MODEL.gguf -c {length}",
    }


def _dual_chunk(method: Any, config: Any, length: int, model: str) -> dict[str, Any]:
    """DCA by SGLang, in the last release that has it."""
    version, types = _DUAL_CHUNK["version"], _DUAL_CHUNK["types"]
    gone = f"vLLM {CHECKED['vLLM']} and SGLang {CHECKED['SGLang']} read dual_chunk_attention_config and cannot run it"
    if config.model_type not in types or method.mscale:
        why = "mscale=true is theirs in another form" if method.mscale else f"it ran on {', '.join(types)} alone"
        return {"notes": (f"{gone}; SGLang {version} was the last that could, and {why}",)}
    chunks = {"chunk_size": method.most, "local_size": method.most - method.chunk}
    keys = {"dual_chunk_attention_config": chunks, "max_position_embeddings": length}
    line = f"{_sglang(model, length, keys)} --attention-backend dual_chunk_flash_attn"
    return {
        "commands": {"SGLang": line},
        "notes": (f"{gone}; SGLang {version} is the last that can",),
        "checked": {**CHECKED, "SGLang": version},
    }


def _grouped(method: Any, config: Any, length: int, model: str) -> dict[str, Any]:
    """Self-Extend by llama.cpp's group attention."""
    group = method.group
    window = max(1, round(method.window / group)) * group
    line = f"llama-completion -m MODEL.gguf -c {length} --grp-attn-n {group} --grp-attn-w {window}"
    note = (
        f"nearly: llama.cpp groups {window} tokens at a time: a token sees between 0 and {window} of those before its "
        f"batch (-b) ungrouped, not always {method.window}; llama-server has no group attention"
    )
    return {"commands": {"llama.cpp": line}, "notes": (note,)}


_RECIPES = {
    "origin": _as_is, "crop": _as_is, "pi": _by_frequencies, "yarn": _by_frequencies, "cope": _by_frequencies,
    "ntk-mixed": _by_frequencies, "dynamic-ntk": _dynamic, "dca": _dual_chunk, "self-extend": _grouped,
}  # fmt: skip
"""By method; the servers that each can name are the method's `servers`."""
