"""Methods that see every pair at its own distance: as trained, without positions, with other frequencies."""

from dataclasses import dataclass

from mesa.methods.base import SERVERS, Method
from mesa.plan import Constant, Plan, Position


@dataclass(frozen=True, kw_only=True)
class Origin(Method):
    """The unmodified model: every pair keeps its distance.

    Examples:
        >>> mesa.distances(mesa.Origin(trained_length=4).plan(4)).tolist()
        [[0, -1, -1, -1], [1, 0, -1, -1], [2, 1, 0, -1], [3, 2, 1, 0]]
    """

    name = "origin"
    look = ("#000000", "solid", "circle")
    formula = "R = r"
    source = "the stock model"
    servers = SERVERS
    uses_model_rope = True

    def plan(self, length: int, prompt_length: int | None = None) -> Plan:
        """One causal region."""
        return Plan(length, (self._causal(length),))


@dataclass(frozen=True, kw_only=True)
class NoPE(Method):
    """Removes positions: every pair is at distance 0.

    Examples:
        >>> mesa.distances(mesa.NoPE(trained_length=4).plan(4))[-1].tolist()
        [0, 0, 0, 0]
    """

    name = "nope"
    look = ("#8C6D31", "longdash", "x")
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
    """Raises the rotary base with the current length; all keys use the current base.

    Hugging Face leaves each cached key rotated by the base of its own step. Here keys are cached unrotated, so decoding
    differs from theirs after the first token.

    Args:
        factor: s in the base's growth, (s n / M - (s - 1))^(d / (d - 2)) at n > M tokens; default 4.

    Examples:
        >>> plan = mesa.DynamicNTK(trained_length=4).plan(8)
        >>> plan.frequency_scale(np.arange(4), 8, 1e4).round(3)  # factors on the frequencies of 8 rotary dims
        array([1.   , 0.585, 0.342, 0.2  ])
    """

    name = "dynamic-ntk"
    look = ("#C47F00", "solid", "triangle-up")
    formula = "R = r; base = base0 * (s * n / M - (s - 1))^(d / (d - 2)) for n > M"
    source = "transformers, rope_type='dynamic'"
    servers = SERVERS
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
    """Scales every rotary frequency by a factor of its own, slow ones most (NTK-aware, mixed).

    Args:
        k: The slowest frequency is divided by it; default 12.
        log_n: As in `Method`; default True.

    Examples:
        >>> plan = mesa.NTKMixed(trained_length=4).plan(8)
        >>> plan.frequency_scale(np.arange(4), 8, 1e4).round(3)
        array([0.415, 0.228, 0.135, 0.083])
    """

    name = "ntk-mixed"
    look = ("#9A8F00", "longdash", "triangle-up")
    formula = "R = r; inv_freq_m * exp(-a * m^0.75), a = ln(k) / (d / 2)^0.75, m = 1.."
    source = "Su 2023, github.com/bojone/rerope, ntk_patch.py"
    servers = SERVERS[:3]
    needs_rotary = True
    k: float = 12.0
    log_n: bool = True

    def _check(self) -> None:
        self._require(self.k >= 1, "k", "is below 1")

    def plan(self, length: int, prompt_length: int | None = None) -> Plan:
        """One causal region with changed frequencies."""
        k = self.k
        return Plan(length, (self._causal(length),), lambda m, dims, base: k ** (-(((m + 1) / (dims / 2)) ** 0.75)))
