"""Options declared once, as dataclass fields: command-line flags, YAML keys and form fields follow from them."""

import dataclasses
import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache, cached_property
from pathlib import Path
from reprlib import Repr
from types import NoneType
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from pydantic import AfterValidator, BeforeValidator, Field, TypeAdapter, ValidationError

from mesa.errors import Refused

MAX_TOKENS = 2**31 - 1  # mesa.plan.LARGEST
MAX_COUNT = 10_000
MAX_SEED = 2**32 - 1
MAX_LENGTHS = 10_000
_LONGEST_PATH = 3500  # of the 4096 that Linux takes: the rest is for the files below

T = TypeVar("T")
REQUIRED: Any = dataclasses.MISSING
Ranges = tuple[tuple[int, int], ...]
"""Half-open ranges (start, stop)."""

_SHORT = Repr()
_SHORT.maxstring = _SHORT.maxother = 80


def _integer(value: Any) -> int:
    """An integer, or its decimal digits."""
    if isinstance(value, str) and re.fullmatch(r"\s*[+-]?(0|[1-9][0-9]{0,39})\s*", value):
        return int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise Refused(f"{_SHORT.repr(value)} is not an integer")
    return value


def _token_count(value: Any) -> int:
    """An integer, or one of thousands such as 16k: times 1024."""
    thousands = re.fullmatch(r"\s*([1-9][0-9]{0,11})[kK]\s*", value) if isinstance(value, str) else None
    return 1024 * int(thousands[1]) if thousands else _integer(value)


def _finite(value: Any) -> float:
    try:
        number = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        raise Refused(f"{_SHORT.repr(value)} is not a finite number")
    return number


def _text(value: Any) -> str:
    """A string that is not blank, in characters that can be encoded."""
    if not isinstance(value, str):
        raise Refused(f"{_SHORT.repr(value)} is not a string")
    if not value.strip():
        raise Refused(f"{value!r} is empty")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise Refused(f"{value!r} is not UTF-8") from None
    return value


def _text_name(value: Any) -> str:
    return _text(str(value) if isinstance(value, Path) else value)


def _split(value: Any) -> tuple[str, ...]:
    """Names from a string with commas, or a list; doubles go. A config with commas, rerope:k=8,log_n=false, is one."""
    parts = re.split(r",(?!\s*\w+\s*=)", value) if isinstance(value, str) else value
    if not isinstance(parts, list | tuple) or not all(isinstance(part, str) for part in parts):
        raise Refused(f"{_SHORT.repr(value)} is not a list of names")
    if not all(part.strip() for part in parts):
        raise Refused(f"{_SHORT.repr(value)} has an empty name; separate names by one comma each")
    return tuple(dict.fromkeys(part.strip() for part in parts))


def _joined(value: Any) -> str:
    names = _split(value)
    return value if isinstance(value, str) else ",".join(names)


def _strings(value: Any) -> tuple[str, ...]:
    parts = (value,) if isinstance(value, str) else value
    if not isinstance(parts, list | tuple) or not all(isinstance(part, str) for part in parts):
        raise Refused(f"{_SHORT.repr(value)} is not a list of strings")
    return tuple(parts)


def parse_lengths(value: Any) -> tuple[int, ...]:
    """Lengths in tokens from e.g. '256,512', '1k' (1024) or '1k:16k:1k' (first:last:step, ends included)."""
    if isinstance(value, list | tuple):
        return tuple(value)
    text, lengths = str(value), set[int]()
    for part in text.split(","):
        numbers = [_tokens(number, text) for number in part.split(":")]
        if len(numbers) == 1:
            lengths.add(numbers[0])
        elif len(numbers) == 3 and numbers[0] <= numbers[1]:
            steps = range(numbers[0], numbers[1] + 1, numbers[2])
            if len(steps) > MAX_LENGTHS:
                raise Refused(f"{text!r}: {part!r} are {len(steps)} lengths; take a larger step")
            lengths.update(steps)
        else:
            raise Refused(f"{text!r}: {part!r} is not FIRST:LAST:STEP, e.g. 1k:16k:1k")
    return tuple(sorted(lengths))


