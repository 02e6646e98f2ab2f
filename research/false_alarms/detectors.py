"""Drift, drift of states whitened within M, and PELT, on the same states: false alarms, and steps that they miss.

pip install "ruptures>=1.1.10,<2"
python research/false_alarms/detectors.py    # ten minutes on one core; writes results/detectors.csv

Decided before the run: whitening is kept if it calls at most 1 of the models whose dims follow one or two factors
and the shipped model's onsets on " hello" stay. PELT (Killick, Fearnhead and Eckley 2012) reads the first prompt's
states divided by their standard deviation within M, quadratic cost, penalty (dims + 1) ln T, as for white noise.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import ruptures  # pyright: ignore[reportMissingImports]
from sklearn.covariance import LedoitWolf
from tqdm import tqdm

sys.path.insert(0, str(Path(__file__).parents[2]))

import mesa
from mesa.methods import make
from probe.eval_tasks.retrieval import repeated_ids
from probe.thresholds.drift import find_drift
from research.collapse.run import states
from research.false_alarms.run import (
    LAYERS,
    LENGTH,
    METHODS,
    MODELS,
    NOISE,
    RESULTS,
    M,
    autoregressive,
    hidden,
    together,
)
from research.script import run

MIN_SIZE = 8  # positions between two change points
INSIDE = slice(M // 4, 3 * M // 4)  # of these positions is the reference of drift, too
STEPPED = ("white", "AR(0.9)", "2 AR(0.99) factors")
STEPS = ((2, 1), (2, 10), (16, 1), (16, 4), (16, 10))  # dims, standard deviations


def by_pelt(layer: np.ndarray) -> bool:
    """Whether PELT has a change point from M on."""
    scaled = (layer - layer[INSIDE].mean(0)) / layer[INSIDE].std(0)
    penalty = (layer.shape[1] + 1) * np.log(len(layer))
    search = ruptures.KernelCPD(kernel="linear", min_size=MIN_SIZE).fit(scaled)  # PELT, with the quadratic cost, in C
    return any(M - MIN_SIZE < at < len(layer) for at in search.predict(pen=penalty))


def whitened(layer: np.ndarray) -> np.ndarray:
    """States (position, dim) with the covariance inside the window, shrunk by Ledoit and Wolf, made the identity."""
    inside = layer[INSIDE]
    values, vectors = np.linalg.eigh(LedoitWolf().fit(inside).covariance_)
    return (layer - inside.mean(0)) @ vectors / np.sqrt(values)


def rows() -> list[dict[str, Any]]:
    """A row a kind of states."""
    kinds = NOISE | {"AR(0.98)": lambda rng, shape: autoregressive(rng, shape, 0.98)}
    kinds = {name: kinds[name] for name in ("white", "AR(0.9)", "AR(0.98)", "AR(0.99)", "random walk")}
    draws: dict[str, Callable[[np.random.Generator, int], np.ndarray]] = {
        name: lambda rng, layers, draw=draw: draw(rng, (layers, LENGTH, 16)) for name, draw in kinds.items()
    }
    draws |= {
        f"{factors} AR(0.99) factors": lambda rng, layers, factors=factors: together(rng, layers, 16, factors)
        for factors in (1, 2)
    }
    table = list[dict[str, Any]]()
    for number, (noise, draw) in enumerate(tqdm(draws.items(), desc="noise")):
        values = draw(np.random.default_rng([11, number]), LAYERS)
        for dims, by in ((0, 0), *(STEPS if noise in STEPPED else ())):
            stepped = values.copy()
            stepped[:, M:, :dims] += by * values[:, :M, :dims].std(1, keepdims=True)
            table.append({"states": noise, "dims": dims, "by": by, "of": "layers", "units": LAYERS} | detected(stepped))
    for factors in (1, 2):
        rng = np.random.default_rng([12, factors])
        models = [detected(together(rng, 30, 64, factors)) for _ in tqdm(range(MODELS), desc=f"{factors} factors")]
        counts = {name: sum(model[name] > 0 for model in models) for name in models[0]}
        table.append(
            {"states": f"{factors} AR(0.99) factors", "dims": 0, "by": 0, "of": "models", "units": MODELS} | counts
        )
    return table


def detected(layers: np.ndarray) -> dict[str, int]:
    """By detector, in how many of the layers (layer, position, dim) there is something from M on.

    For drift they are one model, whose chance is times its layers.
    """
    drift, of_whitened = (
        int(np.isfinite(find_drift(hidden(values[None]), M)["first"].values).sum())
        for values in (layers, np.stack([*map(whitened, layers)]))
    )
    return {"drift": drift, "drift_whitened": of_whitened, "pelt": sum(map(by_pelt, layers))}


def shipped() -> list[dict[str, Any]]:
    """By layer and method, where drift begins on the shipped model's " hello", and where in whitened states."""
    loaded, methods = mesa.load("default"), {name: make(name, M) for name in METHODS}
    word = loaded.tokenizer(" hello", add_special_tokens=False)["input_ids"]
    ids = np.array(repeated_ids(loaded.tokenizer, word, LENGTH)[0])
    read = np.concatenate(
        [states(loaded.model, method, [ids], M, LENGTH - 1)[0][None, :, 0] for method in methods.values()]
    )
    read = np.pad(read, ((0, 0), (0, 0), (1, 0), (0, 0)))  # the first token: a warm-up position, which is not evaluated
    plans = {name: method.plan(LENGTH) for name, method in methods.items()}
    white = np.stack([[whitened(layer) for layer in layers] for layers in read])
    firsts = [find_drift(hidden(values, METHODS), M, plans=plans)["first"].values for values in (read, white)]
    return [
        {"method": name, "layer": layer, "drift": firsts[0][row, layer], "drift_whitened": firsts[1][row, layer]}
        for row, name in enumerate(METHODS)
        for layer in range(read.shape[1])
    ]


def main(args: argparse.Namespace) -> None:
    """Writes both tables."""
    for name, table in {"detectors-shipped": shipped, "detectors": rows}.items():
        pd.DataFrame(table()).to_csv(RESULTS / f"{name}.csv", index=False, float_format="%.4g")


if __name__ == "__main__":
    run(main, argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter))
