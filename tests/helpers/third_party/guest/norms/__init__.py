"""A command: the norm of the last hidden states by method and length, with a figure for the run's report."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from probe.commands import Command
from probe.options import Lengths, Text, option
from probe.request import STORED, MethodsRequest
from probe.run_folder import REPORTED, Layout


@dataclass(frozen=True)
class NormsRequest(MethodsRequest):
    """What is measured."""

    not_compared: ClassVar[tuple[str, ...]] = (*STORED, "note")
    lengths: Lengths = option((32, 64), "tokens")
    note: Text = option("", "words for whoever reads the run's journal")


COMMAND = Command(
    name="norms",
    help="measure how long hidden states are under each method",
    about="measures the norm of the last hidden states by method and length",
    example="--out runs/demo",
    options=(NormsRequest,),
    layout=Layout("norms", ("journal.jsonl",), REPORTED),
    package=__name__,
    tells=("inside", "rewrite", "export"),
    export=("Norms of hidden states by length.", "lengths", "--format csv"),
)
