"""Trains the default model: a small model that retrieves inside its window and breaks beyond it.

Seeded and offline: the text is the running interpreter's standard library (`probe.tasks.corpus`), the rest is drawn by
`research.shipped_models.mixture`. Lengths grow from 48 tokens to the trained window over the first 40% of the tokens;
without that the model finds nothing but positional shortcuts.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tqdm import tqdm

from probe.tasks import corpus
from research.shipped_models import wording
from research.shipped_models.config import TrainConfig, learning_rate_at, length_at
from research.shipped_models.making import make_model, make_optimizers, train_tokenizer
from research.shipped_models.mixture import BASICS, SHARES, Mixture
from research.shipped_models.state import Training

SAVE_SECONDS = 180
"""Between two checkpoints."""
LOG_STEPS = 50
_TRIED = 4


def loss_of(model: Any, ids: torch.Tensor, weights: torch.Tensor, draws: torch.Tensor) -> torch.Tensor:
    """Weighted cross-entropy (nats). A weight w < 1 keeps the token with probability w, which saves its logits."""
    with torch.autocast(ids.device.type, torch.bfloat16):
        hidden = model.base_model(ids, use_cache=False).last_hidden_state[:, :-1]
        wanted = weights[:, 1:]
        kept = draws[:, 1:] < wanted
        logits = model.lm_head(hidden[kept])
    losses = torch.nn.functional.cross_entropy(logits.float(), ids[:, 1:][kept], reduction="none")
    scale = wanted[kept].clamp(min=1.0)
    return (losses * scale).sum() / scale.sum()


def read_corpus(config: TrainConfig) -> tuple[Mixture, dict[str, int]]:
    """What is read while training, and what `training.json` says of it."""
    texts = [corpus.read(path) for path in corpus.training_files()]
    tokenizer = train_tokenizer(texts, config.vocabulary, wording.PROMPTS)
    encoded = [np.array(ids, np.int64) for ids in tokenizer(texts, add_special_tokens=False)["input_ids"]]
    text = np.concatenate(encoded)
    return Mixture(tokenizer, text), {"corpus_tokens": len(text), "corpus_files": len(texts)}


def begin(config: TrainConfig, device: str = "cpu") -> Training:
    """The untrained model, before the first step."""
    torch.manual_seed(config.seed)
    model = make_model(config).to(device)
    model.train()
    return Training(model, make_optimizers(model, config), np.random.default_rng(config.seed))


def take_step(training: Training, config: TrainConfig, mixture: Mixture) -> torch.Tensor:
    """The loss of one step on freshly drawn rows."""
    progress = training.step / config.steps
    length, shares = length_at(progress, config), BASICS if progress < config.basics else SHARES
    ids, weights = mixture.batch(config.tokens_per_step // length, length, training.rng, shares)
    draws = torch.from_numpy(training.rng.random(ids.shape, np.float32))
    tensors = (torch.from_numpy(ids), torch.from_numpy(weights), draws)
    loss = loss_of(training.model, *(tensor.to(training.model.device) for tensor in tensors))
    training.model.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(training.model.parameters(), 1.0)
    for optimizer in training.optimizers:
        for group in optimizer.param_groups:
            group["lr"] = learning_rate_at(training.step, config)
        optimizer.step()
    training.step += 1
    training.seen += ids.size
    return loss.detach()


def tokens_a_second(config: TrainConfig, mixture: Mixture, device: str = "cpu") -> tuple[float, float]:
    """How slow and how fast rows of full length are trained on here: steps of a model that is thrown away."""
    training = begin(config, device)
    training.step = max(0, config.steps - _TRIED)  # at full length
    times = []
    for _ in range(_TRIED):
        started = time.perf_counter()
        take_step(training, config, mixture).item()
        times.append(time.perf_counter() - started)
    tokens = training.seen / _TRIED
    return tokens / max(times[1:]), tokens / min(times[1:])  # the first is slower


def train(
    config: TrainConfig, out: Path, training: Training, mixture: Mixture, about: dict[str, int], *, ends: float = np.inf
) -> bool:
    """Trains on, from wherever `training` is; whether it has come to its end, which it has not at `ends` (time.time()).

    Writes checkpoint (float16 at the end), tokenizer, `training.json`, `log.jsonl` and the state to go on from to
    `out` every `SAVE_SECONDS`, each whole or not at all. Raises RuntimeError for a loss that is no number.
    """
    started, saved = time.time() - training.seconds, time.time()

    def save() -> None:
        training.seconds = time.time() - started
        training.save(out, config)
        _checkpoint(config, out, training, mixture, about)

    with tqdm(total=config.steps, initial=training.step, unit="step") as bar:
        while training.step < config.steps and time.time() < ends:
            loss = take_step(training, config, mixture)
            bar.update()
            if training.step % LOG_STEPS == 1:
                _log(training, config, loss.item(), bar, time.time() - started)
            if time.time() - saved > SAVE_SECONDS:
                save()
                saved = time.time()
        save()
    return training.step >= config.steps


def _log(training: Training, config: TrainConfig, loss: float, bar: Any, seconds: float) -> None:
    step = training.step - 1
    if not np.isfinite(loss):
        raise RuntimeError(f"the loss of step {step} is {loss}; try another --seed")
    length = length_at(step / config.steps, config)
    bar.set_postfix(length=length, loss=f"{loss:z.2f}")
    training.log.append({"step": step, "length": length, "loss": loss, "seconds": round(seconds)})


def _checkpoint(config: TrainConfig, out: Path, training: Training, mixture: Mixture, about: dict[str, int]) -> None:
    """Writes the model as it is; in float16 once it is trained."""
    record = {
        "config": asdict(config),
        **about,
        "steps": training.step,
        "tokens_seen": training.seen,
        "wall_seconds": round(training.seconds),
        "threads": torch.get_num_threads(),
        "device": training.model.device.type,
        "torch": torch.__version__,
    }
    if training.step >= config.steps:
        training.model.half()
    with tempfile.TemporaryDirectory(dir=out) as name:
        made = Path(name)
        training.model.save_pretrained(made)
        mixture.tokenizer.save_pretrained(made)
        (made / "training.json").write_text(json.dumps(record, indent=1) + "\n")
        (made / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in training.log))
        for file in sorted(made.iterdir(), key=lambda file: file.name == "config.json"):  # last: it makes a model
            os.replace(file, out / file.name)
