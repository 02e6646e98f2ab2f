"""The repeated word comes after a token that differs from it, whatever the tokenizer."""

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from mesa.models import tokenizer_of
from probe.capture.capture import check_distinct
from probe.eval_tasks.retrieval import first_token, repeated_word

WORDS = {"<unk>": 0, "<|start|>": 1, "<|end|>": 2, "hello": 3, "big": 4, "world": 5}


def tokenizer(**special):
    inner = Tokenizer(models.WordLevel(WORDS, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=inner, **special)


@pytest.mark.parametrize(
    ("special", "first"),
    [
        ({"bos_token": "<|start|>", "eos_token": "<|end|>"}, "<|start|>"),
        ({"eos_token": "<|end|>"}, "<|end|>"),
        ({}, "<unk>"),
        ({"bos_token": "hello", "eos_token": "<|end|>"}, "<|end|>"),
    ],
)
def test_where_the_tokenizer_puts_nothing_first_a_special_token_is_put(special, first):
    ids, added = repeated_word(tokenizer(**special), "hello", 5)
    assert added == first
    assert ids == [WORDS[first], 3, 3, 3, 3]
    check_distinct(ids, "it")


def test_a_words_tokens_are_repeated_whole_and_cut_after_the_tokenizers_own_first_token():
    ids, added = repeated_word(tokenizer_of("default"), "hello", 6)
    assert (added, ids[0], len(set(ids[1:]))) == ("", 0, 1)
    ids, _ = repeated_word(tokenizer(bos_token="<|start|>"), "big world", 6)
    assert ids == [1, 4, 5, 4, 5, 4]
    assert first_token(tokenizer(), range(5)) == 5  # none of the words


def test_an_empty_word_and_identical_tokens_are_refused_with_the_reason():
    with pytest.raises(ValueError, match="is empty; give a word to repeat"):
        repeated_word(tokenizer(), "  ", 4)
    with pytest.raises(ValueError, match=r"all 300 tokens of prompt text-0 are the same \(id 5\).*cannot depend on"):
        check_distinct([5] * 300, "prompt text-0")
    check_distinct([5], "one token")
