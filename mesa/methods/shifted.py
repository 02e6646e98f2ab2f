"""Methods that move far pairs to distances that training met often, and sharpen scores a little."""

from __future__ import annotations

import math
from dataclasses import dataclass

from mesa.methods.base import SCALED, Method
from mesa.plan import Constant, Plan, Stepped

SHARPER = Constant((0.1 * math.log(2) + 1) ** 2)
"""The factor on scores, at every length."""


@dataclass(frozen=True, kw_only=True)
class STRING(Method):
    """Distances from `window` on begin anew at `local`; for texts about as long as M, whose far part is seldom trained.

    Distances stay below M only up to M + window - local tokens.
    """

    name = "string"
    formula = "R = r if r < S else r - S + W; scores * (0.1 ln 2 + 1)^2"
    source = "An et al. 2024, github.com/HKUNLP/STRING"
    window: int = SCALED
    local: int = SCALED

    def __post_init__(self) -> None:
        """See Method."""
        super().__post_init__()
        self._fill("window", self.trained_length / 3)
        self._fill("local", self.trained_length / 1024)
        self._below_trained_length("window")
        self._require(self.local >= 0, "local", "is below 0")
        self._require(self.local <= self.window, "local", f"exceeds window={self.window}")

    def plan(self, length: int, prompt_length: int | None = None) -> Plan:
        """Near band with own distances, far part moved nearer."""
        scale = self._scale(SHARPER)
        near = self._causal(length, farthest=self.window - 1, query_scale=scale)
        moved = Stepped(1, self.local - self.window)
        return Plan(length, (near, self._causal(length, query_position=moved, nearest=self.window, query_scale=scale)))
