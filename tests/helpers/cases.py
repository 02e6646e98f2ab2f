"""One table of methods at a small trained window, for all tests that go over methods."""

import pytest

import mesa

TRAINED = 24

CASES = {
    "origin": {},
    "nope": {},
    "rerope": {"window": 5},
    "leaky-rerope": {"window": 5, "k": 4},
    "pi": {"factor": None},
    "dynamic-ntk": {},
    "ntk-mixed": {},
    "yarn": {"factor": 3.0},
    "cope": {},
    "dca": {"chunk": 7, "most": 9, "mscale": True},
    "string": {"window": 6, "local": 2},
    "lampe": {"window": 4, "tail": 2},
    "crop": {},
    "lm-infinite": {"window": 9, "first": 3},
    "streaming-llm": {"window": 7, "first": 3},
    "self-extend": {"window": 7, "group": 3},
    "stair": {"window": 5, "width": 3},
    "gap": {"boundary": 7, "gap": 11},
    "mesa": {"window": 5, "width": 3, "first": 4, "last": 6, "split_threshold": 3},
}

SAME_PLAN = "origin nope leaky-rerope pi ntk-mixed yarn cope string crop lm-infinite self-extend gap".split()
"""Cases whose plans differ in numbers from one of the others: slow in most tests."""
DIFFERENT = [name for name in CASES if name not in SAME_PLAN]
"""A case of each kind of plan; a new method's is one, unless `SAME_PLAN` names it."""


def names(quick: list[str] = DIFFERENT) -> list:
    """All cases, as parameters of a test; those outside of `quick` are slow."""
    return [pytest.param(name, marks=() if name in quick else pytest.mark.slow) for name in CASES]


def method(name: str, **changes) -> mesa.Method:
    return mesa.make(name, TRAINED, **{**CASES[name], **changes})
