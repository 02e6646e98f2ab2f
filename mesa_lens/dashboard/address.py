"""The address holds the value of every widget of a page, and a page opens with the values in its address.

Streamlit's own `bind="query-params"` leaves out default values and values set by code, and drops without a message what
it does not understand. Each widget here reads and writes the address the same way: by `_bound`.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import streamlit as st

_PAGE, _LONGEST = "page in the address", 60  # key of the state; characters of a value in a message
Texts = list[str]


@dataclass(frozen=True)
class Values:
    """The values that a widget can have. read: from the address's texts, None for no such value. write: to texts."""

    read: Callable[[Texts], Any]
    write: Callable[[Any], Texts]


@dataclass
class _Page:
    """What is known of the page that is open.

    unread: values of the address that no widget has taken yet. shown: values of the widgets of this run. wrong: what
    was not understood. since: see `select`. is_missing: whether a result is missing, so that widgets are as well.
    """

    path: str
    unread: dict[str, Texts]
    shown: dict[str, Texts] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)
    since: dict[str, object] = field(default_factory=dict)
    is_missing: bool = False


# The page


def open_page(path: str) -> None:
    """Starts a run of the page at `path`. The address is read where another page was open, or none."""
    page = st.session_state.get(_PAGE)
    if page is None or page.path != path:
        for key in page.shown if page else ():
            st.session_state.pop(key, None)  # another page's widget may have the same key
        page = st.session_state[_PAGE] = _Page(path, _in_address())
    page.shown, page.is_missing = {}, False


def keep(name: str | None = None) -> None:
    """Leaves in the address what was not read, if `name` is there: the widgets that would read it were not drawn."""
    _page().is_missing = name is None or name in _page().unread


def write() -> list[str]:
    """Ends the run: puts the widgets' values into the address; returns what was not understood in it, `name=value`."""
    page = _page()
    values = page.unread | page.shown if page.is_missing else page.shown
    values = {name: texts for name, texts in values.items() if texts}
    if not page.is_missing:
        page.wrong += [f"{_listed(name, texts)} (nothing on this page)" for name, texts in page.unread.items()]
        page.unread = {}
    if values != _in_address():
        st.query_params.from_dict({name: texts[0] if len(texts) == 1 else texts for name, texts in values.items()})
    wrong, page.wrong = page.wrong, []
    return wrong


def _page() -> _Page:
    return st.session_state[_PAGE]


def _in_address() -> dict[str, Texts]:
    return {name: st.query_params.get_all(name) for name in st.query_params}


def _listed(name: str, texts: Texts) -> str:
    value = ", ".join(texts)
    return f"{name}={value[:_LONGEST]}{'…' * (len(value) > _LONGEST)}"


# Kinds of values


def one_of(options: Iterable[Any]) -> Values:
    """One option, by its text."""
    known = {str(option): option for option in options}
    return Values(lambda texts: known.get(texts[0]) if len(texts) == 1 else None, lambda value: [str(value)])


def some_of(options: Iterable[str]) -> Values:
    """Some options, or none, which is an empty text; of several texts those that are options."""
    known = list(options)

    def read(texts: Texts) -> list[str] | None:
        return [text for text in dict.fromkeys(texts) if text in known] or ([] if texts == [""] else None)

    return Values(read, lambda value: value or [""])


def numbers(kind: type, low: float, high: float, count: int = 1) -> Values:
    """A number from low to high; count=2: a tuple of two that ascend."""

    def read(texts: Texts) -> Any:
        try:
            values = tuple(map(kind, texts))
        except ValueError:
            return None
        fine = len(values) == count and all(low <= value <= high for value in values) and list(values) == sorted(values)
        return None if not fine else values if count > 1 else values[0]

    return Values(read, lambda value: list(map(_number, value if count > 1 else [value])))


def _number(value: float) -> str:
    return str(int(value)) if math.isfinite(value) and value == int(value) else str(value)


_FLAG = Values(
    lambda texts: {"true": True, "false": False}.get(texts[0]) if len(texts) == 1 else None,
    lambda value: [str(value).lower()],
)
_TEXT = Values(lambda texts: texts[0] if len(texts) == 1 else None, lambda value: [value] if value else [])


# Widgets


def value_of(key: str, default: Any, values: Values, since: object = None) -> Any:
    """The value of the widget of that key, which is put into Streamlit's state before the widget is drawn, without a
    default of its own.

    It is that in the address where the page opens, else the former one if it is still possible, else the default.
    since: what the default depends on; where it changes, the value is the default again.
    """
    page, state = _page(), st.session_state
    former = values.write(state[key]) if key in state and page.since.get(key, since) == since else None
    texts = page.unread.pop(key, former)
    value = None if texts is None else values.read(texts)
    if value is None:
        value = default
    if texts is not None and texts is not former and (shown := values.write(value) or [""]) != texts:
        page.wrong.append(f"{_listed(key, texts)} ({_listed(key, shown)} is displayed)")
    if key not in state or state[key] != value:
        state[key] = value  # only then: it would undo what is being typed
    page.since[key], page.shown[key] = since, values.write(value)
    return value


def select(
    place: Any, label: str, options: Sequence[Any], key: str, default: Any = None, since: object = None, **look: Any
) -> Any:
    """A select box in `place`, by default with the first option."""
    value_of(key, options[0] if default is None else default, one_of(options), since)
    return place.selectbox(label, options, key=key, **look)


def select_several(
    place: Any, label: str, options: Sequence[str], key: str, default: Sequence[str], since: object = None, **look: Any
) -> list[str]:
    """A box for several of the options, or none."""
    value_of(key, list(default), some_of(options), since)
    return place.multiselect(label, options, key=key, **look)


def select_button(label: str, options: Sequence[str], key: str) -> str:
    """A row of buttons, one of which is pressed; by default the first."""
    value_of(key, options[0], one_of(options))
    return str(st.segmented_control(label, options, required=True, key=key))


def slider(
    place: Any, label: str, low: float, high: float, default: Any, key: str, since: object = None, **look: Any
) -> Any:
    """A slider from low to high, for a number or, where `default` is a tuple, for two.

    With other ends it is another slider to Streamlit, which would start at its lower end.
    """
    count, kind = (len(default), type(default[0])) if isinstance(default, tuple) else (1, type(default))
    value_of(key, default, numbers(kind, low, high, count), (since, low, high))
    return place.slider(label, low, high, key=key, **look)


def number(
    place: Any, label: str, low: float, high: float, default: Any, key: str, since: object = None, **look: Any
) -> Any:
    """A box for a number from low to high."""
    value_of(key, default, numbers(type(default), low, high), since)
    return place.number_input(label, low, high, key=key, **look)


def checkbox(place: Any, label: str, default: bool, key: str) -> bool:
    """A box to tick."""
    value_of(key, default, _FLAG)
    return place.checkbox(label, key=key)


def text(label: str, key: str, **look: Any) -> str:
    """A box for a text, by default empty."""
    value_of(key, "", _TEXT)
    return str(st.text_input(label, key=key, **look))


def tabs(labels: Sequence[str], key: str) -> Any:
    """Tabs, of which the first is open by default."""
    value_of(key, labels[0], one_of(labels))
    return st.tabs(labels, key=key, on_change="rerun")
