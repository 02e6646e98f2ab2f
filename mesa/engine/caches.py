"""KV caches filled under a method and the prompt length of a running `generate`; both belong to one `with` block."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from threading import local
from typing import Any

from transformers import DynamicCache

from mesa.engine.passes import Bypassed


@dataclass(eq=False)
class Block:
    """One `with` block of a method; open until it ends."""

    method: str
    open: bool = True

    def __deepcopy__(self, memo: Any) -> Block:
        """Itself: the copies of a cache were filled in the same block."""
        return self


class MethodCache(DynamicCache):
    """A cache whose keys were made in a block; it takes no others after it."""

    block: Block
    prompt_length: int

    def update(self, *args: Any, **kwargs: Any) -> Any:
        """As the class above has it, in the block."""
        if not self.block.open:
            raise Bypassed(
                f"the `with` block in which this cache of {self.get_seq_length()} tokens was filled has ended, and its "
                "keys serve only there; let all passes end in the block, and start with a new cache after it"
            )
        return super().update(*args, **kwargs)


def fill(cache: Any, block: Block, prompt_length: int) -> None:
    """Notes in a cache, and so in its copies, the block that fills it and its prompt's length."""
    cache.block, cache.prompt_length = block, prompt_length
    if type(cache) is DynamicCache:
        cache.__class__ = MethodCache


def prompt_length_of(cache: Any, block: Block) -> int | None:
    """Its prompt's length where the cache, or what it is a copy of, was filled in this block; else None."""
    return cache.prompt_length if getattr(cache, "block", None) is block else None


class Prompt(local):
    """The length (tokens) of the prompt that this thread's `generate` was given; None outside of it."""

    length: int | None = None


@contextmanager
def prompt_noted(model: Any, prompt: Prompt) -> Iterator[None]:
    """`model.generate` writes its prompt's length into `prompt` while it runs, for as long as this lasts."""
    generate, replaced = model.generate, model.__dict__.get("generate")

    @wraps(generate)
    def noting(inputs: Any = None, *args: Any, **kwargs: Any) -> Any:
        prompts = (kwargs.get("inputs_embeds"), kwargs.get("input_ids"), inputs)
        before = prompt.length
        prompt.length = next((tokens.shape[1] for tokens in prompts if tokens is not None), 1)
        try:
            return generate(inputs, *args, **kwargs)
        finally:
            prompt.length = before

    model.generate = noting
    try:
        yield
    finally:
        if replaced is None:
            del model.generate
        else:
            model.generate = replaced
