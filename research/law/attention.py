"""Does the attention that leaves the last 32 tokens follow Z, head by head, and with which p and q?"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np
import pandas as pd

sys.path.insert(0, str(Path(__file__).parents[2]))

import mesa
from mesa.settings import read_configs
from probe.commands.predict import PredictRequest
from probe.commands.predict.formula import POWERS, SCALE_POWERS, FarKeys, far_keys
from probe.commands.predict.run import plan
from research.script import run

LEAKY = tuple(f"leaky-rerope:k={k},log_n=false" for k in (1.2, 1.5, 2, 3, 4))
CONFIGS = (*LEAKY, "self-extend:group=2", "self-extend:group=4", "stair:width=2,log_n=false")
LOG_N = ("origin:log_n=true", "leaky-rerope:k=2")
NEAR = 32
RESULTS = Path(__file__).parent / "results"


def parser() -> argparse.ArgumentParser:
    """The script's parser."""
    top = argparse.ArgumentParser(prog="python research/law/attention.py", description=__doc__)
    top.add_argument("--samples", type=int, default=8, help="texts: the even ones fit p and q, the odd ones judge")
    return top


def main(args: argparse.Namespace) -> None:
    """Measures the leak of every head, fits p and q, and writes results/attention.csv."""
    from probe.commands.anatomy.run import head_statistics

    planned = plan(PredictRequest(methods="origin", samples=args.samples))
    trained, length = planned.trained_length, planned.longest
    model = mesa.load().model
    queries = np.unique(np.geomspace(trained // 2, length - 2, 96).astype(int))
    methods = {"origin": mesa.make("origin", trained), **read_configs([*CONFIGS, *LOG_N], trained)}
    prompts = [text.tolist() for text in planned.texts]
    leak: dict[str, np.ndarray] = {}
    for name, method in methods.items():
        measured = [head_statistics(model, ids, method, near=NEAR, queries=queries.tolist()) for ids in prompts]
        leak[name] = 1 - np.stack([data["mass"].sel(part="near").values for data in measured])
        print(name, flush=True)
    far = {name: far_keys(method.plan(length), queries, trained) for name, method in methods.items()}
    beyond = queries >= trained
    rows = []
    for layer, head in np.ndindex(*leak["origin"].shape[1:3]):
        fit, judged = (
            {name: values[begin::2, layer, head].mean(0) for name, values in leak.items()} for begin in (0, 1)
        )
        errors = {power: rms(fit, far, CONFIGS, power, 0.0, beyond) for power in POWERS}
        power = min(errors, key=errors.__getitem__)
        scale_power = min(SCALE_POWERS, key=lambda q: rms(fit, far, LOG_N[:1], power, q, beyond))
        truth = np.concatenate([judged[name][beyond] for name in CONFIGS])
        inside = judged["origin"][~beyond].mean()
        rows.append(
            {
                "layer": layer,
                "head": head,
                "inside_M": inside,
                "origin_at_8M": judged["origin"][-8:].mean(),
                "spread": truth.std(),
                "p": power,
                "rms": rms(judged, far, CONFIGS, power, 0.0, beyond),
                "rms_p_0.6": rms(judged, far, CONFIGS, 0.6, 0.0, beyond),
                "rms_p_0": rms(judged, far, CONFIGS, 0.0, 0.0, beyond),
                "rms_p_12": rms(judged, far, CONFIGS, 12.0, 0.0, beyond),
                "rms_as_inside": np.sqrt(((truth - inside) ** 2).mean()),
                "rms_as_length": rms_by_length(judged, beyond),
                "q": scale_power,
                "rms_log_n": rms(judged, far, LOG_N, power, scale_power, beyond),
                "rms_log_n_q_0": rms(judged, far, LOG_N, power, 0.0, beyond),
                "log_n_at_8M": judged[LOG_N[0]][-8:].mean(),
            }
        )
    table = pd.DataFrame(rows).round(4)
    table.to_csv(RESULTS / "attention.csv", index=False)
    print(table.to_string())


def rms(
    leak: dict[str, np.ndarray],
    far: dict[str, FarKeys],
    names: tuple[str, ...],
    power: float,
    scale_power: float,
    beyond: np.ndarray,
) -> float:
    """How far a head's leak is from Origin's at the same Z, over all queries beyond M of these methods."""
    curve = smoothed(leak["origin"])
    origin = far["origin"].weighted_sums(power, 0.0)
    first = int(np.flatnonzero(origin > 0)[0]) - 1
    errors = []
    for name in names:
        sums = far[name].weighted_sums(power, scale_power)
        errors.append((np.interp(sums, origin[first:], curve[first:]) - leak[name])[beyond])
    return float(np.sqrt((np.concatenate(errors) ** 2).mean()))


def rms_by_length(leak: dict[str, np.ndarray], beyond: np.ndarray) -> float:
    """How far a head's leak is from Origin's at the same query, whatever the distances."""
    errors = [(smoothed(leak["origin"]) - leak[name])[beyond] for name in CONFIGS]
    return float(np.sqrt((np.concatenate(errors) ** 2).mean()))


def smoothed(values: np.ndarray, width: int = 7) -> np.ndarray:
    """Moving means, shorter at the ends."""
    weights = np.ones(width)
    return np.convolve(values, weights, "same") / np.convolve(np.ones(len(values)), weights, "same")


if __name__ == "__main__":
    run(main, parser())
