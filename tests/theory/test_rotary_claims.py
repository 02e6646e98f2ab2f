"""Wrong weights and wrong formulas turn the verdict of the claim that is about them."""

import dataclasses

import numpy as np
import pytest

import theory.model
from mesa.constructed import ConstructedRotaryEmbedding
from theory import rotary, rotary_model
from theory.claims import CLAIMS, Settings, rotary_mesa, rotary_reach
from theory.parts import BOS, CONST, POSITION
from theory.rotary import Rotary
from theory.rotary_model import SIN

QUICK = Settings(quick=True)
ALL = np.s_[:]
WEIGHTS = [  # the part of the model, its matrix, what of it is scaled, by which factor, and the claims that notice
    ("turning_head", "W_K", np.s_[:, SIN], -1.0, "rotary"),
    ("turning_head", "W_V", np.s_[0, BOS], 1.1, "rotary"),
    ("turning_head", "W_O", np.s_[POSITION, 1], 0.0, "rotary"),
    ("turning_head", "W_Q", ALL, 0.9, "rotary-stair rotary-yarn rotary-again rotary-bound rotary-weave"),
    ("turning_head", "W_Q", ALL, 0.9, "rotary-mesa rotary-mesa-reach rotary-mesa-woven rotary-limit"),
    ("reading_head", "W_Q", ALL, -1.0, "rotary-position rotary-squeezed"),
    ("turning_steps", "W_2", np.s_[:, 3], 0.0, "rotary rotary-failures"),
    ("turning_steps", "W_1", np.s_[CONST, 3], 0.8, "rotary-4096"),
    ("turning_steps", "W_2", np.s_[POSITION, -1], 0.0, "rotary-4096"),
    ("turning_steps", "W_2", np.s_[SIN, 0], 1.5, "rotary-exact"),
]
ANGLES, EARLIER, CHUNKED = ConstructedRotaryEmbedding, rotary_mesa.chunks_fail_from, rotary_mesa.method_of
DEFAULT, TURNED, THETA, WRITTEN = (
    ANGLES.compute_default_rope_parameters, theory.model.turned_scores, Rotary.theta.fget, Rotary.written
)  # fmt: skip


def scaled_angles(config, **options):
    angles, scale = DEFAULT(config, **options)
    return angles * 1.01, scale


def without_chords(self, log_a):
    p = np.rint(WRITTEN(self, log_a)[0])
    return p, np.exp(1j * self.theta * p)


FORMULAS = {  # what is patched, by what, and the claim that notices
    "angles off by 1%": (ANGLES, "compute_default_rope_parameters", staticmethod(scaled_angles), "rotary-oracle"),
    "no turns": (theory.model, "turned_scores", lambda q, k, d, angles: TURNED(q, k, 0 * d, angles), "rotary-oracle"),
    "keys": (rotary_model, "replace", lambda head, W_K: dataclasses.replace(head, W_K=W_K + 0.1), "rotary-nope"),
    "theta": (Rotary, "theta", property(lambda self: 1.01 * THETA(self)), "rotary"),
    "chords taken for arcs": (Rotary, "written", without_chords, "rotary-weave"),
    "T* at N + 1": (rotary_reach, "woven_reach", lambda z, N: rotary.woven_reach(z, N + 1), "rotary-weave"),
    "T* a token late": (rotary_reach, "woven_reach", lambda z, N: rotary.woven_reach(z, N) + 1, "rotary-weave"),
    "no exponent": (rotary_reach, "ntk_factor", lambda z, s, n: 1 / (s * n / z.M - s + 1), "rotary-ntk"),
    "growth without s - 1": (rotary_reach, "ntk_factor", lambda z, s, n: z.M / (s * n), "rotary-ntk"),
    "YaRN's factor once": (rotary_reach, "yarn_scale", lambda s: 0.1 * np.log(s) + 1, "rotary-yarn"),
    "span": (rotary_reach, "fails_from", lambda z, d: int(np.flatnonzero(d >= z.recovers - 1)[0]) + 1, "rotary-span"),
    "bound e^a": (rotary_reach, "most", lambda z: z.M * np.exp(z.amplitude), "rotary-bound"),
    "chunks count on": (rotary_mesa, "chunk_position", lambda z, method, T: z.position(T), "rotary-mesa"),
    "early": (rotary_mesa, "chunks_fail_from", lambda z, m, T: (EARLIER(z, m, T)[0] - 4, T), "rotary-mesa-reach"),
    "local": (rotary_mesa, "method_of", lambda case, middle: CHUNKED(case, "local"), "rotary-mesa-woven"),
}


@pytest.fixture(autouse=True)
def _without_caches():
    caches = rotary.steps, rotary_mesa.certain
    for cache in caches:
        cache.cache_clear()
    yield
    for cache in caches:
        cache.cache_clear()


def marked(case, claim):
    return pytest.param(*case, claim, id=claim, marks=[] if claim == "rotary-weave" else pytest.mark.slow)


@pytest.mark.parametrize(
    ("part", "matrix", "index", "factor", "claim"),
    [marked(case, claim) for *case, claims in WEIGHTS for claim in claims.split()],
)
def test_wrong_weights_turn_the_verdict(part, matrix, index, factor, claim, monkeypatch):
    build = getattr(rotary_model, part)

    def scaled(*args):
        built = build(*args)
        weights = built[("W_1", "W_2").index(matrix)] if isinstance(built, tuple) else getattr(built, matrix)
        weights[index] *= factor
        return built

    monkeypatch.setattr(rotary_model, part, scaled)
    monkeypatch.setattr(rotary_model, "written_error", lambda *_: 0.0)  # or such a model is not built at all
    assert not CLAIMS[claim](QUICK).ok


@pytest.mark.parametrize(
    ("owner", "name", "wrong", "claim"), [marked(case, claim) for *case, claim in FORMULAS.values()]
)
def test_wrong_formulas_turn_the_verdict(owner, name, wrong, claim, monkeypatch):
    monkeypatch.setattr(owner, name, wrong)
    assert not CLAIMS[claim](QUICK).ok


def test_every_claim_has_a_mutation():
    noticed = {claim for *_, claims in WEIGHTS for claim in claims.split()} | {claim for *_, claim in FORMULAS.values()}
    assert noticed == {name for name in CLAIMS if name.startswith("rotary")}
