"""Methods that see every pair at its own distance: as trained, without positions, with other frequencies."""

from __future__ import annotations

from dataclasses import dataclass

from mesa.methods.base import Method
from mesa.plan import Constant, Plan, Position


@dataclass(frozen=True, kw_only=True)
class Origin(Method):
    """The model as it was trained: every pair keeps its distance."""

    name = "origin"
    formula = "R = r"
    source = "the stock model"
    as_trained = True

    def plan(self, length: int, prompt_length: int | None = None) -> Plan:
        """One causal region."""
        return Plan(length, (self._causal(length),))


@dataclass(frozen=True, kw_only=True)
class NoPE(Method):
    """The model without positions: every pair is at distance 0."""

    name = "nope"
    formula = "R = 0"
    source = "Kazemnejad et al. 2023; paper theorem 3.1"

    @property
    def cached_position(self) -> Position:
        """None."""
        return Constant(0)

    def plan(self, length: int, prompt_length: int | None = None) -> Plan:
        """One causal region at one position."""
        return Plan(length, (self._causal(length, query_position=Constant(0), key_position=Constant(0)),))


@dataclass(frozen=True, kw_only=True)
class DynamicNTK(Method):
    """Rotary's base grows with the current length n; all keys use the current base.

    Hugging Face keeps each cached key rotated with the base of its own time; we hold raw keys, so decoding differs
    from it after the first token.
    """

    name = "dynamic-ntk"
    formula = "R = r; base = base0 * (s * n / M - (s - 1))^(d / (d - 2)) for n > M"
    source = "transformers, rope_type='dynamic'"
    needs_rotary = True
    factor: float = 4.0

    def _check(self) -> None:
        self._require(self.factor >= 1, "factor", "is below 1")

    def plan(self, length: int, prompt_length: int | None = None) -> Plan:
        """One causal region with changed frequencies."""
        tokens = max(length, prompt_length or 0)
        if tokens <= self.trained_length:
            return Plan(length, (self._causal(length),))
        growth = self.factor * tokens / self.trained_length - (self.factor - 1)
        return Plan(length, (self._causal(length),), lambda m, dims, base: growth ** (-2 * m / max(1, dims - 2)))


@dataclass(frozen=True, kw_only=True)
class NTKMixed(Method):
    """NTK-aware scaling with a factor that grows with the frequency's number."""

    name = "ntk-mixed"
    formula = "R = r; inv_freq_m * exp(-a * m^0.75), a = ln(k) / (d / 2)^0.75, m = 1.."
    source = "Su 2023, github.com/bojone/rerope, ntk_patch.py"
    needs_rotary = True
    k: float = 12.0
    log_n: bool = True

    def _check(self) -> None:
        self._require(self.k >= 1, "k", "is below 1")

    def plan(self, length: int, prompt_length: int | None = None) -> Plan:
        """One causal region with changed frequencies."""
        k = self.k
        return Plan(length, (self._causal(length),), lambda m, dims, base: k ** (-(((m + 1) / (dims / 2)) ** 0.75)))
