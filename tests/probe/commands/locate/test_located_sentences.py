"""Sentences of locate say what the tables say, no more; also over random tables with missing parts."""

import json

import located
import pytest

from probe.commands.locate.page import clamp_chart, clearest, located_findings
from probe.commands.locate.result import LOCATED
from probe.files import write_result
from probe.store.result_file import as_json, percent


def text_of(summary, method="rerope", length=1024):
    ((_, sentences),) = located_findings(located.typed(summary), method=method, length=length, measure="nll")
    return " ".join(sentences)


def changed(table, change, **labels):
    """The summary with `change` in the rows of a table that have these labels."""
    summary = located.summary()
    for row in located.matching(summary[table], **labels):
        row |= change
    return summary


def test_the_sentences_hold_the_numbers():
    text = text_of(located.summary())
    for part in (
        "At 1024 tokens the excess loss of origin over rerope is 1.20 [0.86, 1.56] nats/token (12 items).",
        "Loss recovered by rerope in one layer alone: layer 2 82% [54, 110]; layer 0 18% [10, 26]; 2 of 4 layers not",
        "Loss that returns with rerope everywhere but in one layer: layer 2 66% [38, 93]",
        "The best of 31 single heads, L2H3, recovers 41% [31, 51]; significant: 2, by chance about 0.8.",
        "Smallest set found: 3 heads (L2H3, L2H5, L2H0) recover 92% [80, 102] (random sets of 3: 6% [2, 16]).",
        "Clamping the drift dims of all layers beyond M recovers ",
        "Clamping the threshold dims of all layers beyond M recovers ",
        " (random dims -",
    ):
        assert part in text


def test_each_rule_has_its_own_word_and_its_own_numbers():
    summary = located.summary()
    for row in located.matching(summary["effects"], kind="clamp", layer=None, which="threshold"):
        share = {"drift": -0.55, "paper": 0.02}[row["rule"]]
        row |= {"share": share, "low": share - 0.1, "high": share + 0.1}
    text = text_of(summary)
    assert "Clamping the drift dims of all layers beyond M recovers -55% [-65, -45] to -55% [-65, -45]" in text
    assert "Clamping the threshold dims of all layers beyond M recovers 2% [-8, 12] to 2% [-8, 12]" in text
    typed = located.typed(summary)
    for rule, word in {"drift": "drift dims", "paper": "threshold dims"}.items():
        chart = clamp_chart(typed, "rerope", 1024, "nll", rule)
        assert chart.title.startswith(f"{word.capitalize()} clamped ")
        labels = {line.label.partition(",")[0].partition(":")[0] for panel in chart.panels for line in panel.lines}
        assert labels == {word, "random dims"}


EVERY, NEGATIVE = {"low": -0.5, "high": 1.5}, {"share": -0.3, "low": -0.4, "high": -0.2}
CLAMP = {"length": 1024, "measure": "nll", "way": "at-M", "rule": "drift"}
INSIDE = [
    CLAMP | {"which": "threshold", "cost": 0.07, "low": 0.0, "high": 0.14},
    CLAMP | {"which": "random 0", "cost": 0.1, "low": 0.02, "high": 0.19},
]
LOST = {"baseline": 3.0, "patched": 3.5, "low": -0.7, "high": -0.3, "significant": False}


@pytest.mark.parametrize(
    ("summary", "expected"),
    [
        (changed("effects", EVERY), "4 of 4 layers not significant (the largest: layer 2 82% [-50, 150])."),
        (changed("effects", EVERY), "L2H3, recovers 41% [-50, 150], which is not significant; none is."),
        (changed("effects", NEGATIVE, layer=3, head=None, way="only"), "a negative share in layer 3"),
        (
            changed("smallest", {"enough": None}),
            "unclear whether a set recovers 90%: one did (102%), the last did not:",
        ),
        (
            changed("smallest", {"finished": False, "enough": None}),
            "search for the smallest set is unfinished: 7 heads (",
        ),
        (changed("smallest", {"heads": []}), "No head set was searched for: half of the items have no excess loss."),
        (
            changed("loss_gaps", LOST),
            "rerope is worse than origin (excess loss -0.50 [-0.70, -0.30] nats/token; 12 items): there is no loss "
            "to recover.",
        ),
        (changed("loss_gaps", {"items": 1}), "(1 item, so the interval covers that text alone)"),
        (
            located.summary() | {"effects": [], "smallest": [], "tasks_left": 3},
            "Tasks that are left to run: 3.",
        ),
        (located.summary() | {"inside": INSIDE}, "Inside M it costs up to 0.07 [0.00, 0.14] nats/token."),
    ],
)
def test_each_outcome_has_its_sentence(summary, expected):
    assert expected in text_of(summary)


