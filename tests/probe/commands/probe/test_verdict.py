"""The verdict says what the numbers say: order, ties, chance, what is missing; planted breaks, and none."""

import copy
import json
from types import SimpleNamespace

import located
import pytest
from summaries import ranked, typed, verdict
from synthetic import evaluation, hidden_states, write_run

from probe.commands.predict.result import FailureEstimate, MethodPrediction, Misfit, Prediction
from probe.commands.probe.report import full_summary
from probe.commands.probe.verdict import HeadSet, _heads
from probe.request import ModelOptions
from probe.store.reader import open_run
from probe.store.result_file import as_json
from probe.thresholds.analysis import analyse

M = 64


def summarized(folder):
    return as_json(full_summary(analyse(open_run(folder))))


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
    assert list(texts) == ["What fails", "What fixes it", "Where inside", "How sure"]
    assert texts["What fails"] == (
        "Failure begins between 64 and 128 tokens (1 to 2x M, 95% interval) for the unmodified model. At every length "
        "measured from 128 tokens on, its tail NLL is over 0.5 nats/token above that at 64 (6 texts). At every length "
        "measured from 192 tokens on, it finds fewer than half of 20 passkeys."
    )
    assert texts["Where inside"] == (
        "Drift onset: position 77 [76, 80], first in layer 1. There the hidden states of the unmodified model leave "
        "the "
        "range that they keep inside M. Detected on one repeated word, not detected on prompt text-0."
    )
    assert texts["What fixes it"] == (
        "Use mesa or rerope: neither fails up to 320 tokens (5x M), the longest length measured (6 texts and 20 "
        "passkeys). mesa has the lowest mean tail NLL there (not clearly below rerope), 0.82 [0.80, 0.83] nats/token "
        "below the unmodified model. dynamic-ntk fails later than the unmodified model, between 256 and 320 tokens. No "
        "method clearly beats truncation by tail NLL (6 texts). The case for mesa and rerope rests on passkeys (20 "
        "passkeys): truncation cannot see those before its last 64 tokens."
    )
    assert texts["How sure"].startswith(
        "Control: 0 false detections in 96 tests inside M (mesa, rerope, dynamic-ntk and origin; a test is a layer "
        "in a "
        "window). "
    )
    assert (
        " At 64 tokens the unmodified model has a tail NLL of 3.00 (6 texts); that of guessing is unknown. It finds "
        "20 of 20 passkeys [84%, 100%] there. " in texts["How sure"]
    )
    rows = {row["method"]: row for row in result["rows"]}
    assert list(rows) == ["mesa", "rerope", "dynamic-ntk", "origin"]
    assert [row["longest_passing"] for row in rows.values()] == [320, 320, 256, 64]
    assert (rows["origin"]["measured"]["after"], rows["origin"]["measured"]["high"]) == (64, 128)
    assert 64 <= rows["origin"]["drift"]["length"] <= 80
    assert rows["origin"]["drift"]["layer"] in (1, 2)
    assert rows["mesa"]["drift"]["length"] is None


def test_what_was_not_measured_names_the_command(tmp_path):
    result = summarized(write_run(tmp_path, hidden_states(windows=3)))["verdict"]
    texts = {item["heading"]: item["text"] for item in result["sentences"]}
    assert texts["What fails"] == ("Nothing was measured by length (--samples 0). M = 64 tokens.")
    assert texts["Where inside"].startswith("Drift onset: position ")
    assert " Not evaluated: failure by length (not measured)." in texts["How sure"]
    assert [row["rank"] for row in result["rows"]] == [None] * 4
    assert cells(result)["mesa"]["measured failure"] == "not measured"
    assert "mesa-lens locate" in result["notes"][1]


def test_passkeys_that_are_not_measured_are_not_evaluated(tmp_path):
    scores = evaluation().drop_vars("passkey")
    sure = texts_of(summarized(write_run(tmp_path, hidden_states(windows=3), scores)))["How sure"]
    assert "Not evaluated: passkey (not measured, or not under every method)." in sure
    assert "Everything was evaluated" not in sure


