"""How far hidden states lie from the in-window distribution, on text: they collapse towards its centre, or grow.

`drift` and thresholds look outwards, on one repeated word. On text the states of a model that reads too far often
shrink instead: attention spreads over more keys, and an average of more values varies less.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import xarray as xr
from pydantic.dataclasses import dataclass as checked

from mesa.errors import Refused
from probe.statistics import ONE_LOOK, confidence_of, half_width, shown
from probe.store.result_file import InWords, Number

COMPONENTS = 64
MIN_DOCUMENTS = 4
"""Texts of one document count once where there are this many documents or more."""
_FOLDS = 8
_READ = 1024  # states of a text that are fitted


@dataclass(frozen=True)
class StateReference:
    """The in-window distribution of a layer's states: principal components and their shrunk covariance.

    Args:
        components: scikit-learn's PCA, whitened.
        covariance: Its LedoitWolf of the whitened scores.

    Examples:
        >>> rng = np.random.default_rng(0)
        >>> reference = probe.StateReference.fit(rng.normal(size=(12, 64, 32)))
        >>> round(float(reference.distances(0.55 * rng.normal(size=(64, 32))).mean()), 1)
        0.3
    """

    components: Any
    covariance: Any

    @classmethod
    def fit(cls, states: np.ndarray, components: int = COMPONENTS) -> StateReference:
        """Fits to states (..., dim), by PCA and the Ledoit-Wolf covariance of whitened scores (both scikit-learn's).

        At most `components`, as many as vary, and no more than a quarter of the number of states. Refused for none.
        """
        from sklearn.covariance import LedoitWolf
        from sklearn.decomposition import PCA

        rows = np.asarray(states, np.float64).reshape(-1, np.shape(states)[-1])
        centred = rows - rows.mean(0)
        products = centred.T @ centred if len(rows) > rows.shape[1] else centred @ centred.T  # the smaller one
        variance = np.linalg.eigvalsh(products)[::-1] if len(rows) > 1 else np.zeros(1)
        count = min(components, len(rows) // 4, int((variance > 1e-10 * variance[0]).sum()))
        if count < 1:
            raise Refused(f"{len(rows)} states that vary in {count} directions; a distribution needs 4 that differ")
        pca = PCA(count, whiten=True, svd_solver="full").fit(rows)
        return cls(pca, LedoitWolf().fit(pca.transform(rows)))

    def distances(self, states: np.ndarray) -> np.ndarray:
        """Squared Mahalanobis distance over the number of components, of states (..., dim): 1 on average within M."""
        rows = np.asarray(states, np.float64).reshape(-1, np.shape(states)[-1])
        scores = self.components.transform(rows)
        return (self.covariance.mahalanobis(scores) / scores.shape[1]).reshape(np.shape(states)[:-1])


@checked(frozen=True)
class StateDistance(InWords):
    """The mean squared distance of a layer's states to the in-window distribution, beyond M and at M.

    distance, inside: at the length, and at M, means over texts (or documents). ratio: their quotient; low, high: its
    95% interval over them (Student's, of its logarithm), NaN for fewer than four. Below 1 the states collapse towards
    the centre, above 1 they grow.
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
        documents: A label a text: those that share one are left out together and count once. Default: all differ.
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
    return compared(near.mean(1), far.mean(1), documents)


def compared(near: np.ndarray, far: np.ndarray, documents: Sequence[Any] | None = None) -> StateDistance:
    """Of the mean distances (text,) at M and at another length, the texts of a document as their mean."""
    texts = len(near)
    if documents is not None:
        of = np.unique(list(documents), return_inverse=True)[1]
        near, far = (np.bincount(of, each) / np.bincount(of) for each in (near, far))
    low, high = _interval(near, far)
    return StateDistance(float(far.mean()), float(near.mean()), float(far.mean() / near.mean()), low, high, texts)


def find_state_distance(hidden: xr.DataArray, trained_length: int, *, reference: str = "origin") -> xr.Dataset:
    """How far states on text lie from the in-window distribution, by position, over how far those within M lie.

    The distribution is that of the reference's states at positions [M/4, M), of the other texts.

    Args:
        hidden: Hidden states (method, prompt, layer, position, dim), of two or more texts.
        trained_length: M, tokens.
        reference: The method whose states are fitted; default 'origin', or the first.

    Returns:
        A Dataset (method, layer, window), windows of M/4 positions by their first, from M/4 on:

        - `ratio` = mean squared distance a component (`StateReference.distances`) over the method's own in [M/4, M),
          means over texts: below 1 where states collapse towards the centre, above where they grow
        - `low`, `high`: its 95% interval over texts (Student's); NaN for fewer than four
        - `inside` (method, layer): the distance in [M/4, M); 1 is the reference's on the texts that are fitted

    Raises:
        Refused: There are fewer than two prompts, or positions within or beyond M were not captured.

    Examples:
        >>> rng = np.random.default_rng(0)
        >>> values = rng.normal(size=(1, 4, 1, 512, 32)) * np.where(np.arange(512) < 256, 1, 0.55)[:, None]
        >>> labels = {"method": ["origin"], "prompt": list("abcd"), "layer": [0], "position": range(512)}
        >>> hidden = xr.DataArray(values, labels | {"dim": range(32)}, [*labels, "dim"])
        >>> probe.find_state_distance(hidden, 256)["ratio"].values.round(1).ravel().tolist()
        [1.0, 1.0, 1.0, 0.3, 0.3, 0.3, 0.3]
    """
    position, texts, window = hidden["position"].values, hidden.sizes.get("prompt", 1), trained_length // 4
    methods, first = hidden["method"].values.tolist(), position // window * window
    within = np.flatnonzero((position >= window) & (position < trained_length))
    windows = [start for start in np.unique(first[position >= window]) if 2 * (first == start).sum() >= window]
    if texts < 2 or len(within) < 8 or not windows or windows[-1] < trained_length:
        raise Refused(
            f"{texts} texts with {len(within)} positions in [{window}, {trained_length}), up to {position[-1]}; states "
            "on text are compared over two texts or more, within M and beyond: store more, e.g. --texts 8"
        )
    fitted = within[:: max(1, len(within) // _READ)]
    of = reference if reference in methods else methods[0]
    rows = {name: np.empty((len(methods), hidden.sizes["layer"], len(windows))) for name in ("ratio", "low", "high")}
    inside = np.empty((len(methods), hidden.sizes["layer"]))
    for layer in range(hidden.sizes["layer"]):
        at = hidden.isel(layer=layer).transpose("method", "prompt", "position", "dim")
        known = at.sel({"method": of}).values[:, fitted]
        for number, name in enumerate(methods):
            distances = text_distances(known, [at.sel({"method": name}).values])[0]
            near = distances[:, within].mean(1)
            inside[number, layer] = near.mean()
            for column, start in enumerate(windows):
                far = distances[:, first == start].mean(1)
                values = far.mean() / near.mean(), *_interval(near, far)
                for key, value in zip(rows, values, strict=True):
                    rows[key][number, layer, column] = value
    axes = ("method", "layer", "window")
    return xr.Dataset(
        {name: (axes, values) for name, values in rows.items()} | {"inside": (axes[:2], inside)},
        {"method": methods, "layer": hidden["layer"].values, "window": ("window", windows, {"units": "position"})},
        {"trained_length": trained_length, "run": window, "reference": of, "hook": str(hidden.name), "texts": texts},
    )


STATE_DISTANCE = "state_distance"
"""The variable of an evaluation: squared distance by method, length, window (of text) and layer."""


def find_distance_by_length(evaluation: xr.Dataset, trained_length: int, reference: str = "origin") -> xr.Dataset:
    """How far states at the end of texts lie from the in-window distribution, by length, over how far those at M lie.

    The same tokens at every length, read in the passes that measure their loss. The rate of false detections of the
    limit is not known.

    Args:
        evaluation: `state_distance` (method, length, window, layer), as `Run.evaluation`. Its attribute `documents`, a
            number a window: windows of one count once, where there are four documents or more.
        trained_length: M, tokens.
        reference: The method whose texts at M give the limit; default 'origin', or the first.

    Returns:
        A Dataset (method, layer, length), lengths from M on:

        - `ratio`, `low`, `high`: mean over texts over that at M of the same texts, with its interval (Student's, 95%,
          over all looks of a run in stages); no interval for fewer than four texts, of several looks three
        - `inside` (method, layer): the mean at M; where it differs from the reference's, states differ within M
        - `texts` (method, length): how many these are
        - `limit` (layer): the ratio, below 1, of the text at M that lies farthest from their mean, or its inverse; NaN
          for fewer than four
        - `leaves` (method, layer), tokens: the first length from which on, up to the longest, the ratio lies below
          `limit`, or above its inverse, and its interval excludes 1; NaN for none

    Raises:
        Refused: No distance was read at M and beyond it.

    Examples:
        >>> distance = np.array([1.0, 1.1, 0.9, 1.0]) * np.array([1.0, 0.6, 0.4])[:, None]
        >>> labels = {"method": ["origin"], "length": [256, 512, 1024], "window": range(4), "layer": [0]}
        >>> values = xr.DataArray(distance[None, ..., None], labels, [*labels])
        >>> from probe.thresholds.state_distance import find_distance_by_length
        >>> by_length = find_distance_by_length(xr.Dataset({"state_distance": values}), 256)
        >>> by_length["ratio"].values.round(1).ravel().tolist(), by_length["leaves"].item()
        ([1.0, 0.6, 0.4], 512.0)
    """
    read = evaluation[STATE_DISTANCE].dropna("length", how="all") if STATE_DISTANCE in evaluation else None
    if read is None or trained_length not in read["length"] or int(read["length"].max()) <= trained_length:
        raise Refused(
            "no states of scored text at M and beyond it are stored; `mesa-lens probe` reads them where it measures "
            "the loss of two texts or more"
        )
    axes = ("method", "layer", "length")
    read = read.sel(length=read["length"] >= trained_length).sortby("length").transpose(*axes, "window")
    methods = read["method"].values.tolist()
    of = reference if reference in methods else methods[0]
    at_trained = read.sel(length=trained_length, drop=True)
    level = at_trained.sel({"method": of})
    over = level / level.mean("window")
    limit = xr.where(over > 1, 1 / over, over).min("window").where(level.notnull().sum("window") >= 4)
    confidence, labels = confidence_of(evaluation.attrs), np.array(read.attrs.get("documents", ()), int)
    least = 3 if confidence != ONE_LOOK else 4
    if len(set(labels.tolist())) < MIN_DOCUMENTS or len(labels) < read.sizes["window"]:
        labels = np.arange(read.sizes["window"])
    shape = tuple(read.sizes[axis] for axis in axes)
    rows = {name: np.full(shape, np.nan) for name in ("ratio", "low", "high")}
    for place in np.ndindex(shape):
        far, near = read.values[place], at_trained.values[place[:2]]
        paired = np.isfinite(far) & np.isfinite(near)
        if paired.any():
            groups = np.unique(labels[: len(far)][paired], return_inverse=True)[1]
            far, near = (np.bincount(groups, each[paired]) / np.bincount(groups) for each in (far, near))
            values = far.mean() / near.mean(), *_interval(near, far, confidence.level, least)
            for key, value in zip(rows, values, strict=True):
                rows[key][place] = value
    coords = {name: read[name].values for name in axes}
    result = xr.Dataset({name: (axes, values) for name, values in rows.items()}, coords)
    undecided = result.low.isnull()  # a length that a method lacks, or with few texts
    leaves = xr.full_like(result.ratio.isel(length=0, drop=True), np.nan)
    for outside in ((result.ratio < limit) & (result.high < 1), (result.ratio > 1 / limit) & (result.low > 1)):
        lasts = (outside | undecided)[..., ::-1].cumprod("length")[..., ::-1].astype(bool) & outside
        leaves = leaves.fillna(result["length"].where(lasts).min("length"))
    counts = (read.notnull() & at_trained.notnull()).any("layer").sum("window")
    return result.assign(inside=at_trained.mean("window"), limit=limit, leaves=leaves, texts=counts).assign_attrs(
        trained_length=trained_length, reference=of, hook="resid_post"
    )


def _interval(near: np.ndarray, far: np.ndarray, confidence: float = 0.95, least: int = 4) -> tuple[float, float]:
    """The interval of mean(far) / mean(near) over texts, NaN for fewer than `least`.

    Student's of the logarithm, by the delta method: of few texts a bootstrap misses the truth in 10% to 20% of draws.
    """
    if len(near) < least:
        return np.nan, np.nan
    ratio = far.mean() / near.mean()
    factor = np.exp(half_width(far / far.mean() - near / near.mean(), confidence))
    return float(ratio / factor), float(ratio * factor)


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
    if not all(np.isfinite(each).all() for each in (reference, *measured)):
        raise Refused("states are not finite; capture them again")
    if labels.max() < 1:
        raise Refused(f"{texts} texts of one document; a distribution fitted on other texts needs two documents")
    distances = [np.empty(np.shape(each)[:2]) for each in measured]
    for fold in range(min(_FOLDS, labels.max() + 1)):
        left_out = labels % _FOLDS == fold
        fitted = StateReference.fit(np.asarray(reference)[~left_out], components)
        for values, of_length in zip(distances, measured, strict=True):
            values[left_out] = fitted.distances(np.asarray(of_length)[left_out])
    return distances
