"""Methods that see the first tokens and the last ones."""

from dataclasses import dataclass

from mesa.methods.base import SCALED, SERVERS, Method
from mesa.plan import Constant, Plan, Region, capped


@dataclass(frozen=True, kw_only=True)
class LMInfinite(Method):
    """Sees only the first tokens and the last ones, and caps distances.

    Args:
        first: g, tokens seen at the start; default 100 M/4096.
        window: l, last tokens seen, and the largest distance; default M.

    Examples:
        >>> method = mesa.LMInfinite(trained_length=4, first=1, window=3)
        >>> mesa.distances(method.plan(6))[-1].tolist()  # -1: not seen
        [3, -1, -1, 2, 1, 0]
    """

    name = "lm-infinite"
    look = ("#D55E00", "dashdot", "triangle-down")
    formula = "R = min(r, l); seen: r < l or i < g"
    source = "Han et al. 2023, github.com/Glaciohound/LM-Infinite"
    first: int = SCALED
    window: int = SCALED

    def _check(self) -> None:
        self._below_trained_length("first", self.trained_length * 100 / 4096)
        self._fill("window", self.trained_length)
        self._require(self.window >= 1, "window", "is below 1")
        self._require(self.window <= self.trained_length, "window", f"exceeds the trained length {self.trained_length}")

    def plan(self, length: int, prompt_length: int | None = None) -> Plan:
        """Near band, and the first tokens at the constant distance l."""
        near = self._causal(length, farthest=self.window - 1)
        first = Region(
            (0, length),
            (0, min(self.first, length)),
            query_position=Constant(self.window),
            key_position=Constant(0),
            nearest=self.window,
            query_scale=self._scale(),
        )
        return Plan(length, (near, first))


@dataclass(frozen=True, kw_only=True)
class Crop(Method):
    """The unmodified model on the last M tokens alone, without the token that the tokenizer puts first.

    The last M tokens of a prompt see each other, earlier ones the M before them, and a decoded token the last M.

    Examples:
        >>> mesa.distances(mesa.Crop(trained_length=4).plan(6))[-1].tolist()  # -1: not seen
        [-1, -1, 3, 2, 1, 0]
    """

    name = "crop"
    look = ("#6B6B88", "longdashdot", "x")
    formula = "R = r; seen: r < M and i >= n - M, n the tokens so far (before the prompt's last M: r < M)"
    source = "baseline"
    servers = SERVERS

    def plan(self, length: int, prompt_length: int | None = None) -> Plan:
        """A band before the prompt's last M tokens, a triangle of those, and a band beyond them."""
        trained = self.trained_length
        prompt = length if prompt_length is None else prompt_length
        begin = min(max(0, prompt - trained), length)
        end = min(max(prompt, trained), length)
        regions = [self._causal(begin, farthest=trained - 1)] if begin else []
        if begin < end:
            regions.append(Region((begin, end), (begin, end), query_scale=self._scale()))
        if end < length:
            last = Region((end, length), (begin, length), farthest=trained - 1, query_scale=self._scale())
            regions.append(last)
        return Plan(length, tuple(regions))


@dataclass(frozen=True, kw_only=True)
class StreamingLLM(Method):
    """Sees only the first tokens and the last ones, and counts positions within that cache.

    Args:
        first: Tokens kept at the start; default 4.
        window: The largest distance of the last tokens kept; default M - first.

    Examples:
        >>> method = mesa.StreamingLLM(trained_length=4, first=1, window=2)
        >>> mesa.distances(method.plan(6))[-1].tolist()  # -1: not seen
        [3, -1, -1, 2, 1, 0]
    """

    name = "streaming-llm"
    look = ("#7A8B99", "dot", "triangle-down")
    formula = "positions of kept keys are 0.. in order; seen: i < s or r <= w"
    source = "Xiao et al. 2024, github.com/mit-han-lab/streaming-llm"
    first: int = 4
    window: int = SCALED

    def _check(self) -> None:
        self._fill("window", self.trained_length - self.first)
        self._below_trained_length("first", smallest=0)
        self._require(self.window >= 1, "window", "is below 1")
        complaint = f"plus first={self.first} exceeds the trained length {self.trained_length}"
        self._require(self.first + self.window <= self.trained_length, "window", complaint)

    def plan(self, length: int, prompt_length: int | None = None) -> Plan:
        """Near band with own distances, and the sinks just before it."""
        cache = self.first + self.window
        near = self._causal(length, farthest=self.window)
        sinks = Region(
            (0, length),
            (0, min(self.first, length)),
            query_position=lambda t: capped(t, cache),
            nearest=self.window + 1,
            query_scale=self._scale(),
        )
        return Plan(length, (near, sinks))
