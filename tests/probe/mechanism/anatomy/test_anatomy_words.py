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
    assert "1 head retrieves the passkey inside M, 1 by looking one token after it; 1 lost at 1024 tokens" in said()
    assert "the passkey inside M; 1 lost at 1024 tokens" in said(retrieval_heads=verdict(offset=0))


def test_what_was_not_run_beyond_the_window_is_not_called_absent():
    assert not said(retrieval=retrieval(length=256), retrieval_heads=[]).startswith("No head")
    assert said(retrieval=retrieval(length=1024), retrieval_heads=[]) == "Retrieval: no length up to M was asked for."
    assert said(retrieval_heads=[]) == "No head retrieves the passkey inside M under origin."


def test_one_prompt_says_nothing_of_loss():
    one = verdict(inside=[0.75, None, None], beyond={"origin": [0.0, None, None]}, dies=False, revived=[])
    told = said(retrieval_heads=one)
    assert "one prompt does not say which are lost at 1024 tokens, give more --samples" in told
    assert "lost at 1024 tokens under" not in told
