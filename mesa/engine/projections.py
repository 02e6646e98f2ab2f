"""Projections on a bridge: one for several parts, computed once by its own module where it is more than its weight."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import is_parametrized
from transformer_lens.model_bridge.generalized_components import JointGateUpMLPBridge, LinearBridge, MoERouterBridge
from transformer_lens.utilities.quantization import unreadable_weight_reason

from mesa.errors import Refused


def is_plain(module: Any) -> bool:
    """Whether a module computes what its weight and bias say, and nothing else: no adapter, quantization, hook."""
    return isinstance(module, nn.Linear) and type(module).forward in _FORWARDS and is_unchanged(module)


def is_unchanged(module: Any) -> bool:
    """Whether a module computes what a library's class does, by the weights that it holds."""
    return not (is_own(module) or is_parametrized(module))


def is_own(module: Any) -> bool:
    """Whether a module computes other things than a library's class does: by a forward of its own, or hooks."""
    replaced = "forward" in vars(module) and not hasattr(module, "_hf_hook")  # accelerate's moves tensors only
    library = type(module).forward.__module__.partition(".")[0] in ("torch", "transformers", "mesa")
    hooks = (*module._forward_hooks.values(), *module._forward_pre_hooks.values())
    return bool(replaced or not library or not all(map(_is_recorder, hooks)))


def _is_recorder(hook: Any) -> bool:
    """Whether a hook is one that transformers leaves on modules for good, to record `output_hidden_states`."""
    return getattr(hook, "__module__", "").startswith("transformers.utils.")


def check_readable(module: Any, name: str) -> None:
    """Refused where the module of a joint projection has no weight that can be taken apart."""
    why = unreadable_weight_reason(getattr(module, "weight", None))
    if why:
        raise Refused(
            f"TransformerLens takes the weight of {name!r} apart, which cannot be read: {why}; load the model without "
            "quantization, or use it with mesa.applied alone"
        )


def check_plain(parts: Sequence[Any], what: str) -> None:
    """Refused, naming the first module, where one of the bridge's `parts` is more than its weight and bias."""
    for part in parts:
        module = getattr(part.original_component, "joint", part.original_component)
        routes = isinstance(part, MoERouterBridge)  # chooses experts, too, as its class does
        if module is not None and not (is_unchanged(module) if routes else is_plain(module)):
            raise Refused(
                f"{what} reads the weights of {part.name!r} themselves, and the {type(module).__name__} there computes "
                "more than those (an adapter, quantization or a hook); merge it into the weights first "
                "(PEFT: model.merge_and_unload()), or remove it"
            )


class LinearPart(nn.Linear):
    """A part of a joint projection: its rows of the weight; of what the joint module gives where that is not plain."""

    joint_bridge: LinearBridge
    take: Callable[[Tensor], Tensor]
    kept: list[tuple[Tensor, Tensor] | None]
    """The input that the joint module was last passed, and its output: one place for all parts."""
    last: bool

    @property
    def joint(self) -> Any:
        """The module of the full projection."""
        return self.joint_bridge.original_component

    def forward(self, input: Tensor) -> Tensor:
        """The part's output (..., rows)."""
        if is_plain(self.joint):
            return super().forward(input)
        cached = self.kept[0]
        if cached is None or cached[0] is not input:
            cached = self.kept[0] = (input, self.joint(input))
        if self.last:
            self.kept[0] = None
        return self.take(cached[1])


_FORWARDS = (nn.Linear.forward, LinearPart.forward)


def share(joint: LinearBridge, module: Any, parts: Sequence[LinearBridge]) -> Tensor:
    """Has `parts` follow the `module` of a joint projection; which of their outputs, in a row, each of its own is."""
    linears: list[Any] = [part.original_component for part in parts]
    order, kept = _order(module, linears), [None]
    places = order.argsort().split([len(linear.weight) for linear in linears])
    for linear, mine in zip(linears, places, strict=True):
        linear.__class__ = LinearPart
        object.__setattr__(linear, "joint_bridge", joint)  # no child: its weights are the joint's
        linear.take, linear.kept, linear.last = partial(_taken, mine), kept, linear is linears[-1]
    return order


def _taken(places: Tensor, states: Tensor) -> Tensor:
    return states[..., places.to(states.device)]


@torch.no_grad()
def _order(joint: Any, parts: Sequence[Any]) -> Tensor:
    """By the rows of their weights, which are copies; equal rows stand for each other."""

    def marks(module: Any) -> Tensor:
        rows = module.weight if module.bias is None else torch.cat([module.weight, module.bias[:, None]], 1)
        generator = torch.Generator().manual_seed(0)
        factors = torch.rand(rows.shape[1], generator=generator, dtype=torch.float64).to(rows.device)
        return torch.cat([(some.double() * factors).sum(-1) for some in rows.split(1024)]).cpu()

    joined, taken = marks(joint), torch.cat([marks(part) for part in parts])
    if len(joined) != len(taken) or not torch.allclose(joined.sort()[0], taken.sort()[0], rtol=1e-9, atol=1e-9):
        raise Refused(f"TransformerLens takes a {type(joint).__name__} apart into parts that are not rows of it")
    order = torch.empty_like(joined, dtype=torch.long)
    order[joined.argsort(stable=True)] = taken.argsort(stable=True)
    return order


class SharedGateUp(JointGateUpMLPBridge):
    """TransformerLens' MLP with one projection for gate and up, which its own module computes where it is not plain."""

    def set_original_component(self, original_component: nn.Module) -> None:
        """As the class below has it."""
        if is_own(original_component):
            raise Refused(
                f"TransformerLens computes a {type(original_component).__name__} again, and this one has a forward or "
                "hooks of its own; remove them, or use the model with mesa.applied alone"
            )
        check_readable(getattr(original_component, self.fused_attr), self.fused_attr)
        super().set_original_component(original_component)
        joint: Any = LinearBridge(name=self.fused_attr)
        joint.set_original_component(getattr(original_component, self.fused_attr))
        share(joint, joint.original_component, (self.gate, getattr(self, "in")))


class JointProjection(LinearBridge):
    """One projection for q, k and v, computed by the parts that TransformerLens takes it apart into."""

    _parts: tuple[LinearBridge, ...]

    def follow(self, module: Any, *parts: LinearBridge) -> None:
        """Has q, k and v compute it. module: the projection itself."""
        self._parts, self._order = parts, share(self, module, parts)

    def forward(self, input: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """The projection, with what the hooks made of its parts."""
        input = self.hook_in(input)
        joined = torch.cat([part(input) for part in self._parts], -1)
        return self.hook_out(joined[..., self._order.to(joined.device)])
