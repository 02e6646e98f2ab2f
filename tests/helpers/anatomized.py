"""What `mesa-lens anatomy` writes, made up: one head that dies and is revived, one method without intervals."""

import json

import numpy as np

METHODS = ("origin", "rerope", "mesa")
LENGTHS = (256, 1024)
TEXTS = {"origin": 256, "rerope": 64, "mesa": 64}
DIES = (2, 3)  # layer, head


def summary(layers=4, heads=8, seed=0, model="default", trained=256):
    """mesa has one prompt, and so no intervals."""
    rng = np.random.default_rng(seed)
    made = {name: [] for name in ("heads", "all_heads", "retrieval", "unmet", "frequencies", "lens")}
    for method in METHODS:
        for length in (trained, 4 * trained):
            here = {"method": method, "length": length, "n": 1 if method == "mesa" else 4}
            places = [{"layer": layer, "head": head} for layer in range(layers) for head in range(heads)]
            made["retrieval"] += [here | place | _score(here, place, trained) for place in places]
            for span in ("inside M", "beyond M")[: 1 + (length > trained)]:
                far = span == "beyond M" and method != "mesa"
                own = here | {"span": span}
                made["all_heads"].append(own | _attention(rng, here, far))
                made["heads"] += [own | place | _attention(rng, here, far) for place in places]
                unmet = 0.25 if far and method == "origin" else 0.0
                shares = {name: _triple(here, unmet, 0.05 * (unmet > 0)) for name in ("norms", "attention")}
                first = trained if method == "origin" and length > trained else None
                made["unmet"].append(own | {"first_unmet": first} | shares)
                made["frequencies"] += [own | place | shares for place in places]
            ends = [trained // 2, trained, 2 * trained, 4 * trained][: 2 if length == trained else 4]
            for layer in range(layers):
                for begin, end in zip([1, *ends[:-1]], ends, strict=True):
                    loss = 5.0 - 0.5 * layer + (1.0 if end > trained and method == "origin" else 0.0)
                    made["lens"].append(
                        here | {"layer": layer, "begin": begin, "end": end, "nll": _triple(here, loss, 0.3)}
                    )
    layer, head = DIES
    scores = {"origin": [0.1, 0.0, 0.2], "rerope": [0.7, 0.6, 0.8], "mesa": [0.7, None, None]}
    dead = {"length": 4 * trained, "layer": layer, "head": head, "offset": 1, "inside": [0.75, 0.65, 0.85]}
    apart = {"length": 4 * trained, "n": 4, "from_layer": 1, "half_from_layer": 2}
    by_layer = [[0.0, -0.1, 0.1], *([0.5 + 0.1 * n, 0.3 + 0.1 * n, 0.7 + 0.1 * n] for n in range(1, layers))]
    return {
        "model": model,
        "trained_length": trained,
        "seed": seed,
        "executor": "fused",
        "versions": {"torch": "2.13.0"},
        "parts": ["heads", "retrieval", "frequencies", "lens", "vectors"],
        "lengths": [trained, 4 * trained],
        "layers": list(range(layers)),
        "reference": "origin",
        "methods": {name: {"name": name} for name in METHODS},
        "tasks_left": 0,
        **made,
        "retrieval_heads": [dead | {"beyond": scores, "dies": True, "keeps": False, "revived": ["rerope"]}],
        "lens_differs": [{"method": "rerope", **apart, "by_layer": by_layer}],
        "vectors": _vectors(layers, trained),
        "texts_left": 0,
    }


def arrays(layers=4, seed=0, trained=256, **_):
    """What vectors.npz holds."""
    rng, length = np.random.default_rng(seed), 4 * trained
    shape = (len(METHODS), layers)
    noise = rng.normal(0, 0.1, (*shape, 3, length)).astype(np.float32)
    score = noise + np.array([2.0, 1.0, 0.5], np.float32)[:, None] * np.linspace(-1, 1, length, dtype=np.float32)
    score[..., 0] = -80  # the first token is unlike any other
    return {
        "method": np.array(METHODS),
        "layer": np.arange(layers),
        "component": np.arange(1, 4),
        "position": np.arange(length),
        "band": np.array(["inside", "beyond"]),
        "score": score,
        "cosine": rng.uniform(0.3, 0.9, (*shape, length)).astype(np.float32),
        "nearest": np.minimum(np.arange(length), trained - 1) * np.ones((*shape, 1), np.float32),
        "share": rng.uniform(0, 0.01, (*shape, 2)).astype(np.float32),
        "reliability": np.array([0.9, 0.5, 0.0], np.float32)[:, None, None] * np.ones((1, layers, 2), np.float32),
    }


def write(folder, **made):
    """Summary and arrays as the command leaves them; returns the folder."""
    (folder / "anatomy").mkdir(parents=True)
    (folder / "anatomy" / "summary.json").write_text(json.dumps(summary(**made)))
    np.savez(folder / "anatomy" / "vectors.npz", **arrays(**made))
    return folder


def _triple(here, mean, wide):
    return [mean, None, None] if here["n"] == 1 else [mean, mean - wide, mean + wide]


def _score(here, place, trained):
    """Half of the passkey in one head, which loses it beyond M under the first method."""
    counts = (place["layer"], place["head"]) == DIES
    broken = here["method"] == "origin" and here["length"] > trained
    score = _triple(here, 0.0 if not counts else 0.1 if broken else 0.75, 0.1 * counts)
    none = [0.0, 0.0, 0.0]
    return {"offset_0": none, "offset_1": score, "best_offset": 1, "best": score}


def _attention(rng, here, far):
    beyond = 0.4 if far else 0.0
    values = {
        "mass_first": 0.1,
        "mass_near": 0.6 - beyond,
        "mass_window": 0.3,
        "mass_beyond": beyond,
        "entropy": rng.uniform(1, 5),
        "mean_distance": rng.uniform(20, 60) + 200 * far,
        "sink": 0.05,
        "previous": 0.2,
    }
    return {name: _triple(here, value, 0.1 * value) for name, value in values.items()}


def _vectors(layers, trained):
    rows = []
    for method, reliability in zip(METHODS, (0.9, 0.5, None), strict=True):
        for layer in range(layers):
            both = {"inside": reliability, "beyond": reliability}
            slope = {"slope": 0.4, "slope_low": 0.3, "slope_high": 0.5, "slope_reason": None}
            if method != "origin":
                slope = dict.fromkeys(slope, None) | {
                    "slope_reason": "reliability 0.50 is below 0.8; read more --texts"
                }
            rows.append(
                {
                    "method": method,
                    "layer": layer,
                    "share": {"inside": 0.005, "beyond": 0.002},
                    "reliability": both,
                    "cosine": {"inside": 0.9, "beyond": 0.5, "last": 0.5},
                    "components": [0.61, 0.22, 0.1],
                    **slope,
                }
            )
    drift = [{"method": name, "by_chance": None, "said": "300" if name == "origin" else "none"} for name in METHODS]
    thresholds = {"searched": 64, "observable": 12, "by_chance": 1}
    texts = {"texts": TEXTS, "stride": trained // 8, "reliable": 0.8}
    return {"length": 4 * trained, **texts, "layers": rows, "drift": drift, "thresholds": thresholds}