def _tokens(text: str, words: str) -> int:
    match = re.fullmatch(r"\s*([0-9]{1,12})([kK]?)\s*", text)
    if not match or int(match[1]) == 0:
        raise Refused(f"{words!r}: {text!r} is not a number of tokens; write e.g. 256,512 or 1k:16k:1k")
    count = int(match[1]) * (1024 if match[2] else 1)
    if count > MAX_TOKENS:
        raise Refused(f"{words!r}: {text!r} is above {MAX_TOKENS} tokens")
    return count


def parse_ranges(value: Any, flag: str = "") -> Ranges | None:
    """Half-open ranges from text such as '0-10,20' (ends included); None for 'all'. Refused for anything else."""
    if value is None or isinstance(value, tuple):
        return value
    text, ranges, where = str(value), [], f"{flag} {str(value)!r}".strip()
    if text == "all":
        return None
    for part in text.split(","):
        match = re.fullmatch(r"([0-9]{1,12})(?:-([0-9]{1,12}))?", part.strip())
        if not match:
            raise Refused(f"{where}: {part!r} is not a range; write e.g. 0-10,20 or all")
        start, stop = int(match[1]), int(match[2] or match[1]) + 1
        if stop <= start:
            raise Refused(f"{where}: {part!r} is empty; the end comes before the start")
        ranges.append((start, stop))
    return tuple(sorted(ranges))


def _range_text(value: Any) -> str:
    if value != "none":
        parse_ranges(value)
    return str(value)


def head_name(layer: Any, head: Any) -> str:
    """Layer and head, both counted from 0, as one name.

    >>> head_name(0, 7)
    'L0H7'
    """
    return f"L{layer}H{head}"


def parse_head(name: str) -> tuple[int, int]:
    """(layer, head) of a name such as 'L0H7'. Raises Refused for any other text.

    >>> parse_head("L0H7")
    (0, 7)
    """
    match = re.fullmatch(r"L([0-9]{1,4})H([0-9]{1,4})", name)
    if not match:
        raise Refused(f"{name!r} is not a head; write e.g. L0H7, head 7 of layer 0")
    return int(match[1]), int(match[2])


def parse_heads(value: Any) -> list[tuple[int, int]] | None:
    """(layer, head) pairs from names such as 'L2H3,L2H5'; None for a string that names no head."""
    names = str(value).split(",")
    return [parse_head(name.strip()) for name in names] if names[0].strip().startswith("L") else None


def _heads_text(value: Any) -> str:
    return str(value) if parse_heads(value) else _range_text(value)


def _path(value: Any) -> Path:
    """A path, '~' expanded, that the system can look for: no circle of links, no name beyond its limits."""
    if not isinstance(value, str | Path):
        raise Refused(f"{_SHORT.repr(value)} is not a path")
    if isinstance(value, str) and not value.strip():  # the working directory
        raise Refused(f"{value!r} is empty; name a file or folder")
    path = Path(value)
    try:
        path = path.expanduser()
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        pass  # for who reads it to say
    except (OSError, RuntimeError, ValueError) as error:  # a circle, a name too long, no such user, a NUL
        raise Refused(f"{_SHORT.repr(str(value))} cannot be read ({getattr(error, 'strerror', error)})") from error
    return path


def _folder(path: Path) -> Path:
    there = next((place for place in (path, *path.parents) if place.exists()), None)
    if there is not None and not there.is_dir():
        raise Refused(f"{there} is a file; name a folder")
    return path


def _output(path: Path) -> Path:
    """A folder to write to: neither a disk's root nor one that holds a model."""
    if path.resolve() == Path(path.resolve().anchor):
        raise Refused(f"{path} is the root of a disk; name a folder in it")
    if len(str(path.absolute())) > _LONGEST_PATH:
        raise Refused(
            f"{_SHORT.repr(str(path))} is longer than {_LONGEST_PATH} characters; name a folder nearer the root"
        )
    weights = ("config.json", "*.safetensors", "*.gguf")
    if any(match for pattern in weights for match in path.glob(pattern)):
        raise Refused(f"{path} holds a model; name another folder")
    return path


