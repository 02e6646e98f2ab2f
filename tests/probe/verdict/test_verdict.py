"""The verdict says what the numbers say: order, ties, chance, what is missing; planted breaks, and none."""

import copy
import json

import located
import numpy as np
import pytest
from synthetic import evaluation, hidden_states, write_run

from probe.report import whole_summary
from probe.store.reader import open_run
from probe.thresholds.analysis import analyse
from probe.verdict.rows import ranked
from probe.verdict.shown import html
from probe.verdict.verdict import verdict

M = 64


def timed(scores, seconds=(1.0, 1.5, 1.0, 0.5), mib=(100.0, 110.0, 100.0, 50.0)):
    """The scores with what their passes took: `seconds` by method and more by other work, at twice the length twice."""
    length = scores["length"].values / M
    slower = 1 + np.abs(np.random.default_rng(0).normal(0, 1, scores["tail_nll"].shape))
    slower[..., 2] = 1
    times = np.array(seconds)[:, None, None] * length[:, None] * slower
    return scores.assign(
        seconds=(("method", "length", "window"), times),
        peak_mib=(("method", "length"), np.array(mib)[:, None] * length),
    )


def summarized(folder):
    return whole_summary(analyse(open_run(folder)))


@pytest.fixture(scope="module")
def planted(tmp_path_factory):
    """The summary of a run in which origin fails at 2 M and drifts at 1.1 M; Dynamic-NTK at the last length, 3 M."""
    return summarized(write_run(tmp_path_factory.mktemp("run"), hidden_states(), timed(evaluation())))


def cells(found):
    return {row[1]: dict(zip(found["head"], row, strict=True)) for row in found["cells"]}


def told(summary, where=None):
    return {each["heading"]: each["text"] for each in verdict(summary, where)["told"]}


def test_a_planted_break_is_told(planted):
    found = planted["verdict"]
    said = {each["heading"]: each["text"] for each in found["told"]}
    assert said["What broke"] == (
        "origin fails at 128 tokens [128, 128], 2 times M: by tail NLL from 128 on and by passkey accuracy from 192 on."
    )
    assert said["Where"].startswith("The states of origin leave their in-window range first in layer ")
    assert "(prompt repeated" in said["Where"]
    assert said["What mended it"].startswith("mesa and rerope hold up to 320 tokens, the longest measured; mesa has")
    assert said["What mended it"].endswith("; dynamic-ntk holds longer than origin, but not so long.")
    assert said["How sure"].startswith("False alarms of drift inside the window: 0.0% of (layer, window) pairs under")
    assert "a guess scores an unknown tail NLL, origin 3.0" in said["How sure"]
    rows = {row["method"]: row for row in found["rows"]}
    assert list(rows) == ["mesa", "rerope", "dynamic-ntk", "origin"]
    assert [row["held"] for row in rows.values()] == [320, 320, 256, 64]
    assert (rows["origin"]["measured"]["low"], rows["origin"]["measured"]["high"]) == (128, 128)
    assert 64 <= rows["origin"]["drift"]["length"] <= 80
    assert rows["origin"]["drift"]["layer"] in (1, 2)
    assert rows["mesa"]["drift"]["length"] is None


def test_cost_is_that_of_the_fastest_pass_as_many_times_the_references(planted):
    found = planted["verdict"]
    table = cells(found)
    times, memory = "time at 64 and 320", "memory at 64 and 320"
    assert (table["origin"][times], table["origin"][memory]) == ("1 s and 5 s", "100 MiB and 500 MiB")
    assert (table["rerope"][times], table["rerope"][memory]) == ("1.50× and 1.50×", "1.10× and 1.10×")
    assert (table["mesa"][times], table["mesa"][memory]) == ("0.50× and 0.50×", "0.50× and 0.50×")
    assert "the fastest of 6 passes" in found["notes"][1]


def test_what_was_not_measured_says_how_it_is_had(tmp_path):
    found = summarized(write_run(tmp_path, hidden_states(windows=3)))["verdict"]
    said = {each["heading"]: each["text"] for each in found["told"]}
    assert said["What broke"] == "Nothing was measured by length; origin was trained on windows of M = 64 tokens."
    assert "failure by length (not measured)" in said["How sure"]
    assert [row["rank"] for row in found["rows"]] == [None] * 4
    assert cells(found)["mesa"]["measured failure"] == cells(found)["mesa"]["time"] == "not measured"
    assert "--samples above 0" in found["notes"][1]
    assert "mesa-lens locate" in found["notes"][2]


