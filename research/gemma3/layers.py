"""Which of Gemma 3 270M's three full layers breaks at 1.5 M, and do hidden states name it? README.md holds the rule.

    mesa-lens fetch gemma3-270m
    python research/gemma3/layers.py               # appends to results/layers.jsonl what it lacks: an hour or two
    python research/gemma3/layers.py --evaluate    # the stored numbers again

Each text is one Python file of the standard library or torch.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

import numpy as np
import torch
from torch.nn.functional import cross_entropy

import mesa
from mesa.decoder import layers_of, removed
from probe.thresholds.state_distance import StateReference

M, LONG = 32_768, 49_152
SCORED, KEPT, FITTED = 2048, 256, 1024
"""Last tokens whose loss is measured; last states compared; states within M that a reference is fitted to."""
MODULES = ["_pydecimal", "torch._refs", "torch._inductor.scheduler"]
FULL = [5, 11, 17]
CONFIGS = [("origin", M, None), ("origin", LONG, None), ("rerope", LONG, None), *(("rerope", LONG, [i]) for i in FULL)]
"""Method, tokens, and the layers it acts in (None: all three), in the order in which texts are run."""
RESULTS, STATES = Path(__file__).parent / "results", Path("runs/gemma3-layers")


@torch.no_grad()
def measure(
    loaded: Any, ids: torch.Tensor, name: str, length: int, layers: list[int] | None
) -> tuple[float, np.ndarray]:
    """Mean loss of the last SCORED tokens of a prompt that ends at token LONG; states (layer, token, dim).

    States are the last KEPT; under Origin at M, FITTED ones of the second half of the window come before them.
    """
    prompt = torch.cat([ids[:1], ids[1 + LONG - length : LONG]])
    rows = list(range(length - KEPT, length))
    if length == M:
        rows = [*np.linspace(M // 2, M - SCORED, FITTED).astype(int).tolist(), *rows]
    kept: list[np.ndarray] = []

    def keep(module: Any, args: Any, output: Any) -> None:
        kept.append((output[0] if isinstance(output, tuple) else output)[0, rows].float().numpy())

    method = mesa.make(name, trained_length=M, layers=layers)
    hooks = [layer.register_forward_hook(keep) for layer in layers_of(loaded.model)]
    with mesa.applied(loaded.model, method), removed(hooks):
        last = loaded.model.model(prompt[None], use_cache=False).last_hidden_state[0, -SCORED - 1 : -1]
    logits = loaded.model.lm_head(last).float()
    return float(cross_entropy(logits, prompt[-SCORED:])), np.stack(kept)


def path_of(module: str, label: str) -> Path:
    """Where the states of a pass are kept."""
    return STATES / f"{module}-{label}.npy"


def label_of(name: str, length: int, layers: list[int] | None) -> str:
    """A config in one word."""
    return f"{name}-{length}" + ("" if layers is None else f"-layer{layers[0]}")


def main() -> None:
    """Runs what the journal lacks, then evaluates."""
    journal = RESULTS / "layers.jsonl"
    rows = [json.loads(line) for line in journal.read_text().splitlines()] if journal.exists() else []
    done = {(row["text"], row["config"]) for row in rows}
    if "--evaluate" not in sys.argv:
        STATES.mkdir(parents=True, exist_ok=True)
        loaded = mesa.load("gemma3-270m")
        for configs in (CONFIGS[:3], CONFIGS[3:]):
            for module in MODULES:
                text = Path(find_spec(module).origin).read_text(encoding="utf-8")  # pyright: ignore
                ids = loaded.tokenizer(text, return_tensors="pt")["input_ids"][0]
                for config in configs:
                    label = label_of(*config)
                    if (module, label) in done:
                        continue
                    loss, states = measure(loaded, ids, *config)
                    np.save(path_of(module, label), states)
                    sha = hashlib.sha256(text.encode()).hexdigest()[:12]
                    row = {"text": module, "sha256": sha, "config": label, "loss": round(loss, 4)}
                    with journal.open("a", encoding="utf-8") as file:
                        file.write(json.dumps(row) + "\n")
                    print(row, flush=True)
        distances(MODULES)
    evaluate()


def distances(modules: Sequence[str]) -> None:
    """Writes collapse.json: by text, config and layer the mean squared distance to the other texts' states within M."""
    inside = label_of(*CONFIGS[0])
    table: dict[str, dict[str, list[float]]] = {module: {} for module in modules}
    for module in modules:
        others = np.concatenate(
            [np.load(path_of(other, inside))[:, :FITTED] for other in modules if other != module], 1
        )
        fits = [StateReference.fit(layer) for layer in others]
        for config in CONFIGS:
            states = np.load(path_of(module, label_of(*config)))[:, -KEPT:]
            by_layer = [fit.distances(layer).mean() for fit, layer in zip(fits, states, strict=True)]
            table[module][label_of(*config)] = [round(float(value), 4) for value in by_layer]
    (RESULTS / "collapse.json").write_text(json.dumps(table) + "\n")


def losses() -> dict[str, list[float]]:
    """By config the loss of each text, nats/token."""
    rows = [json.loads(line) for line in (RESULTS / "layers.jsonl").read_text().splitlines()]
    by = {(row["config"], row["text"]): row["loss"] for row in rows}
    return {label_of(*config): [by[label_of(*config), module] for module in MODULES] for config in CONFIGS}


def recovered() -> list[float]:
    """Of Origin's loss above ReRoPE's at LONG, what ReRoPE in one of FULL alone takes away, summed over texts."""
    _, origin, rerope, *alone = (np.sum(values) for values in losses().values())
    return [float((origin - loss) / (origin - rerope)) for loss in alone]


def ratios() -> dict[str, list[float]]:
    """By config at LONG and layer: the squared distance over that at M, geometric mean over texts."""
    inside, *others = (label_of(*config) for config in CONFIGS)
    by_text = json.loads((RESULTS / "collapse.json").read_text()).values()
    logs = {label: [np.log(np.divide(by[label], by[inside])) for by in by_text] for label in others}
    return {label: np.exp(np.mean(values, axis=0)).tolist() for label, values in logs.items()}


def evaluate() -> None:
    """Prints losses by config and text, recovered shares, and the ratios of distances by layer."""
    for label, values in losses().items():
        print(f"{label:22}", values)
    print("recovered by layer", dict(zip(FULL, np.round(recovered(), 2).tolist(), strict=True)))
    for label, values in ratios().items():
        print(f"{label:22} ratio by layer", np.round(values, 2).tolist())


if __name__ == "__main__":
    main()
