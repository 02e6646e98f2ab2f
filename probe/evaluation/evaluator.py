"""The one evaluator that chooses LongPPL's key tokens: a model under a method that is not under test."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import mesa
from mesa.fingerprints import identity
from mesa.finite import states_checked
from mesa.methods import Method, make
from mesa.models import Loaded, config_of, load, tokenizer_of
from mesa.support import check_method, trained_length
from probe.tasks.likelihood import Keyed, key_tokens, short_contexts

BY_DEFAULT = "rerope"
"""The method of the evaluator, where it reads more than its window or is the model itself."""


@dataclass(frozen=True)
class Evaluator:
    """A model by name and the method it reads whole prompts under.

    itself: whether it is the model under test, by whatever name. weights: their fingerprint. config: the model's.
    """

    model: str
    method: Method
    itself: bool
    weights: str = ""
    config: Any = None

    @property
    def about(self) -> str:
        """What it is, in words."""
        return f"{'the model itself' if self.itself else self.model} under {self.method.name}"

    def is_tested(self, method: Method) -> bool:
        """Whether it would be judged by its own choice under a method, whatever sizes that has."""
        return self.itself and method.name == self.method.name


def evaluator_of(
    model: str | None, method: str | None, tested: tuple[str, Any, Any, int], longest: int, source: Mapping[str, Any]
) -> Evaluator:
    """The evaluator; model None: the tested model; method None: `BY_DEFAULT` where it reads beyond its window.

    tested: name, config, tokenizer and M. Raises ValueError for one that reads other tokens, or cannot read `longest`.
    """
    name, config, tokenizer, window = tested
    itself, weights = model is None or _same(model, name), ""
    if model is not None and not itself:
        expected, config = identity(name, config), config_of(model, **source)
        known = identity(model, config)
        weights, window = known["weights"], trained_length(config)
        itself = weights.startswith("sha256") and all(known[part] == expected[part] for part in ("weights", "config"))
        if tokenizer_of(model, **source).get_vocab() != tokenizer.get_vocab():
            raise ValueError(f"--evaluator {model} reads other tokens than {name}; give one with the same tokenizer")
    method = method or (BY_DEFAULT if itself or longest > window else "origin")
    if method == "origin" and longest > window:
        raise ValueError(
            f"--evaluator-method origin does not reach {longest} tokens, its window is {window}; use {BY_DEFAULT}"
        )
    reader = make(method, window)
    try:
        check_method(config, reader)
    except ValueError as error:
        raise ValueError(f"longppl's evaluator: {error}; give --evaluator-method or --evaluator") from error
    return Evaluator(name if itself else str(model), reader, itself, weights, config)


def _same(one: str, other: str) -> bool:
    return one == other or (Path(one).exists() and Path(one).resolve() == Path(other).resolve())


def passes(length: int, trained_length: int) -> dict[int, int]:
    """The evaluator's passes over a run of `length` tokens, by their own lengths: all of it, and the short contexts."""
    return Counter([length, *(end - begin for begin, _, end in short_contexts(length, trained_length))])


@dataclass
class KeyChooser:
    """Chooses key tokens once a length, for all methods; loads the evaluator when it is first needed."""

    evaluator: Evaluator
    trained_length: int
    executor: str
    options: Mapping[str, Any]
    by_length: dict[int, Sequence[Keyed]] = field(default_factory=dict)
    loaded: Loaded | None = None

    def keyed(self, tested: Loaded, prepared: Sequence[np.ndarray], length: int) -> Sequence[Keyed]:
        """The prepared runs of text with their key tokens."""
        if length not in self.by_length:
            if self.loaded is None:
                self.loaded = tested if self.evaluator.itself else load(self.evaluator.model, **self.options)
            model = self.loaded.model
            what = f"longppl's evaluator, {self.evaluator.about}"
            with mesa.applied(model, self.evaluator.method, executor=self.executor), states_checked(model, what):
                keyed = [Keyed(ids, key_tokens(self.loaded, ids, self.trained_length)) for ids in prepared]
            self.by_length[length] = keyed
        return self.by_length[length]
