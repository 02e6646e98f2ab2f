"""A trained length that is stated wrongly is called so where the scores show it, and nowhere else."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import xarray as xr

from probe.store.result_file import as_json
from probe.thresholds.failure import measured_failure
from probe.thresholds.stated_window import (
    CANNOT_TELL,
    FITS,
    MAY_BE_TOO_LARGE,
    TOO_LARGE,
    TOO_SMALL,
    stated_window,
    times_of_m,
)

ROOT = Path(__file__).parents[3]
LENGTHS = (128, 256, 512, 768, 1024, 1536, 2048)
ORIGIN = (2.52, 2.42, 2.76, 3.75, 4.73, 6.01, 6.86)  # the shipped model, M = 256
REROPE = (2.52, 2.48, 2.51, 2.53, 2.56, 2.60, 2.66)
PASSKEYS = (20, 20, 20, 2, 0, 0, 0)


def scores(origin=ORIGIN, passkeys=PASSKEYS, windows=12, noise=0.2, lengths=LENGTHS, others=REROPE, **attrs):
    """Tail NLL of origin and rerope with noise that texts share and noise of each, and origin's passkeys of 20."""
    rng = np.random.default_rng(0)
    nll = np.array([origin, others])[..., None] + rng.normal(0, 0.5, windows)
    nll += rng.normal(0, noise, nll.shape)
    hits = np.ones((2, len(lengths), 20))
    for row, count in zip(hits[0], passkeys, strict=True):
        row[count:] = 0
    names = {"method": ["origin", "rerope"], "length": list(lengths)}
    values = {"tail_nll": ((*names, "window"), nll), "passkey": ((*names, "sample"), hits)}
    return xr.Dataset(values, names, {"vocabulary": 2048, **attrs})


def level(value=2.4):
    return (value,) * len(LENGTHS)


@pytest.mark.parametrize("stated", [768, 1024, 1536, 2048])
def test_a_window_stated_too_large_is_called_broken_and_nothing_is_evaluated_against_it(stated):
    measured = measured_failure(scores(), stated)
    assert measured.stated.outcome == TOO_LARGE
    assert (measured.stated.works, measured.stated.fails) == (512, 768)
    assert str(measured.stated).startswith(f"Check --trained-length {stated}: origin already fails inside it (")
    assert "As measured, origin works at 512 tokens and not at 768; `mesa-lens check" in str(measured.stated)
    assert (measured.evaluated_by, measured.chance) == ((), ())
    assert {str(one) for one in measured.failures} == {"not evaluated: M"}
    assert not any(one.holds for one in measured.failures)
    assert times_of_m(measured.stated, 1536, 2048) == ""
    assert as_json(measured.stated)["text"] == str(measured.stated)


def test_a_loss_that_is_slightly_and_certainly_above_that_of_a_shorter_text_makes_m_doubtful():
    measured = measured_failure(scores(), 512)
    assert measured.stated.outcome == MAY_BE_TOO_LARGE
    assert measured.evaluated_by
    assert str(measured.stated).startswith("Check --trained-length 512: it may be too large (tail NLL ")
    assert times_of_m(measured.stated, 1024, 1536) == ""


@pytest.mark.parametrize(
    ("texts", "reason"), [(1, "one text has no interval"), (3, "3 texts allow a loss at 256 tokens")]
)
def test_too_few_texts_do_not_tell_that_a_window_fits(texts, reason):
    nll = 2.4 + np.array([[[0.0, 0.4, -0.3][:texts], [0.3, -0.2, 0.1][:texts]]])
    few = xr.Dataset({"tail_nll": (("method", "length", "window"), nll)}, {"method": ["origin"], "length": [128, 256]})
    decision = stated_window(few, 256, "origin")
    assert (decision.outcome, decision.is_doubtful) == (CANNOT_TELL, False)
    assert reason in str(decision)


@pytest.mark.parametrize("seed", range(20))
def test_chance_among_many_shorter_lengths_makes_m_not_doubtful(seed):
    rng = np.random.default_rng(seed)
    lengths = range(64, 513, 32)
    nll = 2.4 + rng.normal(0, 0.15, (1, len(lengths), 12))
    flat = xr.Dataset({"tail_nll": (("method", "length", "window"), nll)}, {"method": ["origin"], "length": lengths})
    assert stated_window(flat, 512, "origin").outcome == FITS


@pytest.mark.parametrize("stated", [256])
def test_a_window_that_fits_is_left_alone(stated):
    measured = measured_failure(scores(), stated)
    assert (measured.stated.outcome, str(measured.stated)) == (FITS, "")
    assert measured.evaluated_by
    assert times_of_m(measured.stated, 2 * stated, 3 * stated) == "2 to 3x M"


