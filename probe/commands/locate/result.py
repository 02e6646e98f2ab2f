"""What a locate run found, as its summary.json holds it. No torch."""

import math
from dataclasses import field, replace
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BeforeValidator
from pydantic.dataclasses import dataclass

from probe.commands import Findings, RunFacts
from probe.commands.probe.verdict import HeadSet
from probe.files import JsonObject
from probe.run_folder import changed_parameters
from probe.store.result_file import Number, OfHead, ResultFile, RunSummary, formerly, having

PATCH, GRADIENTS, CLAMP, SMALLEST = "patch", "gradients", "clamp", "smallest"
"""What is tried, as --try names it: a method in one place, an estimate of that, dims clamped, the fewest heads."""

SUFFICIENT = 0.9
"""Share of the excess loss that a sufficient set of heads recovers."""

DIMS = {"drift": "drift dims", "paper": "threshold dims", None: "dims"}
"""What the dims of a clamp are called, by the rule that chose them; None: files without a rule."""


@dataclass(frozen=True)
class Loss:
    """The excess loss of a group of items beyond M under Origin: mean NLL in nats/token."""

    method: str
    length: int
    measure: str
    baseline: Number
    """Origin's loss."""
    patched: Number
    """The method's loss."""
    low: Number
    """95% interval of baseline minus patched, over items; NaN where there is none."""
    high: Number
    significant: Annotated[bool, formerly("judged", "significant")]
    """Whether baseline is significantly above patched, so that shares of it are defined; earlier files: judged."""
    items: int
    """Number of texts or prompts."""

    @property
    def size(self) -> float:
        """Baseline minus patched, nats/token."""
        return self.baseline - self.patched

    @property
    def labels(self) -> JsonObject:
        """Method, length and measure: its effects and sets have the same."""
        return {"method": self.method, "length": self.length, "measure": self.measure}


@dataclass(frozen=True)
class Effect(OfHead):
    """The share of a `Loss` that a method in one place, or a clamp, recovers (or, `without` it there, loses again)."""

    method: str
    length: int
    measure: str
    kind: Annotated[str, BeforeValidator(lambda kind: PATCH if kind == "weave" else kind)]
    """patch (weave in earlier files): the method in one place; gradients: an estimate of that; clamp: dims clamped."""
    way: str
    """only or without; of a clamp at-M or range."""
    layer: int | None
    """None: all layers."""
    head: int | None
    """None: all heads of the layer."""
    loss: Number
    """Mean NLL with the intervention, nats/token."""
    share: Number
    """1: all of the loss; NaN where the loss may be 0."""
    low: Number
    """95% interval of the share, over items."""
    high: Number
    items: int
    rule: str | None = None
    """Of a clamp: by which rule its dims are chosen, see `DIMS`."""
    which: str | None = None
    """Of a clamp: `threshold`, the dims by the rule, or a set of as many random dims."""

    @property
    def is_clear(self) -> bool:
        """Whether the interval excludes 0."""
        return self.low > 0 or self.high < 0


@dataclass(frozen=True)
class InsideCost:
    """What a clamp costs inside M, nats/token, with its 95% interval over items."""

    length: int
    measure: str
    way: str
    rule: str
    which: str
    cost: Number
    low: Number
    high: Number


@dataclass(frozen=True)
class SmallestSet:
    """A greedy search for a sufficient set of heads: what its first 1, 2, ... heads recover of a `Loss`.

    Shares are of the half of the items that the heads were not chosen on; empty lists: no search, since one half of the
    items shows no excess loss.
    """

    method: str
    length: int
    measure: str
    heads: list[tuple[int, int]] = field(default_factory=list)
    """(layer, head), in the order in which they were added."""
    share: list[Number] = field(default_factory=list)
    low: list[Number] = field(default_factory=list)
    high: list[Number] = field(default_factory=list)
    random_low: list[Number] = field(default_factory=list)
    """2.5% quantile of the shares of random sets of the same size."""
    random: list[Number] = field(default_factory=list)
    """Their median."""
    random_high: list[Number] = field(default_factory=list)
    enough: int | None = None
    """The number of heads that recover 90%; None where none do."""
    rest: tuple[Number, Number, Number] = (math.nan, math.nan, math.nan)
    """What the method recovers in all heads but these, with its 95% interval: above 0 where the set is sufficient but
    not necessary. NaN where that was not measured."""
    candidates: int = 0
    """Heads that the search chose among."""
    finished: bool = True

    @property
    def size(self) -> int:
        """Heads of the set that is enough, else of the largest one."""
        return self.enough or len(self.heads)


