"""What `mesa-lens locate` writes, made up: one place that counts, one loss that is not significant, missing numbers."""

from pathlib import Path

import numpy as np
from synthetic import of_run

from probe.commands.locate.page import write_located
from probe.commands.locate.result import LOCATED
from probe.files import write_result

METHODS = ("rerope", "mesa", "dynamic-ntk")
LENGTHS = (512, 1024)
TOP = {"rerope": 0.82, "mesa": 0.7, "dynamic-ntk": 0.3}  # recovered by the second last headed layer alone


def summary(layers=4, heads=8, seed=0, model="default", trained=256):
    """The third method is not significant at 512 tokens."""
    rng = np.random.default_rng(seed)
    headed = list(range(layers))
    gaps, effects, smallest = [], [], []
    for measure in ("nll", "passkey"):
        for length in LENGTHS:
            for method in METHODS:
                significant = not (method == "dynamic-ntk" and length == 512)
                labels = {"method": method, "length": length, "measure": measure}
                gap = [3.23, 2.03, 0.86, 1.56] if significant else [3.1, 3.06, -0.05, 0.13]
                names = ("baseline", "patched", "low", "high")
                gaps.append(labels | dict(zip(names, gap, strict=True)) | {"significant": significant, "items": 12})
                if significant:
                    shares = _shares(rng, layers, heads, headed, TOP[method])
                    effects += [labels | row for row in (*_patches(rng, shares, headed), *_clamps(rng, layers))]
                    smallest.append(labels | _smallest(shares, headed, method))
    return {
        "model": model,
        "trained_length": trained,
        "seed": seed,
        "executor": "fused",
        "versions": {"torch": "2.13.0"},
        "tasks_left": 0,
        "layers": list(range(layers)),
        "heads": heads,
        "methods": {name: {"name": name} for name in ("origin", *METHODS)},
        "loss_gaps": gaps,
        "effects": effects,
        "smallest": smallest,
    }


def typed(content=None, **sizes):
    """The summary as it is read from a file."""
    return LOCATED.parse(content or summary(**sizes), Path("summary.json"))


def report(folder, result=None):
    """The report that the command writes of the summary there, or of this one; returns its path."""
    result = result or LOCATED.read(folder)
    return write_located(folder, result)


def matching(rows, **labels):
    """The rows, as dicts, with all these labels."""
    return [row for row in rows if all(row.get(name) == value for name, value in labels.items())]


def write(folder, **sizes):
    """The summary as the command leaves it; returns the folder."""
    (folder / "locate").mkdir(parents=True)
    write_result(folder / "locate" / "summary.json", summary(**sizes) | of_run(folder))
    return folder


def _shares(rng, layers, heads, headed, top):
    """Share recovered by each layer and, below it, by each of its heads; one layer and two of its heads count."""
    best = headed[-2]
    by_layer = rng.normal(0.01, 0.02, layers)
    by_layer[best], by_layer[0] = top, 0.18
    by_head = {layer: rng.normal(0.005, 0.012, heads) for layer in headed}
    by_head[best][3], by_head[best][5] = top / 2, top / 4
    return by_layer, by_head


def _row(kind, way, layer, head, share, wide, **more):
    ends = {"low": share - wide, "high": share + wide}
    place = {"kind": kind, "way": way, "layer": layer, "head": head}
    return {**place, "share": share, **ends, "loss": 3.23 - 1.2 * share, "items": 12, **more}


def _patches(rng, shares, headed):
    by_layer, by_head = shares
    for way, scale in (("only", 1.0), ("without", 0.8)):
        for layer, share in enumerate(by_layer):
            yield _row("patch", way, layer, None, scale * share, 0.03 + 0.3 * abs(share))
        for layer in headed:
            for head, share in enumerate(by_head[layer]):
                row = _row("patch", way, layer, head, scale * share, 0.02 + 0.2 * abs(share))
                if way == "only" and layer == headed[0] and head < 2:  # the two ways of having no number
                    row |= (
                        {"low": None, "high": None} if head else dict.fromkeys(("share", "low", "high"), float("nan"))
                    )
                yield row


def _clamps(rng, layers):
    for way in ("at-M", "range"):
        for rule in ("drift", "paper"):
            for which, level in (("threshold", 0.03), ("random 0", 0.0), ("random 1", 0.0)):
                for layer in (*range(1, layers), None):
                    share = level + rng.normal(0, 0.01) - 0.02 * (layer is None)
                    yield _row("clamp", way, layer, None, share, 0.03, rule=rule, which=which)


def _smallest(shares, headed, method):
    best = headed[-2]
    order = [[best, 3], [best, 5], [best, 0], [headed[0], 1], [headed[-1], 2], [best, 7], [headed[-1], 0]]
    share = np.minimum(1.02, TOP[method] * np.array([0.5, 0.8, 1.12, 1.17, 1.2, 1.22, 1.24]))
    random = 0.02 * np.arange(1, 8)
    enough = int(np.argmax(share >= 0.9)) + 1 if (share >= 0.9).any() else None
    low, high = [*(share - 0.12)[:-1].tolist(), None], [*(share + 0.1)[:-1].tolist(), None]
    lists = {"random_low": random - 0.04, "random": random, "random_high": random + 0.1}
    lists = {name: values.tolist() for name, values in lists.items()}
    return {"heads": order, "share": share.tolist(), "low": low, "high": high, **lists, "enough": enough}
