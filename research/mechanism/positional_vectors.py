"""How much of a model's hidden states is positional (Dong et al. 2024), and what thresholds are found in that part.

`python research/mechanism/positional_vectors.py` writes results/positional.csv beside it: Origin on the shipped model.

p(layer, t) is the mean over texts of the state at position t. What tokens say is hundreds of times what their positions
say, so each text begins M / 8 tokens after the one before: the same tokens stand at every position, which leaves far
less noise, and a pattern with that period, which `levelled` removes. The texts of the two halves share no token, so
noise that neighbours have in common creates no agreement between them.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

sys.path.insert(0, str(Path(__file__).parents[2]))

import mesa
from mesa.engine.bridge import bridge as bridge_to
from mesa.methods import Method, Origin
from probe.capture.capture import capture_states
from probe.eval_tasks import sources
from probe.eval_tasks.retrieval import first_ids
from probe.eval_tasks.score import heldout_ids
from probe.thresholds.search import CrossingRule, search

BANDS = ("inside", "beyond")
TEXTS = 256


@dataclass
class Moments:
    """Means (half, layer, position, dim), and squares (half, layer, band, dim) summed over texts and positions."""

    trained_length: int
    means: np.ndarray
    squares: np.ndarray
    counts: np.ndarray

    @classmethod
    def of(cls, texts: Iterable[np.ndarray], trained_length: int) -> Moments:
        """The moments of texts' states (layer, position, dim), every second one in the second half."""
        moments: Moments | None = None
        for number, states in enumerate(texts):
            layers, positions, dims = states.shape
            if moments is None:
                sizes = (2, layers, positions, dims), (2, layers, len(BANDS), dims)
                moments = cls(trained_length, np.zeros(sizes[0]), np.zeros(sizes[1]), np.zeros(2, int))
            half, mean = number % 2, moments.means[number % 2]
            moments.counts[half] += 1
            before = states - mean
            mean += before / moments.counts[half]
            change = before * (states - mean)
            for at, band in enumerate(moments.bands):
                moments.squares[half, :, at] += change[:, band].sum(1)
        if moments is None or moments.counts.min() < 2:
            raise ValueError("positional vectors take at least 4 texts, 2 a half")
        return moments

    @property
    def bands(self) -> list[np.ndarray]:
        """Which positions are inside M (the first is not), and which are beyond."""
        position = np.arange(self.means.shape[2])
        return [(position >= 1) & (position < self.trained_length), position >= self.trained_length]

    def levelled(self, stride: int) -> Moments:
        """Without the repeated pattern: each phase of the stride has the mean of the whole strides but the first."""
        position = np.arange(self.means.shape[2])
        whole = (position >= stride) & (position < len(position) // stride * stride)
        means = self.means.copy()
        by_phase = means[:, :, whole].reshape(*means.shape[:2], -1, stride, means.shape[-1]).mean(2)
        means -= (by_phase - by_phase.mean(2, keepdims=True))[:, :, position % stride]
        return Moments(self.trained_length, means, self.squares, self.counts)

    def shares(self) -> np.ndarray:
        """(layer, band): the share of the states' variance that is positional; noise adds nothing on average.

        Between positions the variance of p is the product of the halves' deviations, whose noise is not shared.
        """
        shares, total = [], self.counts.sum()
        for at, band in enumerate(self.bands):
            first, second = self.means[:, :, band]
            between = ((first - first.mean(1, keepdims=True)) * (second - second.mean(1, keepdims=True))).mean(1)
            apart = ((first - second) ** 2).sum(1) * self.counts.prod() / total
            within = (self.squares[:, :, at].sum(0) + apart) / (total - 1) / band.sum()
            shares.append(between.sum(-1) / (between + within).sum(-1))
        return np.stack(shares, -1)

    def reliabilities(self) -> np.ndarray:
        """(layer, band): how far the halves' vectors about their in-window means agree; 0 for noise, at most 1."""
        first, second = self.means - self.means[:, :, self.bands[0]].mean(2, keepdims=True)
        product, powers = (first * second).sum(-1), [(half**2).sum(-1) for half in (first, second)]
        values = []
        for band in self.bands:
            norms = np.sqrt(powers[0][:, band].sum(1) * powers[1][:, band].sum(1))
            agreed = np.maximum(product[:, band].sum(1) / np.maximum(norms, np.finfo(float).tiny), 0)
            values.append(2 * agreed / (1 + agreed))
        return np.stack(values, -1)

    def vectors(self, *, chance: bool = False) -> xr.DataArray:
        """p (method, layer, position, dim); chance: its noise alone, half the halves' difference about p's mean."""
        p = np.average(self.means, axis=0, weights=self.counts)
        if chance:
            scale = np.sqrt(self.counts.prod()) / self.counts.sum()
            p = p[:, 1:].mean(1, keepdims=True) + scale * (self.means[0] - self.means[1])
        dims = ("method", "layer", "position", "dim")
        labels = {name: range(size) for name, size in zip(dims[1:], p.shape, strict=True)}
        return xr.DataArray(p[None].astype(np.float32), {"method": ["origin"], **labels}, dims)


def sliding_texts(ids: np.ndarray, tokens: int, count: int, stride: int) -> list[np.ndarray]:
    """`count` runs of `tokens` tokens, each half of `ids` slid over in turn; ValueError where it is too short."""
    half, needed = len(ids) // 2, (-(-count // 2) - 1) * stride + tokens
    if needed > half:
        raise ValueError(f"{count} runs of {tokens} tokens that slide by {stride} take {2 * needed}, not {len(ids)}")
    starts = [(number % 2) * half + number // 2 * stride for number in range(count)]
    return [ids[start : start + tokens] for start in starts]


def table(moments: Moments) -> list[dict[str, Any]]:
    """A row a layer: shares and reliabilities inside and beyond M, and threshold dims beside those in noise alone."""
    rule = CrossingRule.scaled(moments.trained_length)
    threshold_dim, by_chance = (
        search(moments.vectors(chance=chance), moments.trained_length, rule, "origin")["threshold_dim"].sum("dim")
        for chance in (False, True)
    )
    columns = {
        **{f"share_{band}": moments.shares()[:, at] for at, band in enumerate(BANDS)},
        **{f"reliability_{band}": moments.reliabilities()[:, at] for at, band in enumerate(BANDS)},
        "threshold_dim": threshold_dim.values,
        "by_chance": by_chance.values,
    }
    layers = range(len(moments.means[0]))
    return [{"layer": layer, **{name: round(float(x[layer]), 4) for name, x in columns.items()}} for layer in layers]


def measure(loaded: Any, method: Method, ids: Sequence[int], count: int) -> list[dict[str, Any]]:
    """The table of a model under `method`, on `count` texts of 4 M tokens out of `ids`."""
    bridge, trained = bridge_to(loaded.model, loaded.tokenizer), method.trained_length
    first, stride = np.array(first_ids(loaded.tokenizer), np.int64), max(1, trained // 8)
    texts = sliding_texts(np.asarray(ids), 4 * trained - len(first), count, stride)
    states = (
        capture_states(bridge, np.concatenate([first, text]).tolist(), method)["resid_post"].values for text in texts
    )
    return table(Moments.of(states, trained).levelled(stride))


def main() -> None:
    """Measures the shipped model and writes the table."""
    loaded = mesa.load()
    ids = np.concatenate(heldout_ids(loaded.tokenizer, sources.texts(None)))
    rows = measure(loaded, Origin(trained_length=loaded.model.config.max_position_embeddings), ids, TEXTS)
    with Path(__file__).with_name("results").joinpath("positional.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, rows[0], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    main()
