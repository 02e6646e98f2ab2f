"""The text of each token of a prompt: its part of the prompt's text, not what it would be on its own."""

import re
from collections.abc import Sequence
from functools import cache, partial
from itertools import groupby
from typing import Any

from transformers.convert_slow_tokenizer import bytes_to_unicode

_BYTE = re.compile("<0x([0-9A-F]{2})>")
_UNKNOWN = "\ufffd"  # what decoders write for bytes that are no character


def token_texts(tokenizer: Any, ids: Sequence[int]) -> list[str]:
    """The text of each token, in order: what it adds to the text of those before it.

    A token alone may decode to something else: SentencePiece drops the space before a word, and a character of several
    tokens is lost. It is the text of the last of them; those before show their bytes, such as '<0xE5>', as do bytes of
    no character. A token whose text and bytes are not known is written as the vocabulary has it.

    Examples:
        >>> tokenizer = mesa.load().tokenizer
        >>> token_texts(tokenizer, tokenizer("a é").input_ids)
        ['<bos>', 'a', ' ', '<0xC3>', 'é']
    """
    ids = [int(token) for token in ids]
    names: list[str] = tokenizer.convert_ids_to_tokens(ids)
    special = {token for token, added in tokenizer.added_tokens_decoder.items() if added.special}
    decoder = _decoder(tokenizer)
    raw = [None if token in special else bytes_of(name, decoder) for token, name in zip(ids, names, strict=True)]
    texts, difference = list[str](), cache(partial(_difference, tokenizer))
    for are_bytes, run in groupby(range(len(ids)), lambda at: raw[at] is not None):
        places = list(run)
        if are_bytes:
            texts += characters([raw[at] or b"" for at in places])
            continue
        for at in places:
            before = ids[at - 1] if at else None
            text = names[at] if ids[at] in special else difference(before, ids[at])
            texts.append(names[at] if _UNKNOWN in text else text)
    return texts


def characters(parts: Sequence[bytes]) -> list[str]:
    """Bytes in a row as texts: a character where its last byte is, and such as '<0xE5>' those of its earlier parts.

    Bytes of no character too.

    Examples:
        >>> characters(["€".encode()[:2], "€".encode()[2:] + b"!", b"\\xff"])
        ['<0xE2><0x82>', '€!', '<0xFF>']
    """
    joined, texts, start = b"".join(parts), [""] * len(parts), 0
    owner = [number for number, part in enumerate(parts) for _ in part]
    while start < len(joined):
        text = next((text for size in range(1, 5) if (text := _decoded(joined[start : start + size]))), "")
        stop = start + max(1, len(text.encode()))
        last = owner[stop - 1]
        for at in range(start, stop):
            texts[owner[at]] += f"<0x{joined[at]:02X}>" if owner[at] != last or not text else ""
        texts[last] += text
        start = stop
    return texts


def bytes_of(name: str, decoder: str) -> bytes | None:
    """The bytes of a token by its name in the vocabulary; None where that does not tell them."""
    if decoder == "ByteLevel":
        alphabet = _alphabet()
        return bytes(alphabet[letter] for letter in name) if {*name} <= alphabet.keys() else name.encode()
    match = _BYTE.fullmatch(name) if decoder == "ByteFallback" else None
    return bytes([int(match[1], 16)]) if match else None


def _decoder(tokenizer: Any) -> str:
    """How a tokenizer's names tell bytes: all do, those of single bytes do, or none."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:  # in Python: GPT-2's kind has the alphabet, others wrap SentencePiece
        return "ByteLevel" if hasattr(tokenizer, "byte_decoder") else "ByteFallback"
    state = b"" if backend.decoder is None else backend.decoder.__getstate__()
    return next((kind for kind in ("ByteLevel", "ByteFallback") if kind.encode() in state), "")


@cache
def _alphabet() -> dict[str, int]:
    """The byte of each letter that byte-level vocabularies write for it."""
    return {letter: byte for byte, letter in bytes_to_unicode().items()}


def _difference(tokenizer: Any, before: int | None, token: int) -> str:
    """What a token adds to the text of the one before it."""

    def decoded(*ids: int) -> str:
        return tokenizer.decode(list(ids), clean_up_tokenization_spaces=False)

    if before is None:
        return decoded(token)
    start, both = decoded(before), decoded(before, token)
    return both[len(start) :] if both.startswith(start) else decoded(token)


def _decoded(part: bytes) -> str:
    try:
        return part.decode()
    except UnicodeDecodeError:
        return ""
