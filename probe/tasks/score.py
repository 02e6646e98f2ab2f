"""Where a model really fails: tail likelihood and retrieval by length, under whatever method is attached."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from transformers import DynamicCache, PreTrainedModel, PreTrainedTokenizerBase

from probe.tasks import corpus, retrieval
from probe.tasks.retrieval import Filler, Prompt

Report = Callable[[], object]
"""Called after each sample, to move a progress bar."""


def heldout_ids(tokenizer: PreTrainedTokenizerBase, texts: Sequence[str] | None = None) -> list[np.ndarray]:
    """Token ids of held-out texts (the shipped ones by default), without special tokens."""
    texts = corpus.heldout() if texts is None else texts
    return [
        np.array(ids, np.int64) for ids in tokenizer(list(texts), add_special_tokens=False, verbose=False).input_ids
    ]


def text_windows(documents: Sequence[np.ndarray], tokens: int, count: int) -> list[np.ndarray]:
    """`count` runs of `tokens` tokens, spread evenly over documents and without overlap while there is room.

    Where no document is long enough they are strung together. Raises ValueError when all of them do not hold `tokens`
    tokens.
    """
    if documents and max(map(len, documents)) < tokens:
        documents = [np.concatenate(documents)]
    starts = [(d, s) for d, ids in enumerate(documents) for s in range(0, len(ids) - tokens + 1, tokens)]
    if len(starts) < count:
        step = max(1, sum(max(0, len(ids) - tokens) for ids in documents) // max(1, count))
        starts = [(d, s) for d, ids in enumerate(documents) for s in range(0, len(ids) - tokens + 1, step)]
    if not starts:
        there = sum(map(len, documents))
        raise ValueError(f"the text has {there} tokens, {tokens} are needed; give a longer text (--text)")
    chosen = np.linspace(0, len(starts) - 1, min(count, len(starts))).round().astype(int)
    return [documents[d][s : s + tokens] for d, s in (starts[index] for index in chosen)]


@torch.no_grad()
def tail_nll(
    model: PreTrainedModel, windows: Sequence[np.ndarray], first: Sequence[int], length: int, tail: int, report: Report
) -> list[float]:
    """Mean negative log-likelihood (nats a token) of the last `tail` tokens of every window, after `length` tokens.

    The targets are the same at every length; only the context before them grows. `first` are the special tokens
    that a prompt begins with; they count towards `length`.
    """
    values = []
    for window in windows:
        ids = torch.tensor([[*first, *window[len(window) - (length - len(first)) :]]], device=model.device)
        logits = model(ids, use_cache=False, logits_to_keep=tail + 1).logits[0, :-1].float()
        loss = torch.nn.functional.cross_entropy(logits, ids[0, -tail:].to(logits.device))
        values.append(float(loss))
        report()
    return values


@torch.no_grad()
def retrieval_hits(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[Prompt],
    report: Report,
    batch: int = 8,
) -> list[bool]:
    """Whether greedy decoding continues each prompt (all of one length) with its answer."""
    hits: list[bool] = []
    for begin in range(0, len(prompts), batch):
        part = prompts[begin : begin + batch]
        output = greedy(model, [prompt.ids for prompt in part], max(len(prompt.answer_ids) for prompt in part))
        texts = tokenizer.batch_decode(output)
        for text, prompt in zip(texts, part, strict=True):
            hits.append(text.strip().startswith(prompt.answer))
            report()
    return hits


@torch.no_grad()
def greedy(model: PreTrainedModel, prompts: Sequence[Sequence[int]], count: int) -> torch.Tensor:
    """The `count` most likely next tokens, one after the other, (batch, count); end tokens do not stop it."""
    ids = torch.tensor(prompts, device=model.device)
    cache, output = DynamicCache(), []
    for _ in range(count):
        ids = model(ids, past_key_values=cache, logits_to_keep=1).logits[:, -1:].argmax(-1)
        output.append(ids)
    return torch.cat(output, 1)


def text_filler(documents: Sequence[np.ndarray], rng: np.random.Generator) -> Filler:
    """Filler of running text from a random place, in sentences of 16 tokens.

    Where no document is long enough they are strung together, again and again if need be.
    """

    def fill(tokens: int) -> list[Sequence[int]]:
        long_enough = [ids for ids in documents if len(ids) >= tokens]
        if not long_enough:
            strung = np.concatenate(documents)
            long_enough = [np.tile(strung, -(-tokens // len(strung)))]
        document = long_enough[int(rng.integers(len(long_enough)))]
        begin = int(rng.integers(len(document) - tokens + 1))
        ids = document[begin : begin + tokens].tolist()
        return [ids[place : place + 16] for place in range(0, tokens, 16)]

    return fill


def prompts(
    task: str,
    tokenizer: PreTrainedTokenizerBase,
    length: int,
    count: int,
    seed: int,
    documents: Sequence[np.ndarray] = (),
) -> list[Prompt]:
    """`count` seeded prompts of `length` tokens of 'passkey', 'needle' (in `documents`) or 'lines'."""
    rng = np.random.default_rng([seed, length, len(task)])
    if task == "passkey":
        return [retrieval.passkey(tokenizer, length, rng) for _ in range(count)]
    if task == "needle":
        filler = text_filler(documents, rng)
        return [retrieval.needle(tokenizer, length, rng, filler=filler) for _ in range(count)]
    if task == "lines":
        return [retrieval.lines(tokenizer, length, rng) for _ in range(count)]
    raise ValueError(f"unknown task {task!r}; known: passkey, needle, lines")
