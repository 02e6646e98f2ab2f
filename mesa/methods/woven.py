"""Methods that see every pair, far ones at a remapped distance."""

from dataclasses import dataclass

from mesa.methods.base import SCALED, Method
from mesa.plan import Carry, Constant, Plan, Position, Region, Scale, Slowed, Stepped


def rerope(queries: tuple[int, int], length: int, window: int, scale: Scale | None) -> tuple[Region, ...]:
    """Distances cut to `window`, for these queries: near band, and the far part at one distance."""
    near = Region(queries, (0, length), farthest=window, query_scale=scale)
    far = Region(queries, (0, length), Constant(window), Constant(0), nearest=window + 1, query_scale=scale)
    return near, far


def leaky(queries: tuple[int, int], length: int, window: int, factor: float, scale: Scale | None) -> tuple[Region, ...]:
    """Distances from `window` on slowed by `factor`, for these queries; far positions are fractional."""
    near = Region(queries, (0, length), farthest=window - 1, query_scale=scale)
    position = Slowed(factor, -window, window)
    far = Region(queries, (0, length), position, Slowed(factor), nearest=window, query_scale=scale)
    return near, far


def stair(queries: tuple[int, int], length: int, window: int, width: int, scale: Scale | None) -> tuple[Region, ...]:
    """Stair PE for every query: ceil((r - N) / E) = (t - N + E - 1) // E - i // E, less one where residues carry."""

    shift = width - 1 - window

    def far(offset: int, holds: Carry | None) -> Region:
        position = Stepped(width, shift, offset)
        far_keys = {"key_position": Stepped(width), "nearest": window + 1}
        return Region(queries, (0, length), position, **far_keys, holds=holds, period=width, query_scale=scale)

    near = Region(queries, (0, length), farthest=window, query_scale=scale)
    if width == 1:
        return near, far(window, None)
    return near, far(window, Carry(width, shift, False)), far(window - 1, Carry(width, shift, True))


@dataclass(frozen=True, kw_only=True)
class ReRoPE(Method):
    """Caps distances at a window: the remap of theorem 3.3.

    Args:
        window: N, the largest distance, in tokens; default M/8.
        log_n: As in `Method`; default True.

    Examples:
        >>> method = mesa.ReRoPE(trained_length=4, window=2)
        >>> mesa.distances(method.plan(6))[-1].tolist()
        [2, 2, 2, 2, 1, 0]
    """

    name = "rerope"
    look = ("#0072B2", "dash", "square")
    formula = "R = min(r, N)"
    source = "Su 2023, github.com/bojone/rerope; paper eq. 4"
    window: int = SCALED
    log_n: bool = True

    def _check(self) -> None:
        self._below_trained_length("window", self.trained_length / 8)

    @property
    def cached_position(self) -> Position:
        """The far keys': none."""
        return Constant(0)

    def plan(self, length: int, prompt_length: int | None = None) -> Plan:
        """Near band with own distances, far part at the constant distance N."""
        return Plan(length, rerope((0, length), length, self.window, self._scale()))


@dataclass(frozen=True, kw_only=True)
class LeakyReRoPE(Method):
    """Slows distances down beyond a window; they become fractional.

    Args:
        window: N, tokens up to which distances are the model's own; default M/8.
        k: How many times slower distances grow from N on; default 16.
        log_n: As in `Method`; default True.

    Examples:
        >>> method = mesa.LeakyReRoPE(trained_length=4, window=2, k=2)
        >>> mesa.distances(method.plan(6))[-1].tolist()
        [3.5, 3.0, 2.5, 2.0, 1.0, 0.0]
    """

    name = "leaky-rerope"
    look = ("#3A95D0", "dashdot", "square")
    formula = "R = r if r < N else N + (r - N) / k"
    source = "Su 2023, github.com/bojone/rerope"
    window: int = SCALED
    k: float = 16.0
    log_n: bool = True

    def _check(self) -> None:
        self._below_trained_length("window", self.trained_length / 8)
        self._require(self.k >= 1, "k", "is below 1")

    @property
    def cached_position(self) -> Position:
        """The far keys'."""
        return Slowed(self.k)

    def plan(self, length: int, prompt_length: int | None = None) -> Plan:
        """Near band with own distances, far part with slowed ones."""
        return Plan(length, leaky((0, length), length, self.window, self.k, self._scale()))


@dataclass(frozen=True, kw_only=True)
class SelfExtend(Method):
    """Gives far tokens in a group the same position.

    Args:
        window: N, tokens up to which distances are the model's own; default M/4.
        group: G, tokens in a group; default 8.

    Examples:
        >>> method = mesa.SelfExtend(trained_length=8, window=2, group=2)
        >>> mesa.distances(method.plan(8))[-1].tolist()
        [4, 4, 3, 3, 2, 2, 1, 0]
    """

    name = "self-extend"
    look = ("#CC79A7", "dash", "diamond")
    formula = "R = r if r < N else t // G - i // G + N - N // G"
    source = "Jin et al. 2024, github.com/datamllab/LongLM"
    servers = ("llama.cpp",)
    window: int = SCALED
    group: int = 8

    def _check(self) -> None:
        self._below_trained_length("window", self.trained_length / 4)
        self._require(self.group >= 1, "group", "is below 1")

    @property
    def cached_position(self) -> Position:
        """The far keys'."""
        return Stepped(self.group)

    def plan(self, length: int, prompt_length: int | None = None) -> Plan:
        """Near band with own distances, far part with grouped positions."""
        window, group = self.window, self.group
        near = self._causal(length, farthest=window - 1)
        far = self._causal(
            length,
            nearest=window,
            query_position=Stepped(group, offset=window - window // group),
            key_position=self.cached_position,
        )
        return Plan(length, (near, far))


@dataclass(frozen=True, kw_only=True)
class StairPE(Method):
    """Raises distances by one for every `width` tokens beyond a window (Stair PE, paper eq. 6).

    Args:
        window: N, tokens up to which distances are the model's own; default M/8.
        width: E, tokens in a step; default 50, at every M.
        log_n: As in `Method`; default True.

    Examples:
        >>> method = mesa.StairPE(trained_length=8, window=2, width=2)
        >>> mesa.distances(method.plan(8))[-1].tolist()
        [5, 4, 4, 3, 3, 2, 1, 0]
    """

    name = "stair"
    look = ("#B33D79", "solid", "diamond")
    formula = "R = r if r <= N else N + ceil((r - N) / E)"
    source = "paper eq. 6; github.com/soacker/Mesa-Extrapolation scales queries"
    window: int = SCALED
    width: int = 50
    log_n: bool = True

    def _check(self) -> None:
        self._below_trained_length("window", self.trained_length / 8)
        self._require(self.width >= 1, "width", "is below 1")

    @property
    def cached_position(self) -> Position:
        """The far keys'."""
        return Stepped(self.width)

    def plan(self, length: int, prompt_length: int | None = None) -> Plan:
        """Near band, and the stair in two regions."""
        return Plan(length, stair((0, length), length, self.window, self.width, self._scale()))
