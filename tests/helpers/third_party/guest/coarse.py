"""A method: near keys keep their distances, far positions are rounded."""

from dataclasses import dataclass

from mesa import Method, Plan
from mesa.plan import Region


@dataclass(frozen=True, kw_only=True)
class Coarse(Method):
    """Far positions are rounded down to a multiple of `width`."""

    name = "coarse"
    formula = "R = r up to N, else of rounded positions"
    source = "guest"
    window: int = 16
    width: int = 4

    def plan(self, length: int, prompt_length: int | None = None) -> Plan:
        everything = ((0, length), (0, length))

        def rounded(index):
            return index // self.width * self.width

        near = Region(*everything, farthest=self.window)
        return Plan(length, (near, Region(*everything, rounded, rounded, nearest=self.window + 1)))
