"""The verdict says what the numbers say: order, ties, chance, what is missing; planted breaks, and none."""

import copy
import json

import located
import pytest
from summaries import ranked, typed, verdict
from synthetic import evaluation, hidden_states, write_run

from probe.commands.predict.result import Failure, MethodPrediction, Misfit, Prediction
from probe.commands.probe.report import whole_summary
from probe.store.reader import open_run
from probe.store.result_file import as_json
from probe.thresholds.analysis import analyse

M = 64


def summarized(folder):
    return as_json(whole_summary(analyse(open_run(folder))))


@pytest.fixture(scope="module")
def planted(tmp_path_factory):
    """The summary of a run in which origin fails at 2 M and drifts at 1.1 M; Dynamic-NTK at the last length, 3 M."""
    return summarized(write_run(tmp_path_factory.mktemp("run"), hidden_states(), evaluation()))


def cells(result):
    return {row[1]: dict(zip(result["head"], row, strict=True)) for row in result["cells"]}


def texts_of(summary, where=None):
    return {item["heading"]: item["text"] for item in verdict(summary, where)["sentences"]}


def test_a_planted_break_is_in_the_verdict(planted):
    result = planted["verdict"]
    texts = {item["heading"]: item["text"] for item in result["sentences"]}
    assert texts["What broke"] == (
        "origin fails in (64, 128] tokens, 1 to 2 times M (6 texts and 20 passkeys). It fails by tail NLL from 128 on "
        "and by passkey accuracy from 192 on, at every length measured."
    )
    assert texts["Where"].startswith("On one repeated word, the states of origin leave their in-window range first in ")
    assert texts["What mended it"] == (
        "mesa and rerope hold up to 320 tokens, the longest measured (6 texts and 20 passkeys); mesa has the lowest "
        "mean tail NLL (not clearly below rerope), -0.82 [-0.83, -0.80] nats/token to origin. dynamic-ntk lasts longer "
        "than origin and fails in (256, 320]. No method clearly beats `crop` by tail NLL."
    )
    assert texts["How sure"].startswith("No false alarms inside the window (0 of 96 (layer, window) pairs, under ")
    assert "a guess scores an unknown tail NLL; origin scores 3.00 (6 texts) and finds 20 of 20" in texts["How sure"]
    rows = {row["method"]: row for row in result["rows"]}
    assert list(rows) == ["mesa", "rerope", "dynamic-ntk", "origin"]
    assert [row["held"] for row in rows.values()] == [320, 320, 256, 64]
    assert (rows["origin"]["measured"]["after"], rows["origin"]["measured"]["high"]) == (64, 128)
    assert 64 <= rows["origin"]["drift"]["length"] <= 80
    assert rows["origin"]["drift"]["layer"] in (1, 2)
    assert rows["mesa"]["drift"]["length"] is None


def test_what_was_not_measured_names_the_command(tmp_path):
    result = summarized(write_run(tmp_path, hidden_states(windows=3)))["verdict"]
    texts = {item["heading"]: item["text"] for item in result["sentences"]}
    assert texts["What broke"].startswith("Nothing was measured by length (--samples 0); origin was trained on windows")
    assert texts["Where"].startswith("On one repeated word")
    assert "failure by length (not measured)" in texts["How sure"]
    assert [row["rank"] for row in result["rows"]] == [None] * 4
    assert cells(result)["mesa"]["measured failure"] == "not measured"
    assert "mesa-lens locate" in result["notes"][1]


def without_break(summary, chance=()):
    """The summary of a model on which no method fails; of one at chance, by all that is measured or by a part."""
    changed = copy.deepcopy(summary)
    judged = [rule for rule in ("tail NLL", "passkey") if rule not in chance]
    for row in changed["methods"]:
        none = dict.fromkeys(("length", "after", "low", "high", "before"))
        row["measured"] |= {
            **none,
            "sampled": True,
            "dips": [],
            "longest": 320,
            "judged_by": judged,
            "chance": list(chance),
            "text": "none up to 320",
        }
    changed["level"] |= {"tail_nll": 8.3, "guess": 8.32, "passkeys": 0, "prompts": {"window": 3, "sample": 3}}
    return changed | {"at_chance": list(chance), "judged_by": judged}


