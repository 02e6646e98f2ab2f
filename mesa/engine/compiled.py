"""Compiled models, on which no method can be attached: what was traced goes by the plan of one pass, or by none."""

from __future__ import annotations

from typing import Any

from torch import nn
from torch._dynamo.eval_frame import OptimizedModule

from mesa.errors import Refused


def compiled_part(model: Any) -> str | None:
    """The name of a compiled module that attention or rotary embedding runs in; None where there is none."""
    if _is_compiled(model):
        return type(model).__name__
    for name, module in model.named_modules():
        if name and _is_compiled(module) and _attends(name, module):
            return name
    return None


def check_eager(model: Any) -> None:
    """Refused for a model that is compiled as a whole or where it attends."""
    part = compiled_part(model)
    if part is not None:
        raise Refused(
            f"{part} is compiled (torch.compile), and a method's plan changes from pass to pass; attach it to a model "
            "that is not compiled: load it anew, or restore `forward`"
        )


def _is_compiled(module: Any) -> bool:
    forward = vars(module).get("forward", None)
    called = getattr(module, "_compiled_call_impl", None)
    return isinstance(module, OptimizedModule) or called is not None or hasattr(forward, "_torchdynamo_orig_callable")


def _attends(name: str, module: nn.Module) -> bool:
    """Whether a module is, holds or belongs to attention, by its layer's number, or to rotary embedding."""
    return "rotary_emb" in name or any(hasattr(part, "layer_idx") for part in module.modules())
