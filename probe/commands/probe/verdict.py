"""The verdict of a run, as summary.json holds it: what report, dashboard and terminal show."""

from __future__ import annotations

from collections.abc import Sequence

from probe.commands.locate.result import Located
from probe.commands.predict.result import Prediction
from probe.commands.probe.result import Row, Sentence, Summary, Verdict
from probe.commands.probe.rows import RANKED, ranked, same_model
from probe.commands.probe.sentences import about_crop, broke, listed, measured_on, mended, sure, where
from probe.commands.probe.tables import difference_table, method_table, score_table
from probe.glossary import about
from probe.tables import plain_table
from probe.thresholds.result import Findings
from probe.thresholds.stated_window import FITS, NATS_ABOVE, TOO_SMALL, StatedWindow


def verdict(findings: Findings, located: Located | None, prediction: Prediction | None = None) -> Verdict:
    """Of a run's findings, and of what `mesa-lens locate` and `predict` wrote into its folder (None: nothing)."""
    heads = same_model(findings, located)
    rows = ranked(findings, heads, prediction)
    sentences = {
        "What broke": broke(findings, rows),
        "Where": where(findings, rows),
        "What mended it": mended(findings, rows),
        "How sure": sure(findings, rows),
    }
    sentences = checked(sentences, findings.stated_window, measured_on(findings))
    table = method_table(findings, rows)
    return Verdict(
        about=about(findings.model, findings.trained_length, findings.reference),
        sentences=[Sentence(heading, text) for heading, text in sentences.items()],
        head=list(table.head),
        cells=list(map(list, table.rows)),
        rows=rows,
        notes=[
            RANKED,
            *predicted_by(findings, rows, prediction),
            _heads(located, heads),
            *about_crop(findings, rows),
            *_following(findings),
        ],
    )


def checked(sentences: dict[str, str], stated: StatedWindow | None, prompts: str) -> dict[str, str]:
    """The sentences with what the measured lengths say of the stated M; where it is wrong, nothing else is said.

    prompts: how many each length was measured with, such as '20 texts and 20 passkeys'.
    """
    if stated is None or stated.outcome == FITS:
        return sentences
    if stated.is_wrong:
        return {
            "What broke": stated.text,
            "Where": "Not judged: the range that states keep to is read inside M.",
            "What mended it": "Not judged: failure is measured against the level at M.",
            "How sure": f"Measured on {prompts}; differences are paired, text by text, with 95% intervals in brackets.",
        }
    place = "What broke" if stated.outcome == TOO_SMALL or stated.signs else "How sure"
    return sentences | {place: f"{sentences[place]} {stated.text}"}


def _following(findings: Findings) -> list[str]:
    """Where positions or frequencies follow the prompt's length, that states and onsets are of one length alone."""
    names = findings.follows_length
    if not names:
        return []
    return [
        f"The positions or frequencies of {listed(names)} follow the prompt's length: states and drift "
        f"onsets here are of prompts of {findings.pass_length} tokens, not of shorter ones; what is measured by "
        f"length has those of each length, and docs/findings.md reads onsets by prompt length."
    ]


def predicted_by(findings: Findings, rows: Sequence[Row], prediction: Prediction | None) -> list[str]:
    """What predicted failures rest on, or why nothing is predicted; nothing where no method has one."""
    of_model = (findings.model, findings.trained_length)
    if prediction and prediction.refusal and (prediction.model, prediction.trained_length) == of_model:
        return [f"Predicted failure: none. By mesa-lens predict, {prediction.refusal}."]
    if prediction is None or not any(row.predicted for row in rows):
        return []
    return [
        f"Predicted failure: the length from which on a method loses {NATS_ABOVE} nats/token more than lm-infinite, "
        f"computed from Origin's losses on {prediction.texts} texts and the method's distances, up to "
        f"{prediction.longest} tokens (docs/law.md). {prediction.misfit}"
    ]


def _heads(located: Located | None, heads: Located | None) -> str:
    if heads is not None and not any(row.heads for row in heads.smallest):
        return "Heads: no smallest set was searched for in what was located in this folder."
    if heads is not None and not heads.loss_gaps and located is not None and located.loss_gaps:
        return "Heads: those located in this folder are of methods with other parameters."
    if heads is not None:
        return "Heads: the smallest set found that restores 90% of the loss, as layer.head, with its 95% interval."
    if located is not None:
        return f"Heads: those located in this folder are of {located.model}, M = {located.trained_length}."
    return "Heads: not located; mesa-lens locate with this folder as --out finds the smallest set that is enough."


def terminal_text(summary: Summary) -> str:
    """The verdict, then the scores it rests on, for a terminal."""
    tables = [score_table(summary), difference_table(summary)]
    return "\n\n".join([repr(summary.verdict), *(plain_table(table) for table in tables if table)])