def without_break(summary, chance=()):
    """The summary of a model on which no method fails; of one at chance, by all that is measured or by a part."""
    changed = copy.deepcopy(summary)
    judged = [rule for rule in ("tail NLL", "passkey") if rule not in chance]
    for row in changed["methods"]:
        holds = {"length": None, "low": None, "high": None, "share": 1.0, "dips": [], "before": None, "longest": 320}
        row["measured"] |= holds | {"judged": judged, "chance": list(chance), "text": "none up to 320"}
    changed["level"] |= {"tail_nll": 8.3, "guess": 8.32, "passkeys": 0, "prompts": {"window": 3, "sample": 3}}
    return changed | {"at_chance": list(chance)}


def test_where_nothing_breaks_nothing_is_mended(planted):
    said = told(without_break(planted))
    assert said["What broke"] == "Nothing: origin holds up to 320 tokens, the longest measured."
    assert said["What mended it"] == "Nothing was to be mended up to 320 tokens."


def test_a_model_at_chance_is_said_to_be_at_chance(planted):
    summary = without_break(planted, ("tail NLL", "passkey"))
    said, words = told(summary), json.dumps(verdict(summary, None)["told"])
    assert said["What broke"] == (
        "Nothing can be said of length: the model is at chance inside its window "
        "(a guess scores a tail NLL of 8.32, origin 8.30 and 0 of 3 passkeys at 64 tokens)."
    )
    assert "at chance" in said["What mended it"]
    assert " hold" not in words
    assert "not judged: tail NLL (at chance inside M), passkey (none of 3 found inside M, too few" in said["How sure"]
    summary["level"]["prompts"]["sample"] = 4
    assert "not judged: tail NLL (at chance inside M), passkey (at chance inside M)" in told(summary)["How sure"]
    summary |= {"judged_by": ["tail NLL"], "at_chance": []}
    summary["level"]["passkeys"] = 1
    assert "not judged: passkey (1 of 4 found inside M, less than half)" in told(summary)["How sure"]
    assert [row["rank"] for row in ranked(summary, None)] == [None] * 4


def test_what_is_judged_by_one_measure_alone_is_still_ranked(planted):
    summary = without_break(planted, ("passkey",))
    summary["methods"][0]["measured"] |= {"length": 128, "low": 128, "high": 128, "before": 64}
    rows = ranked(summary, None)
    assert [row["held"] for row in rows] == [320, 320, 320, 64]
    said = told(summary)["What mended it"]
    assert "do not fail by tail NLL up to 320 tokens, the longest measured (by passkey nothing can be told)" in said
    assert " hold" not in said


def test_what_is_at_chance_by_one_measure_is_never_said_to_hold(planted):
    said = told(without_break(planted, ("passkey",)))
    assert said["What broke"].startswith(
        "Nothing that can be judged: origin does not fail by tail NLL up to 320 tokens"
    )
    assert said["What mended it"] == "Nothing that can be judged was to be mended up to 320 tokens."
    assert not any(" hold" in text for text in said.values())


def test_methods_share_a_rank_only_where_their_intervals_meet(planted):
    summary = copy.deepcopy(planted)
    by = {row["method"]: row for row in summary["methods"]}
    for name, mean in (("rerope", -0.8), ("mesa", -0.9)):
        difference = {"mean": mean, "low": mean - 0.04, "high": mean + 0.04}
        by[name]["longest"] |= {"tail_nll": 3.8 + mean, "tail_nll_difference": difference}
    assert [(row["method"], row["rank"]) for row in ranked(summary, None)] == [
        ("mesa", 1),
        ("rerope", 2),
        ("dynamic-ntk", 3),
        ("origin", 4),
    ]
    by["mesa"]["longest"]["tail_nll_difference"]["high"] = -0.83
    assert [row["rank"] for row in ranked(summary, None)] == [1, 1, 3, 4]


def test_a_longer_length_is_doubted_where_the_intervals_meet(planted):
    summary = copy.deepcopy(planted)
    summary["methods"][0]["measured"]["high"] = 320
    said = told(summary)["What mended it"]
    assert "dynamic-ntk (not beyond doubt) holds longer" in said
    assert said.startswith("mesa and rerope hold up to 320")
    summary["methods"][2]["measured"] |= {"low": None, "high": None, "share": None}
    assert "dynamic-ntk (without an interval) holds longer" in told(summary)["What mended it"]