def without_break(summary, chance=()):
    """The summary of a model on which no method fails; of one at chance, by all that is measured or by a part."""
    changed = copy.deepcopy(summary)
    evaluated = [rule for rule in ("tail NLL", "passkey") if rule not in chance]
    for row in changed["methods"]:
        none = dict.fromkeys(("length", "after", "low", "high", "before"))
        row["measured"] |= {
            **none,
            "sampled": True,
            "dips": [],
            "longest": 320,
            "evaluated_by": evaluated,
            "chance": list(chance),
            "text": "none up to 320",
        }
    changed["level"] |= {"tail_nll": 8.3, "guess": 8.32, "passkeys": 0, "prompts": {"window": 3, "sample": 3}}
    return changed | {"at_chance": list(chance), "evaluated_by": evaluated}


def test_where_nothing_fails_there_is_nothing_to_fix(planted):
    texts = texts_of(without_break(planted))
    assert texts["What fails"] == (
        "No failure up to 320 tokens (5x M), the longest length measured, for the unmodified model (3 texts and 3 "
        "passkeys)."
    )
    none = "the unmodified model does not fail up to 320 tokens (3 texts and 3 passkeys)."
    assert texts["What fixes it"] == f"Nothing to fix: {none}"
    assert texts["Where inside"].startswith(
        f"No failure to locate: {none} Drift onset: position 77 [76, 80], first in "
    )


def test_lengths_at_which_a_method_fails_but_not_beyond_are_named_wherever_none_is_seen(planted):
    summary = without_break(planted)
    summary["methods"][0]["measured"]["dips"] = [128, 192]
    texts = texts_of(summary)
    for heading in ("What fails", "Where inside", "What fixes it"):
        assert " It does fail at 128 and 192 tokens, but not beyond." in texts[heading]


def test_methods_that_are_advised_are_said_to_fail_at_shorter_lengths(planted):
    summary = copy.deepcopy(planted)
    fixing = next(row for row in summary["methods"] if row["method"] == "mesa")
    assert fixing["measured"]["length"] is None
    fixing["measured"]["dips"] = [128]
    assert "mesa does fail at 128 tokens, but not beyond." in texts_of(summary)["What fixes it"].replace(
        "It does", "mesa does"
    )


def test_in_stages_the_longest_length_is_that_of_the_method(planted):
    summary = without_break(planted) | {"measured_lengths": [64, 320, 640]}
    said = texts_of(summary)["What fails"]
    assert "No failure up to 320 tokens (5x M), the longest at which it was measured, for" in said


def test_a_failure_that_is_not_ruled_out_is_stated_wherever_none_is_seen(planted):
    summary = without_break(planted)
    summary["methods"][0]["measured"] |= {"after": 64, "low": 128}
    texts = texts_of(summary)
    for heading in ("What fails", "Where inside", "What fixes it"):
        assert " A failure after 64 tokens is not ruled out." in texts[heading]
    summary["methods"][0]["measured"] |= {"after": None, "low": None, "sampled": False}
    texts = texts_of(summary)
    for heading in ("What fails", "Where inside", "What fixes it"):
        assert " One prompt rules no failure out." in texts[heading]


def test_what_speaks_against_the_stated_window_stands_beside_the_failure(planted):
    stated = planted["stated_window"] | {
        "outcome": "cannot tell",
        "signs": [{"length": 64, "text": "a sign", "sure": False}],
        "reason": "a reason",
    }
    texts = texts_of(planted | {"stated_window": stated})
    assert texts["What fails"].endswith(" Cannot tell whether M = 64 is right: a reason.")
    assert "whether M" not in texts["How sure"]


def test_a_method_that_is_not_measured_where_the_model_fails_is_not_said_to_fix_nothing(planted):
    summary = copy.deepcopy(planted)
    reference, first, second, _ = (row["measured"] for row in summary["methods"])
    assert (reference["method"], reference["before"]) == ("origin", 64)
    none = dict.fromkeys(("length", "after", "low", "high", "before"))
    for row in (first, second):
        row |= {**none, "longest": 64}
    names = f"{first['method']} and {second['method']}"
    assert texts_of(summary)["What fixes it"].endswith(f" Not measured beyond 64 tokens yet: {names}.")
    summary["methods"][3]["measured"] = {**reference, "method": summary["methods"][3]["method"]}
    text = texts_of(summary)["What fixes it"]
    assert text.startswith("No method measured so far fixes it: none fails later than the unmodified model (")
    assert text.endswith(f" Not measured beyond 64 tokens yet: {names}.")
    summary["methods"][3]["measured"] |= {**none, "longest": 64}
    assert texts_of(summary)["What fixes it"] == "No other method is measured beyond 64 tokens yet."


