"""What is said of heads that retrieve: no more than was measured."""

import anatomized

from probe.mechanism.anatomy.words import anatomy_findings


def said(**changes):
    return anatomy_findings(anatomized.summary() | {"vectors": None} | changes)[0]


def retrieval(**kept):
    rows = anatomized.summary()["retrieval"]
    return [row for row in rows if all(row[name] == value for name, value in kept.items())]


def verdict(**changes):
    return [anatomized.summary()["retrieval_heads"][0] | changes]


def test_where_a_head_looks_is_told():
    after = (
        "1 of 32 heads retrieve the passkey inside M under origin (4 prompts), 1 of them by looking one token after it."
    )
    assert after in said()
    assert "lost 1: 2.3 (0.75 to 0.10). Of these revived: 1 of 1 by rerope; 0 of 1 by mesa (cannot tell: 1)." in said()


def test_what_was_not_run_beyond_the_window_is_not_called_absent():
    assert not said(retrieval=retrieval(length=256), retrieval_heads=[]).startswith("No head")
    beyond = said(retrieval=retrieval(length=1024), retrieval_heads=[])
    assert beyond == "Retrieval: cannot tell which heads are lost; no length up to M was measured."
    weak = [row | {"best": [0.2, 0.1, 0.3]} for row in anatomized.summary()["retrieval"]]
    none = (
        "Retrieval: 0 of 32 heads score 0.3 or more inside M under origin (4 prompts); highest: 0.0, 0.20 [0.10, 0.30]."
    )
    assert said(retrieval=weak, retrieval_heads=[]) == none


def test_one_prompt_says_nothing_of_loss():
    one = verdict(inside=[0.75, None, None], beyond={"origin": [0.0, None, None]}, dies=False, revived=[])
    told = said(retrieval_heads=one)
    assert "At 1024 tokens (4 prompts; layer.head, score inside to beyond): cannot tell 1: 2.3 (0.75 to 0.00)." in told
    assert "lost" not in told
    assert "kept" not in told


def test_what_was_not_measured_is_not_called_absent():
    """With retrieval alone nothing is said of heads that look at the token before, but that none was looked at."""
    empty = {name: [] for name in ("heads", "all_heads", "unmet", "frequencies", "lens", "lens_differs")}
    told = anatomy_findings(anatomized.summary() | empty | {"vectors": None})
    assert told[1:] == ["Not measured: heads, frequencies, lens, vectors (--parts)."]
    assert "token before" not in told[0]


def test_previous_token_heads_are_counted_of_those_measured():
    told = anatomy_findings(anatomized.summary())[1]
    assert "at 1024 tokens: 0 of 32 heads" in told
    assert "4 prompts); highest: 0.0, 0.20 [0.18, 0.22]." in told
