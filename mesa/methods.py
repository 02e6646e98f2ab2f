"""The methods: one frozen config each, which makes a plan. Formulas in docs/methods.md.

M is the trained window (`trained_length`). Sizes left out are the paper's, scaled to M (its M is 4096).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from importlib.metadata import entry_points
from itertools import pairwise
from typing import Any, ClassVar

from mesa.plan import Constant, Plan, Position, Region, Slowed, Stepped, own_index

_SCALED: Any = None  # the default of a size that follows from trained_length


@dataclass(frozen=True, kw_only=True)
class Method(ABC):
    """A way to give query-key pairs their positions; see `plan`.

    trained_length: the model's trained window M, in tokens.
    log_n: scale each query by max(1, ln(t + 1) / ln M), as in the ReRoPE repository.
    layers: the layers (from 0) the method is applied to, Origin to the rest; None: all.
    """

    name: ClassVar[str]
    formula: ClassVar[str]
    source: ClassVar[str]
    as_trained: ClassVar[bool] = False
    """Whether the model's own rotary module is left as it is, also where it changes with length by itself."""
    needs_rotary: ClassVar[bool] = False
    """Whether it works on rotary frequencies, so that ALiBi models cannot have it."""
    trained_length: int
    log_n: bool = False
    layers: tuple[int, ...] | None = None

    @property
    def cached_position(self) -> Position:
        """The position that a key is rotated to before it is cached: one that most keys keep while decoding."""
        return own_index

    def __post_init__(self) -> None:
        """Fills sizes left out and checks all; ValueError names the value and what it may be."""
        self._require(self.trained_length >= 2, "trained_length", "is below 2 tokens")
        if self.layers is not None:
            object.__setattr__(self, "layers", tuple(self.layers))
            self._require(len(self.layers) > 0 and min(self.layers) >= 0, "layers", "is empty or has a negative layer")

    @abstractmethod
    def plan(self, length: int, prompt_length: int | None = None) -> Plan:
        """The plan for the first `length` tokens of a prompt of `prompt_length` (all, if None), or beyond it."""

    def describe(self) -> dict[str, Any]:
        """Name and parameters, ready for JSON."""
        return {"name": self.name, **asdict(self)}

    def _require(self, good: bool, field: str, complaint: str) -> None:
        if not good:
            raise ValueError(f"{self.name}: {field}={getattr(self, field)} {complaint}")

    def _fill(self, field: str, scaled: float) -> None:
        if getattr(self, field) is None:
            object.__setattr__(self, field, max(1, round(scaled)))

    def _below_trained_length(self, field: str, smallest: int = 1) -> None:
        self._require(getattr(self, field) >= smallest, field, f"is below {smallest}")
        complaint = f"is not below the trained length {self.trained_length}"
        self._require(getattr(self, field) < self.trained_length, field, complaint)

    @property
    def _log_n(self) -> int:
        return self.trained_length if self.log_n else 0

    def _causal(self, length: int, **changes: Any) -> Region:
        return Region((0, length), (0, length), log_n=self._log_n, **changes)


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
class ReRoPE(Method):
    """Distances beyond `window` are cut to it (theorem 3.3's weave)."""

    name = "rerope"
    formula = "R = min(r, N)"
    source = "Su 2023, github.com/bojone/rerope; paper eq. 4"
    window: int = _SCALED
    log_n: bool = True

    def __post_init__(self) -> None:
        """See Method."""
        super().__post_init__()
        self._fill("window", self.trained_length / 8)
        self._below_trained_length("window")

    @property
    def cached_position(self) -> Position:
        """The far keys': none."""
        return Constant(0)

    def plan(self, length: int, prompt_length: int | None = None) -> Plan:
        """Near band with own distances, far part at the constant distance N."""
        near = self._causal(length, farthest=self.window)
        far = self._causal(
            length, nearest=self.window + 1, query_position=Constant(self.window), key_position=Constant(0)
        )
        return Plan(length, (near, far))