def test_where_nothing_breaks_nothing_is_mended(planted):
    texts = texts_of(without_break(planted))
    assert texts["What broke"] == (
        "Nothing: origin holds up to 320 tokens, the longest measured (3 texts and 3 passkeys)."
    )
    assert texts["Where"] == "Nothing to locate: origin does not fail up to 320 tokens."
    assert texts["What mended it"] == "Nothing to mend: origin does not fail up to 320 tokens."


def test_a_failure_that_is_not_ruled_out_is_stated_wherever_none_is_seen(planted):
    summary = without_break(planted)
    summary["methods"][0]["measured"] |= {"after": 64, "low": 128}
    texts = texts_of(summary)
    for heading in ("What broke", "Where", "What mended it"):
        assert "; a failure after 64 is not ruled out." in texts[heading]
    summary["methods"][0]["measured"] |= {"after": None, "low": None, "sampled": False}
    texts = texts_of(summary)
    for heading in ("What broke", "Where", "What mended it"):
        assert "; one prompt rules no failure out." in texts[heading]


def test_what_speaks_against_the_stated_window_stands_beside_the_failure(planted):
    stated = planted["stated_window"] | {
        "outcome": "cannot tell",
        "signs": [{"length": 64, "text": "a sign", "sure": False}],
        "reason": "a reason",
    }
    texts = texts_of(planted | {"stated_window": stated})
    assert texts["What broke"].endswith("Whether M = 64 is right cannot be told: a reason.")
    assert "Whether M" not in texts["How sure"]


def test_a_model_at_chance_is_named_so(planted):
    summary = without_break(planted, ("tail NLL", "passkey"))
    texts, words = texts_of(summary), json.dumps(verdict(summary, None)["sentences"])
    assert texts["What broke"] == (
        "Cannot tell: the model is at chance inside its window "
        "(a guess scores a tail NLL of 8.32; origin scores 8.30 (3 texts) and finds 0 of 3 passkeys at 64 tokens)."
    )
    assert "at chance" in texts["What mended it"]
    assert " hold" not in words
    assert "not judged: tail NLL (at chance inside M), passkey (0 of 3 found inside M)" in texts["How sure"]
    summary |= {"judged_by": ["tail NLL"], "at_chance": []}
    assert "not judged: passkey (0 of 3 found inside M)" in texts_of(summary)["How sure"]
    assert [row["rank"] for row in ranked(summary)] == [None] * 4


def test_what_is_judged_by_one_measure_alone_is_still_ranked(planted):
    summary = without_break(planted, ("passkey",))
    texts = texts_of(summary)
    assert texts["What broke"].startswith("Nothing that can be judged: origin does not fail by tail NLL up to 320")
    assert texts["What mended it"] == "Nothing to mend: origin does not fail up to 320 tokens, by what can be judged."
    assert not any(" hold" in text for text in texts.values())
    summary["methods"][0]["measured"] |= {"length": 128, "after": 64, "low": 128, "high": 128, "before": 64}
    rows = ranked(summary)
    assert [row["held"] for row in rows] == [320, 320, 320, 64]
    texts = texts_of(summary)["What mended it"]
    assert "do not fail by tail NLL up to 320 tokens, the longest measured (passkey accuracy cannot be judged)" in texts
    assert " hold" not in texts


def test_methods_share_a_rank_unless_the_paired_texts_separate_them(planted):
    summary = copy.deepcopy(planted)
    by = {row["method"]: row["longest"] for row in summary["methods"]}

    def ranks(**less):
        for name, (mean, low, high) in less.items():
            by[name]["less"]["mesa"] = {"mean": mean, "low": low, "high": high}
        return {row["method"]: row["rank"] for row in ranked(summary)}

    assert ranks() == {"mesa": 1, "rerope": 1, "dynamic-ntk": 3, "origin": 4}
    by["rerope"]["tail_nll_difference"] |= {"low": -2.0, "high": 2.0}  # to origin: says nothing of mesa
    assert ranks(rerope=(0.176, 0.118, 0.235))["rerope"] == 2
    assert ranks(rerope=(0.176, -0.01, 0.4))["rerope"] == 1
    assert ranks(rerope=(0.176, None, None))["rerope"] == 1


