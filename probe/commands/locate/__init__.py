"""Causal interventions (`mesa-lens locate`): where inside the model its failure arises, and which heads fix it.

In: a model, methods, and prompts longer than the trained length. Out: the share of the excess loss that each layer,
head and dim recovers. Open first: interventions.py (what is tried), then run.py (in which order, and how)."""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from probe.commands import Command
from probe.options import Count, HeadsText, Lengths, RangeText, Split, Text, TextName, option
from probe.request import LENGTHS_HELP, STORED, TEXT_HELP, MethodsRequest
from probe.run_folder import REPORTED, Layout

TrialKind = Literal["patch", "gradients", "clamp", "smallest"]


Measure = Literal["nll", "passkey"]


Way = Literal["only", "without"]


def _tried(*kinds: TrialKind) -> dict[str, object]:
    """What an option says that only these kinds of trial read."""
    return {"only": lambda request: {*kinds} & {*request.kinds}, "only_text": f"with --try {' or '.join(kinds)}"}


@dataclass(frozen=True)
class LocateRequest(MethodsRequest):
    """What is tried inside a model; lengths in tokens, 4x M if None. Each method is compared with Origin.

    layers: to go over. heads: to go over, such as 'L2H3', or the layers with all theirs, 'all' or 'none'; None: all, if
    they are at most 64. ways: of patches. dims: clamped in a layer. candidates: heads that the smallest set is chosen
    from. word: the repeated word on which the clamped dims are chosen.
    """

    default_methods: ClassVar[str] = "rerope"
    not_compared: ClassVar[tuple[str, ...]] = (*STORED, "kinds", "measures", "layers", "heads", "ways", "candidates")
    kinds: Annotated[tuple[TrialKind, ...], Split] = option(
        ("patch", "clamp"),
        "patch: the method in one layer or head; gradients: an estimate of that for all heads at once; clamp: hidden "
        "dims set to in-window values; smallest: fewest heads that recover 90% of the excess loss",
        key="try",
    )
    measures: Annotated[tuple[Measure, ...], Split] = option(
        ("nll",), "the loss of text, or of a passkey's answer", key="measure"
    )
    lengths: Lengths | None = option(None, LENGTHS_HELP, unset="4x M")
    samples: Count = option(8, "prompts at each length")
    layers: RangeText = option("all", "layers to try, e.g. 0-10, both ends included")
    heads: HeadsText | None = option(
        None,
        "heads to try, e.g. L2H3,L2H5, or all heads of these layers, e.g. 15-19, all or none",
        unset="all, if the model has at most 64 heads",
        **_tried("patch", "smallest"),
    )
    ways: Annotated[tuple[Way, ...], Split] = option(
        ("only", "without"), "only: the method in that layer or head alone; without: everywhere else", **_tried("patch")
    )
    dims: Count = option(10, "drift dims to clamp in each layer, and as many threshold dims", **_tried("clamp"))
    candidates: Count = option(
        64, "choose the smallest set among this many heads, those that recover most alone", **_tried("smallest")
    )
    word: Text = option("hello", "the clamped dims are chosen on this word, repeated", key="prompt", **_tried("clamp"))
    text: TextName | None = option(
        None,
        f"text whose loss is recovered: {TEXT_HELP}",
        unset="the shipped one",
        only=lambda request: "nll" in request.measures,
        only_text="with --measure nll",
    )


COMMAND = Command(
    name="locate",
    help="apply a method in one layer or head alone: what share of the loss comes back?",
    about="finds the layers and heads where a method recovers the loss beyond M",
    example="--out runs/demo",
    options=(LocateRequest,),
    layout=Layout("locate", ("journal.jsonl",), REPORTED),
    package=__name__,
    tells=("findings", "inside", "rewrite", "in_notebook", "export"),
    export=("What methods and clamps in one layer or head recover.", "methods lengths measures", "--format svg,csv"),
)
