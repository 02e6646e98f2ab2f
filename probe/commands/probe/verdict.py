"""The verdict of a run, as summary.json holds it: what report, dashboard and terminal show."""

from __future__ import annotations

from collections.abc import Sequence

from probe.commands.locate.result import Located
from probe.commands.predict.result import Prediction
from probe.commands.probe.result import Row, Sentence, Summary, Verdict
from probe.commands.probe.rows import RANKED, ranked, reference_of, same_model
from probe.commands.probe.sentences import (
    about_truncation,
    how_sure,
    listed,
    measured_on,
    what_fails,
    what_fixes,
    where,
)
from probe.commands.probe.tables import difference_table, method_table, score_table
from probe.glossary import about
from probe.tables import plain_table
from probe.thresholds.result import Evidence
from probe.thresholds.stated_window import FITS, NATS_ABOVE, TOO_SMALL, StatedWindow

FAILS, FIXES, WHERE, SURE = "What fails", "What fixes it", "Where inside", "How sure"
"""Headings of the sentences."""
TAIL_NLL = "Tail NLL is the loss on the last M/4 tokens, the same ones at every length."


def verdict(evidence: Evidence, located: Located | None, prediction: Prediction | None = None) -> Verdict:
    """Of a run's evidence, and of what `mesa-lens locate` and `predict` wrote into its folder (None: nothing)."""
    heads = same_model(evidence, located)
    rows = ranked(evidence, heads, prediction)
    sentences = {
        FAILS: what_fails(evidence, rows),
        FIXES: what_fixes(evidence, rows),
        WHERE: where(evidence, rows),
        SURE: how_sure(evidence, rows),
    }
    sentences = checked(sentences, evidence.stated_window, measured_on(evidence))
    table = method_table(evidence, rows)
    return Verdict(
        about=f"{about_run(evidence)} {TAIL_NLL}",
        sentences=[Sentence(heading, text) for heading, text in sentences.items()],
        head=list(table.head),
        cells=list(map(list, table.rows)),
        rows=rows,
        notes=[
            RANKED,
            *predicted_by(evidence, rows, prediction),
            *_heads(rows, located, heads),
            *about_truncation(evidence, rows),
            *_following(evidence),
        ],
    )


def about_run(evidence: Evidence) -> str:
    """What M, what states it, and the reference are."""
    return about(evidence.model, evidence.trained_length, evidence.reference, evidence.trained_length_by)


def checked(sentences: dict[str, str], stated: StatedWindow | None, prompts: str) -> dict[str, str]:
    """The sentences with what the measured lengths say of the given M; where it is wrong, nothing else is said.

    prompts: how many each length was measured with, such as '20 texts and 20 passkeys'.
    """
    if stated is None or stated.outcome == FITS:
        return sentences
    if stated.is_wrong:
        return {
            FAILS: stated.text,
            FIXES: "Not judged: failure is measured against the loss at M.",
            WHERE: "Not judged: drift is measured against the range of hidden states inside M.",
            SURE: f"Measured on {prompts}. Differences are paired, text by text; brackets hold 95% intervals.",
        }
    place = FAILS if stated.outcome == TOO_SMALL or stated.signs else SURE
    return sentences | {place: f"{sentences[place]} {stated.text}"}


def _following(evidence: Evidence) -> list[str]:
    """Where positions or frequencies follow the prompt's length, that states and onsets are of one length alone."""
    names = evidence.follows_length
    if not names:
        return []
    return [
        f"Under {listed(names)}, positions or frequencies depend on prompt length. Hidden states and drift onsets here "
        f"are those of prompts of {evidence.pass_length} tokens, not of shorter ones; losses and passkeys are measured "
        "at each length."
    ]


def predicted_by(evidence: Evidence, rows: Sequence[Row], prediction: Prediction | None) -> list[str]:
    """What predicted failures rest on, or why nothing is predicted; nothing where no method has one."""
    of_model = (evidence.model, evidence.trained_length)
    if prediction and prediction.refusal and (prediction.model, prediction.trained_length) == of_model:
        return [f"Predicted failure: none. By mesa-lens predict, {prediction.refusal}."]
    if prediction is None or not any(row.predicted for row in rows):
        return []
    return [
        f"Predicted failure: the length from which on a method's loss is {NATS_ABOVE} nats/token above lm-infinite's. "
        f"Computed from the unmodified model's losses on {prediction.texts} texts and the method's distances, up to "
        f"{prediction.longest} tokens (docs/law.md). {prediction.misfit}"
    ]


def _heads(rows: Sequence[Row], located: Located | None, heads: Located | None) -> list[str]:
    """What located heads rest on, or how they are located; nothing where the reference does not fail."""
    if heads is not None and not any(row.heads for row in heads.smallest):
        return ["Heads: mesa-lens locate searched for no smallest set of heads in this folder."]
    if heads is not None and not heads.loss_gaps and located is not None and located.loss_gaps:
        return ["Heads: those located in this folder are of methods with other parameters."]
    if heads is not None:
        text = "the smallest set found that recovers 90% of the excess loss, with its 95% interval"
        return [f"Heads: {text}; L0H7 is head 7 of layer 0."]
    if located is not None:
        return [f"Heads: those located in this folder are of {located.model}, M = {located.trained_length}."]
    reference = reference_of(rows)
    if reference.measured and (reference.longest_passing is None or reference.measured.length is None):
        return []
    return ["Heads: not located. `mesa-lens locate --out` with this folder finds the smallest set that is enough."]


def terminal_text(summary: Summary) -> str:
    """The verdict, then the scores it rests on, for a terminal."""
    tables = [score_table(summary), difference_table(summary)]
    return "\n\n".join([repr(summary.verdict), *(plain_table(table) for table in tables if table)])
