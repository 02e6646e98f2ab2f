"""Methods that see the first tokens and the last ones."""

from __future__ import annotations

from dataclasses import dataclass

from mesa.methods.base import SCALED, Method
from mesa.plan import Constant, Plan, Region


@dataclass(frozen=True, kw_only=True)
class LMInfinite(Method):
    """The first `first` tokens and the last `window` are seen; distances are cut to `window`."""

    name = "lm-infinite"
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
    """The last M tokens alone, as trained: the baseline that a method must beat before it extends anything.

    The last M tokens of a prompt see each other, those before them their own last M, a decoded token the last M.
    """

    name = "crop"
    formula = "R = r; seen: r < M and i >= n - M, n the tokens so far (before the prompt's last M: r < M)"
    source = "baseline"

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
    """The first `first` tokens and the last `window` kept; positions count inside the cache."""

    name = "streaming-llm"
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
            query_position=lambda t: (t < cache) * t + (t >= cache) * cache,
            nearest=self.window + 1,
            query_scale=self._scale(),
        )
        return Plan(length, (near, sinks))
