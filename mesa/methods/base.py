"""What every method is: a frozen config that makes a plan."""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from functools import wraps
from numbers import Integral, Real
from typing import Any, ClassVar

import numpy as np

from mesa.errors import Refused
from mesa.plan import LARGEST, Constant, LogN, Plan, Position, Product, Region, Scale, token_index

_KINDS: dict[str, tuple[Any, str]] = {  # by annotation: what is allowed, in words
    "int": (Integral, "an integer"),
    "float": (Real, "a number"),
    "bool": (bool, "true or false"),
    "str": (str, "a string"),
}
SCALED: Any = None  # the default of a size that follows from trained_length
SERVERS = ("transformers", "vLLM", "SGLang", "llama.cpp")
Heads = tuple[tuple[int, tuple[int, ...]], ...]
"""(layer, its heads), ..., both in rising order."""
_HEADS = "{1: (5,), 2: (0, 3)} or '1:5;2:0,3'"
_SPAN = re.compile(r"\s*([0-9]{1,4})(?:-([0-9]{1,4}))?\s*")


@dataclass(frozen=True, kw_only=True)
class Method(ABC):
    """A training-free method: a frozen config that gives each query-key pair its relative position.

    The base class of all methods; docs/new-method.md shows how to write one. Sizes in tokens that are left out follow
    from M, rounded, at least 1.

    Args:
        trained_length: M, the length in tokens that the model was trained on; at least 2.
        log_n: Whether the query at position t is scaled by max(1, ln(t + 1) / ln M); default False.
        layers: Layers, from 0, to apply the method to; the others attend as trained. Default: all but those that never
            see a distance of M or more, by their sliding window or chunks.
        heads: The same by query head, {2: (0, 3), 1: (5,)} or "2:0,3;1:5". Default: all. Kept as (layer, heads) pairs
            in rising order.

    Raises:
        Refused: A value is out of range, or `layers` and `heads` are both passed.

    Examples:
        >>> method = mesa.ReRoPE(trained_length=256, heads="2:0,3")
        >>> method.window, method.heads, method.heads_in(1)
        (32, ((2, (0, 3)),), ())
    """

    name: ClassVar[str]
    formula: ClassVar[str]
    source: ClassVar[str]
    look: ClassVar[tuple[str, str, str] | None] = None
    """Colour, dash and marker in figures, as plotly names them, of a method of this package; others are passed one."""
    optional: ClassVar[tuple[str, ...]] = ()
    """Parameters that may be None although that is not their default."""
    uses_model_rope: ClassVar[bool] = False
    """Whether the model's own rotary module is left as it is, also where it changes with length by itself."""
    needs_rotary: ClassVar[bool] = False
    """Whether it works on rotary frequencies, so that ALiBi models cannot have it."""
    needs_base: ClassVar[bool] = False
    """Whether it goes by the base of rotary frequencies, so that models that scale them already cannot have it."""
    servers: ClassVar[tuple[str, ...]] = ()
    """Servers whose options alone can compute it on some models; `mesa-lens config` prints them."""
    experimental: ClassVar[bool] = False
    """Whether it serves a measurement and extends nothing; `all` leaves it out."""
    trained_length: int
    log_n: bool = False
    layers: tuple[int, ...] | None = None
    heads: Any = None

    @property
    def cached_position(self) -> Position:
        """The position that a key is rotated to before it is cached: one that most keys keep while decoding.

        None, 0, for methods that work on rotary frequencies: theirs are not the model's.
        """
        return Constant(0) if self.needs_rotary else token_index

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Has every method's `plan` check the lengths that it is passed."""
        super().__init_subclass__(**kwargs)
        if "plan" in vars(cls):
            cls.plan = _checked(cls.plan)

    def __post_init__(self) -> None:
        """Fills sizes left out and checks all; Refused names the value and what it may be."""
        for field in fields(self):
            kind = field.type if isinstance(field.type, str) else getattr(field.type, "__name__", "")
            value: Any = getattr(self, field.name)
            if getattr(value, "shape", None) == ():  # numpy's, which no JSON takes, and which overflow
                object.__setattr__(self, field.name, value := value.item())
            optional = field.default is None or field.name in self.optional
            if kind in _KINDS and not (optional and value is None):
                allowed, meaning = _KINDS[kind]
                fits = isinstance(value, allowed) and (kind == "bool" or not isinstance(value, bool))
                fits = fits and (kind != "float" or value - value == 0)  # neither NaN nor infinite
                self._require(fits, field.name, f"is not {meaning}")
                self._require(isinstance(value, str) or abs(value) <= LARGEST, field.name, f"exceeds {LARGEST}")
        self._require(self.trained_length >= 2, "trained_length", "is below 2 tokens")
        if self.layers is not None:
            layers = tuple(self.layers) if isinstance(self.layers, Sequence) else ()
            self._require(_are_indices(layers), "layers", "is not a sequence of different layers, such as (0, 1)")
            object.__setattr__(self, "layers", tuple(map(int, layers)))
        if self.heads is not None:
            self._require(self.layers is None, "heads", f"and layers={self.layers} are both passed; pass one")
            heads = read_heads(self.heads)
            self._require(heads is not None, "heads", "names no different heads by layer; write it as " + _HEADS)
            object.__setattr__(self, "heads", heads)
        self._check()

    def _check(self) -> None:  # noqa: B027, most methods have sizes of their own
        """Fills and checks the sizes that a method has of its own; see `_fill`, `_below_trained_length`, `_require`."""

    @abstractmethod
    def plan(self, length: int, prompt_length: int | None = None) -> Plan:
        """The plan for the first `length` tokens of a prompt.

        Args:
            length: Tokens so far, decoded ones among them.
            prompt_length: Tokens of the prompt. Default: `length`.

        Returns:
            A `Plan`: integers and predicates, no tensors.
        """

    @property
    def served_by(self) -> tuple[str, ...]:
        """`servers`, or none: they scale no query by its position, and have no method in some layers or heads."""
        return () if self.log_n or self.layers is not None or self.heads is not None else self.servers

    def describe(self) -> dict[str, Any]:
        """Name and parameters, ready for JSON; `heads` where passed, so that older records stay equal."""
        settings = {"name": self.name, **asdict(self)}
        if self.heads is None:
            del settings["heads"]
        return settings

    def heads_in(self, layer: int) -> tuple[int, ...] | None:
        """The query heads of a layer that the method is applied to, in rising order; None for all."""
        if self.heads is None:
            return None if self.layers is None or layer in self.layers else ()
        return dict(self.heads).get(layer, ())

    def _require(self, good: bool, field: str, complaint: str) -> None:
        if not good:
            raise Refused(f"{self.name}: {field}={getattr(self, field)} {complaint}")

    def _fill(self, field: str, scaled: float) -> None:
        if getattr(self, field) is None:
            object.__setattr__(self, field, max(1, round(scaled)))

    def _below_trained_length(self, field: str, scaled: float = 0, smallest: int = 1) -> None:
        """Checks a size, `scaled` where it was left out."""
        self._fill(field, scaled)
        self._require(getattr(self, field) >= smallest, field, f"is below {smallest}")
        complaint = f"is not below the trained length {self.trained_length}"
        self._require(getattr(self, field) < self.trained_length, field, complaint)

    def _scale(self, scale: Scale | None = None) -> Scale | None:
        """The factor on queries: log-n, where it is on, times the method's own."""
        log_n = LogN(self.trained_length) if self.log_n else None
        scales = tuple(factor for factor in (scale, log_n) if factor is not None)
        return Product(scales) if len(scales) > 1 else next(iter(scales), None)

    def _causal(self, length: int, **changes: Any) -> Region:
        return Region((0, length), (0, length), **{"query_scale": self._scale(), **changes})