@dataclass(frozen=True)
class Located(RunSummary):
    """The summary of `mesa-lens locate`."""

    layers: list[int]
    heads: int
    """Heads of a layer."""
    tasks_left: int
    loss_gaps: list[Loss]
    effects: list[Effect]
    smallest: list[SmallestSet]
    inside: list[InsideCost] = field(default_factory=list)
    refusal: str = ""
    """Why a finished run has no loss to recover."""
    version: Literal[1] = 1

    @property
    def clearest(self) -> Loss | None:
        """The clearest loss, tail NLL before all else; None if none is significant."""
        significant = [gap for gap in self.loss_gaps if gap.significant]
        return max(significant, key=lambda gap: (gap.measure == "nll", gap.low), default=None)


LOCATED = ResultFile(Path("locate", "summary.json"), Located)
"""In the folder that `mesa-lens locate` writes to."""


def findings_of(located: Located | None, facts: RunFacts) -> Findings:
    """For a run's verdict: the smallest sets of heads, and what they rest on or how they are located.

    Nothing is said where nothing was located and the reference does not fail.
    """
    heads = None if located is None else _of_run(located, facts)
    if heads is not None:
        clear = {
            method: heads_of
            for method in dict.fromkeys(gap.method for gap in heads.loss_gaps)
            if (heads_of := smallest_set(heads, method))
        }
        return Findings(clear, {}, [_note(located, heads)])
    if located is not None:
        note = f"Heads: those located in this folder are of {located.model}, M = {located.trained_length}."
    elif facts.fails is False:
        return Findings({}, {}, [])
    else:
        note = "Heads: not located. `mesa-lens locate --out` with this folder finds the smallest set that is enough."
    return Findings({}, {}, [note])


def _note(located: Located | None, heads: Located) -> str:
    if not any(row.heads for row in heads.smallest):
        return "Heads: mesa-lens locate searched for no smallest set of heads in this folder."
    if not heads.loss_gaps and located is not None and located.loss_gaps:
        return "Heads: those located in this folder are of methods with other parameters."
    text = "the smallest set found that recovers 90% of the excess loss, with its 95% interval"
    return f"Heads: {text}; L0H7 is head 7 of layer 0."


def _of_run(located: Located, facts: RunFacts) -> Located | None:
    """What was located, if it was on the run's own model and window, of the methods that have the run's parameters."""
    if (located.model, located.trained_length) != (facts.model, facts.trained_length):
        return None
    configs, methods = facts.method_configs, located.methods

    def is_same(name: str) -> bool:
        return not changed_parameters(methods.get(name, {}), configs.get(name, {}))

    gaps = [gap for gap in located.loss_gaps if is_same(next(iter(methods))) and is_same(gap.method)]
    return replace(located, loss_gaps=gaps)


def smallest_set(located: Located, method: str) -> HeadSet | None:
    """Of the method's clearest loss, NLL before all else, the smallest set of heads that is enough, or the largest."""
    gaps = having(located.loss_gaps, method=method, significant=True)
    sets = [(gap, search) for gap in gaps for search in having(located.smallest, **gap.labels) if search.heads]
    if not sets:
        return None
    gap, search = max(sets, key=lambda pair: (pair[0].measure == "nll", pair[0].low))
    last = search.size - 1
    return HeadSet(
        heads=search.heads[: search.size],
        is_enough=search.enough is not None,
        finished=search.finished,
        share=search.share[last],
        low=search.low[last],
        high=search.high[last],
        random=search.random[last],
        rest=search.rest,
        length=gap.length,
        measure=gap.measure,
        items=gap.items // 2,
    )
