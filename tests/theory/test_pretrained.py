"""The constructions as Hugging Face models: theory's own attention is the oracle of the executors."""

import constructed
import numpy as np
import oracle
import pytest
from constructed import CHUNKS, LENGTH, SHAPE, E, Family, M, N

import theory
from theory.parts import FREE, Shape


def by_pairs() -> theory.Construction:
    """The plain construction with Mesa's distances, pair by pair."""
    sizes = {"trained": M, "prompt": LENGTH, "split_threshold": 2, **CHUNKS}
    pairs = [[oracle.relative("mesa", t, i, **sizes) for i in range(LENGTH)] for t in range(LENGTH)]
    table = np.array([[-1 if pair is None else pair for pair in row] for row in pairs], float)
    return theory.construction("plain", M=M, shape=SHAPE).with_distances(table)


@pytest.fixture(scope="module")
def family():
    oracles = {"origin": theory.construction("plain", M=M, shape=SHAPE), "mesa": by_pairs()}
    oracles["rerope"] = theory.construction("woven", M=M, N=N, shape=SHAPE)
    oracles["stair"] = theory.construction("stair", M=M, N=N, E=E, shape=SHAPE)
    return Family(theory.build("plain", M=M, shape=SHAPE), oracles, FREE)


def test_executors_agree_with_theorys_own_attention(family):
    constructed.check_executors(family)


def test_without_a_method_and_decoded_it_is_the_plain_construction(family):
    constructed.check_decoded(family)


def test_logits_read_the_free_directions_and_the_config_has_the_window(family):
    constructed.check_read_out(family)


def test_a_saved_one_has_every_hook_and_its_words_come_back(family, tmp_path):
    constructed.check_saved(family, tmp_path)


def test_keys_alike_are_theorem_31():
    constructed.check_keys_alike(theory.build("nope", M=M, H=0.3, shape=SHAPE), ["origin"])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: theory.build("plain", M=M, recovery="log"), "recovery='log' is a function, no matrices; take"),
        (
            lambda: theory.save(theory.build("nope", M=M, shape=Shape(vocabulary=300)), "x"),
            "vocabulary=300 is not the 257 tokens",
        ),
    ],
)
def test_what_cannot_be_built_or_saved_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
