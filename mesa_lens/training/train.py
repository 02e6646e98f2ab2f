"""Trains the default model: a small Llama that retrieves inside its window and breaks beyond it.

Seeded and offline: the text is the running interpreter's standard library (`probe.tasks.corpus`), the rest is drawn by
`mesa_lens.training.mixture`. Lengths grow from 48 tokens to the trained window over the first 40% of the tokens;
without that the model finds nothing but positional shortcuts.
"""

from __future__ import annotations

import json
import math
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TextIO

import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from tqdm import tqdm
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from mesa_lens.training.mixture import Mixture
from probe.tasks import corpus, retrieval
from probe.tasks.words import ADJECTIVES, NOUNS

LENGTHS = (48, 64, 96, 128, 192, 256)
"""Lengths of the curriculum (tokens), the last one the trained window M."""


@dataclass(frozen=True)
class TrainConfig:
    """Everything that decides the trained weights, apart from the interpreter's library and the torch version."""

    tokens: int = 24_000_000
    tokens_per_step: int = 3072
    trained_length: int = 256
    vocabulary: int = 2048
    hidden: int = 256
    intermediate: int = 640
    layers: int = 4
    heads: int = 8
    learning_rate: float = 1.5e-3
    warmup_steps: int = 200
    weight_decay: float = 0.1
    curriculum: float = 0.4
    seed: int = 0


def train_tokenizer(texts: list[str], vocabulary: int) -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer with single digits, in which " hello" and the words of the tasks are one token."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    task_text = [
        retrieval.PASSKEY_HEADER,
        "".join(retrieval.PASSKEY_FILLER),
        retrieval.PASSKEY_KEY,
        retrieval.PASSKEY_QUESTION,
        retrieval.NEEDLE_HEADER,
        retrieval.NEEDLE_KEY,
        retrieval.NEEDLE_QUESTION,
        retrieval.LINES_HEADER,
        retrieval.LINES_LINE,
        retrieval.LINES_QUESTION,
        " hello",
    ]
    words = [" " + word for word in ADJECTIVES] + ["-" + word for word in NOUNS]
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=["<bos>", "<eos>", "<pad>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([*texts, *(task_text * 3000), *(words * 400)], trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<bos>",
        eos_token="<eos>",
        pad_token="<pad>",
        padding_side="left",
        add_bos_token=True,
    )


def make_model(config: TrainConfig) -> Any:
    """A randomly initialized Llama (RoPE base 10000, tied embeddings) of the configured size."""
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=config.vocabulary,
            hidden_size=config.hidden,
            intermediate_size=config.intermediate,
            num_hidden_layers=config.layers,
            num_attention_heads=config.heads,
            max_position_embeddings=config.trained_length,
            rms_norm_eps=1e-5,
            tie_word_embeddings=True,
            bos_token_id=0,
            eos_token_id=1,
            pad_token_id=2,
        )
    )


def length_at(progress: float, config: TrainConfig) -> int:
    """Length (tokens) of the rows at `progress` (0 to 1) of the training."""
    if progress >= config.curriculum:
        return config.trained_length
    return LENGTHS[int(progress / config.curriculum * (len(LENGTHS) - 1))]


def learning_rate_at(step: int, steps: int, config: TrainConfig) -> float:
    """Linear warm-up, then a cosine to 2% of the peak."""
    warm = min(1.0, (step + 1) / config.warmup_steps)
    return config.learning_rate * warm * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * step / steps)))


def loss_of(model: Any, ids: torch.Tensor, weights: torch.Tensor, draws: torch.Tensor) -> torch.Tensor:
    """Weighted cross-entropy (nats). A weight w < 1 keeps the token with probability w, which saves its logits."""
    with torch.autocast(ids.device.type, torch.bfloat16):
        hidden = model.model(ids, use_cache=False).last_hidden_state[:, :-1]
        wanted = weights[:, 1:]
        kept = draws[:, 1:] < wanted
        logits = model.lm_head(hidden[kept])
    losses = torch.nn.functional.cross_entropy(logits.float(), ids[:, 1:][kept], reduction="none")
    scale = wanted[kept].clamp(min=1.0)
    return (losses * scale).sum() / scale.sum()


@contextmanager
def _log(out: Path) -> Iterator[TextIO]:
    """The log in the folder `out`, open; removed again where no checkpoint came of it."""
    path = out / "log.jsonl"
    try:
        with path.open("w") as file:
            yield file
    finally:
        if not (out / "config.json").exists():
            path.unlink()


def train(config: TrainConfig, out: Path, *, device: str = "cpu", save_every: int = 1000) -> Path:
    """Trains and saves checkpoint (float16), tokenizer and `training.json` to `out`; returns `out`.

    Also writes `out/log.jsonl` (loss, length, seconds) and a checkpoint every `save_every` steps, so that an
    interrupted run leaves the newest one, whole, or nothing at all. Raises RuntimeError for a loss that is no number.
    """
    out.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(config.seed)
    rng = np.random.default_rng(config.seed)
    texts = [corpus.read(path) for path in corpus.training_files()]
    tokenizer = train_tokenizer(texts, config.vocabulary)
    encoded = [np.array(ids, np.int64) for ids in tokenizer(texts, add_special_tokens=False)["input_ids"]]
    text = np.concatenate(encoded)
    mixture = Mixture(tokenizer, text)
    model = make_model(config).to(device)
    model.train()
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=config.learning_rate, betas=(0.9, 0.95), weight_decay=config.weight_decay, fused=True
    )
    steps = config.tokens // config.tokens_per_step
    begin, seen = time.time(), 0
    record = {"config": asdict(config), "corpus_tokens": len(text), "corpus_files": len(texts)}

    def save(step: int) -> None:
        record.update(steps=step, tokens_seen=seen, wall_seconds=round(time.time() - begin), torch=torch.__version__)
        with tempfile.TemporaryDirectory(dir=out) as name:
            made = Path(name)
            model.save_pretrained(made)
            tokenizer.save_pretrained(made)
            (made / "training.json").write_text(json.dumps(record, indent=1) + "\n")
            for file in sorted(made.iterdir(), key=lambda file: file.name == "config.json"):  # last: it makes a model
                os.replace(file, out / file.name)

    with _log(out) as log, tqdm(total=config.tokens, unit="tok", unit_scale=True) as bar:
        for step in range(steps):
            length = length_at(step / steps, config)
            ids, weights = mixture.batch(config.tokens_per_step // length, length, rng)
            for group in optimizer.param_groups:
                group["lr"] = learning_rate_at(step, steps, config)
            draws = torch.from_numpy(rng.random(ids.shape, np.float32))
            tensors = (torch.from_numpy(ids), torch.from_numpy(weights), draws)
            loss = loss_of(model, *(tensor.to(device) for tensor in tensors))
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            seen += ids.size
            bar.update(ids.size)
            if step % 50 == 0:
                if not loss.isfinite():
                    raise RuntimeError(f"the loss of step {step} is {loss.item()}; try another --seed")
                bar.set_postfix(length=length, loss=f"{loss.item():.2f}")
                line = {"step": step, "length": length, "loss": loss.item(), "seconds": round(time.time() - begin)}
                log.write(json.dumps(line) + "\n")
                log.flush()
            if step % save_every == save_every - 1:
                save(step + 1)
        model.half()
        save(steps)
    return out