def test_a_model_at_chance_is_named_so(planted):
    summary = without_break(planted, ("tail NLL", "passkey"))
    texts, words = texts_of(summary), json.dumps(verdict(summary, None)["sentences"])
    assert texts["What fails"] == (
        "Cannot tell: the unmodified model is at chance inside M. At 64 tokens the unmodified model has a tail NLL "
        "of 8.30 "
        "(3 texts); guessing gives 8.32. It finds 0 of 3 passkeys [0%, 56%] there."
    )
    assert texts["What fixes it"] == (
        "Cannot tell: the unmodified model is at chance inside M (3 texts and 3 passkeys)."
    )
    assert "Use " not in words
    assert not any("not located" in note for note in verdict(summary, None)["notes"])
    assert texts["How sure"].endswith(
        " Not evaluated: tail NLL (at chance inside M). Not evaluated: passkey (0 of 3 [0%, 56%] found inside M)."
    )
    summary |= {"evaluated_by": ["tail NLL"], "at_chance": []}
    assert texts_of(summary)["How sure"].endswith(" there. Not evaluated: passkey (0 of 3 [0%, 56%] found inside M).")
    assert [row["rank"] for row in ranked(summary)] == [None] * 4


def test_what_is_evaluated_by_one_measure_alone_is_still_ranked(planted):
    summary = without_break(planted, ("passkey",))
    texts = texts_of(summary)
    assert texts["What fails"] == (
        "No failure by tail NLL up to 320 tokens (5x M), the longest length measured, for the unmodified model (3 "
        "texts). "
        "Passkey accuracy is at chance: 0 of 3 [0%, 56%] found at 64 tokens, though half or more at 128."
    )
    none = "the unmodified model does not fail by tail NLL up to 320 tokens (3 texts)."
    assert texts["What fixes it"] == f"Nothing to fix: {none}"
    assert texts["Where inside"].startswith(f"No failure to locate: {none} Drift onset: ")
    summary["methods"][0]["measured"] |= {"length": 128, "after": 64, "low": 128, "high": 128, "before": 64}
    rows = ranked(summary)
    assert [row["longest_passing"] for row in rows] == [320, 320, 320, 64]
    assert texts_of(summary)["What fixes it"].startswith(
        "mesa, rerope and dynamic-ntk do not fail by tail NLL up to 320 tokens (5x M), the longest length measured (3 "
        "texts). Passkey accuracy is at chance: 0 of 3 [0%, 56%] found at 64 tokens, though half or more at 128. "
    )


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


def test_a_method_worse_than_truncation_is_named_so(planted):
    summary = copy.deepcopy(planted)
    by = {row["method"]: row["longest"] for row in summary["methods"]}
    by["rerope"]["tail_nll_to_truncation"] = {"mean": 0.24, "low": 0.12, "high": 0.36}
    seen = "truncation cannot see those before its last 64 tokens."
    assert texts_of(summary)["What fixes it"].endswith(
        " No method clearly beats truncation by tail NLL (6 texts). rerope (+0.24 [+0.12, +0.36] nats/token) is worse "
        f"than truncation. The case for mesa and rerope rests on passkeys (20 passkeys): {seen}"
    )
    by["mesa"]["tail_nll_to_truncation"] = {"mean": -0.2, "low": -0.3, "high": -0.1}
    assert texts_of(summary)["What fixes it"].endswith(
        " By tail NLL (6 texts), mesa (-0.20 [-0.30, -0.10] nats/token) beats truncation. rerope (+0.24 [+0.12, +0.36] "
        f"nats/token) is worse than truncation. The case for rerope rests on passkeys (20 passkeys): {seen}"
    )


def test_truncation_is_the_reference_at_m_and_never_called_crop(planted):
    result = verdict(planted, None)
    nll = {row["method"]: row["scores"] for row in planted["methods"]}
    origin = nll["origin"]["64"]["tail_nll"]
    for row in result["rows"]:
        longest = max(nll[row["method"]], key=int)
        assert row["nll"]["truncation"]["mean"] == pytest.approx(nll[row["method"]][longest]["tail_nll"] - origin)
    assert "NLL minus truncation" in result["head"]
    assert "crop" not in json.dumps([result["about"], result["sentences"], result["notes"], result["head"]])
    (note,) = [note for note in result["notes"] if note.startswith("Truncation: ")]
    assert "the unmodified model on the last 64 tokens; what the tokenizer puts first is among them." in note


