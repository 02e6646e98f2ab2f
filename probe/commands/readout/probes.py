"""Linear probes on states from anywhere: trained, scored on other texts, and compared, with intervals over texts.

scikit-learn's estimators in a pipeline with a scaler; no torch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy.special import stdtrit

from mesa.errors import Refused
from probe.commands.readout.result import Interval

STRENGTHS = {"classes": (1e-4, 1e-3, 1e-2, 1e-1, 1.0), "numbers": (1e4, 1e3, 1e2, 1e1, 1.0)}
"""C of LogisticRegression and alpha of Ridge that are tried, from the strongest penalty to the weakest."""
FOLDS, RESAMPLES = 3, 1000
_ITERATIONS = 1000
_LEAST = 20  # labels to train on


@dataclass(frozen=True)
class TextScores:
    """A probe's score on held-out texts: the sums that it is computed of, one row a text, so that texts are resampled.

    kind: `classes` (accuracy) or `numbers` (R2, the share of the variance that is explained). texts: their names.
    """

    kind: str
    texts: np.ndarray
    sums: np.ndarray
    """(text, 2): hits and labels; or (text, 4): squared errors, labels, their sum and their squares' sum."""

    @property
    def value(self) -> float:
        """Of all texts."""
        return float(self._values(np.ones((1, len(self.texts))))[0])

    def resampled(self, weights: np.ndarray) -> np.ndarray:
        """The score of each resample; weights (resample, text): how often a text is in it."""
        return self._values(weights)

    def _values(self, weights: np.ndarray) -> np.ndarray:
        sums = weights @ self.sums
        if self.kind == "classes":
            return sums[:, 0] / sums[:, 1]
        errors, count, total, squares = sums.T
        with np.errstate(divide="ignore", invalid="ignore"):
            return 1 - errors / (squares - total**2 / count)


@dataclass(frozen=True)
class Probe:
    """A trained probe. estimator: scikit-learn's. strength: the C or alpha chosen, None for the user's own estimator.

    kind: `classes` or `numbers`. texts: those trained on; classes: the labels known, of `classes`.
    """

    estimator: Any
    kind: str
    strength: float | None
    texts: frozenset[Any] = field(repr=False)

    def score(self, states: Any, labels: Any, groups: Any) -> TextScores:
        """Scores by text on other texts, as `fit_probe` takes them.

        Raises Refused for texts that were trained on.
        """
        states, labels, groups = flat(states, labels, groups)
        if common := self.texts & {*groups.tolist()}:
            raise Refused(f"text {next(iter(common))!r} was trained on; score a probe on other texts")
        labels = labels.astype(float) if self.kind == "numbers" else labels
        guessed = self.estimator.predict(states)
        texts, at = np.unique(groups, return_inverse=True)
        if self.kind == "classes":
            columns = [guessed == labels, np.ones(len(labels))]
        else:
            columns = [(guessed - labels) ** 2, np.ones(len(labels)), labels, labels**2]
        sums = np.stack([np.bincount(at, column, len(texts)) for column in columns], 1)
        return TextScores(self.kind, texts, sums)


def fit_probe(
    states: Any, labels: Any, groups: Any, *, estimator: Any = None, strength: float | None = None, kind: str = ""
) -> Probe:
    """A linear probe of `labels` in `states`, its strength chosen by cross-validation that holds out full texts.

    Names are told apart by LogisticRegression, numbers by Ridge, after a StandardScaler.

    Args:
        states: (token, dim), or with more axes before dim, such as (text, token, dim): of a store, a TransformerLens
            cache, or any array.
        labels: Of each token: texts, booleans or integers are classes, floats are numbers.
        groups: The text that each token is of; of fewer axes than `labels`, repeated along those that lack.
        estimator: Your own scikit-learn estimator, which is fitted as it is.
        strength: C of LogisticRegression or alpha of Ridge. Default: chosen among `STRENGTHS`.
        kind: `classes` or `numbers`. Default: by the labels' type.

    Returns:
        A `Probe`; its `score` is of other texts.

    Raises:
        Refused: Fewer than 20 labels, one class, one text, or states that are not finite.

    Examples:
        >>> states = np.random.default_rng(0).normal(size=(8, 50, 6))  # text, token, dim
        >>> labels = np.where(states[..., 2] > 0, "up", "down")
        >>> texts = np.arange(8)
        >>> trained = probe.fit_probe(states[:4], labels[:4], texts[:4])
        >>> round(trained.score(states[4:], labels[4:], texts[4:]).value, 1)
        1.0
    """
    states, labels, groups = flat(states, labels, groups)
    kind = kind or ("numbers" if labels.dtype.kind == "f" else "classes")
    labels = labels.astype(float) if kind == "numbers" else labels
    check_labels(labels, groups, kind)
    if estimator is not None:
        from sklearn.base import clone

        own: Any = clone(estimator)
        return Probe(own.fit(states, labels), kind, None, frozenset(groups.tolist()))
    strength = chosen_strength(states, labels, groups, kind) if strength is None else strength
    return Probe(linear(kind, strength).fit(states, labels), kind, strength, frozenset(groups.tolist()))


def linear(kind: str, strength: float) -> Any:
    """The estimator of a probe, not fitted."""
    from sklearn.linear_model import LogisticRegression, Ridge
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    model = LogisticRegression(C=strength, max_iter=_ITERATIONS) if kind == "classes" else Ridge(alpha=strength)
    return make_pipeline(StandardScaler(), model)


