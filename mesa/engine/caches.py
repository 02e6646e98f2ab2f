"""KV caches filled under a method: their keys serve only while it is attached, and their copies know so too."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NoReturn

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

    def __reduce__(self) -> NoReturn:
        """Raises RuntimeError: another process has no such block."""
        raise RuntimeError(f"a cache filled under {self.method} cannot be pickled; its keys serve only in its block")


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
