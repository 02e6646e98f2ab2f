"""What is around the model: its place, what its config says of M, what its tokenizer puts first, TransformerLens."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from mesa.checking.rows import FAILED, NOT_RUN, NOTE, Found, Row, judged
from mesa.checking.subject import Subject, apart, run
from mesa.engine.apply import applied
from mesa.engine.bridge import bridge
from mesa.methods import Method
from mesa.support import trained_length

HOOKS = "bridge against hidden states"
"""A check's name."""

_NO_TOKENIZER = "no tokenizer was given; the rest does without"
_STATED = ("max_position_embeddings", "max_seq_len", "original_max_position_embeddings", "sliding_window")


def placed(subject: Subject) -> Row:
    """The model's dtype and devices."""
    weights = list(subject.model.parameters())
    dtypes = ", ".join(sorted({str(each.dtype).removeprefix("torch.") for each in weights}))
    devices = ", ".join(sorted({str(each.device) for each in weights}))
    return Row("dtype and device", NOTE, f"{dtypes} on {devices}; what is allowed follows from the dtype")


def window(subject: Subject, stated: int | None) -> Row:
    """What the config says of M, and which M other commands will use."""
    config = subject.model.config
    said = {name: getattr(config, name, None) for name in _STATED}
    rope = dict(getattr(config, "rope_parameters", None) or {})
    if rope.get("rope_type", "default") != "default":
        said["rope scaling"] = ", ".join(
            f"{key} {value}" for key, value in rope.items() if isinstance(value, str | int | float)
        )
    words = "; ".join(f"{name} {value}" for name, value in said.items() if value) or "nothing"
    try:
        used = f"M = {stated or trained_length(config)} {'is stated' if stated else 'is used'}"
    except ValueError:
        used = "no M follows from it: give --trained-length"
    return Row("trained window", NOTE, f"the config says {words}; {used}; configs can be wrong about it")


def first_token(subject: Subject) -> Row:
    """What the tokenizer puts before a text; failed where it gives tokens that the model does not have."""
    name, tokenizer = "first token", subject.tokenizer
    if tokenizer is None:
        return Row(name, NOT_RUN, _NO_TOKENIZER)
    bare = tokenizer(" hello hello", add_special_tokens=False)["input_ids"]
    whole = tokenizer(" hello hello")["input_ids"]
    known = subject.model.get_input_embeddings().num_embeddings
    if max([*whole, len(tokenizer) - 1]) >= known:
        says = f"the tokenizer gives {len(tokenizer)} tokens and the model knows {known}; they are two models'"
        return Row(name, FAILED, says)
    count = next((at for at in range(len(whole)) if whole[at : at + len(bare)] == bare), 0)
    if not count:
        says = "nothing: a prompt of one repeated word carries no positions; `mesa-lens probe` puts a token before it"
        return Row(name, NOTE, f"{says}, and prompts of your own need one")
    tokens = ", ".join(f"{tokenizer.convert_ids_to_tokens(each)!r} ({each})" for each in whole[:count])
    bos = " (bos)" if whole[0] == tokenizer.bos_token_id else ""
    return Row(name, NOTE, f"{tokens}{bos}")


def hooks(subject: Subject, method: Method) -> Row:
    """The residual stream at the bridge's hooks against Hugging Face's hidden states, under a method."""
    devices = {each.device for each in subject.model.parameters()}
    if len(devices) > 1:
        return Row(HOOKS, NOT_RUN, f"the model lies on {len(devices)} devices, and mesa.bridge takes models on one")
    if subject.tokenizer is None:
        return Row(HOOKS, NOT_RUN, _NO_TOKENIZER)
    setting = subject.settings[-1]
    ids, stock = subject.ids(setting.length), subject.stock[setting]
    with applied(subject.model, method):
        states = run(subject.model, ids, output_hidden_states=True).hidden_states
    with rebuilt(subject.model), torch.no_grad():
        built: Any = bridge(subject.model, subject.tokenizer)
        with applied(built.original_model, method):
            cache = built.run_with_cache(ids, names_filter=lambda hook: hook.endswith("hook_resid_post"))[1]
    given = {layer + 1: cache["resid_post", layer] for layer in range(len(states) - 2)}
    found = []
    for layer in range(subject.model.config.num_hidden_layers - 1):  # the last one's are normed
        difference, mistake = (apart(each[layer + 1], states[layer + 1]) for each in (given, stock.states))
        found.append(Found(difference, stock.allowed_states[layer + 1], mistake, f"after layer {layer}"))
    says = f"hook_resid_post under {method.name} and output_hidden_states"
    return judged(HOOKS, "", found, says, "use the Hugging Face model and mesa.applied; report it with this table")


@contextmanager
def rebuilt(model: Any) -> Iterator[None]:
    """Puts every module and the config of a model back, as they were before it was wrapped."""
    kept = [
        (module, {name: (value, _copied(value)) for name, value in vars(module).items()}) for module in model.modules()
    ]
    config, settings = model.config, copy.deepcopy(vars(model.config))
    try:
        yield
    finally:
        for module, attributes in kept:
            vars(module).clear()
            for name, (value, content) in attributes.items():
                if content is not None:  # in place: handles of hooks refer to it
                    value.clear()
                    value.update(content)
                vars(module)[name] = value
        vars(config).clear()
        vars(config).update(settings)


def _copied(value: Any) -> Any:
    """The content of what modules keep others in; None of anything else."""
    return value.copy() if isinstance(value, dict | set) else None
