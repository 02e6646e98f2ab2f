"""Retrieval prompts under two kinds of tokenizers: byte-level, and SentencePiece's, which puts a space first."""

import numpy as np
import tiny
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from probe.eval_tasks import retrieval


def test_a_piece_goes_on_from_the_text_before_it(tokenizer):
    key = retrieval.PASSKEY_KEY.format(key=12345)
    pieces = (retrieval.PASSKEY_HEADER, *retrieval.PASSKEY_FILLER, key, retrieval.PASSKEY_QUESTION)
    joined = [token for piece in pieces for token in retrieval.encode(tokenizer, piece)]
    assert [*retrieval.first_ids(tokenizer), *joined] == tokenizer.encode("".join(pieces))


def test_the_passkey_prompt_reads_as_the_papers(tokenizer):
    first = retrieval.first_ids(tokenizer)
    for length in (400, 401, 433):
        prompt = retrieval.passkey(tokenizer, length, np.random.default_rng(0), depth=0.5)
        text = tokenizer.decode(prompt.ids[len(first) :])
        assert (len(prompt.ids), prompt.ids[: len(first)]) == (length, first)
        assert text.startswith(f"{retrieval.PASSKEY_HEADER}{''.join(retrieval.PASSKEY_FILLER)} The grass")
        assert retrieval.PASSKEY_KEY.format(key=prompt.answer) in text
        assert text.endswith(retrieval.PASSKEY_QUESTION)
        assert "  " not in text
        assert " \n" not in text
        assert tokenizer.decode(prompt.answer_ids).strip() == prompt.answer


def test_special_tokens_are_those_the_tokenizer_puts_first():
    byte_level = tiny.byte_level()
    assert retrieval.first_ids(byte_level) == (byte_level.bos_token_id,)
    without = PreTrainedTokenizerFast(tokenizer_object=Tokenizer.from_str(byte_level.backend_tokenizer.to_str()))
    without.backend_tokenizer.post_processor = None
    without.bos_token = "<bos>"  # known, but not put before a text: as GPT-NeoX
    assert retrieval.first_ids(without) == ()