def test_a_method_worse_than_crop_is_named_so(planted):
    summary = copy.deepcopy(planted)
    by = {row["method"]: row["longest"] for row in summary["methods"]}
    by["rerope"]["tail_nll_to_crop"] = {"mean": 0.24, "low": 0.12, "high": 0.36}
    assert texts_of(summary)["What mended it"].endswith(
        " No method clearly beats `crop` by tail NLL; rerope (+0.24 [+0.12, +0.36] nats/token) is worse than `crop`."
    )
    by["mesa"]["tail_nll_to_crop"] = {"mean": -0.2, "low": -0.3, "high": -0.1}
    assert texts_of(summary)["What mended it"].endswith(
        " mesa (-0.20 [-0.30, -0.10] nats/token) beats `crop` by tail NLL; rerope (+0.24 [+0.12, +0.36] nats/token) is "
        "worse than `crop`."
    )


def test_the_smallest_set_is_the_clearest_loss(planted):
    summary = planted | {"model": "default", "trained_length": 256}
    result = verdict(summary, located.typed())
    rows = {row["method"]: row["heads"] for row in result["rows"]}
    assert rows["rerope"] | {"share": 0} == rows["rerope"] | {"share": 0, "is_enough": True, "measure": "nll"}
    assert len(rows["rerope"]["heads"]) == 3
    assert (rows["dynamic-ntk"]["is_enough"], rows["origin"]) == (False, None)
    table = cells(result)
    assert table["rerope"]["smallest set of heads"] == "3 (2.3, 2.5, 2.0): 92% [80, 102]"
    assert table["dynamic-ntk"]["smallest set of heads"].startswith("not enough: 7 (2.3, 2.5, 2.0, 0.1, …): ")
    assert table["origin"]["smallest set of heads"] == "–"
    assert (
        " rerope in only 3 heads restores 92% [80, 102] of the tail NLL lost at 512 tokens (n = 6)."
        in result["sentences"][1]["text"]
    )  # of 12 items the half that the set was not chosen on


def test_heads_of_a_method_with_other_parameters_are_not_shown(planted):
    where = located.summary()
    summary = planted | {"model": "default", "trained_length": 256}
    first = next(iter(where["methods"]))
    assert (
        "smallest set of heads" in verdict(summary | {"method_configs": where["methods"]}, located.typed(where))["head"]
    )
    for method in where["methods"].values():
        method |= {"window": 32}
    configs = where["methods"] | {"rerope": where["methods"]["rerope"] | {"window": 7}}
    result = verdict(summary | {"method_configs": configs}, located.typed(where))
    assert {row["method"]: row["heads"] for row in result["rows"]}["rerope"] is None
    assert "rerope in" not in result["sentences"][1]["text"]
    configs = where["methods"] | {first: where["methods"][first] | {"window": 7}}
    result = verdict(summary | {"method_configs": configs}, located.typed(where))
    assert "smallest set of heads" not in result["head"]
    assert result["notes"][1] == "Heads: those located in this folder are of methods with other parameters."


def test_what_was_located_on_another_model_is_not_believed(planted):
    result = verdict(planted, located.typed(model="other"))
    assert "smallest set of heads" not in result["head"]
    assert result["notes"][1] == "Heads: those located in this folder are of other, M = 256."


def test_texts_are_escaped(planted):
    hostile = copy.deepcopy(planted)
    hostile["verdict"]["cells"][0][1] = "<script>alert(1)</script>"
    assert "<script>" not in typed(hostile).verdict.html()


