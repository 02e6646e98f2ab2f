"""Random results, few samples and missing parts among them: no sentence says more than the table it comes from."""

import re

import anatomized
import located
import numpy as np
import pytest

from probe.figures.mechanism import restoration_map
from probe.mechanism.anatomy.results import triples
from probe.mechanism.anatomy.verdicts import RETRIEVES, retrieving
from probe.mechanism.anatomy.words import anatomy_findings
from probe.mechanism.words import located_findings
from probe.store.results import having, percent

SEEDS = range(12)
SHARE = re.compile(r"-?\d+% (?:\[-?\d+, -?\d+\]|\(no interval\))")


def random_located(seed):
    """Shares of any size, some unknown, some without an interval, some of fewer items; kinds that were not run."""
    rng = np.random.default_rng(seed)
    summary = located.summary(layers=int(rng.integers(2, 5)), heads=int(rng.integers(4, 8)) + 2, seed=seed)
    kinds = rng.choice(["weave", "patch", "clamp"], rng.integers(0, 4), replace=False)
    effects = [row for row in summary["effects"] if row["kind"] in kinds and rng.random() < 0.8]
    for row in effects:
        row |= _share(rng) | {"items": int(rng.integers(1, 13))}
    for row in summary["smallest"]:
        shares = [_share(rng) for _ in row["heads"]]
        row |= {name: [each[name] for each in shares] for name in ("share", "low", "high")}
        known = shares[-1]["share"] is not None and shares[-1]["share"] >= 0.9
        row |= {"finished": bool(rng.random() < 0.8), "enough": len(shares) if known else None}
    for gap in summary["gaps"]:
        ends = sorted(rng.normal(0.5, 1, 2) - 9 * (not gap["judged"]))
        low, high = ends if rng.random() < 0.8 else (None, None)
        gap |= {"low": low, "high": high, "judged": low is not None and low > 0}
        gap |= {"broken": 2 + np.mean(ends), "mended": 2.0, "items": int(rng.integers(1, 13))}
    return summary | {"effects": effects}


def _share(rng):
    value, wide = rng.normal(0.3, 0.5), abs(rng.normal(0, 0.5))
    kind = rng.random()
    if kind < 0.1:
        return dict.fromkeys(("share", "low", "high"))
    if kind < 0.25:
        return {"share": value, "low": None, "high": None}
    return {"share": value, "low": value - wide, "high": value + wide}


@pytest.mark.parametrize("seed", SEEDS)
def test_what_is_located_is_in_the_tables(seed):
    summary = random_located(seed)
    for gap in summary["gaps"]:
        labels = {name: gap[name] for name in ("method", "length", "measure")}
        ((_, sentences),) = located_findings(summary, **labels)
        assert f"{gap['items']} item" in sentences[0]
        if not gap["judged"]:
            assert len(sentences) == 1
            assert ("worse" in sentences[0]) == (gap["high"] is not None and gap["high"] < 0)
            continue
        effects, (smallest,) = having(summary["effects"], **labels), having(summary["smallest"], **labels)
        known = {percent(row["share"], row["low"], row["high"]) for row in effects}
        known |= {percent(*each) for each in zip(*(smallest[name] for name in ("share", "low", "high")), strict=True)}
        names = ("random", "random_low", "random_high")
        known |= {percent(*each) for each in zip(*(smallest[name] for name in names), strict=True)}
        assert set(SHARE.findall(" ".join(sentences))) <= known
        _check_best(sentences, summary, labels)
        _check_layers(sentences, effects)
        _check_sets(sentences, smallest)


def _check_best(sentences, summary, labels):
    """The best head is the map's largest cell, of as many as the map has."""
    cells = restoration_map(summary, **labels)
    heads = [block.values for block in (cells.blocks if cells else ()) if block.title == "head"]
    told = [each for each in sentences if "single heads" in each]
    counted = int(np.isfinite(heads[0]).sum()) if heads else 0
    assert len(told) == bool(counted)
    for sentence in told:
        best = round(100 * np.nanmax(heads[0]))
        assert sentence.startswith(f"The best of {counted} single heads restores {best}% ")
        (block,) = (block for block in cells.blocks if block.title == "head")
        clear = (block.low > 0) & np.isfinite(block.values)
        largest_is_clear = clear.flat[np.nanargmax(block.values)]
        assert ("cannot be told from 0" in sentence) == (not largest_is_clear)
        assert ("nor can any other" in sentence) == (not clear.any())


def _check_layers(sentences, effects):
    for way, begin in (("only", "alone restores: "), ("without", "lost again: ")):
        rows = [row for row in having(effects, kind="weave", way=way, head=None) if row["share"] is not None]
        told = [each for each in sentences if begin in each]
        assert len(told) == bool(rows)
        unsure = [row for row in rows if row["low"] is None or row["low"] <= 0 <= row["high"]]
        for sentence in told:
            said = re.search(r"(\d+) of (\d+) layers cannot be told from 0", sentence)
            assert (tuple(map(int, said.groups())) if said else (0, len(rows))) == (len(unsure), len(rows))
            largest = max(rows, key=lambda row: row["share"])
            assert percent(largest["share"], largest["low"], largest["high"]) in sentence or largest["share"] < 0


