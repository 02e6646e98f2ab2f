"""Wrong weights and wrong formulas turn the verdict of the claim that is about them."""

import dataclasses

import numpy as np
import pytest

from mesa import constructed_llama
from theory import attention, chunked, rotary, rotary_model
from theory.claims import CLAIMS, Settings, rotary_mesa, rotary_reach
from theory.claims import rotary as rotary_claims
from theory.parts import CONST, POSITION
from theory.rotary import Rotary
from theory.rotary_model import COS, SIN

QUICK = Settings(quick=True)
HEAD, READING, STEPS = rotary_model.turning_head, rotary_model.reading_head, rotary_model.turning_steps
EARLIER, CHUNKED = chunked.chunks_fail_from, rotary_mesa.method_of


def changed_head(change):
    """Patches layer 2's head."""

    def made(*args):
        head = HEAD(*args)
        change(head)
        return head

    return lambda patch: patch.setattr(rotary_model, "turning_head", made)


def changed_steps(change):
    """Patches the MLP."""

    def made(*args):
        W_1, W_2 = STEPS(*args)
        change(W_1, W_2)
        return W_1, W_2

    def patch(patched):
        patched.setattr(rotary_model, "turning_steps", made)
        patched.setattr(rotary_model, "written_error", lambda *_: 0.0)  # or such a model is not built at all

    return patch


def changed_reading(change):
    """Patches layer 1's head."""

    def made(*args):
        head = READING(*args)
        change(head)
        return head

    return lambda patch: patch.setattr(rotary_model, "reading_head", made)


def flipped_key(head):
    head.W_K[:, SIN] *= -1


def weak_query(head):
    head.W_Q[:] *= 0.9


def swapped_query(head):
    head.W_Q[:, [COS, SIN]] = head.W_Q[:, [SIN, COS]]


def larger_signal(head):
    head.W_V[0, 1] += 1


def unwritten(head):
    head.W_O[POSITION, 1] = 0


def backwards(head):
    head.W_Q[:] *= -1


def missing_step(W_1, W_2):
    W_2[:, 3] = 0


def late_step(W_1, W_2):
    W_1[CONST, 3] -= 3


def kept_x(W_1, W_2):
    W_2[POSITION, -1] = 0


def shifted_sine(W_1, W_2):
    W_2[SIN, 0] += 0.1


def other_base(patch):
    right = constructed_llama.ConstructedRotaryEmbedding.compute_default_rope_parameters

    def made(config, **options):
        angles, scale = right(config, **options)
        return angles * 1.01, scale

    patch.setattr(constructed_llama.ConstructedRotaryEmbedding, "compute_default_rope_parameters", staticmethod(made))


def unturned(patch):
    right = attention.turned_scores
    patch.setattr(attention, "turned_scores", lambda q, k, distance, angles: right(q, k, distance * 0, angles))


def keys_that_turn(patch):
    patch.setattr(rotary_model, "replace", lambda head, W_K: dataclasses.replace(head, W_K=W_K + 0.1))


def formula(module, name, made):
    """Patches a closed form where a claims file has it."""
    return lambda patch: patch.setattr(module, name, made)


def without_chords(patch):
    right = Rotary.written

    def made(self, log_a):
        p = np.rint(right(self, log_a)[0])
        return p, np.exp(1j * self.theta * p)

    patch.setattr(Rotary, "written", made)


def other_angle(patch):
    right = Rotary.theta.fget
    patch.setattr(Rotary, "theta", property(lambda self: 1.01 * right(self)))