@dataclass(frozen=True, kw_only=True)
class LeakyReRoPE(Method):
    """Distances beyond `window` grow k times slower; positions are fractional."""

    name = "leaky-rerope"
    formula = "R = r if r < N else N + (r - N) / k"
    source = "Su 2023, github.com/bojone/rerope"
    window: int = _SCALED
    k: float = 16.0
    log_n: bool = True

    def __post_init__(self) -> None:
        """See Method."""
        super().__post_init__()
        self._fill("window", self.trained_length / 8)
        self._below_trained_length("window")
        self._require(self.k >= 1, "k", "is below 1")

    @property
    def cached_position(self) -> Position:
        """The far keys'."""
        return Slowed(self.k)

    def plan(self, length: int, prompt_length: int | None = None) -> Plan:
        """Near band with own distances, far part with slowed ones."""
        window, k = self.window, self.k
        near = self._causal(length, farthest=window - 1)
        far = self._causal(
            length, nearest=window, query_position=Slowed(k, -window, window), key_position=self.cached_position
        )
        return Plan(length, (near, far))


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

    def __post_init__(self) -> None:
        """See Method."""
        super().__post_init__()
        self._require(self.factor >= 1, "factor", "is below 1")

    @property
    def cached_position(self) -> Position:
        """None: the frequencies change with every token."""
        return Constant(0)

    def plan(self, length: int, prompt_length: int | None = None) -> Plan:
        """One causal region with changed frequencies."""
        tokens = max(length, prompt_length or 0)
        if tokens <= self.trained_length:
            return Plan(length, (self._causal(length),))
        growth = self.factor * tokens / self.trained_length - (self.factor - 1)
        return Plan(length, (self._causal(length),), lambda m, dims: growth ** (-2 * m / (dims - 2)))


@dataclass(frozen=True, kw_only=True)
class NTKMixed(Method):
    """NTK-aware scaling with a factor that grows with the frequency's number."""

    name = "ntk-mixed"
    formula = "R = r; inv_freq_m * exp(-a * m^0.75), a = ln(k) / (d / 2)^0.75, m = 1.."
    source = "Su 2023, github.com/bojone/rerope, ntk_patch.py"
    needs_rotary = True
    k: float = 12.0
    log_n: bool = True

    def __post_init__(self) -> None:
        """See Method."""
        super().__post_init__()
        self._require(self.k >= 1, "k", "is below 1")

    @property
    def cached_position(self) -> Position:
        """None: other frequencies than the model's."""
        return Constant(0)

    def plan(self, length: int, prompt_length: int | None = None) -> Plan:
        """One causal region with changed frequencies."""
        k = self.k
        return Plan(length, (self._causal(length),), lambda m, dims: k ** (-(((m + 1) / (dims / 2)) ** 0.75)))


@dataclass(frozen=True, kw_only=True)
class LMInfinite(Method):
    """The first `first` tokens and the last `window` are seen; distances are cut to `window`."""

    name = "lm-infinite"
    formula = "R = min(r, l); seen: r < l or i < g"
    source = "Han et al. 2023, github.com/Glaciohound/LM-Infinite"
    first: int = _SCALED
    window: int = _SCALED

    def __post_init__(self) -> None:
        """See Method."""
        super().__post_init__()
        self._fill("first", self.trained_length * 100 / 4096)
        self._fill("window", self.trained_length)
        self._below_trained_length("first")
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
            log_n=self._log_n,
        )
        return Plan(length, (near, first))


@dataclass(frozen=True, kw_only=True)
class StreamingLLM(Method):
    """The first `first` tokens and the last `window` kept; positions count inside the cache."""

    name = "streaming-llm"
    formula = "positions of kept keys are 0.. in order; seen: i < s or r <= w"
    source = "Xiao et al. 2024, github.com/mit-han-lab/streaming-llm"
    first: int = 4
    window: int = _SCALED

    def __post_init__(self) -> None:
        """See Method."""
        super().__post_init__()
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
            log_n=self._log_n,
        )
        return Plan(length, (near, sinks))


@dataclass(frozen=True, kw_only=True)
class SelfExtend(Method):
    """Distances beyond `window` are those of groups of `group` tokens."""

    name = "self-extend"
    formula = "R = r if r < N else t // G - i // G + N - N // G"
    source = "Jin et al. 2024, github.com/datamllab/LongLM"
    window: int = _SCALED
    group: int = 8

    def __post_init__(self) -> None:
        """See Method."""
        super().__post_init__()
        self._fill("window", self.trained_length / 4)
        self._below_trained_length("window")
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