def test_a_summary_that_calls_it_crop_is_read(planted):
    older = copy.deepcopy(planted)
    for row in older["methods"]:
        row["longest"]["tail_nll_to_crop"] = row["longest"].pop("tail_nll_to_truncation")
    for row in older["verdict"]["rows"]:
        row["nll"]["crop"] = row["nll"].pop("truncation")
    assert as_json(typed(older)) == as_json(typed(planted))


@pytest.mark.parametrize(
    ("stated", "config", "text"),
    [
        (None, {"max_position_embeddings": 64}, "tiny was trained on M = 64 tokens, by its config."),
        (64, {"max_position_embeddings": 64}, "tiny was trained on M = 64 tokens, by its config."),
        (
            64,
            {"max_position_embeddings": 32768},
            "tiny takes M = 64 tokens, as stated by --trained-length; its config says 32768.",
        ),
        (64, {}, "tiny takes M = 64 tokens, as stated by --trained-length; its config states none."),
    ],
)
def test_what_states_m_is_named(stated, config, text, planted):
    config = SimpleNamespace(model_type="llama", **config)
    by = ModelOptions(trained_length=stated).trained_length_by(config)
    assert verdict(planted | {"trained_length_by": by}, None)["about"].startswith(f"Model {text} ")
    unmeasured = copy.deepcopy(planted) | {"trained_length_by": by}
    for row in unmeasured["methods"]:
        row["measured"] = None
    assert texts_of(unmeasured)["What fails"].endswith(text.partition("M = ")[2])
    older = {name: value for name, value in planted.items() if name != "trained_length_by"}
    assert verdict(older, None)["about"].startswith("Model tiny was trained on M = 64 tokens. ")


def test_the_smallest_set_is_the_clearest_loss(planted):
    summary = planted | {"model": "default", "trained_length": 256}
    result = verdict(summary, located.typed())
    rows = {row["method"]: row["heads"] for row in result["rows"]}
    assert rows["rerope"] | {"share": 0} == rows["rerope"] | {"share": 0, "is_enough": True, "measure": "nll"}
    assert len(rows["rerope"]["heads"]) == 3
    assert (rows["dynamic-ntk"]["is_enough"], rows["origin"]) == (False, None)
    table = cells(result)
    assert table["rerope"]["smallest set of heads"] == "3 (L2H3, L2H5, L2H0): 92% [80, 102]"
    assert table["dynamic-ntk"]["smallest set of heads"].startswith("not enough: 7 (L2H3, L2H5, L2H0, L0H1, …): ")
    assert table["origin"]["smallest set of heads"] == "–"
    assert result["sentences"][2]["text"].endswith(
        " rerope in 3 heads alone (L2H3, L2H5 and L2H0) recovers 92% [80, 102] of the excess loss at 512 tokens (n = "
        "6)."
    )  # of 12 items the half that the set was not chosen on


def test_heads_chosen_by_an_answer_recover_its_loss():
    heads = HeadSet([(0, 1)], True, True, 0.9, 0.8, 1.0, 0.1, length=512, measure="passkey", items=6)
    assert "recovers 90% [80, 100] of the excess loss of the passkey's answer at" in _heads("rerope", heads)


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
    assert "rerope in" not in result["sentences"][2]["text"]
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


def test_one_text_does_not_call_a_method_no_better_than_truncation(planted):
    summary = copy.deepcopy(planted) | {"evaluated_by": ["tail NLL"]}  # passkeys say nothing
    for row in summary["methods"]:
        row["measured"] |= {"evaluated_by": ["tail NLL"]}
        row["longest"]["tail_nll_to_truncation"] = {"mean": -3.0, "low": None, "high": None}
    texts = texts_of(summary)["What fixes it"]
    assert texts.startswith(
        "mesa and rerope do not fail by tail NLL up to 320 tokens (5x M), the longest length measured (6 texts). "
    )
    assert (
        " Passkey accuracy is not evaluated: 20 of 20 [84%, 100%] found at 64 tokens, though half or more at 128. "
        in texts
    )
    assert texts.endswith(" One text cannot tell a method from truncation.")
    assert "beat" not in texts


