"""A model for lm-eval's tasks: what lm-eval cuts is counted, and what it leaves to chance is decided. Needs lm_eval."""

from __future__ import annotations

import importlib
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from transformers import GenerationConfig

from mesa.errors import Refused
from mesa.models import Loaded

_models, _utils = (importlib.import_module(f"lm_eval.models.{name}") for name in ("huggingface", "utils"))  # untyped
HFLM: Any = _models.HFLM
_GENERATED = 256  # tokens, of a task that states none
_ENDS = ("bos_token_id", "eos_token_id", "pad_token_id")


class HarnessModel(HFLM):
    """A loaded model whose prompts have `longest` tokens at most; longer ones are cut on the left, and counted.

    Unlike lm-eval's own: a rolling loss does not score the first token after itself (its issue 3333), log-likelihoods
    are summed in float32, and decoding follows the task alone, not the checkpoint's generation_config.json.
    """

    def __init__(self, loaded: Loaded, longest: int) -> None:
        options: dict[str, Any] = {"batch_size": 1, "backend": "causal", "softmax_dtype": "float32"}
        super().__init__(pretrained=loaded.model, tokenizer=loaded.tokenizer, max_length=longest, **options)
        self._documents, self._cut = defaultdict[str, set[int]](set), defaultdict[str, set[int]](set)
        self._requests: Sequence[Any] = ()  # of what is scored now, but for a rolling loss
        self._is_rolling = False

    def counts(self, task: str) -> dict[str, int]:
        """How many documents of a task were read, and of how many a prompt was cut; empty where none was."""
        if task not in self._documents:
            return {}
        return {"documents": len(self._documents[task]), "documents_cut": len(self._cut[task])}

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **options: Any) -> list[int]:
        """Token ids; of a rolling loss without the first token, which lm-eval puts there itself."""
        if not self._is_rolling:
            return super().tok_encode(string, add_special_tokens, **options)
        ids = super().tok_encode(string, False, **options)
        return ids[1:] if ids[:1] == [self.prefix_token_id] else ids

    def loglikelihood(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
        """As lm-eval's. Raises Refused, before any pass, for an answer without tokens or beyond the longest length."""
        for request in requests:
            if not request.args[1]:
                raise _no_tokens(request, "an answer")
        self._requests = requests
        return super().loglikelihood(list(requests), disable_tqdm)

    def _loglikelihood_tokens(self, requests: Sequence[Any], *args: Any, **options: Any) -> list[tuple[float, bool]]:
        if not self._is_rolling:
            for request, (_, context, answer) in zip(self._requests, requests, strict=True):
                if not answer:
                    raise _no_tokens(request, "an answer")
                if len(answer) > self.max_length:
                    raise Refused(
                        f"document {request.doc_id} of lm-eval's {request.task_name} has an answer of {len(answer)} "
                        f"tokens, above the longest length, {self.max_length}; take longer --lengths"
                    )
                self._count(request, len(context) + len(answer) > self.max_length + 1)
        return super()._loglikelihood_tokens(list(requests), *args, **options)

    def loglikelihood_rolling(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[float]:
        """As lm-eval's: windows of the longest length, each of which scores its own tokens; nothing is cut."""
        for request in requests:
            self._count(request, False)
        self._is_rolling = True
        try:
            return super().loglikelihood_rolling(list(requests), disable_tqdm)
        finally:
            self._is_rolling = False

    def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[str]:
        """As lm-eval's, decoded as the task says. Raises Refused, before any pass, for a prompt without tokens."""
        for request in requests:
            prompt, stated = request.args
            if not (ids := self.tok_encode(prompt)):
                raise _no_tokens(request, "a prompt")
            self._count(request, len(ids) > room(request.task_name, stated, self.max_length))
        former: GenerationConfig = self.model.generation_config
        stated = former.to_diff_dict()
        known = {name: stated[name] for name in _ENDS if name in stated}
        _warn_left_out(", ".join(f"{name}={value}" for name, value in _decoding(stated).items()))
        self.model.generation_config = GenerationConfig(**known)
        try:
            return super().generate_until(list(requests), disable_tqdm)
        finally:
            self.model.generation_config = former

    def _count(self, request: Any, is_cut: bool) -> None:
        self._documents[request.task_name].add(request.doc_id)
        if is_cut:
            self._cut[request.task_name].add(request.doc_id)


def room(task: str, stated: Mapping[str, Any], longest: int) -> int:
    """Tokens of a prompt beside those that are generated. stated: the task's generation_kwargs.

    Raises Refused where there are none, and for a `max_length`, which would hold for both together.
    """
    if "max_length" in stated:
        raise Refused(f"lm-eval's {task} states max_length; give max_gen_toks in its task file, tokens of an answer")
    generated = _utils.normalize_gen_kwargs(dict(stated), _GENERATED)["max_gen_toks"]
    if generated >= longest:
        raise Refused(
            f"lm-eval's {task} generates {generated} tokens (max_gen_toks), which leaves no room for a prompt in the "
            f"longest length, {longest}; take longer --lengths"
        )
    return longest - generated


def check_tokenizer(model: str, tokenizer: Any, *, generates: bool) -> None:
    """Raises Refused for a tokenizer with which lm-eval fails, or scores other tokens than a task's answer."""
    if tokenizer.eos_token_id is None and (generates or tokenizer.bos_token_id is None):
        raise Refused(f"the tokenizer of {model} has no end token (eos), which lm-eval needs; state it in its files")
    plain, ids = (tokenizer("a", add_special_tokens=special)["input_ids"] for special in (False, True))
    if ids[-1:] != plain[-1:]:
        raise Refused(
            f"the tokenizer of {model} puts {tokenizer.decode(ids[-1:])!r} after every text, and lm-eval would take it "
            "for a part of each prompt; turn that off in its files (add_eos_token)"
        )


def _decoding(stated: Mapping[str, Any]) -> dict[str, Any]:
    """The numbers that a generation config states of decoding, its end tokens aside."""
    return {
        name: value
        for name, value in stated.items()
        if name not in _ENDS and isinstance(value, int | float | list) and not isinstance(value, bool)
    }


@cache
def _warn_left_out(stated: str) -> None:
    """Says on stderr, once, what of a checkpoint's generation config is not followed."""
    if stated:
        sys.stderr.write(f"lm-eval's tasks say how to decode; left out of generation_config.json: {stated}\n")


def _no_tokens(request: Any, what: str) -> Refused:
    return Refused(
        f"document {request.doc_id} of lm-eval's {request.task_name} has {what} without tokens; change its task file"
    )