Integer = Annotated[int, BeforeValidator(_integer)]
Number = Annotated[float, BeforeValidator(_finite)]
Tokens = Annotated[int, BeforeValidator(_token_count), Field(ge=1, le=MAX_TOKENS)]
Window = Annotated[int, BeforeValidator(_token_count), Field(ge=2, le=MAX_TOKENS)]
Count = Annotated[Integer, Field(ge=1, le=MAX_COUNT)]
CountOrZero = Annotated[Integer, Field(ge=0, le=MAX_COUNT)]
Seed = Annotated[Integer, Field(ge=0, le=MAX_SEED)]
Text = Annotated[str, BeforeValidator(_text)]
TextName = Annotated[str, BeforeValidator(_text_name)]
"""What `probe.eval_tasks.sources.texts` reads: a file, a folder or a dataset of the hub."""
Names = Annotated[tuple[str, ...], BeforeValidator(_split)]
Split = BeforeValidator(_split)
"""Makes a tuple of choices readable from a string with commas."""
JoinedNames = Annotated[str, BeforeValidator(_joined)]
"""Names, as one text with commas."""
Repeated = Annotated[tuple[str, ...], BeforeValidator(_strings)]
"""Texts, one an occurrence of the flag."""
Lengths = Annotated[tuple[Tokens, ...], BeforeValidator(parse_lengths)]
Length = Annotated[int, BeforeValidator(lambda value: _tokens(str(value), str(value)))]
"""A length in tokens, e.g. 512 or 16k."""
RangeText = Annotated[str, BeforeValidator(_range_text)]
"""Ranges as they are written; or 'none'."""
HeadsText = Annotated[str, BeforeValidator(_heads_text)]
"""Ranges of layers, or heads such as L2H3."""
RangeList = Annotated[Ranges | None, BeforeValidator(parse_ranges)]
InputPath = Annotated[Path, BeforeValidator(_path)]
Folder = Annotated[Path, BeforeValidator(_path), AfterValidator(_folder)]
OutputFolder = Annotated[Folder, AfterValidator(_output)]

_LIMITS = {
    "greater_than_equal": "is below {ge:.12g}",
    "greater_than": "is not above {gt:.12g}",
    "less_than_equal": "is above {le:.12g}",
    "bool_type": "is neither true nor false",
}


def option(default: Any, help: str, **more: Any) -> Any:
    """A dataclass field that is an option. default: `REQUIRED` for one that must be passed.

    more: `unset`, what None stands for; `key`, its name outside of Python where it is another; `group`, its heading in
    the help; `metavar`; `positional`; `repeated`, whether the flag may be passed several times; `only`, of the object,
    whether the option has an effect, and `only_text`, when it has.
    """
    return dataclasses.field(default=default, metadata={"help": help, **more})


def options_in(kind: type, build: Callable[..., Any], default: Any) -> Any:
    """A dataclass field whose own options, those of the dataclass `kind`, stand among the others. build: of these."""
    return dataclasses.field(default_factory=default, metadata={"kind": kind, "build": build})


@dataclass(frozen=True)
class Option:
    """One option, as it is declared. path: the names of the fields that hold it."""

    path: tuple[str, ...]
    key: str
    hint: Any
    default: Any
    help: str
    group: str
    unset: str = ""
    metavar: str | None = None
    positional: bool = False
    repeated: bool = False
    only: Callable[[Any], bool] | None = None
    only_text: str = ""

    @property
    def flag(self) -> str:
        """Its name on the command line."""
        return self.key if self.positional else f"--{self.key.replace('_', '-')}"

    @property
    def label(self) -> str:
        """Its name in a form."""
        return self.key.replace("_", " ").capitalize()

    @property
    def default_text(self) -> str:
        """What holds where it is not passed, as it would be written; empty where there is nothing to tell."""
        if self.default in (None, (), dataclasses.MISSING) or isinstance(self.default, bool):
            return self.unset
        return self.written(self.default)

    @property
    def help_text(self) -> str:
        """The help with choices and default."""
        choices = f" (of {', '.join(self.choices)})" if self.choices else ""
        only = f"; only {self.only_text}" if self.only else ""
        return f"{self.help}{only}{choices}{f' (default: {self.default_text})' if self.default_text else ''}"

    @cached_property
    def inner(self) -> Any:
        """Its type, where None is left out."""
        parts = get_args(self.hint)
        if get_origin(self.hint) in (Annotated, Literal) or NoneType not in parts:
            return self.hint
        return next(part for part in parts if part is not NoneType)

    @property
    def is_flag(self) -> bool:
        """Whether it takes no value."""
        return self.inner is bool

    @property
    def is_required(self) -> bool:
        """Whether it must be passed."""
        return self.default is dataclasses.MISSING

    @property
    def choices(self) -> tuple[str, ...]:
        """The values it takes, or each of its values, where there are few."""
        inner = self.inner
        while get_origin(inner) in (Annotated, tuple):
            inner = get_args(inner)[0]
        return get_args(inner) if get_origin(inner) is Literal else ()

    def of(self, request: Any) -> Any:
        """Its value in an object of the dataclass."""
        for name in self.path:
            request = request.get(name) if isinstance(request, Mapping) else getattr(request, name)
        return request

    def written(self, value: Any) -> str:
        """A value as it is typed."""
        if not isinstance(value, tuple):
            return str(value)
        return ",".join(f"{part[0]}-{part[1] - 1}" if isinstance(part, tuple) else str(part) for part in value)

    def read(self, value: Any) -> Any:
        """The value, checked. Raises Refused, which begins with the value."""
        if value is None and (self.inner is not self.hint or self.default is None):
            return None
        return read_as(self.inner, value)


