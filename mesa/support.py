"""Which configs take which methods, as far as a config says; needs no torch. The rest is found on the model."""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from mesa.errors import Refused
from mesa.families import family_of
from mesa.methods import Method, Origin, meant, registry, standard_methods

UNSCALED = ("default", "dynamic")
"""Values of rope_type whose frequencies follow one base; a dynamic one's are taken as they are within the window."""


_ATTENTION = ("full_attention", "sliding_attention", "chunked_attention", "hybrid", "hybrid_sliding")
"""Of layer_types: those that end so attend; transformers names the others otherwise (linear_attention, conv, mamba)."""


def is_rotary(kind: str) -> bool:
    """Whether models of a type are attached to by their rotary embeddings; others by ALiBi."""
    return not family_of(kind).alibi


def check_config(config: Any) -> None:
    """Refused, with the reason, when no method can be attached to a model with this config."""
    kind = config.model_type
    reason = family_of(kind).refused or _unlike_its_family(config)
    if not reason:
        mpt = getattr(config, "attn_config", None)  # which can be configured without ALiBi
        if not is_rotary(kind) and (mpt is None or mpt.alibi):
            return
        rotary = any(word in name for name in vars(config) for word in ("rope", "rotary", "mamba"))
        attends = any(getattr(config, name, None) for name in ("num_attention_heads", "per_layer_config"))
        if is_rotary(kind) and rotary and attends:
            return
        lacking = "it has no rotary embeddings and no ALiBi" if attends else "its config names no attention heads"
        reason = f"{lacking}, so no distances to change"
    raise Refused(f"model type {kind!r} is not supported: {reason}")


def check_method(config: Any, method: Method) -> None:
    """As `check_config`, and Refused when this method cannot be attached to such a model."""
    check_config(config)
    if not isinstance(method, Method):
        known, text = registry(), getattr(method, "name", method)
        name = text if text in known else "rerope"
        hint = meant(text, known) if isinstance(text, str) and text not in known else ""
        example = f"mesa.make({name!r}, trained_length=4096), with the length of your model"
        raise Refused(f"{method!r} is not a method: give one, such as {example}{hint}")
    reason = unfit(config, type(method))
    if reason:
        raise Refused(f"{method.name} cannot be attached to model type {config.model_type!r}: {reason}")
    stated = _parts(getattr(config, "rope_parameters", None))
    rope = next((part for part in stated if part.get("rope_type") == "dynamic"), {})
    parts = "layers" if method.layers is not None else "heads" if method.heads is not None else ""
    if parts and not method.uses_model_rope and rope:  # the base follows the length
        flat = f"rope_parameters={{'rope_type': 'default', 'rope_theta': {rope.get('rope_theta')}}}"
        raise Refused(
            f"{method.name}: {parts} cannot be chosen on this {config.model_type} model: the others would attend as "
            "trained, but its rotary base grows with the prompt (rope_type 'dynamic'); leave them out, or load the "
            f"model with {flat if rope is stated[0] else 'rope_type default for each kind of layers'}"
        )
    chosen = dict(method.heads or ())
    deepest = max(chosen or method.layers or (0,))
    if deepest >= config.num_hidden_layers:
        raise Refused(f"layer {deepest} is out of range; the model has layers 0-{config.num_hidden_layers - 1}")
    for layer, heads in chosen.items():
        if heads[-1] >= heads_of(config, layer):
            last = heads_of(config, layer) - 1
            raise Refused(f"head {heads[-1]} of layer {layer} is out of range; the model has heads 0-{last}")


def check_acts(config: Any, method: Method) -> None:
    """Refused for a method that would act in no layer, as far as a config says; `mesa.applied` sees it on the model."""
    windows = windows_of(config)
    if windows and {*attending_layers(config)} == as_trained(windows, method).keys():
        raise Refused(no_layer_acts(method, config, windows.values()))


def attending_layers(config: Any) -> list[int]:
    """The layers with attention, as far as a config says; the others are convolutions, or carry a state."""
    kinds = getattr(config, "layer_types", None) or ["full_attention"] * config.num_hidden_layers
    return [layer for layer, kind in enumerate(kinds) if str(kind).endswith(_ATTENTION)]


def headed_layers(config: Any, layers: Sequence[int] | None) -> list[int]:
    """Those of some layers (None: all) that have heads; Refused for a named one without, and where counts differ."""
    attending = attending_layers(config)
    for layer in layers or ():
        if layer not in attending:
            raise Refused(f"layer {layer} has no attention, so no heads; those with: {layers_text(attending)}")
    if len({heads_of(config, layer) for layer in attending}) > 1:
        raise Refused(f"layers of this {config.model_type} model differ in their number of heads, which needs one")
    return list(attending if layers is None else layers)