def _stair(queries: tuple[int, int], length: int, window: int, width: int, log_n: int) -> tuple[Region, ...]:
    """Stair PE for every query: ceil((r - N) / E) = (t - N + E - 1) // E - i // E, less one where residues wrap."""

    shift = width - 1 - window

    def wraps(t: Any, i: Any) -> Any:
        return (t + shift) % width < i % width

    def keeps(t: Any, i: Any) -> Any:
        return (t + shift) % width >= i % width

    def far(offset: int, holds: Callable[[Any, Any], Any] | None) -> Region:
        position = Stepped(width, shift, offset)
        return Region(queries, (0, length), position, Stepped(width), nearest=window + 1, holds=holds, log_n=log_n)

    near = Region(queries, (0, length), farthest=window, log_n=log_n)
    if width == 1:
        return near, far(window, None)
    return near, far(window, keeps), far(window - 1, wraps)


@dataclass(frozen=True, kw_only=True)
class StairPE(Method):
    """Distances beyond `window` rise by one every `width` tokens (paper eq. 6), without chunks."""

    name = "stair"
    formula = "R = r if r <= N else N + ceil((r - N) / E)"
    source = "paper eq. 6; github.com/soacker/Mesa-Extrapolation scales queries"
    window: int = _SCALED
    width: int = 50
    log_n: bool = True

    def __post_init__(self) -> None:
        """See Method."""
        super().__post_init__()
        self._fill("window", self.trained_length / 8)
        self._below_trained_length("window")
        self._require(self.width >= 1, "width", "is below 1")

    @property
    def cached_position(self) -> Position:
        """The far keys'."""
        return Stepped(self.width)

    def plan(self, length: int, prompt_length: int | None = None) -> Plan:
        """Near band, and the stair in two regions."""
        return Plan(length, _stair((0, length), length, self.window, self.width, self._log_n))


@dataclass(frozen=True, kw_only=True)
class MesaExtrapolation(Method):
    """Chunked triangular attention, Stair PE in the last chunk and in decoding (paper section 4, algorithm 1).

    first, last: lengths F and L of the first and the least last chunk; split_threshold: M_max of DynamicSplit.
    variant: 'exact' (every query of the last chunk follows Stair), 'aligned' (the paper: its last query does, the
    others use differences of those positions) or 'reference' (the authors' code, with `headroom` tokens kept for
    the answer; it ignores `window`).
    """

    name = "mesa"
    formula = "chunks: own chunk and the first, R = r; last chunk and decoding: Stair PE over all keys"
    source = "Ma et al. 2024, section 4; variant 'reference': github.com/soacker/Mesa-Extrapolation"
    window: int = _SCALED
    width: int = 50
    first: int = _SCALED
    last: int = _SCALED
    split_threshold: int = _SCALED
    variant: str = "exact"
    headroom: int = 50
    log_n: bool = True

    def __post_init__(self) -> None:
        """See Method."""
        super().__post_init__()
        ratio = self.trained_length / 4096
        for field, paper in {"window": 512, "first": 100, "last": 512, "split_threshold": 200}.items():
            self._fill(field, paper * ratio)
        self._below_trained_length("window")
        self._below_trained_length("first")
        self._below_trained_length("last")
        complaint = f"plus last={self.last} is not below the trained length {self.trained_length}"
        self._require(self.first + self.last < self.trained_length, "first", complaint)
        self._require(self.width >= 1, "width", "is below 1")
        self._require(self.split_threshold >= 1, "split_threshold", "is below 1")
        self._require(self.headroom >= 0, "headroom", "is below 0")
        self._require(self.variant in ("exact", "aligned", "reference"), "variant", "is not exact, aligned, reference")

    def chunks(self, prompt_length: int) -> list[int]:
        """Where the chunks of a prompt begin and end: [0, F, ..., begin of the last chunk, prompt_length]."""
        first, trained, total = self.first, self.trained_length, prompt_length
        if self.variant == "reference":
            return self._reference_chunks(prompt_length)[0]
        if total <= trained:
            return [0, total]
        middle = total - self.last - first
        count, rest = divmod(middle, trained - first)
        width = trained - first
        if rest >= self.split_threshold:
            count += 1
            width = middle // count
        return [0, first, *(first + width * (n + 1) for n in range(count)), total]

    def _reference_chunks(self, prompt_length: int) -> tuple[list[int], int]:
        """Chunk borders and chunk width of the authors' code."""
        room = self.trained_length - 2 * self.first
        count, rest = divmod(prompt_length + self.headroom - self.last - self.first, room)
        width = room if rest < self.split_threshold else (room * count + rest) // (count + 1)
        if prompt_length + self.headroom <= self.trained_length:
            return [0, prompt_length], width
        borders = [0, self.first]
        while borders[-1] + width < prompt_length:
            borders.append(borders[-1] + width)
        return [*borders, prompt_length], width

    @property
    def cached_position(self) -> Position:
        """The far keys' in decoding; the reference variant moves them with every token."""
        return own_index if self.variant == "reference" else Stepped(self.width)

    def plan(self, length: int, prompt_length: int | None = None) -> Plan:
        """First chunk, middle chunks with the first chunk before each, last chunk and decoded tokens with Stair."""
        prompt = length if prompt_length is None else prompt_length
        borders = self.chunks(prompt)
        if len(borders) == 2:  # no split: plain attention up to M
            plain = min(length, self.trained_length)
            return Plan(length, (Region((0, plain), (0, plain)), *self._last(plain, plain, length)))
        regions = [Region((0, borders[1]), (0, borders[1]))]
        for begin, end in pairwise(borders[1:-1]):
            shift = begin - borders[1]
            regions.append(Region((begin, end), (begin, end)))
            regions.append(Region((begin, end), (0, borders[1]), key_position=Stepped(1, shift)))
        return Plan(length, (*regions, *self._last(borders[-2], prompt, length)))

    def _last(self, begin: int, prompt: int, length: int) -> tuple[Region, ...]:
        """The regions of the queries from `begin` on."""
        if begin >= length:
            return ()
        if self.variant == "reference":
            width = self._reference_chunks(prompt)[1]
            position = _reference_position(max(length, prompt), self.trained_length, width, self.width)
            return (Region((begin, length), (0, length), position, position, log_n=self._log_n),)
        if self.variant == "exact":
            return _stair((begin, length), length, self.window, self.width, self._log_n)
        position = _aligned_position(prompt - 1, self.window, self.width)
        aligned = Region((begin, min(prompt, length)), (0, prompt), position, position, log_n=self._log_n)
        return (aligned, *_stair((min(prompt, length), length), length, self.window, self.width, self._log_n))