def test_a_failure_that_may_be_none_is_hedged(planted):
    summary = copy.deepcopy(planted)
    summary["methods"][0]["measured"] |= {"length": 320, "after": 64, "low": 128, "high": None, "before": 256}
    assert texts_of(summary)["What fails"].startswith(
        "The unmodified model may fail after 64 tokens, or not at all up to 320: 6 texts and 20 passkeys cannot "
        "tell. On "
        "average: At every length measured from 128 tokens on, its tail NLL "
    )


def test_a_method_that_may_fail_later_is_named_with_its_tokens(planted):
    summary = copy.deepcopy(planted)
    part = next(row for row in summary["methods"] if row["method"] == "dynamic-ntk")
    for ends, text in [({"after": 0}, "by 320 tokens, if ever"), ({"after": 256}, "after 256 tokens, if ever")]:
        part["measured"] |= {"high": None, **ends}
        fixes = texts_of(summary)["What fixes it"]
        assert f" dynamic-ntk fails later than the unmodified model, {text}. " in fixes


def test_a_window_that_is_stated_too_large_leaves_nothing_evaluated(tmp_path):
    scores = evaluation()
    scores["tail_nll"][0, 1:] += 1.5  # from 64 on, which is the stated M
    summary = summarized(write_run(tmp_path, hidden_states(windows=5), scores))
    texts = texts_of(summary)
    assert texts["What fails"].startswith("Check --trained-length 64: origin already fails inside it (tail NLL ")
    assert all(texts[heading].startswith("Not evaluated: ") for heading in ("Where inside", "What fixes it"))
    assert texts["How sure"].startswith("Measured on 6 texts and 20 passkeys. ")
    text = json.dumps(summary["verdict"]["sentences"]) + "".join(map(str, summary["verdict"]["cells"]))
    assert "x M" not in text
    assert "chance" not in text
    assert "Use " not in text
    assert {row["rank"] for row in summary["verdict"]["rows"]} == {None}
    assert {row["drift_onset"]["text"] for row in summary["methods"]} == {"not evaluated: M"}
    assert {row["measured"]["text"] for row in summary["methods"]} == {"not evaluated: M"}
    assert "already fails inside" in summary["drift"]
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
    row = MethodPrediction(planted["method_configs"]["mesa"], "", failure=FailureEstimate(200, (180, None)))
    misfit = Misfit(0.61, True, "nats/token", 6, 4.2)
    predicted = Prediction(planted["model"], planted["trained_length"], [320], 8, "", misfit, {"mesa": row})
    result = verdict(planted, None, predicted)
    at = cells(result)["mesa"]
    assert (at["predicted failure"], at["drift onset"]) == ("200 [180, none up to 320]", "none up to 320")
    (note,) = [note for note in result["notes"] if note.startswith("Predicted failure:")]
    assert (
        "the 6 position gaps that it was fitted to: 0.61 nats/token (rms; the costliest gap costs 4.20): too large"
        in note
    )


@pytest.mark.parametrize(
    ("chance", "share"), [(2e-5, "fewer than 1 in 10,000"), (0.0035, "at most 0.35% of"), (None, None)]
)
def test_how_often_chance_alone_drifts_is_said_of_a_detected_drift(planted, chance, share):
    summary = copy.deepcopy(planted)
    summary["drift"]["prompts"][summary["prompt"]]["methods"][0]["chance"] = chance
    text = texts_of(summary)["How sure"]
    assert ("If positions were independent" in text) == (share is not None)
    expected = f" If positions were independent, chance alone would give drift this clear in {share} models, and in far"
    assert share is None or expected in text


@pytest.mark.parametrize(
    ("effective", "says"), [(None, "together."), (1.8, "together; those of layer 1 move as about 2 independent ones.")]
)
def test_how_many_dims_move_independently_is_said_of_a_detected_drift(planted, effective, says):
    summary = copy.deepcopy(planted)
    of_reference = summary["drift"]["prompts"][summary["prompt"]]["methods"][0]
    of_reference |= {"chance": 0.0035, "layer": 1, "effective_dims": effective}
    assert f"where dims move {says}" in texts_of(summary)["How sure"]
