"""Linear probes and lens readouts (`mesa-lens readout`): is what the model knew lost beyond M, or only moved?

In: a model, methods, texts and what is to be read. Out: by layer, prompt length and method what a lens and probes read.
Open first: plan.py (texts, labels, probes), then run.py (the lens, the experiment).
"""

from dataclasses import dataclass
from typing import Annotated, ClassVar

from pydantic import Field

from probe.commands import Command
from probe.options import MAX_COUNT, Count, InputPath, Integer, Lengths, Names, RangeText, Text, TextName, option
from probe.request import LENGTHS_HELP, STORED, TEXT_HELP, MethodsRequest
from probe.run_folder import REPORTED, Layout

Classes = Annotated[Integer, Field(ge=2, le=1000)]
Samples = Annotated[Integer, Field(ge=4, le=MAX_COUNT)]
"""Texts of a readout: two to train on and two to test on, or more."""


@dataclass(frozen=True)
class ReadoutRequest(MethodsRequest):
    """What is read, and where; lengths in tokens, M first.

    samples: texts, half of them to train on. tokens: the last of each text, whose states are read. classes: the most
    frequent tokens that `previous-K` tells apart. labels: a file of the user's own labels.
    """

    default_methods: ClassVar[str] = "origin,rerope"
    not_compared: ClassVar[tuple[str, ...]] = (*STORED, "properties")
    properties: Names = option(
        ("previous-1",),
        "what is probed: previous-K (the token K before), position, open-line, open-string, labels, with commas; none: "
        "the lens alone; passkey-digit, on its own: passkey prompts, the key's first digit, without lens and distances",
        key="probe",
    )
    lengths: Lengths | None = option(None, f"{LENGTHS_HELP}; M is added", unset="M, 2x M and 4x M")
    samples: Samples = option(
        64, "texts, or passkey prompts, 4 or more; probes are trained on half of them, and read on the others"
    )
    tokens: Count | None = option(
        None,
        "last tokens of each text that are read, at least 2",
        unset="96, or M/4 where that is less; a passkey's question",
    )
    classes: Classes = option(
        20,
        "how many of the most frequent tokens previous-K tells apart",
        only=lambda request: any(name.startswith("previous-") for name in request.properties),
        only_text="with --probe previous-K",
    )
    hook: Text = option("resid_post", "TransformerLens hook that is read; the lens reads resid_post alone")
    layers: RangeText = option("all", "layers to read, e.g. 0-10, both ends included; of resid_post the last is added")
    labels: InputPath | None = option(
        None, "your own labels: csv, tsv or jsonl with text, token (or end, in characters) and label"
    )
    text: TextName | None = option(None, f"text that is read: {TEXT_HELP}", unset="the shipped one")


COMMAND = Command(
    name="readout",
    help="linear probes and a lens by layer and length: is what the model knew lost beyond M, or moved?",
    about="reads hidden states with linear probes and a lens, by layer, prompt length and method",
    example="--methods origin,rerope --probe previous-1 --out runs/demo",
    options=(ReadoutRequest,),
    layout=Layout("readout", ("journal.jsonl",), REPORTED),
    package=__name__,
    tells=("findings", "inside", "rewrite", "in_notebook", "export"),
    export=("What linear probes and a lens read by layer and length.", "methods lengths", "--format svg,csv"),
)
