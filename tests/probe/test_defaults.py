"""Default methods and lengths fit every model and window, and say what they leave out; what is named does not."""

import re
from dataclasses import replace

import pytest

from mesa.settings import fitting_methods
from probe import evaluation
from probe.commands.anatomy import run as anatomy
from probe.commands.locate import run as locating
from probe.commands.probe.plan import ProbeRequest, default_lengths, plan, provenance
from probe.commands.probe.run import prepare
from probe.commands.readout import plan as readout

PLANS = {
    "probe": (plan, ProbeRequest),
    "eval": (evaluation.plan_evaluation, evaluation.EvalRequest),
    "locate": (locating.plan, locating.LocateRequest),
    "anatomy": (anatomy.plan, anatomy.AnatomyRequest),
    "readout": (readout.plan, readout.ReadoutRequest),
}
BASED = {"dynamic-ntk", "ntk-mixed"}


@pytest.mark.parametrize("command", PLANS)
def test_default_methods_are_those_that_the_model_can_have(command, capsys):
    make_plan, request_type = PLANS[command]
    request = request_type(model="alibi", samples=4)
    planned = make_plan(request)
    names = {method.name for method in getattr(planned, "methods", {}).values()}
    assert not names & BASED
    output = capsys.readouterr().err
    default = request.default_methods
    for name in BASED:
        line = f"left out: {name} cannot be attached to model type 'mpt': it changes rotary frequencies"
        assert output.count(line) == (default == "all" or name in default)
    with pytest.raises(ValueError, match="dynamic-ntk cannot be attached to model type 'mpt'"):
        make_plan(replace(request, methods="origin,dynamic-ntk"))


def test_a_run_records_what_its_default_left_out():
    planned = plan(ProbeRequest(model="alibi"))
    assert list(planned.methods) == ["origin", "rerope", "mesa"]
    assert provenance(planned)["left_out"].startswith("dynamic-ntk cannot be attached")
    assert "left_out" not in provenance(plan(ProbeRequest(model="alibi", methods="origin,mesa")))
    assert "left_out" not in provenance(plan(ProbeRequest()))


def test_a_window_too_small_for_a_methods_default_sizes_leaves_it_out():
    methods, left_out = fitting_methods("all", 3)
    assert {"origin", "rerope", "mesa"} <= {*methods}
    assert left_out == {"streaming-llm": "streaming-llm: first=4 is not below the trained length 3"}
    with pytest.raises(ValueError, match="first=5 is not below the trained length 3"):
        fitting_methods("all", 3, ["streaming-llm.first=5"])


@pytest.mark.parametrize("trained", [2, 64, 100, 128, 100_000])
@pytest.mark.parametrize("command", PLANS)
def test_default_lengths_fit_the_trained_window_or_the_error_names_the_option(command, trained):
    planned, request = PLANS[command]
    refused = ""
    try:
        planned(request(trained_length=trained, samples=16 if command == "readout" else 2))
    except ValueError as error:
        refused = str(error)
    assert not refused or (trained not in (100, 128) and re.search("--lengths|--samples 0|trained length", refused))


def test_lengths_too_short_for_a_prompt_are_left_out_of_a_default_alone(capsys):
    planned = plan(ProbeRequest(trained_length=128))
    assert planned.lengths == (128, 192, 256, 384, 512)
    line = "left out: --lengths 64: length=64 is below the task's fixed text of 66 tokens"
    assert line in capsys.readouterr().err
    assert default_lengths(256, 380) == [128, 256, 380]  # something beyond M, where no multiple fits
    prepare(planned)
    with pytest.raises(ValueError, match=r"64 is below the task's fixed text .*\(--lengths\)"):
        prepare(plan(ProbeRequest(trained_length=128, lengths=(64, 128))))
    assert plan(ProbeRequest(trained_length=128, samples=0)).lengths[0] == 64
    tasks = evaluation.plan_evaluation(evaluation.EvalRequest(trained_length=64, samples=2, methods="origin"))
    assert tasks.setting.lengths == (128, 256, 512)
    assert line in capsys.readouterr().err


def test_anatomy_leaves_out_parts_that_the_window_is_too_small_for(capsys):
    request = anatomy.AnatomyRequest(trained_length=6, samples=2)
    planned = anatomy.plan(request)
    assert (list(planned.texts), planned.passkeys) == ([6, 24], {})
    assert "left out: retrieval: length=" in capsys.readouterr().err
    with pytest.raises(ValueError, match="fixed text"):
        anatomy.plan(replace(request, lengths=(6, 24)))
    with pytest.raises(ValueError, match="fixed text"):
        anatomy.plan(replace(request, parts=("retrieval",)))
    with pytest.raises(ValueError, match=r"length=68 is below .* of (\d+) tokens; ask for at least \1 ") as refused:
        anatomy.plan(replace(request, lengths=(68, 256)))  # the prompt fits, its answer does not
    least = int(str(refused.value).split()[-2])
    assert anatomy.plan(replace(request, lengths=(least, 256))).lengths == [least, 256]


@pytest.mark.parametrize(
    ("options", "rounds"),
    [({}, 1), ({"lengths": (256, 8192)}, 0), ({"samples": 0}, 0), ({"refine": 3}, 3), ({"refine": 0}, 0)],
)
def test_one_further_length_is_measured_by_default_where_a_pass_is_cheap(options, rounds):
    assert plan(ProbeRequest(length=2048, **options)).refine == rounds
