"""A gap in positions: distance without length, for experiments."""

from dataclasses import dataclass

from mesa.methods.base import SCALED, Method
from mesa.plan import Constant, Plan, Region, Stepped


@dataclass(frozen=True, kw_only=True)
class Gap(Method):
    """Keys before token `boundary` are `gap` tokens further from the queries after it; either side stays as it is.

    On a prompt of at most M tokens it shows what distances beyond M cost without a longer prompt. masked: the control,
    in which the same keys are not seen. scale: the factor on every query, as log n has it beyond M.
    """

    name = "gap"
    formula = "R = r on either side of token J, r + G across it"
    source = "experimental; docs/law.md"
    experimental = True
    boundary: int = SCALED
    gap: int = SCALED
    masked: bool = False
    scale: float = 1.0

    def _check(self) -> None:
        self._fill("boundary", self.trained_length / 4)
        self._fill("gap", self.trained_length)
        self._require(self.boundary >= 1, "boundary", "is below 1")
        self._require(self.gap >= 0, "gap", "is below 0")
        self._require(self.scale > 0, "scale", "is not above 0")

    def plan(self, length: int, prompt_length: int | None = None) -> Plan:
        """The triangles on both sides, and the rectangle between them."""
        split, scale = min(self.boundary, length), self._scale(Constant(self.scale) if self.scale != 1 else None)
        regions = [Region((0, split), (0, split), query_scale=scale)]
        if split < length:
            regions.append(Region((split, length), (split, length), query_scale=scale))
            if not self.masked:
                moved = Stepped(1, offset=self.gap)
                regions.append(Region((split, length), (0, split), moved, query_scale=scale))
        return Plan(length, tuple(regions))
