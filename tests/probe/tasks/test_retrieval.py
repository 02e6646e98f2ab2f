"""Retrieval prompts under two kinds of tokenizers: byte-level, and SentencePiece's, which puts a space first."""

import numpy as np
import pytest
import spaced
import tiny
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from probe.tasks.retrieval import (
    LINES_HEADER,
    PASSKEY_FILLER,
    PASSKEY_HEADER,
    PASSKEY_KEY,
    PASSKEY_QUESTION,
    encode,
    first_ids,
    lines,
    passkey,
)


@pytest.fixture(scope="module", params=["byte-level", "sentencepiece"])
def tokenizer(request):
    if request.param == "sentencepiece":
        return spaced.tokenizer()
    return tiny.byte_level()


def text_of(tokenizer, prompt):
    assert prompt.ids[: len(first_ids(tokenizer))] == first_ids(tokenizer)
    return tokenizer.decode(prompt.ids[len(first_ids(tokenizer)) :])


def test_a_piece_goes_on_from_the_text_before_it(tokenizer):
    pieces = (PASSKEY_HEADER, *PASSKEY_FILLER, PASSKEY_KEY.format(key=12345), PASSKEY_QUESTION)
    joined = [token for piece in pieces for token in encode(tokenizer, piece)]
    assert [*first_ids(tokenizer), *joined] == tokenizer.encode("".join(pieces))


def test_the_passkey_prompt_reads_as_the_papers(tokenizer):
    for length in (400, 401, 433):
        prompt = passkey(tokenizer, length, np.random.default_rng(0), depth=0.5)
        text = text_of(tokenizer, prompt)
        assert len(prompt.ids) == length
        assert text.startswith(f"{PASSKEY_HEADER}{''.join(PASSKEY_FILLER)} The grass")
        assert PASSKEY_KEY.format(key=prompt.answer) in text
        assert text.endswith(PASSKEY_QUESTION)
        assert "  " not in text
        assert " \n" not in text
        assert tokenizer.decode(prompt.answer_ids).strip() == prompt.answer


def test_every_record_is_a_line(tokenizer):
    text = text_of(tokenizer, lines(tokenizer, 700, np.random.default_rng(0)))
    assert text.startswith(LINES_HEADER)
    assert " \n" not in text
    assert all(line.startswith("line ") for line in text[len(LINES_HEADER) :].strip().splitlines()[:-1])


def test_special_tokens_are_those_the_tokenizer_puts_first():
    byte_level = tiny.byte_level()
    assert first_ids(byte_level) == (byte_level.bos_token_id,)
    without = PreTrainedTokenizerFast(tokenizer_object=Tokenizer.from_str(byte_level.backend_tokenizer.to_str()))
    without.backend_tokenizer.post_processor = None
    without.bos_token = "<bos>"  # known, but not put before a text: as GPT-NeoX
    assert first_ids(without) == ()
