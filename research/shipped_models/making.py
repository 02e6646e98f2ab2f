"""What is trained: the tokenizer, the untrained model of each architecture, and what steps its weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, MptConfig, MptForCausalLM, PreTrainedTokenizerFast

from probe.eval_tasks import retrieval
from probe.eval_tasks.retrieval import ADJECTIVES, NOUNS

ARCHITECTURES = ("llama", "nope", "alibi")
"""Rotary embeddings; none at all (a Llama whose rotation is the identity); ALiBi (MPT's architecture)."""
NO_POSITIONS = {"rope_type": "linear", "factor": 1e30, "rope_theta": 10000.0}
"""Rotary parameters that turn nothing: every cos is 1 and every sin below 1e-20, also at a million tokens."""
TRAINED = "original_max_position_embeddings"
ALIBI_LONGEST = 32768
"""Tokens that transformers' MPT makes slopes for; it can run no longer prompt. The trained window stands beside it, as
`TRAINED`."""


@dataclass(frozen=True)
class TrainConfig:
    """Everything that decides the trained weights, apart from the interpreter's library and the torch version.

    key_value_heads: None, as many as heads. base: of rotary embeddings. text_only: no retrieval, but copies of text.
    curriculum: the part of the tokens over which rows grow. basics: the part that is read first, with more to copy.
    """

    architecture: str = "llama"
    tokens: int = 32_000_000
    tokens_per_step: int = 3072
    trained_length: int = 256
    vocabulary: int = 2048
    hidden: int = 256
    intermediate: int = 640
    layers: int = 4
    heads: int = 8
    key_value_heads: int | None = None
    base: float = 10000.0
    learning_rate: float = 4e-3
    warmup_steps: int = 200
    weight_decay: float = 0.1
    curriculum: float = 0.4
    basics: float = 0.1
    text_only: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        """Raises ValueError for an unknown architecture."""
        if self.architecture not in ARCHITECTURES:
            raise ValueError(f"architecture={self.architecture!r} is unknown; known: {', '.join(ARCHITECTURES)}")

    @property
    def steps(self) -> int:
        """Steps of the whole training."""
        return self.tokens // self.tokens_per_step


def train_tokenizer(texts: list[str], vocabulary: int, prompts: Sequence[str] = ()) -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer with single digits, in which " hello" and the words of the tasks are one token.

    prompts: texts of further tasks.
    """
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
        *prompts,
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
    """A randomly initialized model of the configured architecture and size, with tied embeddings."""
    special: dict[str, Any] = {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2, "tie_word_embeddings": True}
    if config.architecture == "alibi":
        special[TRAINED] = config.trained_length
        return MptForCausalLM(
            MptConfig(
                vocab_size=config.vocabulary,
                d_model=config.hidden,
                n_layers=config.layers,
                n_heads=config.heads,
                max_seq_len=ALIBI_LONGEST,
                initializer_range=0.02,
                **special,
            )
        )
    rope = NO_POSITIONS if config.architecture == "nope" else {"rope_type": "default", "rope_theta": config.base}
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=config.vocabulary,
            hidden_size=config.hidden,
            intermediate_size=config.intermediate,
            num_hidden_layers=config.layers,
            num_attention_heads=config.heads,
            num_key_value_heads=config.key_value_heads or config.heads,
            max_position_embeddings=config.trained_length,
            rope_parameters=rope,
            rms_norm_eps=1e-5,
            **special,
        )
    )


def make_optimizers(model: Any, config: TrainConfig) -> list[torch.optim.Optimizer]:
    """Muon for the matrices of the layers, with AdamW's step size, and AdamW for embeddings and norms."""
    embeddings = model.get_input_embeddings().weight
    matrices = [weight for weight in model.parameters() if weight.ndim == 2 and weight is not embeddings]
    rest = [weight for weight in model.parameters() if weight.ndim != 2 or weight is embeddings]
    common: dict[str, Any] = {"lr": config.learning_rate, "weight_decay": config.weight_decay}
    return [
        torch.optim.Muon(matrices, adjust_lr_fn="match_rms_adamw", **common),
        torch.optim.AdamW(rest, betas=(0.9, 0.95), fused=True, **common),
    ]
