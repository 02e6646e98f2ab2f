"""The claims: all come out as they must, and mistakes do not."""

import json
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest

from theory.bounds import extended_length, first_failure, stair_is_recovered, step_failure
from theory.claim import IDENTITY, OURS, PAPER, THEOREMS, Measurement, crossing, deviation, summary
from theory.claims import CLAIMS, Claim, ClaimVerdict, VerifyOptions
from theory.claims.settings import read_by
from theory.claims.theorem3 import woven_head_output


def claim_of(reading):
    return Claim({}, "d", reading, name="a", statement="b", citation="c", expected=ClaimVerdict.HOLDS)


class Watched(VerifyOptions):
    """Settings that tell which of them were read."""

    def __getattribute__(self, name):
        if name in NAMES:
            READ.add(name)
        return super().__getattribute__(name)

    def __hash__(self):
        return id(self)


NAMES, READ = {field.name for field in fields(VerifyOptions)}, set()
QUICK = Watched(quick=True)


@pytest.mark.parametrize("name", list(CLAIMS))
def test_claim_comes_out_as_it_must(name):
    READ.clear()
    claim = CLAIMS[name](QUICK)
    assert {*READ} <= read_by(CLAIMS[name].measure)  # what is told beforehand; a branch may be left out
    assert claim.name == name
    assert claim.ok, claim.line()
    assert json.loads(json.dumps(claim.as_dict()))["verdict"] == claim.expected


@pytest.mark.parametrize("name", ["3.1", "recovery", "3.2", "3.2-printed", "3.3", "3.3-recovery", "corollary"])
def test_claims_hold_in_float32(name):
    claim = CLAIMS[name](VerifyOptions(dtype="float32", quick=True, H=2.0, seed=7))
    assert claim.ok, claim.line()


def test_users_parameters_take_the_place_of_the_grid():
    assert VerifyOptions(M=708).most_positions == 708
    claim = CLAIMS["3.3"](VerifyOptions(M=12, N=2, E=50, H=-0.5, seed=3, quick=True))
    assert claim.ok
    assert claim.parameters["(M, N)"] == (12, 2)
    assert CLAIMS["corollary"](VerifyOptions(M=12, N=2, quick=True)).parameters["(M, N, E)"] == (12, 2, 2)


@pytest.mark.parametrize("shift", [-1, 1])
def test_a_crossing_off_by_one_has_no_margin(shift):
    t = np.arange(1, 40)
    assert crossing(16 / t - 0.5, 16, 0.5) > 0.05
    assert crossing((16 + 1.5 * shift) / t - 0.5, 16, 0.5) < 0
    assert np.isnan(crossing(np.where(t == 16 + 2 * shift, np.nan, 16 / t - 0.5), 16, 0.5))


def test_a_margin_must_be_far_above_the_error():
    assert claim_of(Measurement(1.0, 0.01)).ok
    for margin, error in ((1.0, 0.2), (-1.0, 0.0), (0.0, 0.0), (float("nan"), 0.0), (1.0, float("inf"))):
        claim = claim_of(Measurement(margin, error))
        assert claim.verdict is ClaimVerdict.BROKEN
        assert json.loads(json.dumps(claim.as_dict(), allow_nan=False))["ok"] is False
    assert Measurement(1, 0.2) & Measurement(0.5, 0.1) == Measurement(0.5, 0.2)
    nan = Measurement(float("nan"), float("nan"))
    assert not any((one & other).holds for one, other in ((IDENTITY, nan), (nan, IDENTITY)))


@pytest.mark.parametrize(("dtype", "most", "N"), [("float64", 708, 354), ("float32", 86, 43)])
def test_a_window_completed_is_one_that_the_mlp_recovers(dtype, most, N):
    assert VerifyOptions(N=N - 1, dtype=dtype).pairs() == [(2 * N, N - 1)]
    assert VerifyOptions(N=N, dtype=dtype).pairs() == [(most, N)]
    assert VerifyOptions(N=most - 2, dtype=dtype).triples() == [(most, most - 2, 2)]


def test_the_widest_window_is_recovered():
    claim = CLAIMS["3.3-recovery"](VerifyOptions(N=706, quick=True))
    assert claim.ok, claim.line()


