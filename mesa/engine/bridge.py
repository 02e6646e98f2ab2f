"""TransformerLens' bridge, on which attached methods really run.

Stock re-implements attention with a full score matrix, so that a registered attention function gets no call. Here each
layer chooses, pass by pass: the Hugging Face module's own attention, with its projections hooked, as long as nothing
listens inside it; stock's where something does, or a batch is padded, and no method is attached; and under a method
always the module's, with the hooks inside it called by the method's attention.
"""

import copy
import re
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from functools import cache, partial
from threading import Lock
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from transformer_lens.ActivationCache import ActivationCache
from transformer_lens.factories.architecture_adapter_factory import ArchitectureAdapterFactory
from transformer_lens.hook_points import HookPoint
from transformer_lens.model_bridge import TransformerBridge
from transformer_lens.model_bridge.exceptions import StopAtLayerException
from transformer_lens.model_bridge.generalized_components import (
    AttentionBridge,
    JointGateUpMLPBridge,
    JointQKVAttentionBridge,
    LinearBridge,
    NormalizationBridge,
)
from transformer_lens.model_bridge.generalized_components.base import GeneralizedComponent
from transformer_lens.utilities.tokenize_utils import get_attention_mask
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from mesa.decoder import decoder_of, layers_of, removed
from mesa.engine.attention import AttentionHooks
from mesa.engine.passes import ForwardPass
from mesa.engine.plug import attachment_of, check_free
from mesa.engine.projections import JointProjection, SharedGateUp, check_plain, check_readable, is_own
from mesa.errors import Failed, Refused
from mesa.families import family_of
from mesa.support import check_config