def read_as(hint: Any, value: Any) -> Any:
    """The value as one of this type. Raises Refused, which begins with the value."""
    try:
        return TypeAdapter(hint).validate_python(value, strict=hint is bool or None)
    except ValidationError as error:
        raise Refused(_sentence(error)) from None


def _sentence(error: ValidationError) -> str:
    """What is wrong first, as one clause that begins with the value."""
    first: Any = error.errors()[0]
    kind, value, context = first["type"], first["input"], first.get("ctx", {})
    if kind == "value_error":
        return str(context["error"])
    if kind == "literal_error":
        known = context["expected"].replace("'", "").replace(" or ", ", ")
        close = get_close_matches(str(value), known.split(", "), 1, 0.75)
        return f"{_SHORT.repr(value)} is not known; known: {known}{f'; did you mean {close[0]!r}?' if close else ''}"
    if kind not in _LIMITS:
        return f"{_SHORT.repr(value)} is refused ({first['msg']})"
    return f"{value} {_LIMITS[kind].format(**context)}"


@cache
def options(cls: type) -> tuple[Option, ...]:
    """The options of a dataclass, and of those in it, in their order."""
    return tuple(_options(cls, ()))


def _options(cls: Any, path: tuple[str, ...]) -> Iterator[Option]:
    hints = get_type_hints(cls, include_extras=True)
    for field in dataclasses.fields(cls):
        more = dict(field.metadata)
        if "kind" in more:
            yield from _options(more["kind"], (*path, field.name))
        elif "help" in more:
            more.setdefault("key", field.name)
            more.setdefault("group", "")
            more["unset"] = more.get("unset", "").replace("{default_methods}", getattr(cls, "default_methods", ""))
            yield Option(path=(*path, field.name), hint=hints[field.name], default=field.default, **more)


def from_values(cls: Callable[..., T], values: Mapping[str, object]) -> T:
    """An object of the dataclass, from checked values by key; what is not there has its default."""
    arguments: dict[str, object] = {}
    for field in dataclasses.fields(cls):  # type: ignore[arg-type]
        if "kind" in field.metadata:
            arguments[field.name] = field.metadata["build"](
                **dataclasses.asdict(from_values(field.metadata["kind"], values))
            )
        elif (key := field.metadata.get("key", field.name)) in values and "help" in field.metadata:
            arguments[field.name] = values[key]
    return cls(**arguments)


def check(request: Any) -> None:
    """Raises Refused, naming the option, for a value that the dataclass does not take, or that has no effect."""
    for item in options(type(request)):
        value = item.of(request)
        if value is None and isinstance(item.default, bool | str):
            continue
        try:
            item.read(value)
        except Refused as error:
            raise Refused(f"{item.flag} {error}") from None
        if item.only and value != item.default and not item.only(request):
            raise Refused(f"{item.flag} {_SHORT.repr(value)} has no effect here; it works {item.only_text}")
