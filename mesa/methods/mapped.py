"""Methods that move far pairs to distances that training met often, and sharpen scores a little."""

import math
from dataclasses import dataclass
from typing import Any

from mesa.methods.base import SCALED, Method
from mesa.plan import Constant, Plan, Stepped, capped

SHARPER = Constant((0.1 * math.log(2) + 1) ** 2)
"""The factor on scores, at every length."""


@dataclass(frozen=True, kw_only=True)
class STRING(Method):
    """Restarts far distances at a small one, to use a long trained length better.

    Distances stay below M up to M + window - local tokens only.

    Args:
        window: S, tokens up to which distances are the model's own; default M/3.
        local: W, the distance that r = S becomes, in tokens; default M/1024.

    Examples:
        >>> method = mesa.STRING(trained_length=8, window=4, local=1)
        >>> mesa.distances(method.plan(8))[-1].tolist()
        [4, 3, 2, 1, 3, 2, 1, 0]
    """

    name = "string"
    look = ("#B5482A", "dash", "triangle-down")
    formula = "R = r if r < S else r - S + W; scores * (0.1 ln 2 + 1)^2"
    source = "An et al. 2024, github.com/HKUNLP/STRING"
    window: int = SCALED
    local: int = SCALED

    def _check(self) -> None:
        self._below_trained_length("window", self.trained_length / 3)
        self._fill("local", self.trained_length / 1024)
        self._require(self.local >= 0, "local", "is below 0")
        self._require(self.local <= self.window, "local", f"exceeds window={self.window}")

    def plan(self, length: int, prompt_length: int | None = None) -> Plan:
        """Near band with own distances, far part moved nearer."""
        scale = self._scale(SHARPER)
        near = self._causal(length, farthest=self.window - 1, query_scale=scale)
        moved = Stepped(1, self.local - self.window)
        return Plan(length, (near, self._causal(length, query_position=moved, nearest=self.window, query_scale=scale)))


@dataclass(frozen=True)
class Mapped:
    """`shift` + (`to` * index) // (`prompt` - 1), for tokens after the prompt that of its last; at most `most`."""

    to: int
    prompt: int
    shift: int = 0
    most: int | None = None

    def __call__(self, index: Any) -> Any:
        """The positions, in the shape of `index`."""
        last = self.prompt - 1
        position = self.shift + self.to * capped(index, last) // last
        return position if self.most is None else capped(position, self.most)


@dataclass(frozen=True, kw_only=True)
class LaMPE(Method):
    """Maps the middle of a prompt to fewer positions, by the prompt's length.

    Prompts of fewer than 2 `window` tokens keep their distances. Distances below 0 are made 0. Where the public code
    fails, more than `window` decoded tokens on, the same formula continues.

    Args:
        window: h, tokens up to which distances are the model's own; default M/8.
        tail: T: about so many of a prompt's greatest distances are its own, less a constant; default 200 M/4096.
        mapped: U, positions that the prompt is mapped to. Default: by its length, as the authors fitted it to Llama-2,
            scaled to M.

    Examples:
        >>> method = mesa.LaMPE(trained_length=16, window=2, tail=1, mapped=6)
        >>> mesa.distances(method.plan(12))[-1].tolist()
        [6, 6, 5, 5, 4, 4, 3, 3, 2, 2, 1, 0]
    """

    name = "lampe"
    look = ("#C2477F", "dashdot", "circle")
    formula = "R = r near, g(t) - g(i) + b1 in the middle, r - b2 far; g(x) = U x // (L - 1); scores * (0.1 ln 2 + 1)^2"
    source = "LaMPE 2025, github.com/scar-on/LaMPE"
    window: int = SCALED
    tail: int = SCALED
    mapped: int = SCALED

    def _check(self) -> None:
        self._below_trained_length("window", self.trained_length / 8)
        self._below_trained_length("tail", self.trained_length * 200 / 4096)
        self._require(self.tail <= self.window, "tail", f"exceeds window={self.window}")
        if self.mapped is not None:
            self._below_trained_length("mapped", smallest=2)

    def mapped_length(self, prompt: int) -> int:
        """U: the positions that a prompt of n tokens is mapped to."""
        if self.mapped is not None:
            return self.mapped
        as_llama2 = prompt * 4096 / self.trained_length
        mapped = 1536
        if as_llama2 >= 8192:
            mapped = int(2489.1055552214357 / (1 + math.exp(-(8.673006440952035e-05 * as_llama2 - 0.648012322406978))))
        return max(2, mapped * self.trained_length // 4096)

    def plan(self, length: int, prompt_length: int | None = None) -> Plan:
        """Near band, middle, and the pairs of the greatest distances."""
        prompt, near, scale = length if prompt_length is None else prompt_length, self.window, self._scale(SHARPER)
        if prompt < 2 * near:
            return Plan(length, (self._causal(length, query_scale=scale),), by_prompt=True)
        position = Mapped(self.mapped_length(prompt), prompt)
        end = self.tail
        while end + 1 < prompt and position(end + 1) == position(self.tail):
            end += 1
        shift = near - position(near) - 1
        far = prompt - 1 - end - position(prompt - 1 - end) - shift
        first = max(near, prompt - end)  # the least of the greatest distances
        query, key = Mapped(position.to, prompt, shift), Mapped(position.to, prompt, 0, position.to + shift)
        middle = {"query_position": query, "key_position": key, "nearest": near, "farthest": first - 1}
        regions = [
            self._causal(length, farthest=near - 1, query_scale=scale),
            self._causal(length, query_position=Stepped(1, -far), nearest=max(first, far), query_scale=scale),
        ]
        if near < first:
            regions.insert(1, self._causal(length, **middle, query_scale=scale))
        if first < far:  # whose distances would be below 0
            same = {"query_position": Constant(0), "key_position": Constant(0)}
            regions.append(self._causal(length, **same, nearest=first, farthest=far - 1, query_scale=scale))
        return Plan(length, tuple(regions), by_prompt=True)
