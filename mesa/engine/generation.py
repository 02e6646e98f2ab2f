"""How long the prompt of a running `generate` is, which its passes do not tell."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import wraps
from threading import local
from typing import Any


class Prompt(local):
    """The length (tokens) of the prompt that this thread's `generate` was given; None outside of it."""

    length: int | None = None


def check_cache_is_used(model: Any, config: Any, kwargs: Mapping[str, Any]) -> None:
    """ValueError where `generate` is given a cache and not to use one: every step would add all tokens to it again."""
    own = model.generation_config.use_cache
    stated = own if config is None or config.use_cache is None else config.use_cache
    if kwargs.get("past_key_values") is not None and kwargs.get("use_cache", stated) is False:
        raise ValueError("generate is given past_key_values, but use_cache is False; pass use_cache=True")


@contextmanager
def prompt_noted(model: Any, prompt: Prompt) -> Iterator[None]:
    """`model.generate` writes its prompt's length into `prompt` while it runs, for as long as this lasts."""
    generate, own = model.generate, model.__dict__.get("generate")

    @wraps(generate)
    def noting(inputs: Any = None, *args: Any, **kwargs: Any) -> Any:
        check_cache_is_used(model, args[0] if args else kwargs.get("generation_config"), kwargs)
        given = (kwargs.get("inputs_embeds"), kwargs.get("input_ids"), inputs)
        before = prompt.length
        prompt.length = next((each.shape[1] for each in given if each is not None), 1)
        try:
            return generate(inputs, *args, **kwargs)
        finally:
            prompt.length = before

    model.generate = noting
    try:
        yield
    finally:
        if own is None:
            del model.generate
        else:
            model.generate = own
