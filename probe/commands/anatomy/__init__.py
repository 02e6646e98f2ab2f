"""Attention analysis (`mesa-lens anatomy`): what every head attends to under each method, and which heads retrieve.

In: a model, prompts and methods. Out: labelled arrays by layer and head. Open first: run.py."""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from probe.commands import Command
from probe.options import Count, Lengths, RangeText, Split, TextName, option
from probe.request import LENGTHS_HELP, METHODS, STORED, TEXT_HELP, MethodsRequest
from probe.run_folder import REPORTED, Layout

AnatomyPart = Literal["heads", "retrieval", "tokens"]


@dataclass(frozen=True)
class AnatomyRequest(MethodsRequest):
    """What is measured of attention; lengths in tokens, M and 4x M if None.

    samples: prompts a length. layers: kept in every part.
    """

    default_methods: ClassVar[str] = METHODS
    not_compared: ClassVar[tuple[str, ...]] = (*STORED, "parts")
    parts: Annotated[tuple[AnatomyPart, ...], Split] = option(
        ("heads", "retrieval"),
        "heads: what each attends to; retrieval: which copy a passkey; tokens: the loss and attention of every token",
    )
    lengths: Lengths | None = option(None, LENGTHS_HELP, unset="M and 4x M")
    samples: Count = option(
        4,
        "prompts at each length",
        only=lambda request: {"heads", "retrieval"} & {*request.parts},
        only_text="with --parts heads or retrieval",
    )
    layers: RangeText = option("all", "layers to store, e.g. 0-10, both ends included")
    text: TextName | None = option(
        None,
        f"text that the heads read: {TEXT_HELP}",
        unset="the shipped one",
        only=lambda request: {"heads", "tokens"} & {*request.parts},
        only_text="with --parts heads or tokens",
    )


COMMAND = Command(
    name="anatomy",
    help="measure what every head attends to under each method",
    about="measures what every head attends to under each method, and which heads retrieve a passkey",
    example="--out runs/demo",
    options=(AnatomyRequest,),
    layout=Layout("anatomy", ("journal.jsonl",), REPORTED),
    package=__name__,
    tells=("inside", "rewrite", "in_notebook", "export", "tokens_in_notebook"),
    export=("What heads attend to under each method.", "methods lengths", "--format svg,csv"),
)
