"""Where inside, in words: what the sentences say, and that nothing is claimed without its interval."""

import located
import pytest

from probe.mechanism.words import located_findings
from probe.store.results import find_located, headline, percent, read_located

LABELS = ("rerope", 1024, "nll")


def told(summary, method="rerope", length=1024):
    ((_, sentences),) = located_findings(summary, method=method, length=length, measure="nll")
    return " ".join(sentences)


def test_the_sentences_hold_the_numbers():
    text = told(located.summary())
    for part in (
        "At 1024 tokens origin loses 1.20 [0.86, 1.56] nats/token against rerope (12 items).",
        "rerope in one layer alone restores: layer 2 82% [54, 110]; layer 0 18% [10, 26]; 2 of 4 layers cannot be told",
        "Without rerope in one layer there is lost again: layer 2 66% [38, 93]",
        "The best of 31 single heads restores 41% [31, 51] (2.3).",
        "Smallest set found: 3 heads (2.3, 2.5, 2.0) restore 92% [80, 102] (random sets of 3: 6% [2, 16]).",
        "The best of 8 outputs of rerope's single layers written into origin's run restores 82% [77, 87] (attn_out of",
        "Holding the observable dims of all layers beyond M restores ",
        ", in 4 ways (as many random dims -",
        "attribution with patch at z 0.61 [0.35, 0.78] (32 places)",
    ):
        assert part in text


def test_what_is_not_judged_is_not_located():
    text = told(located.summary(), "dynamic-ntk", 512)
    assert text.endswith("against dynamic-ntk cannot be told from 0 (0.04 [-0.05, 0.13] nats/token; 12 items).")


def test_a_set_that_is_not_enough_says_so():
    text = told(located.summary(), "mesa")
    assert "None of 7 sets restores 90%; the last: 7 heads (2.3, 2.5, 2.0, 0.1, 3.2, 2.7, 3.0) restore 87%" in text


def test_a_set_that_was_enough_on_the_other_items_is_not_called_none():
    summary = located.summary()
    for row in summary["smallest"]:
        row |= {"enough": None}
    text = told(summary)
    assert "Cannot tell whether a set restores 90%: 7 heads did (102%), the last did not" in text


def test_nothing_is_claimed_where_intervals_include_0():
    summary = located.summary()
    for row in summary["effects"]:
        row |= {"low": -0.5, "high": 1.5}
    text = told(summary)
    open_ = "4 of 4 layers cannot be told from 0, the largest layer 2 "
    assert f"rerope in one layer alone restores: {open_}82% [-50, 150]." in text
    assert f"Without rerope in one layer there is lost again: {open_}66% [-50, 150]." in text
    assert "restores 41% [-50, 150] (2.3), which cannot be told from 0; nor can any other." in text


def test_the_best_head_is_the_one_with_the_largest_share():
    """As the map shows it, whether or not its interval leaves 0 out."""
    summary = located.summary()
    for row in summary["effects"]:
        if (row["layer"], row["head"], row["way"], row["kind"]) == (1, 4, "only", "weave"):
            row |= {"share": 0.6, "low": -0.1, "high": 1.3}
    best = "restores 60% [-10, 130] (1.4), which cannot be told from 0; the best that can: 41% [31, 51] (2.3)."
    assert f"The best of 31 single heads {best}" in told(summary)


def test_layers_that_make_it_worse_are_named():
    summary = located.summary()
    for row in summary["effects"]:
        if row["layer"] == 3 and row["head"] is None and row["way"] == "only":
            row |= {"share": -0.3, "low": -0.4, "high": -0.2}
    assert "less than nothing in layer 3" in told(summary)


def test_only_what_was_run_is_told():
    summary = located.summary() | {"effects": [], "smallest": [], "agreement": [], "cells_left": 3}
    assert told(summary).endswith("against rerope (12 items). 3 cells are still to be run.")


def test_the_headline_is_the_clearest_loss_by_nll():
    summary = located.summary()
    for gap in summary["gaps"]:
        gap["low"] = {"passkey": 2.0, "nll": 0.5}[gap["measure"]]
        if (gap["method"], gap["length"], gap["measure"]) == ("mesa", 512, "nll"):
            gap["low"] = 0.6
    assert headline(summary) == {"method": "mesa", "length": 512, "measure": "nll"}
    assert headline(summary | {"gaps": [gap | {"judged": False} for gap in summary["gaps"]]}) is None


def test_shares_with_and_without_intervals():
    assert percent(0.824, 0.6, 1.06) == "82% [60, 106]"
    assert percent(-0.001, None, 0.1) == "0% (no interval)"
    assert percent(None, None, None) == percent(float("nan"), 0, 1) == "unknown"


