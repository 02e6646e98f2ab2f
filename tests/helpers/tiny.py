"""A tiny random Llama, and the same as a local folder with a tokenizer."""

from functools import cache
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from tokenizers.processors import TemplateProcessing
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from research.shipped_models.making import train_tokenizer

TRAINED = 24


def model(seed: int = 0, *, vocabulary: int = 97, key_heads: int = 2, trained: int = TRAINED) -> LlamaForCausalLM:
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=key_heads,
        max_position_embeddings=trained,
        bos_token_id=0,
        eos_token_id=None,
        pad_token_id=1,
    )
    built = LlamaForCausalLM(config).eval()
    with torch.no_grad():  # so that positions matter
        for layer in built.model.layers:
            layer.self_attn.q_proj.weight *= 20
            layer.self_attn.k_proj.weight *= 20
    return built


def tokens(batch: int = 1, length: int = 60, seed: int = 0) -> torch.Tensor:
    return torch.randint(2, 97, (batch, length), generator=torch.Generator().manual_seed(seed))


def padded(*pads: int, length: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids of a row for each of `pads`, which says how many of its first tokens are padding, and the mask."""
    return tokens(len(pads), length, seed), (torch.arange(length) >= torch.tensor(pads)[:, None]).long()


@torch.no_grad()
def in_pieces(model, ids: torch.Tensor, *ends: int, mask: torch.Tensor | None = None, placed: bool = False):
    """Logits of token ids that are read in pieces, with a cache; each ends at one of `ends`, the last at the ids' end.

    placed: positions are given, which count from a row's first token that is not padding.
    """
    cache, mask, parts = None, torch.ones_like(ids) if mask is None else mask, []
    for begin, end in pairwise((0, *ends, ids.shape[1])):
        given = {"position_ids": (mask.cumsum(1) - 1).clamp(min=0)[:, begin:end]} if placed else {}
        given |= {"attention_mask": mask[:, :end], "past_key_values": cache, "use_cache": True}
        output = model(ids[:, begin:end], **given)
        cache = output.past_key_values
        parts.append(output.logits)
    return torch.cat(parts, 1)


def generated(model, ids: torch.Tensor, new: int = 4, **given):
    """What a greedy `generate` of so many tokens gives."""
    options = {"max_new_tokens": new, "do_sample": False, "pad_token_id": 1, "attention_mask": torch.ones_like(ids)}
    return model.generate(ids, **options | given)


def step_logits(model, ids: torch.Tensor, new: int = 4, **given) -> torch.Tensor:
    """The logits (row, step, vocabulary) of every step of a greedy `generate`."""
    out = generated(model, ids, new, return_dict_in_generate=True, output_logits=True, **given)
    return torch.stack(out.logits, 1)


def logits(model: LlamaForCausalLM, ids: torch.Tensor, **given) -> torch.Tensor:
    with torch.no_grad():
        return model(ids, **given).logits


def tokenizer(path: Path, first: bool = True) -> PreTrainedTokenizerFast:
    """One of 97 words, "hello" among them, that lies in a folder; puts <s> before a text, or nothing."""
    words = ["<s>", "<pad>", "hello", *(f"w{number}" for number in range(94))]
    inner = Tokenizer(WordLevel({word: index for index, word in enumerate(words)}, unk_token="<pad>"))
    inner.pre_tokenizer = Whitespace()
    if first:
        inner.post_processor = TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    PreTrainedTokenizerFast(tokenizer_object=inner, bos_token="<s>", pad_token="<pad>").save_pretrained(path)
    return PreTrainedTokenizerFast.from_pretrained(path)


@cache
def byte_level() -> PreTrainedTokenizerFast:
    """Byte-level BPE with the words of the tasks; not to be changed."""
    return train_tokenizer(["A text of a few words, to make a tokenizer from."], 900)


def folder(path: Path, trained: int = 160) -> Path:
    """A checkpoint folder whose window holds a passkey prompt."""
    path.mkdir(parents=True, exist_ok=True)
    for name, content in _files(trained).items():
        (path / name).write_bytes(content)
    return path


@cache
def _files(trained: int) -> dict[str, bytes]:
    tokenizer = byte_level()
    with TemporaryDirectory() as place:
        model(vocabulary=len(tokenizer), trained=trained).save_pretrained(place)
        tokenizer.save_pretrained(place)
        return {file.name: file.read_bytes() for file in Path(place).iterdir()}