def only_distances(method: Method) -> bool:
    """Whether a method hides no key and scales none beyond M: a layer without positions stays as it is under it."""
    length = 4 * method.trained_length
    query, keys = np.array([length - 1]), np.arange(length)
    seen = np.zeros(length, bool)
    for region in method.plan(length).regions:
        seen |= region.contains(query, keys)
        for scale, index in ((region.query_scale, query), (region.key_scale, keys)):
            if scale is not None and (np.asarray(scale(index)) != 1).any():
                return False
    return bool(seen.all())


def check_length(name: str, field: str, value: Any, smallest: int) -> None:
    """Refused for what is not a number of tokens from `smallest` to `LARGEST`."""
    if not isinstance(value, Integral) or isinstance(value, bool):
        raise Refused(f"{name}: {field}={value!r} is not an integer; give a number of tokens")
    if int(value) < smallest:
        raise Refused(f"{name}: {field}={value} is below {smallest}")
    if int(value) > LARGEST:
        raise Refused(f"{name}: {field}={value} exceeds {LARGEST}")


def _checked(plan: Callable[..., Plan]) -> Callable[..., Plan]:
    """A method's `plan` that refuses lengths that are none."""

    @wraps(plan)
    def checked(self: Method, length: int, prompt_length: int | None = None) -> Plan:
        check_length(self.name, "length", length, 0)
        if prompt_length is not None:
            check_length(self.name, "prompt_length", prompt_length, 0)
        return plan(self, length, prompt_length)

    return checked


def read_heads(value: Any) -> Heads | None:
    """Heads by layer from {layer: heads}, (layer, heads) pairs or a string as '2:0,3;1:5' ('0-3': ends included).

    None for layers or heads that are missing, negative, doubled or no integers.
    """
    given = [part.partition(":")[::2] for part in value.split(";")] if isinstance(value, str) else value
    try:
        pairs = given.items() if isinstance(given, Mapping) else given
        read = [(*_indices(layer), _indices(heads)) for layer, heads in pairs]
        if not all(map(_are_indices, ([layer for layer, _ in read], *(heads for _, heads in read)))):
            return None
    except (TypeError, ValueError):
        return None
    return tuple(sorted((int(layer), tuple(sorted(map(int, heads)))) for layer, heads in read))


def _indices(value: Any) -> tuple[Any, ...]:
    """One number, several, or those of a string as '0-2,5'."""
    if not isinstance(value, str):
        return tuple(value) if isinstance(value, Iterable) else (value,)
    spans = [match.groups() for match in map(_SPAN.fullmatch, value.split(",")) if match]
    if len(spans) <= value.count(","):
        raise Refused(value)
    return tuple(index for first, last in spans for index in range(int(first), int(last or first) + 1))


def _are_indices(values: Sequence[Any]) -> bool:
    """Whether there are some, and all are integers from 0 on that differ."""
    are_integers = all(isinstance(value, Integral) and 0 <= int(value) <= LARGEST for value in values)
    return bool(values) and are_integers and len({*values}) == len(values)
