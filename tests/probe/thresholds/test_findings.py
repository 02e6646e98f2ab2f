"""Drift and thresholds in words: what drift cannot judge and what intervals leave open is said."""

import numpy as np
import pytest

from probe.thresholds.findings import findings


def summary(seed):
    """Random calls: layers that are not judged, intervals without an end, predictions of few dims."""
    rng = np.random.default_rng(seed)
    untrusted = sorted(rng.choice(6, rng.integers(0, 4), replace=False).tolist())
    called = {layer: 300 for layer in range(6) if layer not in untrusted and rng.random() < 0.5}
    low, high = ((None, None), (290, None), (290, 310), (300, 300))[rng.integers(4)]
    length = 300 if called else None
    call = {"method": "origin", "length": length, "low": low, "high": high, "layer": min(called, default=None)}
    call |= {"layers": called, "before": None, "untrusted": untrusted, "reason": "", "captured": 512, "text": "300"}
    dims = [{"layer": layer, "dim": 1, "share": 0.1} for layer in called]
    predicted = {"judged": 2, "chosen": 7, "text": "cannot tell: 2 of 7 dims can be judged, 5 are needed"}
    prompts = {"repeated": {"methods": [call], "high_variance": [], "dims": dims}}
    return {
        "drift": {"prompts": prompts},
        "reference": "origin",
        "prompt": "repeated",
        "hook": "resid_post",
        "stated_window": None,
        "searched": 60,
        "qualified": {"repeated": 7},
        "best": [{"layer": int(rng.integers(6)), "dim": 3, "score": 12.0}],
        "methods": [{"method": "origin", "predicted_by_thresholds": predicted}],
        "control": "position 24 was not captured",
    }


@pytest.mark.parametrize("seed", range(20))
def test_no_sentence_says_more_than_its_table(seed):
    values = summary(seed)
    (call,) = values["drift"]["prompts"]["repeated"]["methods"]
    drift, thresholds, _ = (text for _, text in findings(values))
    assert ("inside the window and" in drift) == bool(call["untrusted"])
    assert ("in every layer" in drift) == (not call["untrusted"] and not call["layers"])
    if call["length"] is not None:
        assert ("most resamples call nothing" in drift) == (call["low"] is None)
        assert ("(95% interval 290 to none)" in drift) == (call["low"] == 290 and call["high"] is None)
        assert f"in {len(call['layers'])} layers" in drift
    best = values["best"][0]["layer"]
    assert (f"layer {best}, which drift cannot judge" in thresholds) == (best in call["untrusted"])
    assert "over the 2 judged of the best 7 dims: cannot tell: 2 of 7 dims can be judged" in thresholds
