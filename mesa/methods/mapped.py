"""LaMPE: a prompt's far positions are mapped to a length that follows from the prompt's own."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

from mesa.methods.base import SCALED, Method
from mesa.methods.shifted import SHARPER
from mesa.plan import Bounded, Plan, Stepped


class Curve(NamedTuple):
    """The mapped length by the prompt's, as the authors fitted it to a model with the window `trained`."""

    trained: int
    rise: float
    offset: float
    most: float

    def mapped(self, prompt: float) -> int:
        """Of a prompt in this model's tokens."""
        if prompt < 8192:
            return 1536
        return int(self.most / (1 + math.exp(-(self.rise * prompt + self.offset))))


CURVES = {
    "llama2": Curve(4096, 8.673006440952035e-05, -0.648012322406978, 2489.1055552214357),
    "llama3": Curve(8192, 0.00010493097327094324, -2.466638011138158, 6204.409324666837),
}


@dataclass(frozen=True)
class Mapped(Bounded):
    """`shift` + (`to` * index) // (`prompt` - 1), for tokens after the prompt that of its last; at most `most`."""

    to: int
    prompt: int
    shift: int = 0
    most: int | None = None

    def __call__(self, index: Any) -> Any:
        """The positions, in the shape of `index`."""
        last = self.prompt - 1
        place = self.shift + self.to * ((index < last) * index + (index >= last) * last) // last
        if self.most is None:
            return place
        return (place < self.most) * place + (place >= self.most) * self.most


@dataclass(frozen=True, kw_only=True)
class LaMPE(Method):
    """Own distances near a query, mapped ones in the middle, own ones less a constant to the first keys.

    The prompt is mapped to `mapped` positions; None: by its length, as `curve` has it, scaled from that model's window.
    Prompts of fewer than 2 `window` tokens keep their distances. Where the public code fails, more than `window`
    decoded tokens on, we go on by the same formula, distances below 0 made 0.
    """

    name = "lampe"
    formula = "R = r near, g(t) - g(i) + b1 in the middle, r - b2 far; g(x) = U x // (L - 1); scores * (0.1 ln 2 + 1)^2"
    source = "LaMPE 2025, github.com/scar-on/LaMPE"
    window: int = SCALED
    tail: int = SCALED
    mapped: int = SCALED
    curve: str = "llama2"

    def __post_init__(self) -> None:
        """See Method."""
        super().__post_init__()
        self._fill("window", self.trained_length / 8)
        self._fill("tail", self.trained_length * 200 // 4096)
        self._below_trained_length("window")
        self._below_trained_length("tail")
        self._require(self.tail <= self.window, "tail", f"exceeds window={self.window}")
        self._require(self.curve in CURVES, "curve", f"is not {', '.join(CURVES)}")
        if self.mapped is not None:
            self._below_trained_length("mapped", smallest=2)

    def mapped_length(self, prompt: int) -> int:
        """U: the positions that a prompt of so many tokens is mapped to."""
        if self.mapped is not None:
            return self.mapped
        curve = CURVES[self.curve]
        return max(2, curve.mapped(prompt * curve.trained / self.trained_length) * self.trained_length // curve.trained)

    def plan(self, length: int, prompt_length: int | None = None) -> Plan:
        """Near band, middle, and the pairs of the greatest distances."""
        prompt, near, scale = length if prompt_length is None else prompt_length, self.window, self._scale(SHARPER)
        if prompt < 2 * near:
            return Plan(length, (self._causal(length, query_scale=scale),), by_prompt=True)
        place = Mapped(self.mapped_length(prompt), prompt)
        end = self.tail
        while end + 1 < prompt and place(end + 1) == place(self.tail):
            end += 1
        shift = near - place(near) - 1
        far = prompt - 1 - end - place(prompt - 1 - end) - shift
        first = max(near, prompt - end)  # the least of the greatest distances
        query, key = Mapped(place.to, prompt, shift), Mapped(place.to, prompt, 0, place.to + shift)
        middle = {"query_position": query, "key_position": key, "nearest": near, "farthest": first - 1}
        regions = (
            self._causal(length, farthest=near - 1, query_scale=scale),
            self._causal(length, **middle, query_scale=scale),
            self._causal(length, query_position=Stepped(1, -far), nearest=first, query_scale=scale),
        )
        return Plan(length, regions, by_prompt=True)
