"""Summaries: ROUGE (rouge-score) and BLEU (sacrebleu) of greedy summaries of documents cut to an exact length."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from mesa.errors import Refused
from mesa.models import Loaded
from probe.tasks.base import EvalTask, Metric, PromptSpec, Score, in_batches
from probe.tasks.retrieval import encode, first_ids
from probe.tasks.score import greedy, until_end

BEFORE = "Summarize the following report.\n\nReport:\n"
AFTER = "\n\nSummary:"


@dataclass(frozen=True)
class SummaryPrompt:
    """Token ids of a prompt, and the summary it is compared with."""

    ids: tuple[int, ...]
    reference: str


@dataclass(frozen=True)
class Summaries(EvalTask):
    """The paper's GovReport task. ROUGE is the F-measure with stemming, 0 to 1; BLEU the sentence's, 0 to 100."""

    name: str = "summary"
    about: str = "ROUGE-1/2/L and BLEU of greedy summaries; needs --data"
    metrics: tuple[Metric, ...] = (
        Metric("rouge1", "F-measure", most=1),
        Metric("rouge2", "F-measure", most=1),
        Metric("rougeL", "F-measure", most=1),
        Metric("bleu", "0 to 100", most=100),
    )
    batched: ClassVar[bool] = True
    reads_pairs: ClassVar[bool] = True

    def prepare(self, tokenizer: Any, length: int, setting: PromptSpec, samples: int) -> Sequence[SummaryPrompt]:
        """Prompts of documents that have tokens enough, the first `length` of them, in the file's order.

        Raises Refused without data or the scorers' packages, and where no document is long enough or the fixed
        text does not fit.
        """
        if not setting.pairs:
            raise Refused("summary needs documents; give --data FILE with lines of document and summary")
        _scorers()
        start, end = (*first_ids(tokenizer), *encode(tokenizer, BEFORE)), encode(tokenizer, AFTER)
        room = length - len(start) - len(end)
        if room < 1:
            fixed = len(start) + len(end) + 1
            raise Refused(f"summary: length={length} is below the fixed text of {fixed - 1} tokens; ask for {fixed}")
        prompts, longest = [], 0
        for document, summary in setting.pairs:
            ids = tokenizer(document, add_special_tokens=False, verbose=False).input_ids
            longest = max(longest, len(ids))
            if len(ids) >= room:
                prompts.append(SummaryPrompt((*start, *ids[:room], *end), summary))
            if len(prompts) == samples:
                return prompts
        if not prompts:
            raise Refused(f"summary: no document has {room} tokens, the longest has {longest}; ask for less")
        return prompts

    def measure(
        self, loaded: Loaded, length: int, prepared: Sequence[SummaryPrompt], setting: PromptSpec
    ) -> Iterator[Score]:
        """Four scores a document; `setting.new_tokens` tokens are decoded, the text ends at an end token."""
        score_rouge, score_bleu = _scorers()

        def run(batch: Sequence[SummaryPrompt]) -> list[list[int]]:
            return greedy(loaded.model, [prompt.ids for prompt in batch], setting.new_tokens).tolist()

        for number, prompt, ids, seconds in in_batches(prepared, setting.batch, run):
            text = until_end(loaded, ids)
            rouge = score_rouge(prompt.reference, text)
            values = {name: rouge[name].fmeasure for name in ("rouge1", "rouge2", "rougeL")}
            values["bleu"] = score_bleu(text, [prompt.reference]).score
            for name, value in values.items():
                yield Score(length, number, name, float(value), seconds)


def _scorers() -> tuple[Any, Any]:
    try:
        rouge, bleu = importlib.import_module("rouge_score.rouge_scorer"), importlib.import_module("sacrebleu")
    except ImportError as error:
        raise Refused(f"summaries need rouge-score and sacrebleu ({error}); pip install 'mesa-lens[eval]'") from error
    return rouge.RougeScorer(["rouge1", "rouge2", "rougeL"], use_stemmer=True).score, bleu.sentence_bleu
