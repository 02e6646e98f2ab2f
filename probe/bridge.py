"""A TransformerBridge whose attention is the Hugging Face module's own, so that attached methods really run.

TransformerLens re-implements attention for many architectures with a full score matrix; a registered attention
function would get no call and every method would be captured as Origin. The delegating bridge keeps the module's
attention and hooks its q, k, v and o projections and the residual stream. It has no `hook_pattern` and no
`hook_attn_scores`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from transformer_lens.factories.architecture_adapter_factory import ArchitectureAdapterFactory
from transformer_lens.model_bridge import TransformerBridge
from transformer_lens.model_bridge.generalized_components import AttentionBridge, LinearBridge
from transformer_lens.model_bridge.generalized_components.base import GeneralizedComponent
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from mesa.plug import check_supported


def delegating_adapter(base: type[Any]) -> type[Any]:
    """The adapter class `base` with attention delegated to the Hugging Face module."""

    class DelegatingAdapter(base):
        def __init__(self, cfg: Any) -> None:
            super().__init__(cfg)
            self.cfg.attn_implementation = "sdpa"  # anything but None keeps the bridge from forcing 'eager'

        def _build_attention_bridge(self) -> AttentionBridge:
            projections: dict[str, GeneralizedComponent] = {
                letter: LinearBridge(name=f"{letter}_proj") for letter in "qkvo"
            }
            return AttentionBridge(
                name="self_attn",
                config=self.cfg,
                submodules=projections,
                requires_position_embeddings=True,
                requires_attention_mask=True,
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
    check_supported(model)
    architecture = type(model).__name__
    with _registered(architecture):
        return TransformerBridge.boot_transformers(
            model.config._name_or_path or architecture,
            hf_model=model,
            tokenizer=tokenizer,
            dtype=model.dtype,
            device=str(model.device),
        )
