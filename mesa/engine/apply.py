"""`applied`: a method on a model for the length of a `with` block."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from transformers import AttentionInterface, PreTrainedModel

from mesa.engine.attention import EXECUTORS
from mesa.engine.plug import NAME, Attachment
from mesa.methods import Method
from mesa.support import check_method


def check_executor(executor: str) -> None:
    """ValueError for an unknown executor."""
    if executor not in EXECUTORS:
        raise ValueError(f"unknown executor {executor!r}; known: {', '.join(EXECUTORS)}")


def attachment_of(model: PreTrainedModel) -> Attachment | None:
    """What is attached to the model, if anything is."""
    function = AttentionInterface._global_mapping.get(str(model.config._attn_implementation))
    owner = getattr(function, "__self__", None)
    return owner if isinstance(owner, Attachment) else None


def check_free(model: PreTrainedModel) -> None:
    """ValueError when a method is attached to the model already."""
    if str(model.config._attn_implementation).startswith(NAME):
        raise ValueError("a method is already attached to this model; leave its `with` block first")


@contextmanager
def applied(
    model: PreTrainedModel, method: Method, *, executor: str = "fused", prompt_length: int | None = None
) -> Iterator[Attachment]:
    """Attaches `method` for the length of a `with` block; the model is restored after it, also by an error.

    executor: 'fused' (O(T) memory, no gradients) or 'dense' (O(T^2) memory, gradients, attention weights).
    prompt_length: tokens of the whole prompt (padding included) where it is given in several calls; Mesa's chunks
    follow from it. By default it is what `generate` is given, and elsewhere what the first call with an empty cache is:
    a loop of your own that goes without a cache needs it stated.
    Batches may be padded on either side; `generate` needs it on the left, as it does without a method. A KV cache
    filled inside the block serves only inside it. Threads may share the block; passes, and backward() under gradient
    checkpointing, must end in it.
    Raises ValueError for an unsupported model or an unknown executor. A pass in which a layer's attention is not the
    method's is a RuntimeError.

    >>> with mesa.applied(model, mesa.ReRoPE(trained_length=4096)):
    ...     model.generate(**inputs)
    """
    check_executor(executor)
    check_method(model.config, method)
    check_free(model)
    attachment = Attachment(model, method, executor, prompt_length)
    with attachment.on():
        yield attachment