def heads_of(config: Any, layer: int) -> int:
    """The query heads of a layer, which a config may state layer by layer."""
    stated = getattr(config, "num_attention_heads_per_layer", None)
    if stated:
        return stated[layer]
    each = getattr(config, "per_layer_config", None)  # transformers' configs refuse the one number where layers differ
    return config.num_attention_heads if each is None else each[layer].num_attention_heads


def head_sizes(config: Any) -> tuple[int, int, int]:
    """Query heads and key-value heads of a layer, and dims of a head; of each the largest, where layers differ."""
    view = getattr(config, "per_layer_config", None)
    each = [config] if view is None else [view[layer] for layer in range(config.num_hidden_layers)]

    def largest(name: str) -> int:
        return max((getattr(layer, name, None) or 0 for layer in each), default=0)

    heads = largest("num_attention_heads")
    return heads, largest("num_key_value_heads") or heads, largest("head_dim") or config.hidden_size // heads


def missing(kind: str, method: type[Method]) -> str:
    """Why a model type cannot have a method; empty where it can."""
    family = family_of(kind)
    alibi = "it changes rotary frequencies, and ALiBi has none" if family.alibi and method.needs_rotary else ""
    return family.refused or alibi


def unfit(config: Any, method: type[Method]) -> str:
    """Why a model with this config cannot have a method: its type, or how its rotary frequencies are scaled."""
    scaled = sorted({kind for kind in _scalings(config) if kind not in UNSCALED})
    return missing(config.model_type, method) or _scaled_already(scaled, method)


_PARTLY = "proportional"
"""The rope_type of layers in which only the first rotary pairs turn."""
_REMEDY = "; take another method"


def _scaled_already(scaled: list[str], method: type[Method]) -> str:
    """Why frequencies scaled in these ways leave no base that a method could go by; empty where it needs none."""
    if not (scaled and method.needs_base):
        return ""
    if _PARTLY in scaled:
        return "it goes by the base of rotary frequencies, and some of this model's pairs do not turn at all"
    kinds = " and ".join(kind if kind == "..." else repr(kind) for kind in scaled)
    return (
        f"its config scales rotary frequencies already (rope_type {kinds}), and where to scale them follows from the "
        f"base of unscaled ones{_REMEDY}"
    )


def _scalings(config: Any) -> list[str]:
    """The ways in which a config scales rotary frequencies, of every kind of layers."""
    parts = _parts(getattr(config, "rope_parameters", None))
    return [str(part["rope_type"]) for part in parts if part.get("rope_type") is not None]


def _parts(rope: Any) -> list[Mapping[str, Any]]:
    """What a config states of rotary frequencies: for all layers, and for each kind of them."""
    if not isinstance(rope, Mapping):
        return []
    return [rope, *(part for part in rope.values() if isinstance(part, Mapping))]


_CHUNK = "attention_chunk_size"


def windows_of(config: Any) -> dict[int, int]:
    """The tokens (itself included) that a layer with a sliding window or chunks sees, by layer.

    As transformers' `DynamicCache` reads a config; a layer that sees everything is left out.
    """
    sliding = getattr(config, "sliding_window", None) or getattr(config, "attention_window_size", None)
    chunked = getattr(config, _CHUNK, None)
    sizes = {"sliding_attention": sliding, "chunked_attention": chunked, "hybrid_sliding": sliding}
    kinds = getattr(config, "layer_types", None)
    if kinds is None:
        kinds = [next((kind for kind, size in sizes.items() if size), "")] * config.num_hidden_layers
    return {layer: size for layer, kind in enumerate(kinds) if (size := sizes.get(kind))}


def as_trained(windows: Mapping[int, int], method: Method) -> dict[int, int]:
    """The `windows` (tokens, by layer) that hold no distance of M or more: the method leaves these layers as trained.

    So do transformers and Gemma 3's authors, who scale the rotary frequencies of full-attention layers only. None where
    the method names its layers or heads.
    """
    if method.layers is not None or method.heads is not None or isinstance(method, Origin):
        return {}
    return {layer: size for layer, size in windows.items() if size <= method.trained_length}


def as_trained_text(windows: Mapping[int, int], trained_length: int) -> str:
    """Which layers `as_trained` names, and why; empty for none."""
    sizes: dict[int, list[int]] = {}
    for layer, size in windows.items():
        if size <= trained_length:
            sizes.setdefault(size, []).append(layer)
    parts = [f"{layers_text(layers)} ({size} tokens seen)" for size, layers in sorted(sizes.items())]
    return f"no method changes {' and '.join(parts)}: no distance there reaches M = {trained_length}" if parts else ""