def test_the_smallest_set_is_the_clearest_loss(planted):
    summary = planted | {"model": "default", "trained_length": 256}
    found = verdict(summary, located.summary())
    rows = {row["method"]: row["heads"] for row in found["rows"]}
    assert rows["rerope"] | {"share": 0} == rows["rerope"] | {"share": 0, "is_enough": True, "measure": "nll"}
    assert len(rows["rerope"]["heads"]) == 3
    assert (rows["dynamic-ntk"]["is_enough"], rows["origin"]) == (False, None)
    table = cells(found)
    assert table["rerope"]["smallest set of heads"] == "3 (2.3, 2.5, 2.0): 92% [80, 102]"
    assert table["dynamic-ntk"]["smallest set of heads"].startswith("not enough: 7 (2.3, 2.5, 2.0, 0.1, …): ")
    assert table["origin"]["smallest set of heads"] == "–"
    assert "; rerope in 3 heads alone restores 92% [80, 102] of the loss at" in found["told"][1]["text"]


def test_a_share_that_is_no_number_can_be_written(planted):
    where = located.summary()
    for row in where["smallest"]:
        row |= {"enough": None, "share": [float("nan")] * 7, "random": [None] * 7}
    found = verdict(planted | {"model": "default", "trained_length": 256}, where)
    json.dumps(found, allow_nan=False)
    assert cells(found)["mesa"]["smallest set of heads"].endswith(": unknown")


def test_what_was_located_on_another_model_is_not_believed(planted):
    found = verdict(planted, located.summary(model="other"))
    assert "smallest set of heads" not in found["head"]
    assert found["notes"][2] == "Heads: those located in this folder are of other, M = 256."


def test_texts_are_escaped(planted):
    hostile = copy.deepcopy(planted["verdict"])
    hostile["cells"][0][1] = "<script>alert(1)</script>"
    assert "<script>" not in html(hostile)


def by_nll_alone(summary, to_crop):
    """The planted summary with passkeys that say nothing, and tail NLL less crop's by method."""
    changed = copy.deepcopy(summary)
    for row in changed["methods"]:
        row["measured"] |= {"judged": ["tail NLL"]}
        row["longest"]["tail_nll_to_crop"] = dict(zip(("mean", "low", "high"), to_crop[row["method"]], strict=True))
    return changed


def test_crop_stands_beside_every_tail_nll(planted):
    found = planted["verdict"]
    table = cells(found)
    assert table["origin"]["NLL less crop's"].startswith("+0.8")
    assert table["mesa"]["NLL less crop's"].startswith(("+0.0", "-0.0"))
    assert found["told"][2]["text"].count("; by tail NLL there none does better than crop") == 1
    assert found["notes"][-1].startswith("Crop: origin on the last 64 tokens alone, the first one of")
    without = summarized_without_length(planted)
    assert "NLL less crop's" not in verdict(without, None)["head"]
    assert "crop" not in json.dumps(verdict(without, None)["told"])


def summarized_without_length(summary):
    """As older summaries have it."""
    changed = copy.deepcopy(summary)
    for row in changed["methods"]:
        del row["longest"]["tail_nll_to_crop"]
    return changed


def test_no_method_extends_by_a_tail_nll_that_crop_has_too(planted):
    level = dict.fromkeys(("origin", "rerope", "dynamic-ntk", "mesa"), (0.01, -0.2, 0.22))
    said = told(by_nll_alone(planted, level))["What mended it"]
    assert said.startswith(
        "mesa and rerope do not fail up to 320 tokens, the longest measured, judged by tail NLL alone"
    )
    assert "by tail NLL there none does better than crop" in said
    assert " hold" not in said
    better = level | {"mesa": (-0.3, -0.4, -0.2)}
    said = told(by_nll_alone(planted, better))["What mended it"]
    assert " hold" not in said
    assert "; by tail NLL there mesa (-0.30 [-0.40, -0.20]) alone does better than crop" in said
    said = told(by_nll_alone(planted, better | {"rerope": (-0.2, -0.3, -0.1)}))["What mended it"]
    assert said.startswith("mesa and rerope hold up to 320 tokens")
    assert "dynamic-ntk fails later than origin" in said


def test_one_text_does_not_call_a_method_no_better_than_crop(planted):
    alone = dict.fromkeys(("origin", "rerope", "dynamic-ntk", "mesa"), (-3.0, None, None))
    said = told(by_nll_alone(planted, alone))["What mended it"]
    assert said.startswith("mesa and rerope do not fail up to 320 tokens")
    assert "; by tail NLL there one text alone tells nothing from crop" in said
    assert "better than crop" not in said


def test_a_failure_that_may_be_none_is_not_said_to_be_one(planted):
    summary = copy.deepcopy(planted)
    summary["methods"][0]["measured"] |= {"length": 320, "low": 128, "high": None, "before": 256}
    assert told(summary)["What broke"].startswith(
        "origin may fail at 320 tokens [128, none], 5 times M, which so few prompts do not tell from none: by tail NLL"
    )