def estimated(patched, scale=1.0, level=0.0):
    """The text on 31 heads with estimates, of which the best ones are patched; `scale` and `level` of the estimates."""
    effects = located.matching(located.summary()["effects"], kind="patch", way="only", method="rerope", length=1024)
    heads = [row for row in located.matching(effects, measure="nll") if row["head"] is not None]
    heads = sorted((row for row in heads if row["share"] == row["share"]), key=lambda row: -row["share"])
    estimates = [row | {"kind": "gradients", "share": scale * row["share"] + level} for row in heads]
    return text_of(located.summary() | {"effects": [*estimates, *heads[:patched]], "smallest": []})


def test_estimated_heads_are_advised_until_they_are_patched_and_ranked_from_five_on():
    advice, ranks = "An estimate is no intervention: try --try patch --heads ", "patched heads the rank correlation is"
    texts = {patched: estimated(patched) for patched in (0, 1, 5, 6, 31)}
    best = texts[0].partition(advice)[2].removesuffix(".").split(",")
    assert best[:2] == ["L2H3", "L2H5"]
    assert 6 < len(best) <= 10
    for patched in (1, 5, 6):
        assert texts[patched].partition(advice)[2] == f"{','.join(best[patched:])}."
    assert advice not in texts[31]
    assert [patched for patched, text in texts.items() if ranks in text] == [5, 6, 31]
    assert "over the 6 patched heads the rank correlation is 1.00 [1.00, 1.00]. An estimate is" in texts[6]


def test_estimates_below_a_percent_and_constant_ones_are_named_as_such():
    small = estimated(0, scale=0.01)
    assert small.endswith("By gradients none of 31 heads is estimated to recover 1% or more.")
    constant = estimated(6, scale=0, level=0.02)
    assert "most is estimated in L2H3 2% [" in constant
    assert "rank correlation" not in constant


def test_methods_without_an_excess_loss_or_a_set():
    text = text_of(located.summary(), "dynamic-ntk", 512)
    assert text.endswith("dynamic-ntk is not significant (0.04 [-0.05, 0.13] nats/token; 12 items).")
    assert "None of 7 sets recovers 90% (most: " in text_of(located.summary(), "mesa")
    unknown = changed("effects", dict.fromkeys(("share", "low", "high")))
    assert "%" not in text_of(unknown).partition("3 heads")[0]


def test_the_headline_is_the_clearest_loss_by_nll():
    summary = changed("loss_gaps", {"low": 2.0}, measure="passkey")
    for gap in located.matching(summary["loss_gaps"], measure="nll"):
        gap["low"] = 0.6 if (gap["method"], gap["length"]) == ("mesa", 512) else 0.5
    assert located.typed(summary).clearest.labels == {"method": "mesa", "length": 512, "measure": "nll"}
    unevaluated = [gap | {"significant": False} for gap in summary["loss_gaps"]]
    assert located.typed(summary | {"loss_gaps": unevaluated}).clearest is None


def test_an_unfinished_run_finds_nothing_yet():
    summaries = [located.typed(located.summary() | {"loss_gaps": [], "tasks_left": left}) for left in (3, 0)]
    unfinished, none = (clearest(summary).sentences[0] for summary in summaries)
    assert unfinished == "Not known yet: 3 tasks are left to run."
    assert none.startswith("No loss is clear")


def test_shares_with_and_without_intervals():
    assert percent(0.824, 0.6, 1.06) == "82% [60, 106]"
    assert percent(-0.001, float("nan"), 0.1) == "0% (no interval)"
    assert percent(float("nan"), 0, 1) == "unknown"


def test_a_summary_is_read_or_its_remedy_named(tmp_path):
    assert LOCATED.find(tmp_path) is None
    with pytest.raises(FileNotFoundError, match=f"mesa-lens locate --out {tmp_path}"):
        LOCATED.read(tmp_path)
    folder = located.write(tmp_path / "run")
    assert LOCATED.read(folder).heads == 8
    again = r"; write it again: `mesa-lens locate --out"
    for text in ("{", "[]", json.dumps(located.summary() | {"effects": 1, "version": 1})):
        (folder / "locate" / "summary.json").write_text(text)
        with pytest.raises(ValueError, match=rf"is damaged .*{again}"):
            LOCATED.find(folder)
    for version in (0, 2):
        write_result(folder / "locate" / "summary.json", located.summary() | {"version": version})
        with pytest.raises(ValueError, match=rf"is of another version of mesa-lens, not of version 1{again}"):
            LOCATED.find(folder)


def test_what_earlier_versions_called_a_weave_is_a_patch_and_evaluated_significant():
    earlier = changed("effects", {"kind": "weave"}, kind="patch")
    earlier["loss_gaps"] = [{"judged": gap.pop("significant"), **gap} for gap in earlier["loss_gaps"]]
    assert as_json(located.typed(earlier)) == as_json(located.typed())