def chosen_strength(states: np.ndarray, labels: np.ndarray, groups: np.ndarray, kind: str) -> float:
    """The strength with the best mean score over folds that hold out full texts; the stronger penalty of equals."""
    from sklearn.model_selection import GroupKFold, cross_val_score

    folds = list(GroupKFold(min(FOLDS, len(np.unique(groups)))).split(states, labels, groups))
    if kind == "classes":  # a fold of one class teaches nothing
        folds = [fold for fold in folds if len(np.unique(labels[fold[0]])) > 1]
    if not folds:
        return STRENGTHS[kind][1]
    means = [cross_val_score(linear(kind, strength), states, labels, cv=folds).mean() for strength in STRENGTHS[kind]]
    return STRENGTHS[kind][int(np.argmax(means))]


def flat(states: Any, labels: Any, groups: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """States (token, dim), labels (token,) and groups (token,), as arrays; Refused where their shapes do not fit."""
    states, labels, groups = (_array(values) for values in (states, labels, groups))
    if states.ndim < 2 or states.shape[:-1] != labels.shape:
        raise Refused(
            f"states {states.shape} have no label for each token: labels are {labels.shape}, and should be "
            f"{states.shape[:-1]}"
        )
    if groups.shape != labels.shape[: groups.ndim] or not groups.ndim:
        raise Refused(f"groups {groups.shape} do not name the text of each label {labels.shape}")
    groups = np.broadcast_to(groups.reshape(groups.shape + (1,) * (labels.ndim - groups.ndim)), labels.shape)
    if not np.isfinite(states).all():
        raise Refused("states are not finite; take a wider dtype")
    return states.reshape(-1, states.shape[-1]), labels.ravel(), groups.ravel()


def _array(values: Any) -> np.ndarray:
    """An array of numpy's, of a tensor too, in float32 where its dtype is unknown to numpy."""
    if hasattr(values, "detach"):
        values = values.detach().cpu()
        values = values.float() if values.is_floating_point() else values
    array = np.asarray(values)
    return array.astype(str) if array.dtype.kind == "O" else array


def check_labels(labels: np.ndarray, groups: np.ndarray, kind: str, what: str = "labels") -> None:
    """Refused for too few labels, one class or value, or one text."""
    if len(labels) < _LEAST:
        raise Refused(f"{what}: {len(labels)} to train on are fewer than {_LEAST}; give more texts or labels")
    if kind == "numbers" and not np.isfinite(labels).all():
        raise Refused(f"{what}: a label is not a finite number; leave it out")
    if len(values := np.unique(labels)) < 2:
        raise Refused(f"{what}: all to train on are {values[0]!s}; a probe needs two classes or values")
    if len(np.unique(groups)) < 2:
        raise Refused(f"{what}: all to train on are of one text; a probe needs two, of which one is held out")


def control_labels(labels: Any, types: Any, seed: int = 0) -> np.ndarray:
    """Random labels by token type, the control task of Hewitt and Liang (2019, arXiv 1909.03368).

    Args:
        labels: Those of the task; each type has one of them, drawn as often as it is there.
        types: The type of each token, such as its id; the shape of `labels`.
        seed: Of the drawing.

    Returns:
        An array like `labels`. The same type has the same label in any call with the same labels' values and seed.

    Examples:
        >>> probe.control_labels(["noun", "verb", "noun", "verb"], [7, 9, 7, 9]).tolist()
        ['verb', 'noun', 'verb', 'noun']
    """
    labels, types = _array(labels), _array(types)
    drawn = {}
    known = labels.ravel()
    for kind in np.unique(types).tolist():
        rng = np.random.default_rng([seed, *str(kind).encode()])
        drawn[kind] = known[rng.integers(len(known))]
    return np.array([drawn[kind] for kind in types.ravel().tolist()]).reshape(labels.shape)


class Bootstrap:
    """Resamples of held-out texts, the same for all scores of these texts, so that differences are paired."""

    def __init__(self, texts: int, seed: int = 0, resamples: int = RESAMPLES) -> None:
        rng = np.random.default_rng([seed, texts])
        self.texts = texts
        self.weights = rng.multinomial(texts, np.full(texts, 1 / texts), resamples).astype(float)

    def interval(self, scores: TextScores, minus: TextScores | None = None) -> Interval:
        """The score, or its difference to another on the same texts, with its 95% interval."""
        value, values = scores.value, scores.resampled(self.weights)
        if minus is not None:
            if not np.array_equal(scores.texts, minus.texts):
                raise Refused("scores of different texts are not paired")
            value, values = value - minus.value, values - minus.resampled(self.weights)
        low, high = np.quantile(values[np.isfinite(values)], [0.025, 0.975]) if self.texts > 1 else (math.nan, math.nan)
        return Interval(value, float(low), float(high))

    def is_clear(self, scores: TextScores, minus: TextScores, tests: int) -> bool:
        """Whether the difference is above 0 beyond chance, in one of `tests` tests (Bonferroni; Student's t)."""
        if self.texts < 3:
            return False
        difference = scores.resampled(self.weights) - minus.resampled(self.weights)
        error = float(difference[np.isfinite(difference)].std())
        return scores.value - minus.value > stdtrit(self.texts - 1, 1 - 0.025 / tests) * error