@pytest.mark.parametrize(
    ("changes", "sign"),
    [
        ({"passkeys": (20,) * 7, "others": ORIGIN}, "tail NLL 4."),
        ({"origin": level(), "others": level()}, "passkeys 0 of 20 at 1024 tokens, 20 of 20 at 128"),
        ({"origin": level(3.2), "others": level(), "passkeys": (20,) * 7}, "there under rerope, +0."),
    ],
)
def test_one_sign_is_enough(changes, sign):
    decision = measured_failure(scores(**changes), 1024).stated
    assert decision.outcome == TOO_LARGE
    assert [sign in one.text for one in decision.signs] == [True]


def test_a_window_stated_too_small_is_doubted_only_where_positions_are_rotary():
    held = scores(origin=level(), passkeys=(20,) * 7)
    decision = stated_window(held, 128, "origin")
    assert (decision.outcome, decision.works) == (TOO_SMALL, 2048)
    assert str(decision).startswith(
        "Check --trained-length 128: it may be too small. As measured, origin works at 2048"
    )
    assert times_of_m(decision, 256, 512) == ""
    assert stated_window(scores(), 128, "origin").outcome == TOO_SMALL  # it works at 512 and not at 768
    assert stated_window(scores(), 256, "origin").outcome == FITS
    alibi = held.assign_attrs(rotary=False)
    assert stated_window(alibi, 256, "origin").outcome == FITS
    assert not stated_window(alibi, 128, "origin").is_doubtful


def test_a_tail_nll_that_falls_with_context_and_passkeys_that_were_never_retrieved_are_no_sign():
    falling = scores(origin=tuple(np.linspace(3.5, 2.5, 7)), passkeys=(3, 2, 2, 1, 0, 0, 0), others=level(2.5))
    assert stated_window(falling, 2048, "origin").outcome == FITS


@pytest.mark.parametrize(("windows", "noise"), [(1, 0.0), (2, 1.0), (4, 2.0)])
def test_few_or_noisy_prompts_cannot_tell(windows, noise):
    few = scores(windows=windows, noise=noise, passkeys=(20,) * 7, others=ORIGIN)
    few["tail_nll"][0, 4] += 0.6 + few["tail_nll"][0, :4].mean("window").min() - few["tail_nll"][0, 4].mean("window")
    decision = measured_failure(few, 1024).stated
    assert decision.outcome == CANNOT_TELL
    assert decision.is_doubtful
    assert str(decision).endswith("on too few prompts to be sure.")


def test_a_model_at_chance_and_a_window_alone_cannot_tell_and_are_not_doubted():
    random = scores(origin=level(7.62), others=level(7.62), passkeys=(0,) * 7, noise=0.001)
    random["tail_nll"] -= random["tail_nll"].mean("window") - 7.62
    measured = measured_failure(random, 256)
    assert (measured.stated.outcome, measured.stated.is_doubtful) == (CANNOT_TELL, False)
    assert "the model is at chance at every length up to 256" in str(measured.stated)
    assert measured.chance == ("tail NLL", "passkey")
    alone = stated_window(scores().sel(length=[256, 512]), 256, "origin")
    assert (alone.outcome, alone.is_doubtful) == (CANNOT_TELL, False)
    assert str(alone) == "Cannot tell whether M = 256 is right: no shorter length was measured."


def test_noise_inside_the_window_does_not_alarm():
    outcomes = []
    drawn = scores()
    for seed in range(30):
        rng = np.random.default_rng(seed)
        drawn["tail_nll"][:] = 2.4 + rng.normal(0, 0.5, drawn["tail_nll"].shape)
        drawn["passkey"][:] = rng.random(drawn["passkey"].shape) < rng.uniform(0.5, 1)
        outcomes.append(stated_window(drawn, 2048, "origin").outcome)
    assert outcomes.count(TOO_LARGE) <= 1  # 3%


@pytest.mark.parametrize("name", ["nll", "real"])
def test_committed_results_of_smollm2_are_not_doubted(name):
    rows = {}
    for path in (ROOT / "research/real_model/results" / name).glob("*.jsonl"):
        for cell in map(json.loads, path.read_text().splitlines()):
            if cell.get("cell", [""])[0] == "nll":
                rows[tuple(cell["cell"][1:])] = [one["value"] for one in cell["scores"]]
    methods, lengths = (sorted({key[at] for key in rows}) for at in (0, 1))
    missing = [math.nan] * len(rows["origin", 8192])
    nll = [[rows.get((method, length), missing) for length in lengths] for method in methods]
    labels = {"method": methods, "length": lengths}
    decision = stated_window(xr.Dataset({"tail_nll": ((*labels, "window"), nll)}, labels), 8192, "origin")
    assert (decision.outcome in (FITS, CANNOT_TELL), decision.is_doubtful) == (True, False)