def test_one_text_does_not_call_a_method_no_better_than_crop(planted):
    summary = copy.deepcopy(planted) | {"judged_by": ["tail NLL"]}  # passkeys say nothing
    for row in summary["methods"]:
        row["measured"] |= {"judged_by": ["tail NLL"]}
        row["longest"]["tail_nll_to_crop"] = {"mean": -3.0, "low": None, "high": None}
    texts = texts_of(summary)["What mended it"]
    assert texts.startswith("mesa and rerope do not fail up to 320 tokens")
    assert "One text cannot tell a method from `crop`." in texts
    assert "beat" not in texts


def test_a_failure_that_may_be_none_is_hedged(planted):
    summary = copy.deepcopy(planted)
    summary["methods"][0]["measured"] |= {"length": 320, "after": 64, "low": 128, "high": None, "before": 256}
    assert texts_of(summary)["What broke"].startswith(
        "origin may fail after 64 tokens, or not at all up to 320: 6 texts and 20 passkeys cannot tell. Their means"
    )


def test_a_window_that_is_stated_too_large_leaves_nothing_judged(tmp_path):
    scores = evaluation()
    scores["tail_nll"][0, 1:] += 1.5  # from 64 on, which is the stated M
    summary = summarized(write_run(tmp_path, hidden_states(windows=5), scores))
    texts = texts_of(summary)
    assert texts["What broke"].startswith(
        "origin is already broken inside the stated window: check --trained-length 64 ("
    )
    assert all(texts[heading].startswith("Not judged: ") for heading in ("Where", "What mended it"))
    assert texts["How sure"].startswith("Measured on 6 texts and 20 passkeys; ")
    text = json.dumps(summary["verdict"]["sentences"]) + "".join(map(str, summary["verdict"]["cells"]))
    assert "times M" not in text
    assert "chance" not in text
    assert " hold" not in text
    assert {row["rank"] for row in summary["verdict"]["rows"]} == {None}
    assert {row["drift_onset"]["text"] for row in summary["methods"]} == {"not judged: M"}
    assert {row["measured"]["text"] for row in summary["methods"]} == {"not judged: M"}
    assert "already broken inside" in summary["drift"]
    assert summary["control"] == summary["drift"]
    assert summary["stated_window"]["outcome"] == "too large"
    json.dumps(summary, allow_nan=False)


@pytest.mark.parametrize(("trained", "count"), [(0, 1), (1, 0)])
def test_why_nothing_is_predicted_is_a_note(planted, trained, count):
    refused = Prediction(
        planted["model"], planted["trained_length"] + trained, [320], 8, "Origin loses nothing", None, {}
    )
    notes = verdict(planted, None, refused)["notes"]
    assert (
        sum("Predicted failure: none. By mesa-lens predict, Origin loses nothing." in note for note in notes) == count
    )


def test_what_is_predicted_stands_beside_the_drift_onset_with_the_misfit_of_the_law(planted):
    row = MethodPrediction(planted["method_configs"]["mesa"], "", failure=Failure(200, (180, None)))
    misfit = Misfit(0.61, True, "nats/token", 6, 4.2)
    predicted = Prediction(planted["model"], planted["trained_length"], [320], 8, "", misfit, {"mesa": row})
    result = verdict(planted, None, predicted)
    at = cells(result)["mesa"]
    assert (at["predicted failure"], at["drift onset"]) == ("200 [180, none up to 320]", "none up to 320")
    (note,) = [note for note in result["notes"] if note.startswith("Predicted failure:")]
    assert "the 6 gaps that it was fitted to: 0.61 nats/token (rms; the costliest gap costs 4.20): too large" in note


@pytest.mark.parametrize(
    ("chance", "share"), [(2e-5, "fewer than 1 in 10,000 models"), (0.0035, "at most 0.35% of models"), (None, None)]
)
def test_how_often_chance_alone_drifts_is_said_of_a_detected_drift(planted, chance, share):
    summary = copy.deepcopy(planted)
    summary["drift"]["prompts"][summary["prompt"]]["methods"][0]["chance"] = chance
    text = texts_of(summary)["How sure"]
    assert ("by chance alone" in text) == (share is not None)
    assert share is None or f"; by chance alone origin's drift would be detected in {share}; " in text
