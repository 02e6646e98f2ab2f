"""A TransformerBridge whose attention is the Hugging Face module's own, so that attached methods really run.

TransformerLens re-implements attention for many architectures with a full score matrix; a registered attention
function would get no call and every method would be captured as Origin. The delegating bridge keeps the module's
attention and hooks its projections (q, k, v and o, or one for q, k and v) and the residual stream. Its
`hook_pattern` fires under `executor="dense"`, which holds the whole pattern; there are no scores before the softmax.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from transformer_lens.factories.architecture_adapter_factory import ArchitectureAdapterFactory
from transformer_lens.model_bridge import TransformerBridge
from transformer_lens.model_bridge.generalized_components import AttentionBridge
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from mesa.engine.plug import check_free
from mesa.support import check_config


def delegating_adapter(base: type[Any]) -> type[Any]:
    """The adapter class `base` with attention delegated to the Hugging Face module."""

    class DelegatingAdapter(base):
        def __init__(self, cfg: Any) -> None:
            super().__init__(cfg)
            self.cfg.attn_implementation = "sdpa"  # anything but None keeps the bridge from forcing 'eager'
            own = self.component_mapping["blocks"].submodules["attn"]
            joint = "qkv" in own.submodules
            kept = {name: part for name, part in own.submodules.items() if not (joint and name in ("q", "k", "v"))}
            self.component_mapping["blocks"].submodules["attn"] = AttentionBridge(
                name=own.name,
                config=self.cfg,
                submodules=kept,
                requires_position_embeddings=own.requires_position_embeddings,
                requires_attention_mask=own.requires_attention_mask,
                fused_qkv=joint,
            )

    return DelegatingAdapter


@contextmanager
def _registered(architecture: str) -> Iterator[None]:
    """Registers the delegating adapter while the bridge is built, and puts the former one back."""
    former = ArchitectureAdapterFactory._adapters[architecture]
    ArchitectureAdapterFactory.register_adapter(architecture, delegating_adapter(former))
    try:
        yield
    finally:
        ArchitectureAdapterFactory.register_adapter(architecture, former)


def bridge_to(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> TransformerBridge:
    """Wraps `model` (in place) in a TransformerBridge that obeys attached methods.

    `mesa.applied(model, method)` works on the wrapped model as before. Raises ValueError for an unsupported model.
    """
    check_config(model.config)
    check_free(model)
    architecture = type(model).__name__
    with _registered(architecture):
        return TransformerBridge.boot_transformers(
            model.config._name_or_path or architecture,
            hf_model=model,
            tokenizer=tokenizer,
            dtype=model.dtype,
            device=str(model.device),
        )
