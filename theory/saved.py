"""Constructions in a folder, beside a tokenizer of bytes, so that every command reads them."""

from __future__ import annotations

from pathlib import Path

from tokenizers import Tokenizer
from tokenizers.decoders import ByteLevel as Joined
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import ByteLevel, Sequence, Split
from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedModel, PreTrainedTokenizerFast

BOS = "<bos>"
VOCABULARY = 257
"""<bos> and the bytes of a text."""


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """A tokenizer of 257 tokens: <bos> (0), put before a text, and a token for every byte."""
    letters = [BOS, *sorted(ByteLevel.alphabet())]
    made = Tokenizer(WordLevel({letter: index for index, letter in enumerate(letters)}, unk_token=BOS))
    made.pre_tokenizer = Sequence([ByteLevel(add_prefix_space=False, use_regex=False), Split("", "isolated")])  # pyright: ignore[reportAttributeAccessIssue]
    made.decoder = Joined()  # pyright: ignore[reportAttributeAccessIssue]
    made.post_processor = TemplateProcessing(single=f"{BOS} $A", special_tokens=[(BOS, 0)])  # pyright: ignore[reportAttributeAccessIssue]
    return PreTrainedTokenizerFast(tokenizer_object=made, bos_token=BOS)


def save(model: PreTrainedModel, folder: str | Path) -> Path:
    """The folder, with a model of `theory.build` and its tokenizer in it: `mesa.load` and every command read it.

    Raises ValueError for a model whose vocabulary is not the tokenizer's.
    """
    if model.config.vocab_size != VOCABULARY:
        raise ValueError(
            f"vocabulary={model.config.vocab_size} is not the {VOCABULARY} tokens of <bos> and bytes; build with "
            f"shape=Shape(vocabulary={VOCABULARY}), or save the model with a tokenizer of your own"
        )
    model.save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    return Path(folder)