MUTATIONS = {
    "sign of SIN in layer 2's W_K": (changed_head(flipped_key), "rotary"),
    "COS and SIN swapped in W_Q": (changed_head(swapped_query), "rotary"),
    "a in layer 2": (changed_head(weak_query), "rotary"),
    "M + 1 in W_V": (changed_head(larger_signal), "rotary"),
    "1 - H not taken away": (changed_head(unwritten), "rotary"),
    "layer 1 backwards": (changed_reading(backwards), "rotary"),
    "layer 1 backwards, position": (changed_reading(backwards), "rotary-position"),
    "layer 1 backwards, far": (changed_reading(backwards), "rotary-squeezed"),
    "a step missing": (changed_steps(missing_step), "rotary"),
    "a step missing, exact": (changed_steps(missing_step), "rotary-exact"),
    "a step missing, failures": (changed_steps(missing_step), "rotary-failures"),
    "a step late": (changed_steps(late_step), "rotary-4096"),
    "x left in the stream": (changed_steps(kept_x), "rotary-4096"),
    "sine off": (changed_steps(shifted_sine), "rotary-exact"),
    "sine off, limit": (changed_steps(shifted_sine), "rotary-limit"),
    "angles off by 1%": (other_base, "rotary-oracle"),
    "angles off by 1%, weave": (other_base, "rotary-weave"),
    "oracle does not turn": (unturned, "rotary-oracle"),
    "keys that turn": (keys_that_turn, "rotary-nope"),
    "amplitude, stair": (changed_head(weak_query), "rotary-stair"),
    "amplitude, yarn": (changed_head(weak_query), "rotary-yarn"),
    "amplitude, again": (changed_head(weak_query), "rotary-again"),
    "amplitude, bound": (changed_head(weak_query), "rotary-bound"),
    "theta in the closed form": (other_angle, "rotary"),
    "chords taken for arcs": (without_chords, "rotary-weave"),
    "T* at N + 1": (formula(rotary_reach, "woven_reach", lambda s, N: rotary.woven_reach(s, N + 1)), "rotary-weave"),
    "T* a token late": (
        formula(rotary_reach, "woven_reach", lambda s, N: rotary.woven_reach(s, N) + 1),
        "rotary-weave",
    ),
    "growth not to the c": (
        formula(rotary_reach, "ntk_factor", lambda z, s, n: 1 / (s * n / z.M - s + 1)),
        "rotary-ntk",
    ),
    "growth without s - 1": (formula(rotary_reach, "ntk_factor", lambda z, s, n: z.M / (s * n)), "rotary-ntk"),
    "YaRN's factor once": (formula(rotary_reach, "yarn_scale", lambda s: 0.1 * np.log(s) + 1), "rotary-yarn"),
    "YaRN's factor once, oracle": (formula(rotary_claims, "yarn_scale", lambda s: 1.0), "rotary-oracle"),
    "span without W(M - 2)": (
        formula(rotary_reach, "fails_from", lambda z, d: int(np.flatnonzero(d >= z.recovers - 1)[0]) + 1),
        "rotary-span",
    ),
    "amplitude, chunks": (changed_head(weak_query), "rotary-mesa"),
    "chunks that go on counting": (
        formula(rotary_mesa, "chunk_position", lambda z, method, T: z.position(T)),
        "rotary-mesa",
    ),
    "amplitude, reach of chunks": (changed_head(weak_query), "rotary-mesa-reach"),
    "chunks fail four tokens earlier": (
        formula(rotary_mesa, "chunks_fail_from", lambda z, method, T: (EARLIER(z, method, T)[0] - 4, T)),
        "rotary-mesa-reach",
    ),
    "amplitude, woven chunks": (changed_head(weak_query), "rotary-mesa-woven"),
    "local chunks for woven": (
        formula(rotary_mesa, "method_of", lambda case, middle: CHUNKED(case, "local")),
        "rotary-mesa-woven",
    ),
    "bound e^a": (formula(rotary_reach, "most", lambda z: z.M * np.exp(z.amplitude)), "rotary-bound"),
}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if "weave" in name else pytest.mark.slow) for name in MUTATIONS]
)
def test_mutation_is_noticed(name, monkeypatch):
    patch, claim = MUTATIONS[name]
    patch(monkeypatch)
    rotary.steps.cache_clear()
    rotary_mesa.certain.cache_clear()
    try:
        found = CLAIMS[claim](QUICK)
    finally:
        monkeypatch.undo()
        rotary.steps.cache_clear()
        rotary_mesa.certain.cache_clear()
    assert not found.ok, found.line()


def test_every_claim_has_a_mutation():
    assert {claim for _, claim in MUTATIONS.values()} == {name for name in CLAIMS if name.startswith("rotary")}


def test_turning_all_positions_alike_changes_nothing(monkeypatch):
    """An equivalent: scores are of w_i conj(w_t), so writing e^(i theta (t - 1)) does the same."""

    def earlier(*args):
        W_1, W_2 = STEPS(*args)
        theta = args[1].theta
        W_2[[COS, SIN]] = [
            np.cos(theta) * W_2[COS] + np.sin(theta) * W_2[SIN],
            np.cos(theta) * W_2[SIN] - np.sin(theta) * W_2[COS],
        ]
        return W_1, W_2

    monkeypatch.setattr(rotary_model, "turning_steps", earlier)
    assert CLAIMS["rotary"](QUICK).ok