def layers_text(layers: Sequence[int]) -> str:
    """Layers in words, e.g. 'layers 0-4, 6'."""
    spans: list[list[int]] = []
    for layer in sorted(layers):
        if spans and layer == spans[-1][1] + 1:
            spans[-1][1] = layer
        else:
            spans.append([layer, layer])
    named = ", ".join(f"{first}-{last}" if last > first else f"{first}" for first, last in spans)
    return f"layer{'s' * (len(layers) > 1)} {named}"


def no_layer_acts(method: Method, config: Any, sizes: Collection[int], trained: int | None = None) -> str:
    """Why a method would change nothing, in one line with the remedy. trained: M; default the method's."""
    seen, trained = " and ".join(str(size) for size in sorted({*sizes})), trained or method.trained_length
    return (
        f"{method.name} would change nothing: layers of this {config.model_type} model see {seen} tokens, and no "
        f"distance there reaches M = {trained}; use the model as it is, name layers= to change them all the same, or "
        f"state a trained length below {min(sizes)}"
    )


_ORIGINAL = "original_max_position_embeddings"
_LENGTHS = ("max_position_embeddings", "max_seq_len", "seq_length")
_UNSTATED, _BEFORE = "states_no_trained_length", "states_length_before_scaling"
"""A config's attributes, true where its length is transformers' default and not its file's word; and where a file
states the length before rotary scaling, which transformers otherwise sets to max_position_embeddings."""


def note_stated(config: Any, stated: Mapping[str, Any]) -> None:
    """Has `trained_length` know what a config's file states: config.json's keys, or a GGUF file's metadata."""
    keys = {getattr(config, "attribute_map", {}).get(key, key) for key, value in stated.items() if value is not None}
    rope = (part for key in ("rope_parameters", "rope_scaling") for part in _parts(stated.get(key)))
    in_rope = any(part.get(_ORIGINAL) is not None for part in rope)
    in_header = any(str(key).endswith(".context_length") for key in keys)
    if in_rope or _ORIGINAL in keys:
        setattr(config, _BEFORE, True)
    if not (in_rope or in_header or keys & {_ORIGINAL, _CHUNK, *_LENGTHS}):
        setattr(config, _UNSTATED, True)


def trained_length(config: Any) -> int:
    """The window that a config states (tokens); Refused where it states none. Configs can be wrong about it."""
    return _trained_length(config)[1]


def _trained_length(config: Any) -> tuple[str, int]:
    """The window, and the name under which it is stated."""
    none = f"the config of this {config.model_type} model states no trained length; give --trained-length"
    if getattr(config, _UNSTATED, False):
        raise Refused(none)
    scaled = [(_ORIGINAL, part.get(_ORIGINAL)) for part in _parts(getattr(config, "rope_parameters", None))]
    given = [*scaled, *((name, getattr(config, name, None)) for name in (_ORIGINAL, *_LENGTHS))]
    given = [(name, length) for name, length in given if length is not None]
    for name, length in given:
        if not isinstance(length, int) or length < 2:
            raise Refused(
                f"the config of this {config.model_type} model states {name} {length!r}, no trained length; "
                "give --trained-length"
            )
    if _turns_in_chunks(config):
        given.insert(0, (_CHUNK, getattr(config, _CHUNK)))
    if not given:
        raise Refused(none)
    return given[0]


def _turns_in_chunks(config: Any) -> bool:
    """Whether every layer that rotates sees no further back than its chunk, as in Llama-4."""
    turns = getattr(config, "no_rope_layers", None)  # 1: it rotates
    kinds = getattr(config, "layer_types", None)
    if not (getattr(config, _CHUNK, None) and turns and kinds):
        return False
    return any(turns) and all(kind == "chunked_attention" for kind, turn in zip(kinds, turns, strict=False) if turn)


def length_choice(config: Any) -> str:
    """Which of a config's lengths `trained_length` takes, and why; empty where it states one."""
    name, length = _trained_length(config)
    other = getattr(config, "max_position_embeddings", None)
    ways = " and ".join(dict.fromkeys(kind for kind in _scalings(config) if kind not in UNSCALED)) or "scaled"
    take = f"give --trained-length {other} to take that"
    if name == _CHUNK:
        return (
            f"M = {length} by the config's {_CHUNK}: layers that rotate see no further back than their chunk; it also "
            f"states max_position_embeddings {other}: {take}"
        )
    if name != _ORIGINAL or other is None:
        return ""
    if other != length:
        return (
            f"M = {length} by the config's {_ORIGINAL}, the length before its rotary scaling ({ways}); it also states "
            f"max_position_embeddings {other}: {take}"
        )
    factor = max((part.get("factor") or 1 for part in _parts(getattr(config, "rope_parameters", None))), default=1)
    if factor <= 1 or getattr(config, _BEFORE, False):
        return ""
    return (
        f"M = {length} by the config's max_position_embeddings, which is taken as the length before its rotary scaling "
        f"({ways}, factor {factor:g}), as transformers does; if it is stretched already, give --trained-length "
        f"{int(length / factor)}"
    )


