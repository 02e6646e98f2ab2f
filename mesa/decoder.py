"""Where a model keeps its decoder layers, and what is set on modules for a while."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

from mesa import vml  # noqa: F401  for its effect, before a model runs
from mesa.errors import Refused


def decoder_of(model: Any) -> Any:
    """The module that holds the model's decoder layers; ModernBERT's calls its output embeddings `decoder`."""
    decoder = model.get_decoder()
    return model.base_model if decoder is model.get_output_embeddings() else decoder


def layers_of(model: Any) -> nn.ModuleList:
    """The model's decoder layers; Refused where its decoder has no list of them."""
    decoder, count = decoder_of(model), model.config.num_hidden_layers
    lists = [module for module in decoder.children() if isinstance(module, nn.ModuleList)]
    if lists:
        return min(lists, key=lambda layers: (len(layers) != count, -len(layers)))
    parts = [part for part in decoder.children() if isinstance(getattr(part, "layers", None), nn.ModuleList)]
    if not parts:
        raise Refused(f"a {model.config.model_type} decoder has no list of its {count} layers")
    return nn.ModuleList([layer for part in parts for layer in part.layers])  # of a stack of stacks


def check_layers(model: Any) -> None:
    """Refused where a model's layers are not one list of as many as its config states: states have no layer then."""
    kind, stated = model.config.model_type, model.config.num_hidden_layers
    lists = [module for module in decoder_of(model).children() if isinstance(module, nn.ModuleList)]
    if not any(len(layers) >= stated for layers in lists):
        raise Refused(
            f"this {kind} model has {len(layers_of(model))} modules of layers, its config states {stated}, so that its "
            "states cannot be labelled by layer; `mesa-lens eval --task nll,passkey` measures where it fails"
        )


@contextmanager
def removed(handles: Iterable[Any]) -> Iterator[None]:
    """Removes hooks, by their handles, when this ends."""
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def replaced(*changes: tuple[Any, str, Any]) -> Iterator[None]:
    """Has modules hold other attributes or submodules, (module, name, value), for as long as this lasts."""
    before = [(module, name, {**module._modules, **vars(module)}.get(name)) for module, name, _ in changes]
    try:
        for module, name, value in changes:
            setattr(module, name, value)
        yield
    finally:
        for module, name, value in before:
            vars(module).pop(name, None)
            if value is not None:
                setattr(module, name, value)
