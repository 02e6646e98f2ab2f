"""Methods that cut a prompt into chunks: Mesa-Extrapolation and Dual Chunk Attention."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from mesa.methods.base import SCALED, Method
from mesa.methods.woven import leaky, rerope, stair
from mesa.plan import Constant, Plan, Position, Region, Scale, Slowed, Stepped, capped, token_index


@dataclass(frozen=True, kw_only=True)
class MesaExtrapolation(Method):
    """Attends in chunks, and by Stair PE in the last chunk and in decoding (paper section 4, algorithm 1).

    Args:
        window: N of Stair PE, tokens; default M/8.
        width: E of Stair PE, tokens; default 50, at every M.
        first: F, tokens of the first chunk; default 100 M/4096.
        last: L, the fewest tokens of the last chunk; default M/8.
        split_threshold: M_max of DynamicSplit, tokens; default 200 M/4096.
        variant: 'exact': every query of the last chunk follows Stair PE; 'reference': the authors' code, which ignores
            `window`. Default 'exact'.
        weave: What remaps distances in the last chunk: 'stair', 'rerope' or 'leaky-rerope' (slowed by `width`), the
            paper's ablation. Default 'stair'.
        middle: 'local': each middle chunk follows the first one directly, as in the paper; 'woven': it sees no key of
            the first chunk nearer than `weave` puts it, so that positions do not restart. Default 'local'.
        headroom: Tokens that variant 'reference' leaves for the answer; default 50.
        log_n: As in `Method`, in the last chunk and in decoding; default True.

    Examples:
        >>> method = mesa.MesaExtrapolation(trained_length=256)
        >>> method.chunks(600)
        [0, 6, 193, 380, 567, 600]
        >>> int(mesa.distances(method.plan(600)).max())
        192
    """

    name = "mesa"
    look = ("#009E73", "dot", "diamond")
    formula = "chunks: own chunk and the first, R = r; last chunk and decoding: Stair PE over all keys"
    source = "Ma et al. 2024, section 4; variant 'reference': github.com/soacker/Mesa-Extrapolation"
    window: int = SCALED
    width: int = 50
    first: int = SCALED
    last: int = SCALED
    split_threshold: int = SCALED
    variant: str = "exact"
    weave: str = "stair"
    middle: str = "local"
    headroom: int = 50
    log_n: bool = True

    def _check(self) -> None:
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
        roomy = self.variant != "reference" or 2 * self.first < self.trained_length
        self._require(roomy, "first", f"is not below half of the trained length {self.trained_length}")
        for field, known in (("variant", ("exact", "reference")), ("weave", WEAVES), ("middle", MIDDLES)):
            self._require(getattr(self, field) in known, field, f"is not {', '.join(known)}")
        exact = self.variant == "exact"
        self._require(exact or self.weave == "stair", "weave", f"goes with variant exact, not {self.variant}")
        self._require(exact or self.middle == "local", "middle", f"goes with variant exact, not {self.variant}")

    def describe(self) -> dict[str, Any]:
        """See Method; `middle` where it is not the paper's, so that older records stay equal."""
        settings = super().describe()
        if self.middle == "local":
            del settings["middle"]
        return settings

    def chunks(self, prompt_length: int) -> list[int]:
        """Where the chunks of a prompt begin and end, in tokens.

        Args:
            prompt_length: Tokens of the prompt.

        Returns:
            [0, F, ..., begin of the last chunk, prompt_length].
        """
        return (_split if self.variant == "exact" else _reference_split)(self, prompt_length)

    @property
    def cached_position(self) -> Position:
        """The far keys' in decoding; the reference variant moves them with every token."""
        return _WEAVES[self.weave].cached(self.width) if self.variant == "exact" else token_index

    def plan(self, length: int, prompt_length: int | None = None) -> Plan:
        """First chunk, middle chunks with the first chunk before each, last chunk and decoded tokens with Stair."""
        prompt = length if prompt_length is None else prompt_length
        borders = self.chunks(prompt)
        if len(borders) == 2:  # no split: plain attention up to M
            plain = min(length, self.trained_length)
            return Plan(length, (Region((0, plain), (0, plain)), *self._last(plain, plain, length)))
        return Plan(length, (*_before_last(self, prompt), *self._last(borders[-2], prompt, length)), by_prompt=True)

    def _before(self, begin: int, end: int, first: int) -> tuple[Region, ...]:
        """The regions in which a middle chunk's queries see the first chunk."""
        shift = begin - first
        local = Region((begin, end), (0, first), key_position=Stepped(1, shift))
        if self.middle == "local":
            return (local,)
        until = _WEAVES[self.weave].until(self.window, self.width, shift)
        woven = [replace(region, keys=(0, first), query_scale=None) for region in self._last(begin, end, end)]
        parts = [region if region.farthest is not None else replace(region, farthest=until) for region in woven]
        if until is not None:
            parts.append(replace(local, nearest=until + 1))
        farthest = [end - 1 if region.farthest is None else min(region.farthest, end - 1) for region in parts]
        pairs = zip(parts, farthest, strict=True)
        return tuple(region for region, most in pairs if max(region.nearest, shift + 1) <= most)

    def _last(self, begin: int, prompt: int, length: int) -> tuple[Region, ...]:
        """The regions of the queries from `begin` on, which see all keys."""
        if begin >= length:
            return ()
        if self.variant == "exact":
            weave = _WEAVES[self.weave]
            return weave.regions((begin, length), length, self.window, self.width, self._scale())
        width = _reference_width(self, prompt)
        position = _reference_position(max(length, prompt), self.trained_length, width, self.width)
        return (Region((begin, length), (0, length), position, position, query_scale=self._scale()),)


