"""The texts of tokens make up the text that they are of, whatever the kind of tokenizer."""

import json
import re

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaTokenizer, PreTrainedTokenizerFast

import mesa
from probe.commands.anatomy import AnatomyRequest
from probe.commands.anatomy.run import plan as anatomy_plan
from probe.commands.probe import ProbeRequest
from probe.commands.probe.plan import plan as probe_plan
from probe.commands.probe.run import prepare, stored_tokens
from probe.eval_tasks.token_texts import characters, token_texts

TEXTS = [
    "The pass key is hidden here, isn't it?",
    "今天天气很好 and مرحبا بالعالم",
    "I am 😀 today, naïve café \ufffd\n\n  two  spaces\t",
    "ends in 天",
]
BYTES = re.compile("(<0x[0-9A-F]{2}>)+")


def trained(model, trainer, pre_tokenizer, decoder):
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizer, decoder
    tokenizer.train_from_iterator(["The pass key is hidden here. Remember it, today and two spaces."] * 20, trainer)
    return tokenizer


def llama():
    """As Llama-2's: words after '▁', bytes of what it does not know."""
    specials = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁"]
    trainer = trainers.BpeTrainer(vocab_size=420, special_tokens=specials)
    pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=True)
    model = json.loads(trained(models.BPE(unk_token="<unk>"), trainer, pre_tokenizer, decoders.Fuse()).to_str())[
        "model"
    ]
    return LlamaTokenizer(vocab=model["vocab"], merges=[tuple(merge) for merge in model["merges"]])


def word_piece():
    trainer = trainers.WordPieceTrainer(vocab_size=60, special_tokens=["[UNK]"])
    backend = trained(models.WordPiece(unk_token="[UNK]"), trainer, pre_tokenizers.Whitespace(), decoders.WordPiece())
    return PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="[UNK]")


@pytest.fixture(scope="module")
def byte_level():
    return mesa.load().tokenizer


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("kind", ["byte-level", "llama"])
def test_texts_make_up_the_whole(byte_level, kind, text):
    """Alone, Llama's words lose the space before them, and bytes of a character become U+FFFD."""
    tokenizer = byte_level if kind == "byte-level" else llama()
    ids = tokenizer(text).input_ids
    texts = token_texts(tokenizer, ids)
    special = set(tokenizer.all_special_tokens)
    whole = "".join(BYTES.sub("", one) for one in texts if one not in special)
    assert whole == tokenizer.decode(ids, skip_special_tokens=True) == text
    assert [one for one in texts if "\ufffd" in one] == ["\ufffd"] * ("\ufffd" in text)
    assert "".join(tokenizer.decode([token]) for token in ids) != tokenizer.decode(ids) or text == TEXTS[0]


def test_bytes_show_before_the_character_that_they_make(byte_level):
    assert token_texts(byte_level, byte_level("é天", add_special_tokens=False).input_ids) == [
        "<0xC3>", "é", "<0xE5>", "<0xA4>", "天"
    ]  # fmt: skip
    ids = byte_level("天", add_special_tokens=False).input_ids
    first = byte_level.bos_token_id
    assert token_texts(byte_level, [ids[0], first, *ids[1:]]) == ["<0xE5>", "<bos>", "<0xA4>", "<0xA9>"]
    assert token_texts(llama(), llama()("天", add_special_tokens=False).input_ids[-3:]) == ["<0xE5>", "<0xA4>", "天"]


def test_bytes_within_and_across_parts():
    assert characters(["a€".encode(), b"\xff", b"b\xe2\x82", b"\xacc", b"\xe2\x82"]) == [
        "a€", "<0xFF>", "b<0xE2><0x82>", "€c", "<0xE2><0x82>"
    ]  # fmt: skip
    assert characters([]) == []


def test_pieces_of_words_are_what_they_add():
    tokenizer = word_piece()
    ids = tokenizer("hidden key").input_ids
    texts = token_texts(tokenizer, ids)
    assert len(texts) > 2
    assert "".join(texts) == "hidden key"


def test_both_commands_store_these_texts(tmp_path, byte_level):
    (tmp_path / "a.txt").write_text("今天 naïve " * 300)
    text = {"text": str(tmp_path / "a.txt"), "methods": "origin"}
    words = anatomy_plan(AnatomyRequest(parts=("tokens",), lengths=(256,), **text)).words
    planned = probe_plan(ProbeRequest(length=512, samples=0, texts=1, **text))
    stored = stored_tokens(planned, prepare(planned)[1])
    for tokens in (words, stored["text"].sel(prompt="text-0").values.tolist()):
        assert {"<0xE4>", "今", "天", "ï"} <= {*tokens}
        assert not any("\ufffd" in token for token in tokens)
