"""A prediction, as sections of a page."""

from __future__ import annotations

import math

from probe.commands.predict.figures import prediction_chart
from probe.commands.predict.result import Agreement, Prediction
from probe.commands.predict.sentences import failure_table, law_sentences, left_out
from probe.figures.section import Section
from probe.store.result_file import NOT_RECORDED


def title(prediction: Prediction) -> str:
    """The page's heading."""
    return f"{prediction.model}: predicted to fail beyond M = {prediction.trained_length} tokens"


def sections(prediction: Prediction) -> list[Section]:
    """The law, failure lengths, how they agree with what was measured, and what is left out."""
    if prediction.refusal:
        return [Section(sentences=[f"Nothing is predicted: {prediction.refusal}."])]
    agreement = [_agreement(text, of) for text, of in prediction.agreement.items() if of.points]
    text = [f"Text: {prediction.text_source or NOT_RECORDED}."]
    known = prediction.origin or {}
    text += [f"Weights: {known['quantization']}."] if "quantization" in known else []
    text += [f"Tokenizer: {known['tokenizer_note']}."] if "tokenizer_note" in known else []
    return [
        Section(
            "", law_sentences(prediction), {"prediction": prediction_chart(prediction)}, [failure_table(prediction)]
        ),
        *(Section("", sentences) for sentences in (agreement, left_out(prediction), text) if sentences),
    ]


def _agreement(text: str, agreement: Agreement) -> str:
    rank = "" if math.isnan(agreement.auc) else f", AUC of fails or passes {agreement.auc:z.2f}"
    return (
        f"Predicted against measured, {text}: rms {agreement.rms:z.2f} nats/token, bias {agreement.bias:+z.2f}{rank}; "
        f"failure length exact for {agreement.exact} of {agreement.methods}, within one step for "
        f"{agreement.within_one_step} ({agreement.fails} fail)."
    )
