"""What `mesa-lens anatomy` writes, made up: one head that is lost and recovered, one method without intervals."""

from pathlib import Path

import numpy as np
from synthetic import of_run

from probe.commands.anatomy.page import write_anatomy
from probe.commands.anatomy.result import ANATOMY, TOKENS
from probe.files import write_result

METHODS = ("origin", "rerope", "mesa")
LENGTHS = (256, 1024)
LOST = (2, 3)  # layer, head


def summary(layers=4, heads=8, seed=0, model="default", trained=256):
    """mesa has one prompt, and so no intervals."""
    rng = np.random.default_rng(seed)
    tables = {name: [] for name in ("heads", "all_heads", "retrieval")}
    places = [{"layer": layer, "head": head} for layer in range(layers) for head in range(heads)]
    for method in METHODS:
        for length in (trained, 4 * trained):
            here = {"method": method, "length": length, "n": 1 if method == "mesa" else 4}
            tables["retrieval"] += [here | place | _score(here, place, trained) for place in places]
            for span in ("inside M", "beyond M")[: 1 + (length > trained)]:
                far = span == "beyond M" and method != "mesa"
                tables["all_heads"].append(here | {"span": span} | _attention(rng, here, far))
                tables["heads"] += [here | {"span": span} | place | _attention(rng, here, far) for place in places]
    layer, head = LOST
    scores = {"origin": [0.1, 0.0, 0.2], "rerope": [0.7, 0.6, 0.8], "mesa": [0.7, None, None]}
    place = {"length": 4 * trained, "layer": layer, "head": head, "offset": 1, "inside": [0.75, 0.65, 0.85]}
    return {
        "model": model,
        "trained_length": trained,
        "seed": seed,
        "executor": "fused",
        "versions": {"torch": "2.13.0"},
        "lengths": [trained, 4 * trained],
        "layers": list(range(layers)),
        "reference": "origin",
        "methods": {name: {"name": name} for name in METHODS},
        "tasks_left": 0,
        **tables,
        "retrieval_heads": [place | {"beyond": scores, "lost": True, "kept": False, "recovered_by": ["rerope"]}],
    }


def typed(content=None):
    """The summary as it is read from a file."""
    return ANATOMY.parse(content or summary(), Path("summary.json"))


def report(folder):
    """The report that the command writes of the summary there; returns its path."""
    return write_anatomy(folder, ANATOMY.read(folder))


def typed_tokens(*sizes):
    """The captured text as it is read from a file."""
    return TOKENS.parse(tokens(*sizes), Path("tokens.json"))


def write(folder, **options):
    """The summary as the command leaves it; returns the folder."""
    (folder / "anatomy").mkdir(parents=True)
    write_result(folder / "anatomy" / "summary.json", summary(**options) | of_run(folder))
    return folder


def tokens(length=20, trained=8, words="x"):
    """A captured text of one layer and head: under origin its last token loses 5 nats, under mesa all lose 1."""
    rows = {"nll": [1.0] * (length - 1), "weight": [[[[0.7, 0.3]]]], "key": [[[[0, 1]]]]}
    broken = rows | {"nll": [1.0] * (length - 2) + [5.0], "key": [[[[2, 1]]]]}
    names = {
        "model": "default",
        "trained_length": trained,
        "reference": "origin",
        "layers": [0],
        "queries": [length - 1],
    }
    return {**names, "tokens": [words] * length, "methods": {"origin": broken, "mesa": rows}}


def _triple(here, mean, wide):
    return [mean, None, None] if here["n"] == 1 else [mean, mean - wide, mean + wide]


def _score(here, place, trained):
    """Half of the passkey in one head, which loses it beyond M under the first method."""
    counts = (place["layer"], place["head"]) == LOST
    is_lost = here["method"] == "origin" and here["length"] > trained
    score = _triple(here, 0.0 if not counts else 0.1 if is_lost else 0.75, 0.1 * counts)
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
