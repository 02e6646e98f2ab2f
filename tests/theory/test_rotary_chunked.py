"""Closed forms of Mesa's chunks in the rotary constructions: against all pairs of its plans, and what must fail."""

import numpy as np
import pytest

from mesa.plan import distances
from mesa.weave import stair
from theory.chunked import chunk_denominator, chunk_phases, chunk_position, chunk_share, chunks_fail_from, mesa_method
from theory.rotary import READS, Rotary

CASES = {
    "16": ({"M": 16, "slope": 0.5}, (16, 4, 2, 2, 4, 1)),
    "24": ({"M": 24, "recovers": 30, "quarter": 40, "slope": 0.3}, (24, 6, 3, 9, 6, 2)),
}


def made(name, reads, middle="local"):
    sizes, method = CASES[name]
    return Rotary(reads=reads, **sizes), mesa_method(*method, middle)


def by_pairs(sizes, method, prompt):
    """Positions, and D at the end, from the plan's distances alone."""
    away = distances(method.plan(prompt))
    bias = np.where(away >= 0, -sizes.amplitude * np.sin(sizes.theta * away) if sizes.reads == "rotation" else 0, -99)
    p, w = sizes.written(np.log(np.exp(bias - bias[:, :1]).sum(1)))
    score = -sizes.amplitude * (w * w[-1].conj() * np.exp(1j * sizes.theta * away[-1])).imag
    return p, np.exp(score - score[0]).sum()


@pytest.mark.parametrize("middle", ["local", "woven"])
@pytest.mark.parametrize("reads", READS)
@pytest.mark.parametrize("name", list(CASES))
def test_closed_forms_are_what_all_pairs_of_the_plan_say(name, reads, middle):
    sizes, method = made(name, reads, middle)
    for prompt in (sizes.M + 1, 2 * sizes.M + 3, 4 * sizes.M):
        p, D = by_pairs(sizes, method, prompt)
        np.testing.assert_allclose(chunk_position(sizes, method, prompt), p, atol=1e-9)
        np.testing.assert_allclose(chunk_denominator(sizes, method, prompt), D, rtol=1e-10)


def test_positions_by_hand():
    """(M, N, E, F, L) = (16, 4, 2, 2, 4), 33 tokens: chunks end at 2, 15 and 28; the last one is beyond K = 16."""
    read, local = made("16", "rotation")
    assert local.chunks(33) == [0, 2, 15, 28, 33]
    chunk = list(range(3, 16))
    for reads in READS:
        assert chunk_position(made("16", reads)[0], local, 33) == pytest.approx([1, 2, *chunk, *chunk, *[16] * 5])
    woven = chunk_position(read, made("16", "rotation", "woven")[1], 33)
    assert woven[2:15] == pytest.approx(chunk)  # the first chunk's neighbour
    assert woven[15:18] == pytest.approx([8, 9.491, 11], abs=1e-3)
    assert (woven[15:28] >= chunk).all()


@pytest.mark.parametrize("name", list(CASES))
def test_no_distance_mends_what_a_chunk_counts(name):
    sizes, local = made(name, "count")
    woven = made(name, "count", "woven")[1]
    for prompt in range(sizes.M + 1, 4 * sizes.M):
        assert chunk_denominator(sizes, woven, prompt) == chunk_denominator(sizes, local, prompt)


@pytest.mark.parametrize(("name", "reads", "told"), [
    ("16", "rotation", (24, 45)), ("16", "count", (24, 59)), ("24", "rotation", None), ("24", "count", None),
])  # fmt: skip
def test_what_must_fail_fails(name, reads, told):
    sizes, method = made(name, reads)
    start, end = chunks_fail_from(sizes, method, 400)
    assert told in (None, (start, end))
    D = [chunk_denominator(sizes, method, T) for T in range(sizes.M + 1, end + 1)]
    phases = chunk_phases(sizes, method, end)
    share = [chunk_share(sizes, method, T, phases[T - 1]) for T in range(sizes.M + 1, end + 1)]
    assert min(D[start - sizes.M - 1 :]) >= sizes.M > min(D)
    assert all(part < whole for part, whole in zip(share, D, strict=True))
    assert share[start - sizes.M - 2] < sizes.M  # the last length that need not fail
    assert chunks_fail_from(sizes, method, start + 3) == (start, start + 3)


@pytest.mark.parametrize("reads", READS)
def test_first_token_of_the_last_middle_chunk(reads):
    """It alone adds e^(2a sin(theta x / 2) cos(theta (v + x / 2))), and x >= floor(b / E) - F."""
    sizes, method = made("24", reads)
    for T in range(60, 100):
        b, woven = method.chunks(T)[-3], stair(np.arange(T), 6, 3)
        v = sizes.position(T, lambda r: stair(r, 6, 3))[-1] - 1 - woven[-1]
        assert chunk_phases(sizes, method, 100)[T - 1] == v
        x = woven[-1] - 9 - woven[T - 1 - b]
        assert x >= b // 3 - 9
        alone = 2 * sizes.amplitude * np.sin(sizes.theta * x / 2) * np.cos(sizes.theta * (v + x / 2))
        assert np.exp(alone) < chunk_share(sizes, method, T, v) < np.exp(alone) * (method.chunks(T)[-2] - b)


def test_a_prompt_that_is_not_cut_is_refused():
    with pytest.raises(ValueError, match="prompt=16 is not cut into chunks; take more than M=16 tokens"):
        chunk_denominator(*made("16", "count"), 16)
