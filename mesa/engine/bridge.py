"""A TransformerBridge whose attention is the Hugging Face module's own, so that attached methods really run.

TransformerLens re-implements attention for many architectures with a full score matrix; a registered attention
function would get no call and every method would be captured as Origin. The delegating bridge keeps the module's
attention and hooks its projections (one for q, k and v is taken apart) and the residual stream. Its `hook_attn_scores`
and `hook_pattern` stand inside the dense executor, which holds the whole matrix.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor
from transformer_lens.ActivationCache import ActivationCache
from transformer_lens.factories.architecture_adapter_factory import ArchitectureAdapterFactory
from transformer_lens.hook_points import HookPoint
from transformer_lens.model_bridge import TransformerBridge
from transformer_lens.model_bridge.generalized_components import AttentionBridge, LinearBridge
from transformer_lens.utilities.tokenize_utils import get_attention_mask
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from mesa.engine.attention import ScoreHooks
from mesa.engine.passes import Pass
from mesa.engine.plug import attachment_of, check_free
from mesa.support import CONSTRUCTED, CONSTRUCTED_LLAMA, check_config

_INSIDE = ("hook_attn_scores", "hook_pattern")
"""Hooks that only the dense executor reaches."""

_DENSE = (
    "only mesa.applied(bridge.original_model, method, executor='dense') holds the whole matrix; method=mesa.Origin is "
    "the model as trained"
)

_NEVER = tuple(f"hook_{name}" for name in ("hidden_states", "result", "attn_in", "rot_q", "rot_k"))
_NEVER += tuple(f"hook_{part}_input" for part in "qkv")
"""Hooks of TransformerLens' own attention that the module's has no place for."""

_UNNORMED = {CONSTRUCTED: "MptForCausalLM", CONSTRUCTED_LLAMA: "LlamaForCausalLM"}
"""Model types without norms, and the architecture of TransformerLens that each is of."""

_BY_HEAD = ("gpt_neox", "bloom")
"""Model types whose one projection gives q, k and v head by head; elsewhere all of q come first."""


class JointProjection(LinearBridge):
    """One projection for q, k and v, with a hook (batch, position, head, dim) for each of them."""

    def __init__(self, name: str, heads: int, key_heads: int, by_head: bool) -> None:
        super().__init__(name=name)
        self.heads, self.key_heads, self.by_head = heads, key_heads, by_head
        self.hook_q, self.hook_k, self.hook_v = HookPoint(), HookPoint(), HookPoint()

    def forward(self, input: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """The projection, with what the hooks made of its parts."""
        output, hooks = super().forward(input, *args, **kwargs), (self.hook_q, self.hook_k, self.hook_v)
        if not any(hook.has_hooks(dir="both") for hook in hooks):
            return output
        sizes = [self.heads, self.key_heads, self.key_heads]
        by_heads = output.unflatten(-1, (sum(sizes), -1))
        if self.by_head:
            parts = list(output.unflatten(-1, (self.heads, 3, -1)).unbind(-2))
        else:
            parts = list(by_heads.split(sizes, -2))
        parts = [hook(part) for hook, part in zip(hooks, parts, strict=True)]
        return (torch.stack(parts, -2).flatten(-3) if self.by_head else torch.cat(parts, -2).flatten(-2)).contiguous()


class MethodAttention(AttentionBridge):
    """The Hugging Face module's attention, whichever function it calls, with hooks inside the dense executor."""

    def __init__(self, *args: Any, joint: bool, **kwargs: Any) -> None:
        super().__init__(*args, fused_qkv=joint, **kwargs)
        if joint:
            parts = {f"hook_{part}": f"qkv.hook_{part}" for part in "qkv"}
            self.hook_aliases = {**self.hook_aliases, **parts}

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The module's output; ValueError where something waits at a hook that this pass does not reach."""
        running = kwargs.get("attention_mask")
        dense = isinstance(running, Pass) and running.owner.executor == "dense"
        if dense:
            kwargs["score_hooks"] = ScoreHooks(self.hook_attn_scores, self.hook_pattern)
        for name in _unreached("dense" if dense else None):
            point = getattr(self, name, None)
            if point is not None and point.has_hooks(dir="both"):
                raise ValueError(f"{point.name} does not fire: {_remedy(name)}")
        return super().forward(*args, **kwargs)

    def _fire_post_hoc_hook(self, hook: HookPoint, tensor: Tensor, hook_label: str) -> Tensor:
        """The weights as they are: their hook fired where they were made."""
        return tensor