def test_a_summary_is_read_or_its_remedy_named(tmp_path):
    assert find_located(tmp_path) is None
    with pytest.raises(FileNotFoundError, match=f"mesa-lens locate --out {tmp_path}"):
        read_located(tmp_path)
    folder = located.write(tmp_path / "run")
    assert read_located(folder)["heads"] == 8
    for text in ("{", "[]", '{"model": "x"}'):
        (folder / "locate" / "summary.json").write_text(text)
        with pytest.raises(ValueError, match=r"is damaged .*; write it anew: `mesa-lens locate --out"):
            find_located(folder)


def test_costs_inside_the_window_are_told():
    summary = located.summary()
    inside = {"length": 1024, "measure": "nll", "way": "at-M", "rule": "drift"}
    summary["inside"] = [
        {**inside, "which": "observable", "cost": 0.07, "low": 0.0, "high": 0.14},
        {**inside, "which": "random 0", "cost": 0.1, "low": 0.02, "high": 0.19},
    ]
    text = told(summary)
    assert "Held inside the window they cost up to 0.07 [0.00, 0.14] nats/token (random dims 0.10 to 0.10)." in text


def test_a_method_that_is_worse_is_called_worse():
    summary = located.summary()
    for gap in summary["gaps"]:
        gap |= {"broken": 3.0, "mended": 3.5, "low": -0.7, "high": -0.3, "judged": False}
    assert (
        told(summary)
        == "At 1024 tokens rerope is worse than origin (-0.50 [-0.70, -0.30] nats/token; 12 items): it mends nothing."
    )


@pytest.mark.parametrize(
    ("items", "said"),
    [
        (1, "(1 item, whose intervals are of its blocks and say nothing of others)"),
        (2, "(2 items)"),
        (4, "(4 items)"),
    ],
)
def test_few_items_are_called_few(items, said):
    summary = located.summary()
    for gap in summary["gaps"]:
        gap["items"] = items
    assert said in told(summary)


def weave(way, layer, head, share):
    place = {"method": "rerope", "length": 1024, "measure": "nll", "kind": "weave", "way": way, "items": 6}
    return {**place, "layer": layer, "head": head, "share": share, "low": share - 0.05, "high": share + 0.05}


def test_heads_of_which_either_does_are_told_from_heads_that_need_each_other():
    """Two heads alone restore all and neither is missed; a third restores nothing alone and is missed."""
    summary = located.summary() | {"smallest": [], "attribution": [], "agreement": []}
    shares = {(1, 2): (0.98, 0.0), (1, 3): (0.97, 0.01), (2, 0): (0.0, 0.9), (2, 1): (0.4, 0.4)}
    summary["effects"] = [
        weave(way, *head, share)
        for head, pair in shares.items()
        for way, share in zip(("only", "without"), pair, strict=True)
    ]
    text = told(summary)
    assert (
        "Restores more alone than is lost without it: others can replace it: 1.2 (alone 98% [93, 103], lost "
        "without it 0% [-5, 5]), 1.3 (alone 97% [92, 102], lost without it 1% [-4, 6])." in text
    )
    assert (
        "Loses more when left out than it restores alone: it works with others: 2.0 (alone 0% [-5, 5], lost without "
        "it 90% [85, 95])." in text
    )


def test_a_search_that_is_not_done_claims_nothing():
    summary = located.summary()
    for row in summary["smallest"]:
        row |= {"finished": False, "enough": None}
    assert "The search for the smallest set is not done: 7 heads (2.3, 2.5, 2.0, 0.1, 3.2, 2.7, 3.0) restore" in told(
        summary
    )
    summary["smallest"] = [row | {"heads": []} for row in summary["smallest"]]
    assert "No smallest set was searched for: half of the items show no loss." in told(summary)


def test_shares_that_are_not_known_are_not_told():
    summary = located.summary()
    for row in summary["effects"]:
        row |= dict.fromkeys(("share", "low", "high"))
    assert "%" not in told(summary).partition("3 heads")[0]


def test_correlations_that_may_be_none_are_counted_only():
    summary = located.summary()
    (one,) = (row for row in summary["agreement"] if (row["method"], row["length"], row["measure"]) == LABELS)
    few = {**one, "hook": "mlp_out", "places": 4, "spearman": 1.0, "low": 1.0, "high": 1.0}
    unclear = {**one, "hook": "attn_out", "spearman": 0.2, "low": -0.1, "high": 0.5}
    summary["agreement"] += [few, unclear]
    text = told(summary)
    assert "(32 places); 2 others cannot be told from 0, or have 4 places or fewer." in text
    assert "mlp_out 1.00" not in text
    assert "attn_out 0.20" not in text
    summary["agreement"].remove(few)
    assert "(32 places); 1 other cannot be told from 0" in told(summary)