def test_an_h_of_the_limit_that_is_named_is_taken():
    with pytest.raises(ValueError, match=r"H=1000 .* take \|H\| <= 9e\+02"):
        VerifyOptions(M=86, H=1000, dtype="float32")
    VerifyOptions(M=86, H=9e2, dtype="float32")


def test_the_stairs_that_are_recovered_are_those_that_the_condition_says(monkeypatch):
    monkeypatch.setattr("theory.claims.corollary.stair_is_recovered", lambda N, E: stair_is_recovered(N, E - 1))
    assert not CLAIMS["corollary-recovery"](QUICK).ok


def test_growth_that_is_not_like_e_to_the_n_breaks_the_claim(monkeypatch):
    monkeypatch.setattr("theory.claims.theorem3.extended_length", lambda M, N: 2.0**N * extended_length(M, 1))
    monkeypatch.setattr(VerifyOptions, "longest_run", 100)
    assert not CLAIMS["3.3-window"](QUICK).ok


def test_an_mlp_of_no_positions_is_not_one_of_all():
    assert step_failure(8, 2, 0) == step_failure(8, 2, 1) < step_failure(8, 2)


@pytest.mark.parametrize(("N", "M", "first"), [(2, 4, 33), (2, 8, 544), (3, 5, 193)])
def test_first_failures_of_the_step_mlp(N, M, first):
    assert step_failure(M, N) == step_failure(M, N, max(M, 64)) == first
    o = woven_head_output(M, N, first + 20, VerifyOptions())
    assert np.flatnonzero(o[M:] <= 0.5)[0] + M + 1 == first > first_failure(M, N)


@pytest.mark.parametrize(
    ("sizes", "text"), [((16, 1, 50), "(16, 1, 50): none to 174"), ((64, 60, 5), "(64, 60, 5): none to 1600")]
)
def test_the_corollary_names_no_first_failure_that_the_closed_form_does_not_tell(sizes, text):
    claim = CLAIMS["corollary"](VerifyOptions(*sizes, quick=True))
    assert claim.ok
    assert claim.counterexample.endswith(f"): {text}")


@pytest.mark.parametrize(
    ("error", "text"), [(0, "0"), (2.78e-17, "below 1e-16"), (6e-13, "below 1e-12"), (0.02, "0.02")]
)
def test_what_rounding_leaves_is_given_by_its_power_of_ten(error, text):
    claim = claim_of(Measurement(1.0, error))
    assert claim.error_text == claim.as_dict()["error_text"] == text
    assert claim.line().endswith(f"error {text}")


def test_what_is_no_number_is_infinitely_wrong():
    """NaN compares with nothing, so it would be lost among other errors."""
    assert deviation(np.array([1.0, np.nan]), np.ones(2)) == deviation(np.array([1.0, np.inf]), np.ones(2)) == np.inf


def test_the_summary_speaks_of_the_papers_theorems_first_and_of_ours_apart():
    kept = "holds with the stated correction"
    table = [("own", "holds", OURS), ("3.1", "holds", PAPER), ("3.3", "holds up to a length", PAPER)]
    table += [("a", kept, PAPER), ("b", kept, PAPER), ("c", "misprint: one entry", PAPER), ("d", "BROKEN", PAPER)]
    assert summary(table) == (
        "The paper's theorems: 3.1 holds; 3.3 holds up to a length that grows like e^(.6 M), not for every T > M as "
        "printed. "
        "3 other statements of the paper's: 2 hold with the stated correction, 1 misprint: one entry. "
        "1 of our own about them: 1 holds. BROKEN: d."
    )
    assert summary([("3.1", "BROKEN", PAPER)]) == "BROKEN: 3.1."
    assert set(THEOREMS) < set(CLAIMS)
    with pytest.raises(ValueError, match="proven"):
        summary([("a", "proven", OURS)])


def test_the_docs_say_what_is_expected():
    whose = {name: OURS if check.citation.startswith(OURS) else PAPER for name, check in CLAIMS.items()}
    sentence = summary((name, check.expected, whose[name]) for name, check in CLAIMS.items())
    root = Path(__file__).parents[2]
    assert sentence in " ".join((root / "research" / "theorems" / "results.md").read_text().split())
