"""What is compiled: our own operations, to one launch each off the CPU, and models, on which no method can be attached.

What was traced of a model goes by the plan of one pass, or by none.
"""

import functools
import inspect
import sys
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from mesa.errors import Refused


def compiled_part(model: Any) -> str | None:
    """The name of a compiled module that attention or rotary embedding runs in; None where there is none."""
    if _is_compiled(model):
        return type(model).__name__
    inside, seen = [model], set()
    for module in inside:  # in every pass: names are found only where one is needed
        if module in seen:
            continue
        if _is_compiled(module):
            break
        seen.add(module)
        for name, part in module._modules.items():
            if part is not None and (part._modules or "rotary" in name or "layer_idx" in vars(part)):
                inside.append(part)  # no other that has no parts attends
    else:
        return None
    named = ((name, module) for name, module in model.named_modules() if name and _is_compiled(module))
    return next((name for name, module in named if _attends(name, module)), None)


def check_eager(model: Any) -> None:
    """Refused for a model that is compiled as a whole or where it attends."""
    part = compiled_part(model)
    if part is not None:
        raise Refused(
            f"{part} is compiled (torch.compile), and a method's plan changes from pass to pass; attach it to a model "
            "that is not compiled: load it again, or restore `forward`"
        )


def check_not_traced() -> None:
    """Refused in a pass that is being traced: by torch.compile of what calls the model, torch.export or torch.jit."""
    tracing: Any = torch.jit
    if torch.compiler.is_compiling() or tracing.is_tracing() or _in_compiled_call():
        raise Refused(
            "this pass is traced (torch.compile, torch.export or torch.jit.trace), and a method's plan changes from "
            "pass to pass; call the model outside of what is traced, or trace it after the `with` block"
        )


def _in_compiled_call() -> bool:
    """Whether a compiled function calls: what dynamo cannot trace, such as a Refused, it runs uncompiled, inside it."""
    if "torch._dynamo.eval_frame" not in sys.modules:
        return False
    frame = inspect.currentframe()
    while frame is not None:
        code = frame.f_code
        if code.co_name == "compile_wrapper" and code.co_filename.endswith("eval_frame.py"):
            return True
        frame = frame.f_back
    return False


def _is_compiled(module: Any) -> bool:
    own, dynamo = vars(module), sys.modules.get("torch._dynamo.eval_frame")  # loaded where anything is compiled
    if own.get("_compiled_call_impl") is not None or (dynamo and isinstance(module, dynamo.OptimizedModule)):
        return True
    return "forward" in own and hasattr(own["forward"], "_torchdynamo_orig_callable")


def _attends(name: str, module: nn.Module) -> bool:
    """Whether a module is, holds or belongs to attention, by its layer's number, or to rotary embedding."""
    return "rotary_emb" in name or any(hasattr(part, "layer_idx") for part in module.modules())


def compiled(function: Callable[..., Any], device: torch.device) -> Callable[..., Any]:
    """A function as `torch.compile` has it, at any sizes; on a CPU as it is."""
    return _compiled(function, torch.compile) if is_accelerator(device) else function


_VARIANTS = 128
"""How often a function is compiled again, for operands that are there or not, or dtypes; more of them run uncompiled.

torch's own limit is 8, and uncompiled `flex_attention` holds all scores.
"""


@functools.cache
def _compiled(function: Callable[..., Any], compiler: Callable[..., Any]) -> Callable[..., Any]:
    return compiler(function, dynamic=True, recompile_limit=_VARIANTS)


_EAGER: set[Callable[..., Any]] = set()
"""Functions that could not be compiled."""


def is_accelerator(device: torch.device) -> bool:
    """Whether each operation is a launch: on all devices but CPUs, which have their own executor (MPS included)."""
    return device.type != "cpu"


def one_launch(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """What a function gives, compiled to one launch outside of a CPU; its own operations where that fails."""
    if function in _EAGER:
        return function(*args, **kwargs)
    try:
        return compiled(function, args[0].device)(*args, **kwargs)
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        _EAGER.add(function)
        reason = str(error).partition("\n")[0]
        warnings.warn(f"torch.compile fails on {function.__name__} ({reason}): more launches", stacklevel=2)
        return function(*args, **kwargs)
