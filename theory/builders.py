"""The constructions by name: as Hugging Face models, or as theory's own."""

from __future__ import annotations

from collections.abc import Callable
from inspect import Parameter, signature
from typing import Any

from transformers import PreTrainedModel

from theory.model import Construction
from theory.nope import nope_model
from theory.parts import Shape
from theory.pretrained import pretrained
from theory.rotary_model import rotary_model, rotary_nope_model
from theory.saved import VOCABULARY
from theory.weave import Options, mesa_model, plain_model, stair_model, woven_model

BUILDERS: dict[str, Callable[..., Construction]] = {
    "nope": nope_model,
    "plain": plain_model,
    "woven": woven_model,
    "stair": stair_model,
    "mesa": mesa_model,
    "rotary": rotary_model,
    "rotary_nope": rotary_nope_model,
}


def build(name: str, **parameters: Any) -> PreTrainedModel:
    """The construction called `name` as a Hugging Face model; parameters as for `construction`.

    'woven', 'stair' and 'mesa' have the weights of 'plain', for sizes at which their theorems hold: the weave is the
    method's, `mesa.applied(model, mesa.ReRoPE(trained_length=M, window=N, log_n=False))`, or `mesa.StairPE`. Its
    vocabulary is <bos> and the bytes (`theory.save` puts their tokenizer beside it) and its residual stream has 24
    dims, unless `shape` says otherwise. 'rotary' and 'rotary_nope' are Llamas. Raises ValueError as `construction`,
    for recovery 'log' and for what 'rotary' weaves or turns otherwise.
    """
    _check(name, parameters)
    for parameter in ("weave", "distances", "factors", "grown"):
        if parameter in parameters:
            raise ValueError(f"{name}: {parameter} is no part of a model's weights; attach a method by mesa.applied")
    parameters = {"shape": Shape(model=24, vocabulary=VOCABULARY), **parameters}
    return pretrained(construction(name, **parameters), int(parameters["M"]))


def construction(name: str, **parameters: Any) -> Construction:
    """The construction called `name` (theorem 3.1 'nope', 3.2 'plain', 3.3 'woven', the corollary 'stair' and 'mesa').

    'rotary' and 'rotary_nope' are theorems 3.2 and 3.1 under rotary embedding. Parameters are the builder's:
    `theory.construction("woven", M=64, N=8)` is `theory.woven_model(64, 8)`. Raises ValueError for an unknown name, an
    unknown parameter and a missing one, and what the builder raises.
    """
    _check(name, parameters)
    return BUILDERS[name](**parameters)


def _check(name: str, parameters: dict[str, Any]) -> None:
    if name not in BUILDERS:
        raise ValueError(f"unknown construction {name!r}; known: {', '.join(BUILDERS)}")
    stated = signature(BUILDERS[name]).parameters.values()
    known = {each.name: each.default is Parameter.empty for each in stated if each.kind is not Parameter.VAR_KEYWORD}
    if any(each.kind is Parameter.VAR_KEYWORD for each in stated):
        known |= dict.fromkeys(Options.__annotations__, False)
    for parameter in parameters:
        if parameter not in known:
            raise ValueError(f"{name}: unknown parameter {parameter!r}; known: {', '.join(known)}")
    missing = [parameter for parameter, needed in known.items() if needed and parameter not in parameters]
    if missing:
        raise ValueError(f"{name}: {', '.join(missing)} must be given")