def _unreached(executor: str | None) -> tuple[str, ...]:
    """The hooks of attention that a pass under `executor` (None: no method) does not reach."""
    return _NEVER if executor == "dense" else (*_INSIDE, *_NEVER)


def _remedy(name: str) -> str:
    """What to do where a hook of attention is not reached."""
    inside = name.endswith(_INSIDE)
    return _DENSE if inside else "hook hook_q, hook_k, hook_v or hook_z of the module's own attention"


class MethodCache(ActivationCache):
    """An ActivationCache whose KeyErrors say why a hook is not in it. executor: of the method attached to the pass."""

    executor: str | None

    def __getitem__(self, key: Any) -> Tensor:
        """As TransformerLens has it."""
        try:
            return super().__getitem__(key)
        except KeyError as error:
            raise KeyError(self._absence(str(error.args[0]))) from None

    def _absence(self, name: str) -> str:
        bridge: Any = self.model
        point = bridge.hook_dict.get(name)
        if point is None:
            return f"{name} is no hook of this model; give one of bridge.hook_dict, or a part and a layer"
        full = point.name or name
        if full.startswith("rotary_emb.") and self.executor:
            return f"{name} does not fire: positions are the attached method's"
        if switch := bridge._gated_hook_reason(full):
            return f"{name} does not fire while {switch} is False; call set_{switch}(True) first"
        if ".attn." in full and full.endswith(_unreached(self.executor)):
            return f"{name} does not fire: {_remedy(full)}"
        return f"{name} is not in this cache; names_filter or stop_at_layer left it out"


class MethodBridge(TransformerBridge):
    """A TransformerBridge on which `mesa.applied(bridge.original_model, method)` is obeyed.

    Texts are never cut, unless `to_tokens` is called with truncate=True: methods are for what lies beyond the window.
    Sweeps over hooks (no filter, or a function) leave out those that do not fire; a hook asked for by name must.
    """

    def to_tokens(
        self, input: Any, prepend_bos: bool | None = None, padding_side: str | None = None,
        move_to_device: bool = True, truncate: bool = False,
    ) -> Tensor:  # fmt: skip
        """Token ids (batch, position) of a text or texts, of any length."""
        return super().to_tokens(input, prepend_bos, padding_side, move_to_device, truncate)

    def forward(
        self, input: Any, return_type: str | None = "logits", loss_per_token: bool = False,
        prepend_bos: bool | None = None, padding_side: str | None = None, attention_mask: Tensor | None = None,
        *args: Any, **kwargs: Any,
    ) -> Any:  # fmt: skip
        """As TransformerLens has it, but padding of texts is masked on either side: it is not part of a prompt."""
        if attention_mask is None and isinstance(input, list) and len(input) > 1:
            input = self.to_tokens(input, prepend_bos, padding_side)
            bos = self.cfg.default_prepend_bos if prepend_bos is None else prepend_bos
            attention_mask = get_attention_mask(self.tokenizer, input, bos, padding_side)
        return super().forward(
            input, return_type, loss_per_token, prepend_bos, padding_side, attention_mask, *args, **kwargs
        )

    def run_with_cache(
        self, input: Any, return_cache_object: Any = True, remove_batch_dim: bool = False, names_filter: Any = None,
        *args: Any, **kwargs: Any,
    ) -> Any:  # fmt: skip
        """As TransformerLens has it; without gradients under the fused executor, which has none."""
        if names_filter is None or callable(names_filter):
            names_filter = self._sweep(names_filter)
        executor = self._executor()
        run: Any = super().run_with_cache
        with torch.no_grad() if executor == "fused" and not kwargs.get("incl_bwd") else nullcontext():
            output, cache = run(input, return_cache_object, remove_batch_dim, names_filter, *args, **kwargs)
        if isinstance(cache, ActivationCache):
            cache = MethodCache(cache.cache_dict, self, cache.has_batch_dim)
            cache.executor = executor
        return output, cache

    def run_with_hooks(self, input: Any, fwd_hooks: Any = (), bwd_hooks: Any = (), *args: Any, **kwargs: Any) -> Any:
        """As TransformerLens has it."""
        forward, backward = (
            [(self._sweep(name) if callable(name) else name, function) for name, function in hooks]
            for hooks in (fwd_hooks, bwd_hooks)
        )
        return super().run_with_hooks(input, forward, backward, *args, **kwargs)

    def _executor(self) -> str | None:
        model: Any = self.original_model
        attachment = attachment_of(model)
        return attachment.executor if attachment else None

    def _sweep(self, wanted: Callable[..., Any] | None) -> Callable[[str], bool]:
        """A filter of hook names without those that do not fire, unless `wanted` names nothing else."""
        points = {name: point.name or name for name, point in self.hook_dict.items() if wanted is None or wanted(name)}
        firing = {name for name, component in points.items() if self._fires(component)}
        return (firing if firing or wanted is None else set(points)).__contains__

    def _fires(self, name: str) -> bool:
        """Whether a hook is reached under the attached executor and TransformerLens' own switches."""
        executor = self._executor()
        never = ".attn." in name and name.endswith(_unreached(executor))
        replaced = name.startswith("rotary_emb.") and executor is not None
        return not never and not replaced and self._gated_hook_reason(name) is None