def _check_sets(sentences, row):
    told = " ".join(sentences)
    shares = [each for each in row["share"] if each is not None]
    if row["finished"]:
        assert ("sets restores 90%" in told) == (not row["enough"] and max(shares, default=0) < 0.9)
        assert ("Smallest set found" in told) == bool(row["enough"])
    else:
        assert "not done" in told
        assert "Smallest set found" not in told


def random_anatomy(seed):
    """Scores of one prompt or a few, and parts that were not measured."""
    rng = np.random.default_rng(seed)
    layers, heads, prompts = int(rng.integers(1, 4)), int(rng.integers(1, 5)), int(rng.integers(1, 5))
    summary = anatomized.summary(layers=layers, heads=heads, seed=seed) | {"retrieval": []}
    scale = rng.choice([0.2, 1.0])
    for row in summary["heads"]:
        row |= {"n": prompts, "previous": triples(rng.uniform(0, scale, (prompts, 1)), 1.0)[0]}
    for method in anatomized.METHODS:
        for length in rng.permutation(anatomized.LENGTHS)[: 2 if rng.random() < 0.9 else 1].tolist():
            for place in [{"layer": layer, "head": head} for layer in range(layers) for head in range(heads)]:
                values = rng.choice([0.0, 0.25, 1.0], (prompts, 2)) * scale
                scores = dict(zip(("offset_0", "offset_1"), triples(values, 1.0, counts=True), strict=True))
                best = int(scores["offset_1"][0] > scores["offset_0"][0])
                here = {"method": method, "length": length, "n": prompts, **place, **scores}
                summary["retrieval"].append(here | {"best_offset": best, "best": scores[f"offset_{best}"]})
    empty = rng.choice(["heads", "retrieval", "lens", "vectors", "unmet"], rng.integers(0, 5), replace=False)
    summary |= {name: [] for name in empty} | ({"lens_differs": []} if "lens" in empty else {})
    return summary | {"retrieval_heads": retrieving(summary)}


@pytest.mark.parametrize("seed", SEEDS)
def test_what_is_said_of_heads_is_in_the_tables(seed):
    summary = random_anatomy(seed)
    told = anatomy_findings(summary)
    absent = [each for each in told if each.startswith("Not measured")]
    parts = {"heads": "heads", "frequencies": "unmet", "retrieval": "retrieval", "lens": "lens", "vectors": "vectors"}
    lacking = {part for part, table in parts.items() if not summary[table]}
    assert set(re.findall("|".join(parts), " ".join(absent))) == lacking
    previous = [each for each in told if each.startswith("Previous-token")]
    inside = [row for row in summary["heads"] if (row["method"], row["length"]) == ("origin", 1024)]
    inside = having(inside, span="inside M")
    assert len(previous) == bool(inside)
    for sentence in previous:
        count = sum(row["previous"][0] >= 0.5 for row in inside)
        assert f"{count} of {len(inside)} head" in sentence
        assert f"{inside[0]['n']} prompt" in sentence
    _check_retrieval([each for each in told if each.startswith("Retrieval")], summary)


def _check_retrieval(told, summary):
    rows = having(summary["retrieval"], method="origin")
    inside, beyond = (having(rows, length=length) for length in (256, 1024))
    assert len(told) == bool(beyond)
    if not (inside and beyond):
        assert all("cannot tell" in sentence for sentence in told)
        return
    (sentence,) = told
    good = [row for row in inside if row["best"][0] >= RETRIEVES]
    assert f"Retrieval: {len(good)} of {len(inside)} head" in sentence
    assert f"{inside[0]['n']} prompt" in sentence
    counts = {name: int(n) for name, n in re.findall(r"(lost|kept|cannot tell) (\d+): ", sentence)}
    assert sum(counts.values()) == len(good)
    after = {(row["layer"], row["head"]): row for row in beyond}
    scores = [(row["best"], after[row["layer"], row["head"]][f"offset_{row['best_offset']}"]) for row in good]
    lost = [one[1] is not None and one[1] > other[2] and other[0] < one[0] / 2 for one, other in scores]
    kept = [other[1] is not None and other[1] >= one[0] / 2 for one, other in scores]
    assert (counts.get("lost", 0), counts.get("kept", 0)) == (sum(lost), sum(kept))
    if inside[0]["n"] == 1:
        assert not sum(lost) + sum(kept)
    for value, low, high in (each for pair in scores for each in pair):
        assert low is None or 0 <= low <= value <= high <= 1