class MethodAttention(AttentionBridge):
    """Comes before an attention class of TransformerLens: chooses between its attention and the module's own."""

    _refusal: str | None = None
    """Why stock's attention cannot stand for this module's."""

    def set_original_component(self, original_component: nn.Module) -> None:
        """As the class below has it; what that class computes from parts is computed from them by the module, too."""
        joint: Any = self.submodules.get("qkv")
        if joint is not None:
            check_readable(getattr(original_component, joint.name), joint.name)
        super().set_original_component(original_component)
        if joint is not None:
            joint.follow(getattr(original_component, joint.name), self.q, self.k, self.v)
            if self.o.original_component is not None:
                setattr(original_component, str(self.o.name), self.o)

    def _validate_submodule_declarations(self, hf_attn: nn.Module) -> None:
        """Keeps the error for when stock's attention is needed."""
        try:
            super()._validate_submodule_declarations(hf_attn)  # pyright: ignore[reportAttributeAccessIssue]
        except RuntimeError as error:
            self._refusal = str(error)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The attention module's output; RuntimeError where stock's is needed that cannot stand for it."""
        config: Any = self.config
        if config.use_split_qkv_input or config.use_attn_in:
            check_plain([self.q, self.k, self.v], "an input for each head (use_split_qkv_input, use_attn_in)")
        if config.use_attn_result and self.supports_attn_result:
            check_plain([self.o], "a result for each head (use_attn_result)")
        running = kwargs.get("attention_mask")
        attached = isinstance(running, ForwardPass)
        if not attached and (self._watched_inside() or (_padded(running) and not self._refusal)):
            if is_own(self.original_component):
                raise Refused(
                    f"TransformerLens computes a {type(self.original_component).__name__} again where something "
                    "listens inside it, and this one has a forward or hooks of its own; attach mesa.Origin, under "
                    "which the module's attention is hooked"
                )
            if self._refusal:
                raise Failed(f"{self._refusal} Attach mesa.Origin, under which the module's attention is hooked.")
            return super().forward(*args, **kwargs)
        if attached:
            kwargs["attention_hooks"] = AttentionHooks(
                self.hook_attn_scores,
                self.hook_pattern,
                self._rotated,
                any(hook.has_hooks(dir="both") for hook in (self.hook_attn_scores, self.hook_pattern)),
                -torch.inf if self.compatibility_mode else None,
            )
            turned = kwargs.get("position_embeddings")
            if isinstance(turned, tuple) and hasattr(self, "hook_cos"):  # else complex: cos and sin as one
                kwargs["position_embeddings"] = self.hook_cos(turned[0]), self.hook_sin(turned[1])
        with ExitStack() as hooks:
            for handle in self._inside(args[0] if args else kwargs["hidden_states"]) if attached else ():
                hooks.callback(handle.remove)
            return AttentionBridge.forward(self, *args, **kwargs)

    def _watched_inside(self) -> bool:
        """Whether something listens at a hook that only stock's attention reaches."""
        norms = [self._modules.get(name) for name in ("q_norm", "k_norm")]
        inside = {name: hook for name, hook in self.get_hooks().items() if name not in ("hook_in", "hook_out")}
        points = [module for norm in norms if norm is not None for module in norm.modules()]
        return any(
            isinstance(point, HookPoint) and point.has_hooks(dir="both") for point in (*inside.values(), *points)
        )

    def _rotated(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        """Queries and new keys (batch, head, token, dim) at cached positions, through their hooks."""
        new = query.shape[2]
        for_query, for_key = getattr(self, "hook_rot_q", None), getattr(self, "hook_rot_k", None)
        if for_query is not None and for_query.has_hooks(dir="both"):
            query = for_query(query)
        if for_key is not None and for_key.has_hooks(dir="both"):
            key = torch.cat([key[:, :, :-new], for_key(key[:, :, -new:])], 2)
        return query, key

    def _inside(self, states: Tensor) -> Iterator[Any]:
        """Handles of torch's hooks on modules whose output a switch of TransformerLens, or a hook behind it, edits."""
        config: Any = self.config
        module: Any = self.original_component
        heads = int(config.n_heads)
        for part, fork in self._forks(states, heads).items():
            linear = getattr(self, part).original_component
            yield linear.register_forward_hook(partial(_projected_by_head, fork))
        for part in "qk":
            norm, hook = self._modules.get(f"{part}_norm"), getattr(self, f"hook_{part}_normed", None)
            if norm is None or hook is None:
                continue
            turned = family_of(module.config.model_type).normed_by_position
            if turned:
                yield norm.register_forward_pre_hook(lambda module, args: (args[0].transpose(1, 2), *args[1:]))
            yield norm.register_forward_hook(partial(_normed, hook, turned))
        if config.use_attn_result and self.supports_attn_result:
            yield self.o.original_component.register_forward_hook(
                lambda linear, args, output: self._compute_per_head_result(
                    args[0].unflatten(-1, (heads, -1)), heads, args[0].shape[-1] // heads
                )
            )
        if isinstance(self, JointQKVAttentionBridge):
            yield module.register_forward_hook(
                lambda attention, args, output: (self.hook_hidden_states(output[0]), *output[1:])
            )

    def _forks(self, states: Tensor, heads: int) -> dict[str, Tensor]:
        """The input of each projection (batch, position, head, dim), where a switch gives each head its own."""
        config: Any = self.config
        key_heads = int(getattr(config, "n_key_value_heads", None) or heads)
        counts = {"q": heads, "k": key_heads, "v": key_heads}
        source = states if self._captured_pre_ln_residual is None else self._captured_pre_ln_residual
        if config.use_split_qkv_input:
            hooks = {part: getattr(self, f"hook_{part}_input") for part in counts}
            return {part: self._fork_and_norm_per_head(source, hooks[part], count) for part, count in counts.items()}
        if config.use_attn_in:
            by_head = self._fork_and_norm_per_head(source, self.hook_attn_in, heads)
            return {part: by_head[:, :, :count] for part, count in counts.items()}
        return {}

    def _fire_post_hoc_hook(self, hook: HookPoint, tensor: Tensor, hook_label: str) -> Tensor:
        """The weights; as they are under a method, where their hook fired as they were made."""
        module: Any = self.original_component
        if AttentionBridge in type(self).__bases__ and attachment_of(module) is None:
            return super()._fire_post_hoc_hook(hook, tensor, hook_label)
        return tensor


def _padded(mask: Any) -> bool:
    """Whether no query of a mask (batch, 1, query, key; true: seen) sees some key: kernels differ at padding."""
    return isinstance(mask, Tensor) and mask.dtype == torch.bool and not bool(mask.any(-2).all())


def _normed(hook: HookPoint, turned: bool, module: Any, args: Any, output: Tensor) -> Tensor:
    """A norm's output through its hook; `turned`: by head and position."""
    output = hook(output)
    return output.transpose(1, 2) if turned else output


def _projected_by_head(fork: Tensor, linear: Any, args: Any, output: Tensor) -> Tensor:
    """What `linear` gives where each head has an input (batch, position, head, dim) of its own."""
    weight = linear.weight.unflatten(0, (fork.shape[2], -1))
    projected = torch.einsum("bphm,hdm->bphd", fork, weight).flatten(2)
    return projected if linear.bias is None else projected + linear.bias


@cache
def _choosing(stock: type[AttentionBridge]) -> type[AttentionBridge]:
    """An attention class of TransformerLens, with `MethodAttention` before it."""
    return type(f"Method{stock.__name__}", (MethodAttention, stock), {})


class BridgeCache(ActivationCache):
    """An ActivationCache whose KeyErrors say why a hook is not in it."""

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
            return f"{name} is not a hook of this model; give one of bridge.hook_dict, or a part and a layer"
        if switch := bridge._gated_hook_reason(point.name or name):
            return f"{name} does not fire while {switch} is False; call set_{switch}(True) first"
        return (
            f"{name} is not in this cache; names_filter or stop_at_layer left it out, or no pass reaches it on a "
            f"{bridge.original_model.config.model_type} model"
        )


class MethodBridge(TransformerBridge):
    """A TransformerBridge on which `mesa.applied(bridge.original_model, method)` is obeyed.

    Texts are never cut, unless `to_tokens` is called with truncate=True: methods are for what lies beyond the window.
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
        input = list(input) if isinstance(input, tuple) else input
        if attention_mask is None and isinstance(input, list) and len(input) > 1:
            input = self.to_tokens(input, prepend_bos, padding_side)
            bos = self.cfg.default_prepend_bos if prepend_bos is None else prepend_bos
            attention_mask = get_attention_mask(self.tokenizer, input, bos, padding_side)
        return super().forward(
            input, return_type, loss_per_token, prepend_bos, padding_side, attention_mask, *args, **kwargs
        )

    def _generate_tokens(self, current_tokens: Tensor, *args: Any, **kwargs: Any) -> Any:
        """The steps of TransformerLens' own loop; a method counts the prompt as the loop was passed it."""
        steps = super()._generate_tokens(current_tokens, *args, **kwargs)
        attachment = attachment_of(self.original_model)  # pyright: ignore[reportArgumentType]
        yield from steps if attachment is None else attachment.generating.steps(current_tokens, steps)

    def process_weights(
        self, verbose: bool = False, fold_ln: bool = True, center_writing_weights: bool = True,
        center_unembed: bool = True, fold_value_biases: bool = True, refactor_factored_attn_matrices: bool = False,
    ) -> None:  # fmt: skip
        """As TransformerLens has it, but biases of values stay where attention has sinks: its weights do not sum to 1.

        Refused where a projection is more than its weight and bias.
        """
        check_plain([part for part in self.modules() if isinstance(part, LinearBridge)], "processing weights")
        attentions = [part.original_component for part in self.modules() if isinstance(part, AttentionBridge)]
        folded = fold_value_biases and all(getattr(module, "sinks", None) is None for module in attentions)
        super().process_weights(
            verbose, fold_ln, center_writing_weights, center_unembed, folded, refactor_factored_attn_matrices
        )

    def run_with_cache(self, input: Any, *args: Any, **kwargs: Any) -> Any:
        """As TransformerLens has it; under the fused executor without gradients, unless a loss is asked for."""
        attachment = attachment_of(self.original_model)  # pyright: ignore[reportArgumentType]
        differentiable = kwargs.get("incl_bwd") or kwargs.get("return_type") in ("loss", "both")
        free = attachment is not None and attachment.executor == "fused" and not differentiable
        with torch.no_grad() if free else nullcontext():
            output, cache = super().run_with_cache(input, *args, **kwargs)
        if isinstance(cache, ActivationCache):
            cache = BridgeCache(cache.cache_dict, self, cache.has_batch_dim)
        return output, cache


def _parts(components: Mapping[str, Any]) -> Iterator[GeneralizedComponent]:
    """An adapter's components, and theirs: attention may be in several stacks of blocks, or in some layers alone."""
    for part in components.values():
        yield part
        yield from _parts(part.submodules)


def choosing_adapter(base: type[Any], kind: str, unnormed: bool) -> type[Any]:
    """The adapter class `base` with attention that chooses as `MethodAttention` does.

    kind: the model type. unnormed: for a model whose norms are identities, which TransformerLens then leaves alone.
    """
    eager = family_of(kind).eager

    class ChoosingAdapter(base):
        supports_hf_output_attentions = False  # weights are hooked where they are made

        def __init__(self, cfg: Any) -> None:
            super().__init__(cfg)
            parts = list(_parts(self.component_mapping))
            attentions: list[Any] = [part for part in parts if isinstance(part, AttentionBridge)]
            own = [part for part in attentions if type(part) is not AttentionBridge]  # its weights are the module's
            if own and not eager:
                self.cfg.attn_implementation = "sdpa"  # anything but None keeps the bridge from forcing 'eager'
            for part in attentions:
                part.__class__ = _choosing(type(part))
                if (joint := part.submodules.get("qkv")) is not None:
                    joint.__class__ = JointProjection
            for part in parts:
                if isinstance(part, JointGateUpMLPBridge):
                    part.__class__ = SharedGateUp
            if unnormed:
                norms = self.component_mapping["blocks"].submodules
                for norm in (norms["ln1"], norms["ln2"], self.component_mapping["ln_final"]):
                    norm.use_native_layernorm_autograd = True

    return ChoosingAdapter


def without_peft(model: Any) -> PreTrainedModel:
    """The model with adapters in it that a PeftModel holds; Refused for one that adds tokens to prompts."""
    if isinstance(model, PreTrainedModel) or not hasattr(model, "get_base_model"):
        return model
    if getattr(model.active_peft_config, "is_prompt_learning", False):
        kind = type(model.active_peft_config).__name__
        raise Refused(
            f"a PeftModel with {kind} adds tokens to every prompt, which a bridge does not; take LoRA or the like"
        )
    return model.get_base_model()


_BUILDING = Lock()
"""One bridge is built at a time: TransformerLens' adapters are those of all threads."""


def adapted(model_class: type[Any]) -> str | None:
    """The class for which TransformerLens has an adapter, of a model's class and those it is derived from."""
    return next((base.__name__ for base in model_class.__mro__ if base.__name__ in _adapters()), None)


def _adapters() -> dict[str, Any]:
    return ArchitectureAdapterFactory._adapters


def without_adapter(config: Any) -> str:
    """The class that a config names where TransformerLens has no adapter for it; else empty."""
    named = (config.architectures or [""])[0]
    model_class = getattr(transformers, named, None)
    return named if model_class is not None and adapted(model_class) is None else ""


def check_adapted(config: Any, what: str, remedy: str) -> None:
    """Refused where TransformerLens has no adapter for a config's class, which `what` needs."""
    if named := without_adapter(config):
        raise Refused(f"{what} needs TransformerLens, which has no adapter for a {named}; {remedy}")


class LayerHooks:
    """What captures and patches ask of a bridge, on a model that TransformerLens has no adapter for.

    `blocks.N.hook_resid_pre` and `blocks.N.hook_resid_post` are the input and output of layer N, as hooks of its module
    see them, (batch, position, dim). Raises Refused for other hooks.
    """

    def __init__(self, model: Any) -> None:
        check_config(model.config)
        self.original_model = model

    @contextmanager
    def hooks(self, fwd_hooks: Any) -> Iterator[None]:
        """As TransformerLens' `hooks`: each (name, function of tensor and hook) runs while this lasts."""
        layers, handles = layers_of(self.original_model), list[Any]()
        with removed(handles):
            for name, function in fwd_hooks:
                handles += self._handles(layers, name, function)
            yield

    def _handles(self, layers: Any, name: str, function: Any) -> Iterator[Any]:
        match = re.fullmatch(r"blocks\.(\d+)\.hook_resid_(pre|post)", name)
        if match is None:
            raise Refused(f"{name} needs an adapter of TransformerLens, which has none for this model")
        layer, hook = layers[int(match[1])], partial(function, hook=None)

        def before(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            changed = hook(args[0] if args else kwargs["hidden_states"])
            if changed is None:
                return None
            return ((changed, *args[1:]), kwargs) if args else (args, {**kwargs, "hidden_states": changed})

        def after(module: Any, args: Any, output: Any) -> Any:
            changed = hook(output[0] if isinstance(output, tuple) else output)
            return (changed, *output[1:]) if isinstance(output, tuple) and changed is not None else changed

        if match[2] == "pre":
            yield layer.register_forward_pre_hook(before, with_kwargs=True)
        else:
            yield layer.register_forward_hook(after)

    def run_with_hooks(self, ids: Tensor, fwd_hooks: Any, **_: Any) -> None:
        """One pass without cache and logits, ended where a hook raises TransformerLens' StopAtLayerException."""
        with self.hooks(fwd_hooks), suppress(StopAtLayerException):
            decoder_of(self.original_model)(input_ids=ids, use_cache=False)


def sharing_weights(model: PreTrainedModel) -> PreTrainedModel:
    """A copy of the model with the same weights and buffers: a bridge changes the modules that it wraps."""
    return copy.deepcopy(model, {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())})


def hooked(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> MethodBridge | LayerHooks:
    """A `bridge` where TransformerLens has an adapter, else hooks on the layers."""
    return bridge(model, tokenizer) if adapted(type(without_peft(model))) else LayerHooks(model)


@contextmanager
def _registered(model: PreTrainedModel) -> Iterator[None]:
    """Registers the model's choosing adapter while a bridge is built, and puts the former one back.

    TransformerLens chooses adapters by what configs name, and a config that was never saved names none.
    """
    known, architecture = _adapters(), adapted(type(model))
    if architecture is None:
        raise Refused(
            f"TransformerLens has no adapter for a {type(model).__name__} nor for a class that it is derived from; "
            "give a causal language model of transformers, or a subclass of one"
        )
    named, former = model.config.architectures, known[architecture]
    component = choosing_adapter(former, model.config.model_type, getattr(model, "unnormed", False))
    ArchitectureAdapterFactory.register_adapter(architecture, component)
    model.config.architectures = [architecture]
    try:
        yield
    finally:
        ArchitectureAdapterFactory.register_adapter(architecture, former)
        model.config.architectures = named


def bridge(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> MethodBridge:
    """A TransformerBridge around a model (in place) that obeys attached methods.

    `mesa.applied(model, method)` works as before, and `run_with_cache`, `run_with_hooks` and the like show what the
    method does. Without a method the hooks are those of TransformerLens' bridge. docs/api.md says what each hook sees.

    Args:
        model: A Hugging Face model, or a PeftModel, whose adapters take part. Attention other than 'eager' or 'sdpa' is
            set to 'sdpa', Gemma-4's to 'eager', as TransformerLens does.
        tokenizer: Its tokenizer.

    Returns:
        A `TransformerBridge` with TransformerLens' calls.

    Raises:
        Refused: The model is not supported.

    Examples:
        >>> loaded = mesa.load()
        >>> bridge = mesa.bridge(loaded.model, loaded.tokenizer)
        >>> with mesa.applied(loaded.model, mesa.ReRoPE(trained_length=256)):
        ...     logits, cache = bridge.run_with_cache(" hello" * 300, names_filter="blocks.1.hook_resid_post")
        >>> tuple(cache["resid_post", 1].shape)  # (batch, position, dim)
        (1, 301, 256)
    """
    model = without_peft(model)
    check_config(model.config)
    check_free(model)
    if model.config._attn_implementation not in ("eager", "sdpa"):  # whose masks stock's attention cannot read
        model.set_attn_implementation("sdpa")
    with _BUILDING, _registered(model):
        built: Any = TransformerBridge.boot_transformers(
            model.config._name_or_path or type(model).__name__,
            hf_model=model,
            tokenizer=tokenizer,
            dtype=model.dtype,
            device=str(model.device),
        )
    for part in built.modules():
        if isinstance(part, NormalizationBridge) and is_own(part.original_component):
            part.use_native_layernorm_autograd = True  # else TransformerLens computes it again
    built.__class__ = MethodBridge
    return built
