"""Our own theorems: all come out as they must, by the script too, and its README counts them."""

import json
import re
from pathlib import Path

import pytest

from research.rotary_theory.run import CLAIMS, main
from theory.claim import OURS, summary
from theory.claims import VerifyOptions

QUICK = VerifyOptions(quick=True)
README = Path(__file__).parents[2] / "research" / "rotary_theory" / "README.md"


@pytest.mark.quick_cases(8)
@pytest.mark.parametrize("name", [name for name in CLAIMS if name != "M4096"])  # which takes seconds
def test_claim_comes_out_as_it_must(name):
    claim = CLAIMS[name](QUICK)
    assert claim.name == name
    assert claim.ok, claim.line()
    assert json.loads(json.dumps(claim.as_dict()))["verdict"] == claim.expected


@pytest.mark.slow
def test_llama2_window():
    claim = CLAIMS["M4096"](QUICK)
    assert claim.ok, claim.line()
    assert "last above H: 4095, first below: 4097" in claim.tested


def test_slopes_hold_in_float32():
    claim = CLAIMS["slopes"](VerifyOptions(dtype="float32", quick=True, H=2.0, seed=7))
    assert claim.ok, claim.line()


def test_the_script_prints_what_it_checked(capsys):
    assert main("--claim rotary-bound --quick".split()) == 0
    line, total = capsys.readouterr().out.splitlines()
    assert line.startswith("[holds] rotary-bound (ours): No method carries a rotary construction")
    assert total == "1 of our own about them: 1 holds. Every verdict is the expected one."
    assert main("--claim rotary-bound --quick --json".split()) == 0
    assert [claim["name"] for claim in json.loads(capsys.readouterr().out)] == ["rotary-bound"]
    with pytest.raises(SystemExit, match="2"):
        main(["--claim", "3.1"])
    assert "unknown claim '3.1'; known: rotary," in capsys.readouterr().err


def test_the_readme_counts_the_verdicts_that_are_expected():
    sentence = summary((name, check.expected, OURS) for name, check in CLAIMS.items())
    assert f"\n    {sentence}\n" in README.read_text(encoding="utf-8")


def test_the_readme_names_what_is_there():
    for path in re.findall(r"\bresearch/[\w/]+\.py\b", README.read_text(encoding="utf-8")):
        assert (README.parents[2] / path).is_file(), path
