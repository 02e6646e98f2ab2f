"""What the tasks score with, under whatever method is attached: likelihood of text, and greedy retrieval."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from mesa.decoder import decoder_of, removed, replaced
from mesa.engine.structure import new_cache
from mesa.errors import Refused
from mesa.models import Loaded
from mesa.outside import with_cache, with_last_logits
from probe.eval_tasks import sources
from probe.eval_tasks.retrieval import Prompt
from probe.run_folder import SHIPPED_TEXT

if TYPE_CHECKING:
    from transformers import PreTrainedModel

SLICE, LOGITS = 1024, 2**27
"""Of how many tokens logits are computed at once, and how many numbers these are at most."""


def heldout_ids(tokenizer: PreTrainedTokenizerBase, texts: Sequence[str] | None = None) -> list[np.ndarray]:
    """Token ids of held-out texts (the shipped ones by default), without special tokens."""
    texts = sources.heldout() if texts is None else texts
    batch = tokenizer(list(texts), add_special_tokens=False, verbose=False).input_ids
    return [np.array(ids, np.int64) for ids in batch]


def documents_of(
    tokenizer: PreTrainedTokenizerBase, source: str | None
) -> tuple[tuple[np.ndarray, ...], sources.TextSource]:
    """Token ids of the documents of `source`, and what they are, which stderr says where a source is named.

    Raises what `sources.texts_by_name` raises.
    """
    by_name = sources.texts_by_name(source)
    ids = tuple(heldout_ids(tokenizer, [text for documents in by_name.values() for text in documents]))
    counts = {name: len(documents) for name, documents in by_name.items()}
    about = sources.TextSource(str(source or SHIPPED_TEXT), counts, sum(map(len, ids)))
    if source is not None:
        _say(f"text: {about}")
    return ids, about


@cache
def _say(line: str) -> None:
    """Says it on stderr, once."""
    sys.stderr.write(f"{line}\n")


def text_windows(documents: Sequence[np.ndarray], tokens: int, count: int, scored: int = 0) -> list[np.ndarray]:
    """Up to `count` runs of `tokens` tokens, spread evenly over documents and without overlap while there is room.

    scored: of each run the last n tokens are scored; these never overlap, and neither they nor a run are there twice:
    either would count one text as several. Where no document is long enough they are strung together. Raises Refused
    when all of them do not hold `tokens` tokens.
    """
    return [run for run, _ in labelled_windows(documents, tokens, count, scored)]


def labelled_windows(
    documents: Sequence[np.ndarray], tokens: int, count: int, scored: int = 0
) -> list[tuple[np.ndarray, int]]:
    """`text_windows`, each with the number of its document; all with one number where documents are strung together."""
    documents, places = window_places(documents, tokens, count, scored)
    runs = [(documents[d][s : s + tokens], d) for d, s in places]
    return list({run[-scored:].tobytes(): (run, document) for run, document in runs}.values())


def window_places(
    documents: Sequence[np.ndarray], tokens: int, count: int, scored: int = 0
) -> tuple[Sequence[np.ndarray], list[tuple[int, int]]]:
    """Where `text_windows` begin: (document, token); of these documents, which are one where none is long enough."""
    if documents and max(map(len, documents)) < tokens:
        documents = [np.concatenate(documents)]
    starts = [(d, s) for d, ids in enumerate(documents) for s in range(0, len(ids) - tokens + 1, tokens)]
    if len(starts) < count:
        step = max(1, scored, sum(max(0, len(ids) - tokens) for ids in documents) // max(1, count))
        starts = [(d, s) for d, ids in enumerate(documents) for s in range(0, len(ids) - tokens + 1, step)]
    if not starts:
        there = sum(map(len, documents))
        raise Refused(
            f"the text has {there} tokens, {tokens} are needed; give a longer text (--text) or ask for less (--lengths)"
        )
    chosen = np.linspace(0, len(starts) - 1, min(count, len(starts))).round().astype(int)
    return documents, [starts[index] for index in chosen]


def logits_bytes(vocabulary: int, tokens: int, number_bytes: int) -> int:
    """Memory of the logits of so many scored tokens: those of a slice, their float32 copies and log-softmax."""
    return vocabulary * min(tokens, _slice_of(vocabulary)) * (number_bytes + 2 * 4)


def _slice_of(vocabulary: int) -> int:
    """Tokens of a slice; one more than `SLICE`, for the last token predicts none that is scored."""
    return max(1, min(SLICE + 1, LOGITS // vocabulary))


def token_losses(model: Any, ids: Tensor, last: int, *, reduction: str = "none") -> Tensor:
    """NLL (nats) of each of the `last` tokens of `ids` (1, token), after all before it; their mean with 'mean'.

    The decoder runs once, and logits are computed a slice of tokens at a time: the model's own forward, with all that
    it does to logits (soft caps, multipliers), is called for every slice, with a part of the decoder's output in its
    place. It needs no `logits_to_keep`. Where a head takes other states than the decoder's, all logits are computed.
    """
    decoder, end, losses = decoder_of(model), ids.shape[1], list[Tensor]()
    kept, size = list[Any](), _slice_of(model.config.get_text_config().vocab_size)
    for begin in range(end - last - 1, end - 1, size):  # the last token predicts none
        tokens = slice(begin, min(begin + size, end))

        def of_tokens(module: Any, args: Any, output: Any, tokens: slice = tokens) -> Any:
            kept[:] = kept or [output]
            return _of_tokens(kept[0], tokens)

        known = replaced((decoder, "forward", lambda *_, **__: kept[0])) if kept else nullcontext()
        with removed([decoder.register_forward_hook(of_tokens)]), known:
            logits = model(ids, use_cache=False).logits[0]
        if len(logits) > tokens.stop - begin:  # the head takes other states
            logits, tokens = logits[begin:], slice(begin, end)
        right = ids[0, begin + 1 : tokens.stop + 1].to(logits.device)
        losses += [
            torch.nn.functional.cross_entropy(part.float(), targets, reduction="none")
            for part, targets in zip(logits[: len(right)].split(size), right.split(size), strict=True)
        ]
        del logits  # else those of two slices are held
        if tokens.stop == end:
            break
    return torch.cat(losses).mean() if reduction == "mean" else torch.cat(losses)


def _of_tokens(output: Any, tokens: slice) -> Any:
    """A decoder's output whose states (row, token, dim), which come first, are those of some tokens."""
    if isinstance(output, dict):  # an output of transformers'
        name, states = next(iter(output.items()))
        return type(output)(**{**output, name: states[:, tokens]})
    return (output[0][:, tokens], *output[1:]) if isinstance(output, tuple) else output[:, tokens]


