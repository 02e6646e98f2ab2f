"""What `mesa-lens locate` writes, made up: one place that counts, one method that is not judged, missing numbers."""

import json

import numpy as np

METHODS = ("rerope", "mesa", "dynamic-ntk")
LENGTHS = (512, 1024)
TOP = {"rerope": 0.82, "mesa": 0.7, "dynamic-ntk": 0.3}  # restored by the second last headed layer alone


def summary(layers=4, heads=8, headed=None, seed=0, model="default", trained=256):
    """headed: layers whose heads were gone over (default: all). The third method is not judged at 512 tokens."""
    rng = np.random.default_rng(seed)
    headed = list(range(layers)) if headed is None else list(headed)
    gaps, effects, smallest, attribution, agreement = [], [], [], [], []
    for measure in ("nll", "passkey"):
        for length in LENGTHS:
            for method in METHODS:
                judged = not (method == "dynamic-ntk" and length == 512)
                labels = {"method": method, "length": length, "measure": measure}
                gap = [3.23, 2.03, 0.86, 1.56] if judged else [3.1, 3.06, -0.05, 0.13]
                names = ("broken", "mended", "low", "high")
                gaps.append(labels | dict(zip(names, gap, strict=True)) | {"judged": judged, "items": 12})
                if judged:
                    shares = _shares(rng, layers, heads, headed, TOP[method])
                    weaves = [labels | each for each in _weaves(rng, shares, headed)]
                    effects += weaves + [labels | each for each in _patches(rng, shares, headed, weaves)]
                    effects += [labels | each for each in _clamps(rng, layers)]
                    smallest.append(labels | _smallest(shares, headed, method))
                    given, agreed = _attribution(rng, weaves)
                    attribution += [labels | each for each in given]
                    agreement.append(labels | agreed)
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
        "gaps": gaps,
        "effects": effects,
        "smallest": smallest,
        "attribution": attribution,
        "agreement": agreement,
    }


def write(folder, **made):
    """The summary as the command leaves it; returns the folder."""
    (folder / "locate").mkdir(parents=True)
    (folder / "locate" / "summary.json").write_text(json.dumps(summary(**made)))
    return folder


def _shares(rng, layers, heads, headed, top):
    """Share restored by each layer and, below it, by each of its heads; one layer and two of its heads count."""
    best = headed[-2]
    by_layer = rng.normal(0.01, 0.02, layers)
    by_layer[best], by_layer[0] = top, 0.18
    by_head = {layer: rng.normal(0.005, 0.012, heads) for layer in headed}
    by_head[best][3], by_head[best][5] = top / 2, top / 4
    return by_layer, by_head


def _row(kind, way, layer, head, share, wide, **more):
    ends = {"low": share - wide, "high": share + wide}
    empty = {"hook": None, "span": None, "loss": 3.23 - 1.2 * share, "items": 12}
    return {"kind": kind, "way": way, "layer": layer, "head": head, "share": share, **ends, **empty, **more}


def _weaves(rng, shares, headed):
    by_layer, by_head = shares
    for way, scale in (("only", 1.0), ("without", 0.8)):
        for layer, share in enumerate(by_layer):
            yield _row("weave", way, layer, None, scale * share, 0.03 + 0.3 * abs(share))
        for layer in headed:
            for head, share in enumerate(by_head[layer]):
                row = _row("weave", way, layer, head, scale * share, 0.02 + 0.2 * abs(share))
                if way == "only" and layer == headed[0] and head < 2:  # the two ways of having no number
                    row |= (
                        {"low": None, "high": None} if head else dict.fromkeys(("share", "low", "high"), float("nan"))
                    )
                yield row


def _patches(rng, shares, headed, weaves):
    by_layer, _ = shares
    best = headed[-2]
    for way in ("mend", "break"):
        for span, part in (("all", 1.0), ("beyond", 0.9), ("inside", 0.1)):
            for layer, share in enumerate(by_layer):
                passed = 1 / (1 + np.exp(-2.0 * (layer - best)))
                parts = {
                    "resid_pre": passed - 0.4 * (layer == best),
                    "resid_post": passed,
                    "attn_out": share,
                    "mlp_out": 0.1 * share,
                }
                for hook, value in parts.items():
                    yield _row("patch", way, layer, None, part * float(value), 0.05, hook=hook, span=span)
    for row in weaves:
        if row["way"] == "only" and row["head"] is not None:
            share = (row["share"] or 0) * 0.9 + rng.normal(0, 0.01)
            yield _row("patch", "mend", row["layer"], row["head"], share, 0.03, hook="z", span="all")


def _clamps(rng, layers):
    for way in ("at-M", "range"):
        for rule in ("drift", "paper"):
            for which, level in (("observable", 0.03), ("random 0", 0.0), ("random 1", 0.0)):
                for layer in (*range(1, layers), None):
                    share = level + rng.normal(0, 0.01) - 0.02 * (layer is None)
                    yield _row("clamp", way, layer, None, share, 0.03, hook=None, rule=rule, which=which, span="beyond")


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


def _attribution(rng, weaves):
    exact = [row for row in weaves if row["way"] == "only" and row["head"] is not None]
    given = []
    for row in exact:
        value = float(0.6 * np.nan_to_num(row["share"]) + rng.normal(0, 0.01))
        place = {"hook": "z", "layer": row["layer"], "head": row["head"]}
        given.append(place | {"share": value, "low": value - 0.02, "high": value + 0.02, "items": 12})
    agreed = {
        "what": "attribution",
        "with": "patch",
        "hook": "z",
        "spearman": 0.61,
        "low": 0.35,
        "high": 0.78,
        "places": len(exact),
    }
    return given, agreed
