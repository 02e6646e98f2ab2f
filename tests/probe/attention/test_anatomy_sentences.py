"""Sentences of anatomy say what the tables say, no more; also over random tables with missing parts."""

import re

import anatomized
import numpy as np
import pytest

from probe.attention.results import intervals, retrieval_heads
from probe.attention.sentences import RETRIEVES, anatomy_findings, head_table
from probe.store.results import having


def retrieval(**changes):
    return anatomy_findings(anatomized.summary() | changes)[0]


def rows(**labels):
    return having(anatomized.summary()["retrieval"], **labels)


def test_retrieval_heads_are_counted_with_their_offset():
    counted = "1 of 32 heads score 0.3 or more inside M under origin (4 prompts), 1 of them on the token after the one"
    assert counted in retrieval()
    lost = "lost 1: 2.3 (0.75 to 0.10). Of the lost heads, restored: 1 of 1 by rerope; 0 of 1 by mesa (cannot tell: 1)."
    assert lost in retrieval()


def test_what_was_not_run_is_not_called_absent():
    beyond = retrieval(retrieval=rows(length=1024), retrieval_heads=[])
    assert beyond == "Retrieval: cannot tell which heads are lost; no length up to M was measured."
    weak = [row | {"best": [0.2, 0.1, 0.3]} for row in rows()]
    assert retrieval(retrieval=weak, retrieval_heads=[]) == (
        "Retrieval: 0 of 32 heads score 0.3 or more inside M under origin (4 prompts); highest: 0.0, 0.20 [0.10, 0.30]."
    )
    findings = anatomy_findings(anatomized.summary() | {"heads": [], "all_heads": []})
    assert findings[1:] == ["Not measured: heads (--parts)."]
    assert "token before" not in findings[0]


def test_one_prompt_cannot_tell_of_loss():
    one = {"inside": [0.75, None, None], "beyond": {"origin": [0.0, None, None]}, "lost": False, "restored": []}
    text = retrieval(retrieval_heads=[anatomized.summary()["retrieval_heads"][0] | one])
    assert "At 1024 tokens (4 prompts; layer.head, score inside to beyond): cannot tell 1: 2.3 (0.75 to 0.00)." in text
    assert "lost" not in text
    assert "kept" not in text


def test_the_table_holds_means_by_method_and_span():
    head, *rows = [line.split() for line in head_table(anatomized.summary()).splitlines()[1:]]
    assert head[:4] == ["length", "method", "queries", "prompts"]
    assert len([row for row in rows if row[:1] == ["1024"] and "beyond" in row]) == 3
    assert head_table(anatomized.summary() | {"all_heads": []}) == ""


def random_anatomy(seed):
    """Scores of one prompt or a few, and parts that were not measured."""
    rng = np.random.default_rng(seed)
    layers, heads, prompts = int(rng.integers(1, 4)), int(rng.integers(1, 5)), int(rng.integers(1, 5))
    summary = anatomized.summary(layers=layers, heads=heads, seed=seed) | {"retrieval": []}
    scale = rng.choice([0.2, 1.0])
    for row in summary["heads"]:
        row |= {"n": prompts, "previous": intervals(rng.uniform(0, scale, (prompts, 1)), 1.0)[0]}
    for method in anatomized.METHODS:
        for length in rng.permutation(anatomized.LENGTHS)[: 2 if rng.random() < 0.9 else 1].tolist():
            for place in [{"layer": layer, "head": head} for layer in range(layers) for head in range(heads)]:
                values = rng.choice([0.0, 0.25, 1.0], (prompts, 2)) * scale
                scores = dict(zip(("offset_0", "offset_1"), intervals(values, 1.0, counts=True), strict=True))
                best = int(scores["offset_1"][0] > scores["offset_0"][0])
                labels = {"method": method, "length": length, "n": prompts, **place, **scores}
                summary["retrieval"].append(labels | {"best_offset": best, "best": scores[f"offset_{best}"]})
    empty = rng.choice(["heads", "retrieval"], rng.integers(0, 2), replace=False)
    summary |= {name: [] for name in empty}
    return summary | {"retrieval_heads": retrieval_heads(summary)}


@pytest.mark.parametrize("seed", range(8))
def test_no_sentence_says_more_than_its_table(seed):
    summary = random_anatomy(seed)
    findings = anatomy_findings(summary)
    absent = " ".join(text for text in findings if text.startswith("Not measured"))
    assert set(re.findall("heads|retrieval", absent)) == {part for part in ("heads", "retrieval") if not summary[part]}
    previous = [text for text in findings if text.startswith("Previous-token")]
    inside = having(summary["heads"], method="origin", length=1024, span="inside M")
    assert len(previous) == bool(inside)
    for text in previous:
        assert f"{sum(row['previous'][0] >= 0.5 for row in inside)} of {len(inside)} head" in text
        assert f"{inside[0]['n']} prompt" in text
    _check_retrieval([text for text in findings if text.startswith("Retrieval")], summary)


def _check_retrieval(texts, summary):
    origin = having(summary["retrieval"], method="origin")
    inside, beyond = (having(origin, length=length) for length in (256, 1024))
    assert len(texts) == bool(beyond)
    if not (inside and beyond):
        assert all("cannot tell" in text for text in texts)
        return
    (text,) = texts
    good = [row for row in inside if row["best"][0] >= RETRIEVES]
    assert f"Retrieval: {len(good)} of {len(inside)} head" in text
    assert f"{inside[0]['n']} prompt" in text
    counts = {name: int(n) for name, n in re.findall(r"(lost|kept|cannot tell) (\d+): ", text)}
    assert sum(counts.values()) == len(good)
    after = {(row["layer"], row["head"]): row for row in beyond}
    scores = [(row["best"], after[row["layer"], row["head"]][f"offset_{row['best_offset']}"]) for row in good]
    lost = sum(one[1] is not None and one[1] > other[2] and other[0] < one[0] / 2 for one, other in scores)
    kept = sum(other[1] is not None and other[1] >= one[0] / 2 for one, other in scores)
    assert (counts.get("lost", 0), counts.get("kept", 0)) == (lost, kept)
    assert inside[0]["n"] > 1 or not lost + kept
    assert all(low is None or 0 <= low <= value <= high <= 1 for pair in scores for value, low, high in pair)
