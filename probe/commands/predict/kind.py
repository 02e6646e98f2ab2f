"""Which kind of model it is: whether a single far key is enough, or far keys add up; docs/law.md."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from mesa.methods import Method
from mesa.plan import Plan, Stepped
from probe.commands.predict.calibration import Key, Losses, gap_name, quarters
from probe.commands.predict.result import Estimate, FarKeyCosts
from probe.statistics import shown, student
from probe.store.results import number

ONE, HALF = "one key moved", "half moved"
"""The passes: one ordinary key of the prompt's first half is moved, or all of them but the first token."""


@dataclass(frozen=True)
class Among:
    """Whether a pair is moved (or not): a query in the second half of the prompt, a chosen key of the first half.

    count: keys, spread evenly over the first half. first: the first token is one of them, else it never is.
    """

    half: int
    count: int
    first: bool
    moved: bool

    def __call__(self, query: Any, key: Any) -> Any:
        """For pairs, elementwise for arrays."""
        step = self.half // self.count
        skipped = step // 2 if self.first else 0
        chosen = (key < self.half) & (key % step == step // 2) & ((key != skipped) | (step == 1 and self.first))
        chosen = (chosen | (key == 0)) if self.first else chosen
        return (chosen & (query >= self.half)) == self.moved


@dataclass(frozen=True, kw_only=True)
class Moved(Method):
    """The chosen keys are `gap` tokens further from the second half of the prompt; below 0: they are not seen there."""

    name = "moved"
    formula = "R = r, r + G to some keys"
    source = "docs/law.md"
    experimental = True
    half: int
    count: int
    first: bool = False
    gap: int

    def plan(self, length: int, prompt_length: int | None = None) -> Plan:
        """Two regions: what stays, and what is moved."""
        stays, moves = (Among(self.half, self.count, self.first, moved) for moved in (False, True))
        regions = [self._causal(length, holds=stays)]
        if self.gap >= 0:
            regions.append(self._causal(length, query_position=Stepped(1, offset=self.gap), holds=moves))
        return Plan(length, tuple(regions))


def moved_methods(trained_length: int, tokens: int, longest: int) -> dict[str, Method]:
    """The passes' methods by name: on `tokens` tokens, as far as Origin's distances at `longest` tokens go."""
    half = tokens // 2
    return {
        name: Moved(trained_length=trained_length, half=half, count=count, gap=longest - tokens)
        for name, count in ((ONE, 1), (HALF, half))
    }


def kind_of(losses: Losses, trained_length: int, tokens: int, longest: int) -> FarKeyCosts | None:
    """What one far key costs and what all do; None where that was not measured."""
    keys: list[Key] = [(name, tokens) for name in (gap_name(), ONE, HALF)]
    if any(key not in losses for key in keys):
        return None
    base, one, half = (quarters(losses[key]) for key in keys)
    low, high = student((one - base - (half - base) / 2).tolist())
    harm = student((half - base).tolist())[0]
    clear = harm is not None and harm > 0 and low is not None and high is not None and not low <= 0 <= high
    distance = (longest - tokens + 5 * tokens / 8) / trained_length  # from the middle of what is scored
    few = low is not None and low > 0 if clear else None
    costs = student_estimate(one - base), student_estimate(half - base)
    return FarKeyCosts(few, round(distance, 2), costs[0], tokens // 2 - 1, costs[1])


def kind_sentence(kind: FarKeyCosts | None, fails: int | None) -> str:
    """Which kind, what that rests on, and when failure begins; empty where not measured. fails: Origin, in tokens."""
    if kind is None:
        return ""
    one, both = (shown(cost.value, *cost.ends, "+z.2f") for cost in (kind.one_key, kind.all_keys))
    costs = f"one ordinary key moved to {kind.distance:z.1f}x M costs {one} nats/token, {kind.keys} keys {both}."
    if kind.few is None:
        return f"Whether a few far keys are enough on this model cannot be told: {costs}"
    if kind.few:
        begins = "" if fails is None else f"; failure begins about when the largest distance passes {fails}"
        return f"On this model a few far keys are enough{begins}: {costs} For few far keys too little is predicted."
    begins = "" if fails is None else f"; failure begins when as many are as far as in origin at {fails} tokens"
    return f"On this model far keys add up{begins}: {costs}"


def student_estimate(values: np.ndarray) -> Estimate:
    """The mean with Student's interval."""
    low, high = student(values.tolist())
    return Estimate(float(values.mean()), (number(low), number(high)))
