"""How far hidden states lie from the in-window distribution, on text: they collapse towards its centre, or grow.

`drift` and thresholds look outwards, on one repeated word. On text the states of a model that reads too far often
shrink instead: attention spreads over more keys, and an average of more values varies less.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from pydantic.dataclasses import dataclass as checked

from mesa.errors import Refused
from probe.store.result_file import InWords, Number
from probe.statistics import shown

COMPONENTS = 64
_FOLDS = 8
_DRAWS = 1000


@dataclass(frozen=True)
class StateReference:
    """The in-window distribution of a layer's states: principal components and their shrunk covariance.

    Examples:
        >>> rng = np.random.default_rng(0)
        >>> reference = StateReference.fit(rng.normal(size=(12, 64, 32)))
        >>> round(float(reference.distances(0.5 * rng.normal(size=(64, 32))).mean()), 1)
        0.2
    """

    components: Any
    covariance: Any

    @classmethod
    def fit(cls, states: np.ndarray, components: int = COMPONENTS) -> StateReference:
        """Fits to states (..., dim), by PCA and the Ledoit-Wolf covariance in its components (both scikit-learn's).

        At most `components`, and no more than a quarter of the number of states. Refused for fewer than 8 states or
        values that are not finite.
        """
        from sklearn.covariance import LedoitWolf
        from sklearn.decomposition import PCA

        rows = np.asarray(states, np.float64).reshape(-1, np.shape(states)[-1])
        if len(rows) < 8 or not np.isfinite(rows).all():
            raise Refused(f"{len(rows)} states, all finite: {np.isfinite(rows).all()}; a distribution needs 8 or more")
        pca = PCA(min(components, rows.shape[1], len(rows) // 4), svd_solver="full").fit(rows)
        return cls(pca, LedoitWolf().fit(pca.transform(rows)))

    def distances(self, states: np.ndarray) -> np.ndarray:
        """Squared Mahalanobis distance over the number of components, of states (..., dim): 1 on average within M."""
        rows = np.asarray(states, np.float64).reshape(-1, np.shape(states)[-1])
        scores = self.components.transform(rows)
        return (self.covariance.mahalanobis(scores) / scores.shape[1]).reshape(np.shape(states)[:-1])


@checked(frozen=True)
class StateDistance(InWords):
    """The mean squared distance of a layer's states to the in-window distribution, beyond M and at M.

    distance, inside: at the length, and at M, means over texts. ratio: their quotient; low, high: its 95% interval over
    texts (bootstrap), NaN for fewer than four. Below 1 the states collapse towards the centre, above 1 they grow.
    """

    distance: Number
    inside: Number
    ratio: Number
    low: Number
    high: Number
    texts: int

    @property
    def direction(self) -> str:
        """'collapse' or 'growth' where the interval excludes 1, else 'level'. It is no failure by itself."""
        return "collapse" if self.high < 1 else "growth" if self.low > 1 else "level"

    def __str__(self) -> str:
        """The ratio with its interval."""
        return f"{shown(self.ratio, self.low, self.high, 'z.2f')} of the in-window distance"


def state_distance(
    inside: np.ndarray,
    states: np.ndarray,
    *,
    reference: np.ndarray | None = None,
    documents: Sequence[Any] | None = None,
    components: int = COMPONENTS,
) -> StateDistance:
    """How far a layer's last states on texts lie from the in-window distribution, over how far those at M lie.

    The distribution is fitted within M on other texts than the one that is measured: eight folds, or one a text.

    Args:
        inside: States at M of the same texts under the same method (text, token, dim).
        states: Those at another length (text, token, dim), the texts in the same order; best of the same tokens.
        reference: What is fitted (text, token, dim): in-window states of the unmodified model, of the same texts.
            Default: `inside`.
        documents: A label a text: those with the same one are left out of a fit together. Default: all differ.
        components: Principal components; default 64.

    Returns:
        A `StateDistance`.

    Raises:
        Refused: Shapes differ, there are fewer than two texts, or values are not finite.

    Examples:
        >>> rng = np.random.default_rng(0)
        >>> inside = rng.normal(size=(8, 64, 32))
        >>> shrunk = probe.state_distance(inside, 0.7 * inside)
        >>> shrunk.direction, round(shrunk.ratio, 2)
        ('collapse', 0.49)
    """
    reference = inside if reference is None else reference
    near, far = text_distances(reference, (inside, states), documents=documents, components=components)
    near, far = near.mean(1), far.mean(1)
    low = high = np.nan
    if len(near) >= 4:
        draws = np.random.default_rng(0).integers(0, len(near), (_DRAWS, len(near)))
        low, high = np.quantile(far[draws].mean(1) / near[draws].mean(1), [0.025, 0.975])
    ratio = far.mean() / near.mean()
    return StateDistance(float(far.mean()), float(near.mean()), float(ratio), float(low), float(high), len(near))


def text_distances(
    reference: np.ndarray,
    measured: Sequence[np.ndarray],
    *,
    documents: Sequence[Any] | None = None,
    components: int = COMPONENTS,
) -> list[np.ndarray]:
    """Squared distances a component (text, token) of each of `measured` (text, token, dim), each text by the others.

    reference: in-window states of the same texts, which are fitted. documents: as for `state_distance`.
    """
    texts = len(reference)
    labels = np.unique(range(texts) if documents is None else list(documents), return_inverse=True)[1]
    if {np.ndim(each) for each in (reference, *measured)} != {3} or {len(each) for each in measured} != {texts}:
        raise Refused(
            f"states are (text, token, dim) of {texts} texts each; got {[np.shape(each) for each in measured]}"
        )
    if labels.max() < 1:
        raise Refused(f"{texts} texts of one document; a distribution fitted on other texts needs two documents")
    distances = [np.empty(np.shape(each)[:2]) for each in measured]
    for fold in range(min(_FOLDS, labels.max() + 1)):
        left_out = labels % _FOLDS == fold
        fitted = StateReference.fit(np.asarray(reference)[~left_out], components)
        for values, of_length in zip(distances, measured, strict=True):
            values[left_out] = fitted.distances(np.asarray(of_length)[left_out])
    if not all(np.isfinite(values).all() for values in distances):
        raise Refused("states at the length are not finite; capture them again")
    return distances
