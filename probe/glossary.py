"""The words of reports, dashboard and docs, explained once; `python -m probe.glossary` writes docs/glossary.md."""

import re
from pathlib import Path

import jinja2
from markupsafe import Markup, escape

REMAP = (
    "To remap distances is to give attention another distance between two tokens than the true one, so that none "
    "exceeds the distances that the model was trained on."
)
DIM = "A dim is one coordinate of the hidden state after a layer."
THRESHOLD_DIM = (
    "A dim of a layer is a threshold dim if its value stays on one side of its value at M inside the window, and moves "
    "clearly and lastingly to the other side beyond M; the value at M is its threshold."
)
TERMS = {
    "M": "The length that the model was trained on, in tokens: its trained length.",
    "origin": "The unmodified model. Every other method changes what its attention sees, and trains nothing.",
    "truncation": "The baseline of every method: the unmodified model on the last M tokens of the prompt, what the "
    "tokenizer puts first among them.",
    "crop": "The method that reads the last M tokens only. Unlike truncation, it drops what the tokenizer puts first.",
    "method": "A way to read more than M tokens without training. origin is the unmodified model.",
    "NLL": "Negative log-likelihood, the loss: how badly the model predicts a text, in nats a token. Lower is better.",
    "nats/token": "The unit of the loss: the natural logarithm of how many equally likely tokens it is like.",
    "tail NLL": "The loss on the last M/4 tokens, the same ones at every length of the prompt. Lower is better.",
    "passkey": "A number hidden in a long text, which the model is asked to give back. Higher accuracy is better.",
    "measured failure": "The length from which on the loss is 0.5 nats/token above its level at M, or fewer than half "
    "of the passkeys are found. (a, b]: after a and at most at b tokens.",
    "predicted failure": "The length from which on `mesa-lens predict` computes a loss 0.5 nats/token "
    "above lm-infinite's. Not covered: methods that give no distance of M or more.",
    "longest passing length": "The longest measured length at which a method does not fail.",
    "excess loss": "The loss beyond M, minus that of a method that does not fail, on the same tokens.",
    "loss recovered": "The share of the excess loss that is gone with the method in one layer or head alone.",
    "L0H7": "Head 7 of layer 0, both counted from 0.",
    "drift onset": "Where hidden states first leave the range that they have within the trained length.",
    "threshold onset": "Where most of the best threshold dims have crossed their limits.",
    "drift": "Hidden states leave the range that they have within the trained length.",
    "hidden state": "The numbers that a layer hands to the next one, for one token.",
    "dim": DIM,
    "threshold dim": THRESHOLD_DIM,
    "drift dim": "One of the dims with the largest shares of a layer's drift.",
    "threshold": "A dim's value at M under the unmodified model. Its limit lies a few in-window spreads beyond it. A "
    "method crosses where its own value stays beyond the limit.",
    "remap": REMAP,
    "rank": "Methods that the same texts do not separate share a rank.",
    "95% interval": "An interval made so that, of many samples of such texts, 95% give one that holds the true mean.",
    "linear probe": "A linear model, trained to read a label from the states of a layer.",
    "transfer": "What a linear probe that was trained at M reads at another length.",
    "refit": "What a linear probe reads at the length that it was trained at.",
    "selectivity": "What a linear probe reads above its control, labels drawn at random for each type of token.",
    "lens": "The model's last norm and unembedding on the states of an earlier layer.",
    "false detection": "The same rule detects drift within the trained length, where the model works.",
    "smallest set of heads": "The fewest attention heads in which the method recovers 90% of the excess loss.",
}
"""By term, in the words of a reader who has not met it."""
_WORD = re.compile(rf"(?<![\w-])({'|'.join(map(re.escape, sorted(TERMS, key=len, reverse=True)))})(?=s?(?![\w-]))")


def explained(text: str) -> Markup:
    """The text as HTML, each term explained on hovering where it first stands."""
    met: set[str] = set()

    def mark(match: re.Match[str]) -> str:
        term = match[1]
        if term in met:
            return term
        met.add(term)
        return f'<abbr title="{escape(TERMS[term].replace("`", ""))}">{term}</abbr>'

    return Markup(re.sub("`(.+?)`", r"<code>\1</code>", _WORD.sub(mark, str(escape(text)))))


def help_of(text: str) -> str | None:
    """The explanations of the terms in a table's head; None where it has none."""
    terms = dict.fromkeys(match[1] for match in _WORD.finditer(text))
    return " ".join(TERMS[term] for term in terms) or None


def template(name: str) -> jinja2.Template:
    """The package's HTML template of that name; every text is escaped, a missing one is an error."""
    loader = jinja2.FileSystemLoader(Path(__file__).parent)
    environment = jinja2.Environment(loader=loader, autoescape=True, undefined=jinja2.StrictUndefined)
    environment.filters["explained"] = explained
    return environment.get_template(name)


def window(trained_length: int, by: str) -> str:
    """M, and what states it. by: `ModelOptions.trained_length_by`; empty: unknown."""
    if not by:
        return f"M = {trained_length} tokens"
    return f"M = {trained_length} tokens, {'as stated by' if by.startswith('--') else 'by'} {by}"


def about(model: str | None, trained_length: int, reference: str, by: str = "", as_trained: str = "") -> str:
    """What M and origin are. by: as for `window`. as_trained: layers that no method changes, and why."""
    trained = "takes" if by.startswith("--") else "was trained on"
    model = f"Model {model} {trained} {window(trained_length, by)}."
    if as_trained:
        model = f"{model} {as_trained[0].upper()}{as_trained[1:]}."
    if reference != "origin":
        return model
    return f"{model} origin is the unmodified model; every other method changes its attention, not its weights."


def page() -> str:
    """docs/glossary.md: every term with its explanation."""
    rows = (f"| {term} | {explanation} |\n" for term, explanation in TERMS.items())
    return "# Glossary\n\n| term | meaning |\n|---|---|\n" + "".join(rows)


if __name__ == "__main__":
    Path("docs/glossary.md").write_text(page(), encoding="utf-8")
