"""How often do a probe run's rules call what is not there, what do they miss, and how often do their intervals hold?

python research/false_alarms/run.py             # eight minutes on one core; writes results/*.csv
python research/false_alarms/run.py noise stated    # these alone

States and scores are drawn from seeds, without a break or with a known one.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import torch
import xarray as xr
from tqdm import tqdm
from transformers import LlamaConfig, LlamaForCausalLM

sys.path.insert(0, str(Path(__file__).parents[2]))

import mesa
from mesa.methods import make
from probe.thresholds.drift import DriftRule, find_drift
from probe.thresholds.failure import measured_failure
from probe.thresholds.onset import drift_onsets
from probe.thresholds.search import CrossingRule, search
from probe.thresholds.stated_window import TOO_LARGE, stated_window
from research.script import run

RESULTS = Path(__file__).parent / "results"
M = 256
LENGTH = 8 * M
LAYERS = 100
SMALL = 480
MODELS = 30
LENGTHS = (128, 256, 384, 512, 768, 1024, 1536, 2048)
METHODS = ("origin", "rerope", "dynamic-ntk")
Rows = Iterator[dict[str, object]]


def hidden(values: np.ndarray, methods: tuple[str, ...] = ("origin",)) -> xr.DataArray:
    """Of `values` (method, layer, position, dim), float32."""
    coords = {"method": list(methods)} | {
        name: range(size) for name, size in zip(("layer", "position", "dim"), values.shape[1:], strict=True)
    }
    return xr.DataArray(values.astype(np.float32), coords, list(coords), name="resid_post")


def autoregressive(rng: np.random.Generator, shape: tuple[int, ...], share: float) -> np.ndarray:
    """Noise (layer, position, dim), each value `share` of the one before and new noise; from its steady state."""
    values = rng.standard_normal(shape)
    values[:, 1:] *= math.sqrt(1 - share**2)
    for t in range(1, shape[1]):
        values[:, t] += share * values[:, t - 1]
    return values


NOISE: dict[str, Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]] = {
    "white": lambda rng, shape: rng.standard_normal(shape),
    "AR(0.9)": lambda rng, shape: autoregressive(rng, shape, 0.9),
    "AR(0.99)": lambda rng, shape: autoregressive(rng, shape, 0.99),
    "AR(0.999)": lambda rng, shape: autoregressive(rng, shape, 0.999),
    "random walk": lambda rng, shape: rng.standard_normal(shape).cumsum(1),
    "Student's t, 3 degrees": lambda rng, shape: rng.standard_t(3, shape),
    "Student's t, 2 degrees": lambda rng, shape: rng.standard_t(2, shape),
}
GROWTH: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    **{f"t^{power}": lambda t, power=power: t**power for power in (0.1, 0.25, 0.5, 0.75, 1)},
    "ln t": np.log,
    "1 - exp(-t/M)": lambda t: 1 - np.exp(-t / M),
    "t/(t + M)": lambda t: t / (t + M),
}


def layers_called(values: np.ndarray, trained_length: int) -> tuple[int, float]:
    """Of layers (layer, position, dim): how many are called, and their mean printed false-alarm rate (NaN: none).

    They count as one model, whose chance is times its layers: fewer of 100 are called than of as many in small models.
    """
    drift = find_drift(hidden(values[None]), trained_length).isel(method=0)
    called = np.isfinite(drift["first"].values)
    return int(called.sum()), float(drift["false_positive_rate"].values[called].mean()) if called.any() else math.nan


def noise() -> Rows:
    """Layers of 16 dims called by drift, and pairs that are threshold dims, where the states are noise alone."""
    for number, (kind, draw) in enumerate(NOISE.items()):
        values = draw(np.random.default_rng([0, number]), (LAYERS, LENGTH, 16))
        called, rate = layers_called(values, M)
        qualified = int(search(hidden(values[None]), M, CrossingRule.scaled(M))["qualified"])
        yield {
            "noise": kind,
            "layers": LAYERS,
            "detected": called,
            "false_positive_rate": rate,
            "pairs": LAYERS * 16,
            "qualified": qualified,
        }


def together(
    rng: np.random.Generator, layers: int, dims: int, factors: int, kind: Callable[..., np.ndarray] = NOISE["AR(0.99)"]
) -> np.ndarray:
    """States (layer, position, dim) that follow a few shared factors, and a little white noise."""
    shared = kind(rng, (layers, LENGTH, factors)) @ rng.standard_normal((layers, factors, dims))
    return shared + 0.3 * rng.standard_normal(shared.shape)


def correlated() -> Rows:
    """Layers, and models of 30 layers, called by drift where dims move together, without a break."""
    for factors in (1, 2, 4):
        rng = np.random.default_rng([7, factors])
        for dims in (16, 64):
            called, rate = layers_called(together(rng, LAYERS, dims, factors), M)
            row = {"factors": factors, "dims": dims, "units": LAYERS, "of": "layers", "detected": called}
            yield {**row, "false_positive_rate": rate}
        models = sum(layers_called(together(rng, 30, 64, factors), M)[0] > 0 for _ in range(MODELS))
        yield {"factors": factors, "dims": 64, "units": MODELS, "of": "models", "detected": models}


def small_models() -> Rows:
    """Layers called by drift in models of 4 layers of 16 dims, without a break: few factors, few different values."""
    kinds = NOISE | {"AR(0.997)": lambda rng, shape: autoregressive(rng, shape, 0.997)}
    draws: dict[str, Callable[[np.random.Generator], np.ndarray]] = {
        f"{kind}, {factors} shared": lambda rng, kind=kind, factors=factors: together(
            rng, SMALL, 16, factors, kinds[kind]
        )
        for kind, factors in (
            ("AR(0.99)", 1),
            ("AR(0.99)", 2),
            ("AR(0.997)", 1),
            ("random walk", 1),
            ("random walk", 2),
        )
    }
    draws["random walk"] = lambda rng: NOISE["random walk"](rng, (SMALL, LENGTH, 16))
    draws["white of 0.15, rounded"] = lambda rng: np.round(0.15 * rng.standard_normal((SMALL, LENGTH, 16)))
    draws["white above 3"] = lambda rng: np.maximum(rng.standard_normal((SMALL, LENGTH, 16)) - 3, 0)
    for number, (noise, draw) in enumerate(draws.items()):
        values = draw(np.random.default_rng([9, number]))
        models = [layers_called(values[first : first + 4], M) for first in range(0, SMALL, 4)]
        called = sum(count for count, _ in models)
        printed = sum(count * rate for count, rate in models if count) / called if called else math.nan
        row = {"noise": noise, "layers": SMALL, "detected": called, "false_positive_rate": printed}
        yield {**row, "models": len(models), "models_detected": sum(count > 0 for count, _ in models)}


def steps() -> Rows:
    """Layers of 16 dims called by drift where some dims step at M, by standard deviations: what is missed."""
    rng = np.random.default_rng(8)
    kinds = {
        "white": rng.standard_normal((LAYERS, LENGTH, 16)),
        "AR(0.9)": autoregressive(rng, (LAYERS, LENGTH, 16), 0.9),
    }
    kinds["two AR(0.99) factors"] = together(rng, LAYERS, 16, 2)
    for noise, values in kinds.items():
        for dims in (2, 8, 16):
            for by in (4, 6, 10, 20):
                stepped = values.copy()
                stepped[:, M:, :dims] += by * values[:, :M, :dims].std(1, keepdims=True)
                row = {"noise": noise, "dims": dims, "by": by, "layers": LAYERS}
                yield {**row, "detected": layers_called(stepped, M)[0]}


def heavy_tails() -> Rows:
    """Models of 30 layers of 64 dims with a layer called by drift, where values far out are common."""
    for number, heavy in enumerate((64, 2)):
        for degrees in (3, 2, 1.5):
            called = 0
            for seed in range(LAYERS):
                rng = np.random.default_rng([6, number, seed])
                values = rng.standard_normal((30, LENGTH, 64), np.float32)
                values[..., :heavy] = rng.standard_t(degrees, (30, LENGTH, heavy))
                called += layers_called(values, M)[0] > 0
            yield {"heavy": heavy, "degrees": degrees, "models": LAYERS, "detected": called}


def changes() -> Rows:
    """Layers of 16 dims of white noise called by drift where the states change at M: what is missed."""
    values = np.random.default_rng(5).standard_normal((LAYERS, LENGTH, 16))
    inside, beyond = values[:, :M], values[:, M:]
    changed = {("widens", times): beyond * times for times in (2, 3, 4, 6)}
    changed |= {("shrinks", 0): 0 * beyond}
    changed |= {("moves by standard deviations", by): beyond + by for by in (2, 4, 5, 6)}
    changed |= {("repeats", 1): np.tile(inside, (1, LENGTH // M - 1, 1))}
    for (change, strength), states in changed.items():
        called, _ = layers_called(np.concatenate([inside, states], axis=1), M)
        yield {"change": change, "strength": strength, "layers": LAYERS, "detected": called}


def short_windows() -> Rows:
    """Layers called by drift where the window is short and dims are few."""
    for window in (32, 64, 128, 256):
        for dims in (2, 16):
            draw = np.random.default_rng([1, window, dims])
            called, rate = layers_called(autoregressive(draw, (5 * LAYERS, 8 * window, dims), 0.9), window)
            yield {"M": window, "dims": dims, "layers": 5 * LAYERS, "detected": called, "false_positive_rate": rate}


def growth() -> Rows:
    """Layers of 24 dims called by drift where states go on as before; noise: of the growth within [M/4, 3M/4)."""
    time = np.arange(1.0, LENGTH + 1)
    grown = {name: shape(time) for name, shape in GROWTH.items()}
    grown = {name: values / np.ptp(values[M // 4 : 3 * M // 4]) for name, values in grown.items()}
    for name in ("none", *GROWTH, "a kind a dim"):
        for share in (0.0, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0):
            for seed in range(3):
                rng = np.random.default_rng([2, seed])
                kinds = [name] * 24 if name != "a kind a dim" else rng.choice([*GROWTH], 24)
                of_dims = np.stack([grown.get(kind, 0 * time) for kind in kinds], axis=1)
                size = rng.choice([-1, 1], 24) * rng.uniform(0.3, 1, 24)
                x = of_dims * size + rng.normal(0, 4, 24) + rng.normal(0, 1, (LENGTH, 24)) * share
                yield {"growth": name, "noise": share, "seed": seed, "detected": layers_called(x[None], M)[0]}


def random_weights() -> Rows:
    """Calls on Llamas of 4 layers with random weights that read a first token and then another one again and again."""
    for sharpened in (1, 20, 200):
        for seed in range(12):
            torch.manual_seed(seed)
            config = LlamaConfig(
                vocab_size=512,
                hidden_size=64,
                intermediate_size=128,
                num_hidden_layers=4,
                num_attention_heads=4,
                max_position_embeddings=M,
            )
            model = LlamaForCausalLM(config).eval()
            for name, weight in model.named_parameters():
                if "q_proj" in name:
                    weight.data *= sharpened
            ids, states, plans = torch.full((1, LENGTH), 7 + seed), [], {}
            ids[0, 0] = 1
            for name in METHODS:
                method = make(name, M)
                plans[name] = method.plan(LENGTH)
                with torch.inference_mode(), mesa.applied(model, method):
                    states.append(torch.cat(model.model(ids, output_hidden_states=True).hidden_states[1:-1]).numpy())
            values = hidden(np.stack(states), METHODS)
            calls = drift_onsets(find_drift(values, M, DriftRule.scaled(M), plans=plans))
            yield {
                "sharpened": sharpened,
                "seed": seed,
                **{call.method: int(call.length is not None) for call in calls},
                "qualified": int(search(values, M, CrossingRule.scaled(M))["qualified"]),
            }


def intervals() -> Rows:
    """How often the 95% interval of a measured failure length holds a planted one."""
    fails_at, draws = 768, 500
    beyond = np.array(LENGTHS) >= fails_at
    cases = [
        (f"tail NLL + {rise}, {'skewed' if skewed else 'normal'} noise of 0.5", rise, skewed, 1.0, 1.0)
        for rise in (0.6, 1.0)
        for skewed in (False, True)
    ]
    cases += [(f"passkeys {a} to {b}", 0.0, False, a, b) for a, b in ((0.95, 0.1), (0.8, 0.2), (0.6, 0.4))]
    for prompts in (3, 5, 10, 20):
        for number, (label, rise, skewed, inside, outside) in enumerate(cases):
            rng, covered = np.random.default_rng([3, prompts, number]), 0
            texts, passkeys = (prompts, 20) if rise else (20, prompts)  # 20 of the score that does not fail
            for _ in range(draws):
                shape = (1, len(LENGTHS), texts)
                noise = rng.exponential(1, shape) - 1 if skewed else rng.standard_normal(shape)
                nll = 3 + rise * beyond[:, None] + 0.5 * noise
                hits = rng.random((1, len(LENGTHS), passkeys)) < np.where(beyond, outside, inside)[:, None]
                (failure,) = measured_failure(_scores(LENGTHS, nll, hits), M).failures
                covered += failure.after is not None and failure.after < fails_at <= (failure.high or math.inf)
            yield {"case": label, "prompts": prompts, "draws": draws, "covered": covered / draws}


def stated() -> Rows:
    """How often M is called too large of scores that are the same at every length up to M."""
    lengths, rng, draws = (32, 64, 96, 128, 160, 192, M), np.random.default_rng(4), 300
    outcomes = []
    for _ in range(draws):
        nll = 3 + rng.normal(0, 0.5, (1, len(lengths), 12))
        hits = rng.random((1, len(lengths), 20)) < 0.95
        outcomes.append(stated_window(_scores(lengths, nll, hits), M, "origin").outcome)
    count = outcomes.count(TOO_LARGE)
    yield {"noise": 0.5, "texts": 12, "passkeys": 20, "lengths": len(lengths), "draws": draws, "too_large": count}


def _scores(lengths: tuple[int, ...], nll: np.ndarray, hits: np.ndarray) -> xr.Dataset:
    """Scores (method, length, prompt) as a probe run keeps them."""
    dims = ("method", "length")
    variables = {"tail_nll": ((*dims, "window"), nll), "passkey": ((*dims, "sample"), hits.astype(float))}
    return xr.Dataset(variables, {"method": ["origin"], "length": list(lengths)}, {"vocabulary": 2048})


STUDIES = {
    study.__name__: study
    for study in (
        noise,
        correlated,
        small_models,
        heavy_tails,
        changes,
        steps,
        short_windows,
        growth,
        random_weights,
        intervals,
        stated,
    )
}


def main(args: argparse.Namespace) -> None:
    """Runs the studies and writes their rows."""
    RESULTS.mkdir(exist_ok=True)
    for name in args.studies or STUDIES:
        rows = pd.DataFrame(tqdm(STUDIES[name](), desc=name, unit="row"))
        rows.to_csv(RESULTS / f"{name}.csv", index=False, float_format="%.4g")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "studies", nargs="*", choices=STUDIES, metavar="STUDY", help=f"of {', '.join(STUDIES)}; default: all"
    )
    run(main, parser)