def stated_text(config: Any, stated: int | None = None) -> str:
    """What M, windows and rotary frequencies are, and by which names of the config; stated: M, where the user says it.

    Raises Refused where neither states M.
    """
    try:
        name, length = _trained_length(config)
        by = f"the config's {name}"
    except Refused:
        if stated is None:
            raise
        name, length, by = "", stated, "--trained-length; the config states none"
    if stated not in (None, length):
        by = f"--trained-length; {by} is {length}"
    lines = [f"M = {stated or length} tokens, by {by}"]
    other = getattr(config, "max_position_embeddings", None)
    if name and name not in _LENGTHS and other not in (None, length):
        lines[0] += f" (max_position_embeddings {other})"
    sizes: dict[int, list[int]] = {}
    for layer, size in windows_of(config).items():
        sizes.setdefault(size, []).append(layer)
    depth = config.num_hidden_layers
    for size, layers in sorted(sizes.items()):
        lines.append(f"{_layers_of(layers, depth)} see{'s' * (len(layers) == 1 < depth)} {size} tokens")
    rope, kinds = getattr(config, "rope_parameters", None), getattr(config, "layer_types", None) or []
    parts = {kind: part for kind, part in (rope or {}).items() if isinstance(part, Mapping)}
    for kind, part in (parts or ({"": rope} if rope else {})).items():
        layers = [layer for layer, of in enumerate(kinds) if of == kind]
        where = f" in {_layers_of(layers, depth)}" if layers else f" in {kind}" if kind else ""
        base = part.get("rope_theta")
        lines.append(f"rotary base {base or 'not stated':{'.15g' if base else ''}}{where}{_scaling_text(part)}")
    return "; ".join(lines)


def _layers_of(layers: Sequence[int], depth: int) -> str:
    return "all layers" if len(layers) == depth else layers_text(layers)


def _scaling_text(part: Mapping[str, Any]) -> str:
    """What the model does to its rotary frequencies as it is, in words; empty for nothing."""
    kind = part.get("rope_type", "default")
    factor = part.get("factor")
    before = part.get(_ORIGINAL)
    details = [*([f"factor {factor:g}"] if factor else []), *([f"{_ORIGINAL} {before}"] if before else [])]
    how = f" ({', '.join(details)})" if details else ""
    if kind == "dynamic":
        return f", larger for prompts beyond M (dynamic{f', factor {factor:g}' if factor else ''})"
    if kind == _PARTLY:
        return f", which rotates a part of the pairs ({kind})"
    return "" if kind in UNSCALED else f", scaled already by {kind}{how}"


def table() -> str:
    """Ways in which positions enter a model, by methods, in Markdown: 'yes', or 'no' and the number of the reason."""
    methods = standard_methods()
    ways: dict[str, Callable[[type[Method]], str]] = {
        "rotary": lambda _: "",
        "rotary, frequencies scaled": lambda method: _scaled_already(["..."], method).removesuffix(_REMEDY),
        "rotary, `proportional`": lambda method: _scaled_already([_PARTLY], method),
        "ALiBi": lambda method: missing("mpt", method),
    }
    why = {way: [reason(method) for method in methods.values()] for way, reason in ways.items()}
    reasons = list(dict.fromkeys(reason for row in why.values() for reason in row if reason))
    lines = [f"| | {' | '.join(f'`{name}`' for name in methods)} |", "|---" * (len(methods) + 1) + "|"]
    for way, row in why.items():
        lines.append(f"| {way} | {' | '.join(f'no ({reasons.index(why) + 1})' if why else 'yes' for why in row)} |")
    notes = [f"({number}) {reason}" for number, reason in enumerate(reasons, 1)]
    return "\n".join([*lines, "", "; ".join(notes) + "."])


def _unlike_its_family(config: Any) -> str:
    """Why a model cannot have a method though others of its type can; empty where it can."""
    if getattr(config, "use_bidirectional_attention", None) not in (None, False, "vision"):  # Gemma-4's text is causal
        return "its tokens see ahead (use_bidirectional_attention)"
    if not hasattr(config, "num_hidden_layers"):
        return "it is not one stack of decoder layers; where it holds a text model, take that (docs/models.md)"
    return "it is an encoder-decoder" if getattr(config, "is_encoder_decoder", False) else ""