@lru_cache(maxsize=8)
def _before_last(method: MesaExtrapolation, prompt: int) -> tuple[Region, ...]:
    """The regions of all chunks but the last, which are the same at every token that is decoded."""
    _, first, *borders, _ = method.chunks(prompt)
    regions = [Region((0, first), (0, first))]
    for begin, end in pairwise((first, *borders)):
        regions += [Region((begin, end), (begin, end)), *method._before(begin, end, first)]
    return tuple(regions)


def _split(method: MesaExtrapolation, prompt: int) -> list[int]:
    """The paper's DynamicSplit: middle chunks that, with the first before them, fill M."""
    first, trained = method.first, method.trained_length
    if prompt <= trained:
        return [0, prompt]
    middle, width = prompt - method.last - first, trained - first
    count, rest = divmod(middle, width)
    if rest >= method.split_threshold:
        count += 1
        width = middle // count
    return [0, first, *(first + width * (n + 1) for n in range(count)), prompt]


def _reference_split(method: MesaExtrapolation, prompt: int) -> list[int]:
    """Chunk borders of the authors' code, which leaves prompts up to M - headroom alone."""
    if prompt + method.headroom <= method.trained_length or prompt <= method.first:
        return [0, prompt]
    width = _reference_width(method, prompt)
    return [0, *range(method.first, prompt, width), prompt]


def _reference_width(method: MesaExtrapolation, prompt: int) -> int:
    """Chunk width of the authors' code."""
    room = method.trained_length - 2 * method.first
    count, rest = divmod(prompt + method.headroom - method.last - method.first, room)
    return room if rest < method.split_threshold else (room * count + rest) // (count + 1)


def _reference_position(length: int, trained_length: int, chunk: int, width: int) -> Callable[[Any], Any]:
    """The authors' stair(n): own index from one boundary on, width-fold slower below it."""
    if length <= trained_length:
        return token_index
    boundary = length - ((length - 1) % chunk)

    def position(index: Any) -> Any:
        slow = boundary - 1 - (boundary - 1 - index) // width
        return (index >= boundary) * index + (index < boundary) * slow

    return position


def _stair_until(window: int, width: int, shift: int) -> int | None:
    """r - W(r) = floor((r - N) (E - 1) / E) for Stair PE beyond N."""
    return window + (width * (shift + 1) - 1) // (width - 1) if width > 1 else None


def _leaky_until(window: int, width: int, shift: int) -> int | None:
    """r - W(r) = (r - N) (k - 1) / k for Leaky-ReRoPE beyond N."""
    return window + width * shift // (width - 1) if width > 1 else None


