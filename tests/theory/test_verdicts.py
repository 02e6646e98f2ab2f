"""The sentence over a table of verdicts agrees with the table."""

import re
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from theory.claim import Verdict, summary

SAID = {
    Verdict.HOLDS: r"(\d+) holds?\b(?! with)",
    Verdict.CORRECTED: r"(\d+) holds? with the stated correction",
    Verdict.PRINTED: r"(\d+) fails? as printed",
    Verdict.BROKEN: r"(\d+) BROKEN",
}


@given(st.lists(st.sampled_from(Verdict)))
def test_the_sentence_counts_what_the_table_holds(verdicts):
    table = [(f"c{number}", verdict) for number, verdict in enumerate(verdicts)]
    sentence = summary(table)
    counted = {verdict: int(said[1]) for verdict, form in SAID.items() if (said := re.search(form, sentence))}
    assert counted == dict(Counter(verdicts))
    assert int(sentence.split()[0]) == len(table)
    assert re.findall(r"c\d+", sentence) == [name for name, verdict in table if verdict is Verdict.BROKEN]
    assert ("every verdict is the expected one" in sentence) == (bool(table) and Verdict.BROKEN not in verdicts)


def test_the_sentence_is_grammatical():
    table = [("a", "holds"), ("b", "holds"), ("c", "fails as printed"), ("d", "BROKEN")]
    assert summary(table) == "4 claims checked: 2 hold, 1 fails as printed, 1 BROKEN (d)."
    assert summary(table[2:3]) == "1 claim checked: 1 fails as printed; every verdict is the expected one."
    with pytest.raises(ValueError, match="proven"):
        summary([("a", "proven")])


@pytest.mark.slow
def test_the_docs_count_what_is_found():
    from theory.claims import CLAIMS, Settings

    sentence = summary((name, check(Settings(quick=True)).verdict) for name, check in CLAIMS.items())
    root = Path(__file__).parents[2]
    assert f"\n    {sentence}\n" in (root / "docs" / "theory.md").read_text()
    readme = (root / "README.md").read_text()
    assert f"Of {len(CLAIMS)} claims" in readme
    counts = re.search(r"(\d+) hold, (\d+) hold with the stated correction, and (\d+) fail as printed", readme)
    assert counts is not None
    assert list(counts.groups()) == re.findall(r"(\d+) (?:hold|fail)", sentence)