@torch.no_grad()
def nll(model: PreTrainedModel, ids: np.ndarray, last: int, *, reduction: str = "none") -> torch.Tensor:
    """NLL (nats) of each of the `last` tokens of `ids`, after all before it; their mean with reduction 'mean'."""
    return token_losses(model, torch.tensor(ids, device=model.device)[None], last, reduction=reduction).cpu()


def retrieval_hits(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, prompts: Sequence[Prompt]) -> list[bool]:
    """Whether greedy decoding, of all prompts (of one length) at once, continues each with its answer."""
    count = max(len(prompt.answer_ids) + prompt.before for prompt in prompts)
    texts = tokenizer.batch_decode(greedy(model, [prompt.ids for prompt in prompts], count))
    end = str(tokenizer.eos_token or "")
    replies = [text.split(end)[0] if end else text for text in texts]
    return [_answers(reply, prompt) for reply, prompt in zip(replies, prompts, strict=True)]


def _answers(text: str, prompt: Prompt) -> bool:
    if prompt.before:
        return re.findall("[0-9]+", text)[:1] == [prompt.answer]
    return text.strip().startswith(prompt.answer)


@torch.no_grad()
def greedy(model: PreTrainedModel, prompts: Sequence[Sequence[int]], count: int) -> torch.Tensor:
    """The `count` most likely next tokens, one after the other, (batch, count); end tokens do not stop it."""
    ids = torch.tensor(prompts, device=model.device)
    given, output = with_cache(model, new_cache(model)), []
    for _ in range(count):
        ids = model(ids, **given, **with_last_logits(model, 1)).logits[:, -1:].argmax(-1)
        output.append(ids)
    return torch.cat(output, 1)


def until_end(loaded: Loaded, ids: list[int]) -> str:
    """The text up to the first end token, of the tokenizer or of the model's generation config."""
    tokenizer: Any = loaded.tokenizer
    stated = getattr(loaded.model.generation_config, "eos_token_id", None)
    ends = [tokenizer.eos_token_id, *(stated if isinstance(stated, list) else [stated])]
    length = next((index for index, token in enumerate(ids) if token in ends), len(ids))
    return tokenizer.decode(ids[:length], skip_special_tokens=True).strip()