class _Weave(NamedTuple):
    """What a remap W gives to queries that see all keys."""

    regions: Callable[[tuple[int, int], int, int, int, Scale | None], tuple[Region, ...]]
    """By queries, length, window, width and factor on queries."""
    cached: Callable[[int], Position]
    """Position of a key when it is cached, by width."""
    until: Callable[[int, int, int], int | None]
    """The largest r that W brings no more than `shift` tokens nearer, r - W(r); None: all. By window, width, shift."""


_WEAVES = {
    "stair": _Weave(stair, Stepped, _stair_until),
    "rerope": _Weave(
        lambda queries, length, window, width, scale: rerope(queries, length, window, scale),
        lambda width: Constant(0),
        lambda window, width, shift: window + shift,
    ),
    "leaky-rerope": _Weave(leaky, Slowed, _leaky_until),
}
MIDDLES = ("local", "woven")
WEAVES = tuple(_WEAVES)


@dataclass(frozen=True)
class Wrapped:
    """`shift` + index % `period`, at most `most` where that is passed."""

    period: int
    shift: int = 0
    most: int | None = None

    def __call__(self, index: Any) -> Any:
        """The positions, in the shape of `index`."""
        position = self.shift + index % self.period
        return position if self.most is None else capped(position, self.most)


@dataclass(frozen=True)
class StepScale:
    """0.05 ln(n / M) + 1 for n > M, n the tokens at the step of each token: the prompt's, or those up to itself."""

    trained_length: int
    prompt: int

    def __call__(self, index: Any) -> Any:
        """The factors, in the shape of `index`."""
        tokens = np.maximum(np.where(index < self.prompt, self.prompt, index + 1), self.trained_length)
        return 0.05 * np.log(tokens / self.trained_length) + 1


@dataclass(frozen=True, kw_only=True)
class DCA(Method):
    """Keeps distances exact within a chunk, and caps them between chunks (Dual Chunk Attention).

    Args:
        chunk: s, tokens of a chunk; default 5 M/8, the public code's (the paper: 3 M/4).
        most: c, the cap on positions of queries, in tokens; default 3 M/4, the public code's (the paper: M - 1).
        mscale: Whether queries and keys grow by 0.05 ln(n / M) + 1 at n > M tokens, as in the public code, not in the
            paper; default False.

    Examples:
        >>> method = mesa.DCA(trained_length=8, chunk=2, most=5)
        >>> mesa.distances(method.plan(6))[-1].tolist()
        [3, 2, 3, 2, 1, 0]
    """

    name = "dca"
    look = ("#8E5BB0", "longdash", "circle")
    formula = "R = r in a chunk of s; min(t % s + s, c) - i % s to the one before; min(2s - 1, c) - i % s beyond"
    source = "An et al. 2024, github.com/HKUNLP/ChunkLlama"
    servers = ("SGLang",)
    chunk: int = SCALED
    most: int = SCALED
    mscale: bool = False

    def _check(self) -> None:
        trained = self.trained_length
        self._below_trained_length("chunk", 3 * trained // 4 - trained // 8)
        self._below_trained_length("most", 3 * trained // 4)
        self._require(self.most >= self.chunk, "most", f"is below chunk={self.chunk}")

    @property
    def cached_position(self) -> Position:
        """Every key's."""
        return Wrapped(self.chunk)

    def plan(self, length: int, prompt_length: int | None = None) -> Plan:
        """For each chunk of queries: itself, the chunk before it, all before that."""
        prompt = length if prompt_length is None else prompt_length
        size, key = self.chunk, Wrapped(self.chunk)
        step: Scale | None = StepScale(self.trained_length, prompt) if self.mscale else None
        scales = {"query_scale": self._scale(step), "key_scale": step}
        regions = []
        for begin in range(0, length, size):
            queries = (begin, min(begin + size, length))
            regions.append(Region(queries, queries, key, key, **scales))
            if begin >= size:
                near = Wrapped(size, size, self.most)
                regions.append(Region(queries, (begin - size, begin), near, key, **scales))
            if begin > size:
                far = Constant(min(2 * size - 1, self.most))
                regions.append(Region(queries, (0, begin - size), far, key, **scales))
        return Plan(length, tuple(regions), by_prompt=self.mscale)
