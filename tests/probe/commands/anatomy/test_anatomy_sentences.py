"""Sentences of anatomy say what the tables say, no more; also over random tables with missing parts."""

import anatomized
from located import matching

from probe.commands.anatomy.page import all_heads, anatomy_findings


def retrieval(**changes):
    return anatomy_findings(anatomized.typed(anatomized.summary() | changes))[0]


def rows(**labels):
    return matching(anatomized.summary()["retrieval"], **labels)


def test_retrieval_heads_are_counted_with_their_offset():
    counted = "1 of 32 heads score 0.3 or more inside M under origin (4 prompts), 1 of them on the token after the one"
    assert counted in retrieval()
    lost = (
        "lost 1: L2H3 (0.75 to 0.10). Of the lost heads, recovered: 1 of 1 by rerope; 0 of 1 by mesa (cannot tell: 1)."
    )
    assert lost in retrieval()


def test_what_was_not_run_is_not_called_absent():
    beyond = retrieval(retrieval=rows(length=1024), retrieval_heads=[])
    assert beyond == "Retrieval: cannot tell which heads are lost; no length up to M was measured."
    weak = [row | {"best": [0.2, 0.1, 0.3]} for row in rows()]
    assert retrieval(retrieval=weak, retrieval_heads=[]) == (
        "Retrieval: 0 of 32 heads score 0.3 or more inside M under origin (4 prompts); highest: L0H0, 0.200 "
        "[0.100, 0.300]."
    )
    findings = anatomy_findings(anatomized.typed(anatomized.summary() | {"heads": [], "all_heads": []}))
    assert findings[1:] == ["Not measured: heads (--parts)."]
    assert "token before" not in findings[0]


def test_one_prompt_cannot_tell_of_loss():
    one = {"inside": [0.75, None, None], "beyond": {"origin": [0.0, None, None]}, "lost": False, "recovered_by": []}
    text = retrieval(retrieval_heads=[anatomized.summary()["retrieval_heads"][0] | one])
    assert "At 1024 tokens (4 prompts; score inside to beyond M): cannot tell 1: L2H3 (0.75 to 0.00)." in text
    assert "lost" not in text
    assert "kept" not in text


def test_the_table_holds_means_by_method_and_span():
    (section,) = all_heads(anatomized.typed(), [1024])
    (table,) = section.tables
    assert table.head[:4] == ("method", "length", "queries", "prompts")
    assert [row[1:3] for row in table.rows].count(("1024", "beyond M")) == 3
    assert all_heads(anatomized.typed(anatomized.summary() | {"all_heads": []}), [1024]) == []
