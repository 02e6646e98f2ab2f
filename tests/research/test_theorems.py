"""Additional claims come out as they must; constructions as Hugging Face models, compared with theory's attention."""

import json
import re
from pathlib import Path

import constructed
import numpy as np
import oracle
import pytest
from constructed import CHUNKS, LENGTH, SHAPE, E, Family, M, N

import theory
from research.theorems.additional_claims import printed_split
from research.theorems.pretrained import build, save
from research.theorems.run import CLAIMS, main
from theory.claim import summary
from theory.claims import VerifyOptions
from theory.parts import FREE, Shape

README = Path(__file__).parents[2] / "research" / "theorems" / "README.md"


@pytest.mark.parametrize("name", list(CLAIMS))
def test_claim_comes_out_as_it_must(name):
    claim = CLAIMS[name](VerifyOptions(quick=True))
    assert claim.name == name
    assert claim.ok, claim.line()
    assert json.loads(json.dumps(claim.as_dict()))["verdict"] == claim.expected


def test_the_script_prints_what_it_checked_as_its_readme_says(capsys):
    assert main(["--claim", "self-extend", "--quick"]) == 0
    line, total = capsys.readouterr().out.splitlines()
    assert line.startswith("[holds] self-extend (the paper's): Where W mod G = 0")
    assert total == "1 other statement of the paper's: 1 holds. Every verdict is the expected one."
    sentence = summary((name, check.expected, "the paper's") for name, check in CLAIMS.items())
    assert f"\n    {sentence}\n" in README.read_text(encoding="utf-8")


def test_the_readme_names_what_is_there():
    for path in re.findall(r"\bresearch/[\w/]+\.py\b", README.read_text(encoding="utf-8")):
        assert (README.parents[2] / path).is_file(), path


def test_printed_split_leaves_a_last_chunk_below_L():
    assert printed_split(812, 4096, 100, 512, 200) == ([200, 200, 200], 112)
    assert printed_split(10000, 4096, 100, 512, 200) == ([3129, 3129, 3129], 513)
    with pytest.raises(ZeroDivisionError):
        printed_split(611, 4096, 100, 512, 200)


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
    return Family(build("plain", M=M, shape=SHAPE), oracles, FREE)


def test_executors_agree_with_theorys_own_attention(family):
    constructed.check_executors(family)


def test_without_a_method_and_decoded_it_is_the_plain_construction(family):
    constructed.check_decoded(family)


def test_logits_read_the_free_directions_and_the_config_has_the_window(family):
    constructed.check_read_out(family)


def test_a_saved_one_has_every_hook_and_its_words_come_back(family, tmp_path):
    constructed.check_saved(family, tmp_path)


def test_keys_alike_are_theorem_31():
    constructed.check_keys_alike(build("nope", M=M, H=0.3, shape=SHAPE), ["origin"])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: build("plain", M=M, recovery="log"), "recovery='log' is a function, no matrices; take"),
        (
            lambda: save(build("nope", M=M, shape=Shape(vocabulary=300)), "x"),
            "vocabulary=300 is not the 257 tokens",
        ),
    ],
)
def test_what_cannot_be_built_or_saved_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
