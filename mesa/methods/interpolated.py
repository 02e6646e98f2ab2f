"""Methods that squeeze longer texts into the trained window: slower positions."""

from __future__ import annotations

from dataclasses import dataclass

from mesa.methods.base import Method
from mesa.plan import Constant, Plan, Position, Slowed


@dataclass(frozen=True, kw_only=True)
class PI(Method):
    """Position Interpolation: all distances shrink by `factor`; None: by prompt length over M, once for each prompt."""

    name = "pi"
    formula = "R = r / s"
    source = "Chen et al. 2023; transformers, rope_type='linear'"
    factor: float = 4.0

    def __post_init__(self) -> None:
        """See Method."""
        super().__post_init__()
        self._require(self.factor is None or self.factor >= 1, "factor", "is below 1")

    @property
    def cached_position(self) -> Position:
        """Every key's; none where it differs from prompt to prompt."""
        return Constant(0) if self.factor is None else Slowed(self.factor)

    def plan(self, length: int, prompt_length: int | None = None) -> Plan:
        """One causal region."""
        prompt = length if prompt_length is None else prompt_length
        position = Slowed(self.factor or max(1.0, prompt / self.trained_length))
        return Plan(length, (self._causal(length, query_position=position, key_position=position),))
