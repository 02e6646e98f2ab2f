"""A field of a request is compared as a run is resumed, unless the request's class names it in `not_compared`."""

from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar

import pytest

from probe.commands.anatomy import AnatomyRequest
from probe.commands.anatomy.run import plan as plan_anatomy
from probe.commands.locate import LocateRequest
from probe.commands.locate.run import plan as plan_locate
from probe.commands.probe import ProbeRequest
from probe.commands.probe.plan import FailureByLength, evaluation_plan, plan, provenance, template
from probe.evaluation import plan_evaluation
from probe.options import Text, option
from probe.request import EvalRequest, MethodsRequest
from probe.store import store

REQUESTS = ProbeRequest, EvalRequest, LocateRequest, AnatomyRequest
_OTHER: Any = {"load": {"device": "cuda"}}


@pytest.mark.parametrize("cls", REQUESTS)
def test_a_changed_field_changes_the_identity_unless_it_is_excepted(cls):
    request = cls()
    names = {field.name for field in fields(cls)}
    changed = {name: replace(request, **{name: _OTHER.get(name, "another")}) for name in names}
    assert {name for name in names if changed[name].identity == request.identity} == {*cls.not_compared}


def test_a_plan_compares_the_identity_of_its_request():
    few: Any = {"samples": 1, "seed": 7}
    probe = plan(ProbeRequest(**few, lengths=(256,)))
    assert provenance(probe).keys() >= probe.request.identity.keys()
    evaluation = evaluation_plan(probe, ())
    compared = {field.name for field in fields(MethodsRequest)} - {*EvalRequest.not_compared, "load", "trained_length"}
    for name in compared:
        assert evaluation.settings[name] == getattr(probe.request, name)
    others = (
        plan_evaluation(EvalRequest(**few, lengths=(256,))),
        plan_locate(LocateRequest(**few, lengths=(512,))),
        plan_anatomy(AnatomyRequest(**few, parts=("heads",), lengths=(256,))),
    )
    for other in others:
        assert other.settings.keys() >= other.request.identity.keys()


@dataclass(frozen=True)
class Noted(ProbeRequest):
    """A request with an option of no influence, that the store records."""

    not_compared: ClassVar[tuple[str, ...]] = (*ProbeRequest.not_compared, "note")
    note: Text | None = option(None, "a note")


def test_what_a_probe_does_not_compare_may_be_recorded_and_differ(tmp_path):
    def noted(note):
        planned = plan(Noted(samples=1, seed=7, lengths=(256,), note=note))
        wanted = template(planned)
        return planned, replace(wanted, attrs={**wanted.attrs, "note": note})

    (first, stored), (_, resumed) = noted("first"), noted("second")
    store.create(tmp_path / "store.zarr", stored)
    assert store.find_store(tmp_path / "store.zarr", resumed) is not None
    evaluation = evaluation_plan(first, ())
    compared = FailureByLength(evaluation, 0).settings.keys()
    assert FailureByLength(evaluation, 0, ("executor",)).settings.keys() == compared - {"executor"}