def _aligned_position(last: int, window: int, width: int) -> Callable[[Any], Any]:
    """Positions for which token `last` sees every other one at its Stair distance."""

    def position(index: Any) -> Any:
        distance = last - index
        stair = window + (distance - window + width - 1) // width
        return last - ((distance <= window) * distance + (distance > window) * stair)

    return position


def _reference_position(length: int, trained_length: int, chunk: int, width: int) -> Callable[[Any], Any]:
    """The authors' stair(n): own index from one boundary on, width-fold slower below it."""
    if length <= trained_length:
        return own_index
    boundary = length - ((length - 1) % chunk)

    def position(index: Any) -> Any:
        slow = boundary - 1 - (boundary - 1 - index) // width
        return (index >= boundary) * index + (index < boundary) * slow

    return position


METHODS: dict[str, type[Method]] = {
    method.name: method
    for method in (
        Origin,
        NoPE,
        ReRoPE,
        LeakyReRoPE,
        DynamicNTK,
        NTKMixed,
        LMInfinite,
        StreamingLLM,
        SelfExtend,
        StairPE,
        MesaExtrapolation,
    )
}
"""The methods that come with the package, by name."""

ENTRY_POINTS = "mesa_lens.methods"
"""Entry-point group in which another package names its `Method` classes."""


def registry() -> dict[str, type[Method]]:
    """Every method by its name: ours, then those of installed packages. ValueError where two share a name."""
    known = dict(METHODS)
    for point in entry_points(group=ENTRY_POINTS):
        method = point.load()
        if known.get(method.name, method) is not method:
            raise ValueError(f"{point.value} is called {method.name!r}, as another method is; rename it")
        known[method.name] = method
    return known


def make(name: str, trained_length: int, **parameters: Any) -> Method:
    """The method called `name`; parameters left out take their defaults. ValueError for unknown names."""
    methods = registry()
    if name not in methods:
        raise ValueError(f"unknown method {name!r}; known: {', '.join(methods)}")
    known = {field.name for field in fields(methods[name])}
    for parameter in parameters:
        if parameter not in known:
            raise ValueError(f"{name}: unknown parameter {parameter!r}; known: {', '.join(sorted(known))}")
    return methods[name](trained_length=trained_length, **parameters)