def delegating_adapter(base: type[Any], by_head: bool) -> type[Any]:
    """The adapter class `base` with attention delegated to the Hugging Face module."""

    class DelegatingAdapter(base):
        supports_hf_output_attentions = False  # weights are hooked where they are made

        def __init__(self, cfg: Any) -> None:
            super().__init__(cfg)
            self.cfg.attn_implementation = "sdpa"  # anything but None keeps the bridge from forcing 'eager'
            component = self.component_mapping["blocks"].submodules["attn"]
            parts = dict(component.submodules)
            joint = "qkv" in parts
            if joint:
                key_heads = getattr(self.cfg, "n_key_value_heads", None) or self.cfg.n_heads
                parts = {name: part for name, part in parts.items() if name not in ("q", "k", "v")}
                parts["qkv"] = JointProjection(parts["qkv"].name, self.cfg.n_heads, key_heads, by_head)
            self.component_mapping["blocks"].submodules["attn"] = MethodAttention(
                name=component.name,
                config=self.cfg,
                submodules=parts,
                requires_position_embeddings=component.requires_position_embeddings,
                requires_attention_mask=component.requires_attention_mask,
                joint=joint,
            )

    return DelegatingAdapter


def unnormed_adapter(base: type[Any]) -> type[Any]:
    """The adapter class `base` for a model whose norms are identities, which TransformerLens then leaves alone."""

    class UnnormedAdapter(base):
        def __init__(self, cfg: Any) -> None:
            super().__init__(cfg)
            blocks, final = (self.component_mapping[name] for name in ("blocks", "ln_final"))
            for norm in (blocks.submodules["ln1"], blocks.submodules["ln2"], final):
                norm.use_native_layernorm_autograd = True

    return UnnormedAdapter


@contextmanager
def _registered(model: PreTrainedModel) -> Iterator[None]:
    """Registers the model's delegating adapter while a bridge is built, and puts the former one back.

    TransformerLens chooses adapters by what configs name, and a config that was never saved names none.
    """
    constructed = _UNNORMED.get(model.config.model_type)
    architecture = constructed or type(model).__name__
    named, former = model.config.architectures, ArchitectureAdapterFactory._adapters[architecture]
    base = unnormed_adapter(former) if constructed else former
    component = delegating_adapter(base, model.config.model_type in _BY_HEAD)
    ArchitectureAdapterFactory.register_adapter(architecture, component)
    model.config.architectures = [architecture]
    try:
        yield
    finally:
        ArchitectureAdapterFactory.register_adapter(architecture, former)
        model.config.architectures = named


def bridge(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> MethodBridge:
    """Wraps `model` (in place) in a TransformerBridge that obeys attached methods.

    `mesa.applied(model, method)` works on the wrapped model as before, and `run_with_cache`, `run_with_hooks` and the
    like show what the method does. Raises ValueError for an unsupported model.

    >>> bridge = mesa.bridge(model, tokenizer)
    >>> with mesa.applied(model, mesa.ReRoPE(trained_length=4096)):
    ...     logits, cache = bridge.run_with_cache("a text", names_filter="blocks.0.hook_resid_post")
    """
    check_config(model.config)
    check_free(model)
    architecture = type(model).__name__
    with _registered(model):
        built: Any = TransformerBridge.boot_transformers(
            model.config._name_or_path or architecture,
            hf_model=model,
            tokenizer=tokenizer,
            dtype=model.dtype,
            device=str(model.device),
        )
    built.__class__ = MethodBridge
    return built
