"""The rotary constructions as Llamas: theory's own attention is the oracle of executors and closed forms."""

from functools import partial

import constructed
import numpy as np
import pytest
import torch
from constructed import LENGTH, SHAPE, E, Family, M, N

from research.rotary_theory.llama import as_llama
from research.rotary_theory.rotary import READS, Rotary, yarn_scale
from research.rotary_theory.rotary_model import FREE, rotary_model, rotary_nope_model
from theory import weave

ROTARY = {
    "origin": {},
    "rerope": {"weave": partial(weave.rerope, window=N)},
    "stair": {"weave": partial(weave.stair, window=N, width=E)},
    "ntk": {"factors": tuple((4 * LENGTH / M - 3) ** np.array([0, -0.5, -1.0]))},
    "yarn": {"factors": (1.0, 0.25, 0.25), "grown": yarn_scale(4)},
}


@pytest.fixture(scope="module", params=READS)
def family(request):
    model = rotary_model(M, reads=request.param, shape=SHAPE, pair=1)
    return Family(as_llama(model, M), {name: model.under(**more) for name, more in ROTARY.items()}, FREE)


def test_executors_agree_with_theorys_own_attention(family):
    constructed.check_executors(family)


def test_without_a_method_and_decoded_it_is_the_plain_construction(family):
    constructed.check_decoded(family)


@pytest.mark.parametrize("reads", READS)
@pytest.mark.parametrize("name", list(ROTARY))
def test_closed_form_is_theorys_own_model(reads, name):
    options = dict(ROTARY[name])
    model = rotary_model(M, reads=reads, shape=SHAPE, pair=1).under(**options)
    if "factors" in options:
        options["factor"] = options.pop("factors")[1]
    sizes, t = Rotary(M=M, reads=reads, pairs=3, pair=1), np.arange(1, LENGTH + 1)
    np.testing.assert_allclose(1 / model.bos_attention(LENGTH), sizes.denominator(t, **options), rtol=1e-11)
    np.testing.assert_allclose(model.recovered_position(LENGTH), sizes.position(LENGTH, **options), atol=1e-10)


def test_logits_read_the_free_directions_and_the_config_has_the_window(family):
    constructed.check_read_out(family)


def test_a_saved_one_has_every_hook_and_its_words_come_back(family, tmp_path):
    constructed.check_saved(family, tmp_path, dtype="float64")


def test_keys_alike_are_theorem_31_under_every_method():
    constructed.check_keys_alike(as_llama(rotary_nope_model(M, 0.3, shape=SHAPE), M), ROTARY)


@pytest.mark.parametrize("build", [rotary_model, rotary_nope_model])
def test_a_seed_draws_the_free_weights_of_the_shapes_heads(build):
    constructed.check_seeds(build, FREE)


def test_a_dtype_too_coarse_for_positions_is_refused():
    with pytest.raises(ValueError, match=r"dtype=torch.bfloat16 is too coarse"):
        rotary_model(8, reads="count", dtype=torch.bfloat16)
