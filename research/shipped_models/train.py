"""Trains the default model: a small model that retrieves inside its window and breaks beyond it.

Seeded and offline: the text is the standard library (`training_files`), the rest is drawn by
`research.shipped_models.mixture`. Lengths grow from 48 tokens to the trained window over the first 40% of the tokens;
without that the model finds nothing but positional shortcuts.
"""

from __future__ import annotations

import json
import math
import os
import sysconfig
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tqdm import tqdm

from probe.eval_tasks import sources
from research.shipped_models import quizzes
from research.shipped_models.making import TrainConfig, make_model, make_optimizers, train_tokenizer
from research.shipped_models.mixture import BASICS, SHARES, TEXT_ONLY, Mixture

_SKIPPED_FOLDERS = {"__pycache__", "encodings", "idlelib", "lib2to3", "site-packages", "test", "tests", "turtledemo"}
LENGTHS = (48, 64, 96, 128, 192, 256)
"""Lengths of the curriculum (tokens), the last one the trained window M."""


RECIPES = {
    "default": TrainConfig(),
    "nope": TrainConfig(architecture="nope", tokens=16_000_000),
    "alibi": TrainConfig(architecture="alibi", tokens=16_000_000),
}
"""The shipped model and its siblings, by name; these read half as much: by then it had learnt its tasks."""


def length_at(progress: float, config: TrainConfig) -> int:
    """Length (tokens) of the rows at `progress` (0 to 1) of the training."""
    if progress >= config.curriculum:
        return config.trained_length
    return min(LENGTHS[int(progress / config.curriculum * (len(LENGTHS) - 1))], config.trained_length)


def learning_rate_at(step: int, config: TrainConfig) -> float:
    """Linear warm-up, then a cosine to 2% of the peak."""
    warm = min(1.0, (step + 1) / config.warmup_steps)
    return config.learning_rate * warm * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * step / config.steps)))


STATE = "training-state.pt"
"""The file in the folder of an unfinished training."""


@dataclass
class Training:
    """Model, optimizers and stream of rows, after `step` steps. Nothing else is drawn from once the model is made."""

    model: Any
    optimizers: list[torch.optim.Optimizer]
    rng: np.random.Generator
    step: int = 0
    seen: int = 0
    seconds: float = 0.0
    log: list[dict[str, Any]] = field(default_factory=list)

    def save(self, out: Path, config: TrainConfig) -> None:
        """Writes the state to `out`, whole or not at all."""
        state = {
            "config": asdict(config),
            "model": self.model.state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
            "rng": self.rng.bit_generator.state,
            **{name: getattr(self, name) for name in ("step", "seen", "seconds", "log")},
        }
        unfinished = out / f".{STATE}.partial"
        try:
            torch.save(state, unfinished)
            os.replace(unfinished, out / STATE)
        finally:
            unfinished.unlink(missing_ok=True)

    def restore(self, out: Path, config: TrainConfig) -> None:
        """Goes on from what `save` wrote to `out`. Raises ValueError for the state of another config."""
        state = torch.load(out / STATE, map_location=self.model.device)
        given, begun = asdict(config), state["config"]
        other = [f"{name} {begun.get(name)}, not {value}" for name, value in given.items() if begun.get(name) != value]
        if other:
            raise ValueError(f"--out {out} was begun with {', '.join(other)}; give the same, or name another folder")
        self.model.load_state_dict(state["model"])
        for optimizer, each in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(each)
        self.rng.bit_generator.state = state["rng"]
        for name in ("step", "seen", "seconds", "log"):
            setattr(self, name, state[name])


SAVE_SECONDS = 180
"""Between two checkpoints."""
LOG_STEPS = 50


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


def training_files(root: Path | None = None) -> list[Path]:
    """A standard library's modules (docstrings and `pydoc` topics included), without tests and held-out files.

    root: its folder; None: the running interpreter's.
    """
    root = root or Path(sysconfig.get_path("stdlib"))
    paths = (
        path
        for path in root.rglob("*.py")
        if not _SKIPPED_FOLDERS & set(path.relative_to(root).parts[:-1])
        and not (path.parent == root and path.name in sources.HELDOUT_FILES)
    )
    return sorted(paths)


def read_corpus(config: TrainConfig, stdlib: Path | None = None) -> tuple[Mixture, dict[str, int]]:
    """What is read while training, and what `training.json` says of it."""
    texts = [path.read_text(encoding="utf-8", errors="replace") for path in training_files(stdlib)]
    tokenizer = train_tokenizer(texts, config.vocabulary, quizzes.PROMPTS)
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
    shares = TEXT_ONLY if config.text_only else shares
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


def train(
    config: TrainConfig,
    out: Path,
    training: Training,
    mixture: Mixture,
    about: dict[str, int],
    over: Callable[[], bool],
) -> bool:
    """Trains on, from wherever `training` is, until it is `over`; whether it has come to its end.

    Writes checkpoint (float16 at the end), tokenizer, `training.json`, `log.jsonl` and the state to go on from to
    `out` every `SAVE_SECONDS`, each whole or not at all. Raises RuntimeError for a loss that is no number.
    """
    started, saved = time.time() - training.seconds, time.time()

    def save() -> None:
        training.seconds = time.time() - started
        training.save(out, config)
        _checkpoint(config, out, training, mixture, about)

    with tqdm(total=config.steps, initial=training.step, unit="step") as bar:
        while training.step < config.steps and not over():
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
        target = Path(name)
        training.model.save_pretrained(target)
        mixture.tokenizer.save_pretrained(target)
        (target / "training.json").write_text(json.dumps(record, indent=1) + "\n")
        (target / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in training.log))
        for file in sorted(target.iterdir(), key=lambda file: file.name == "config.json"):  # last: it makes a model
            os.replace(file, out / file.name)
