"""Constructions by name are those of their builders; what cannot be built is named."""

import pytest
import torch

import theory

MESA = {"M": 6, "N": 2, "E": 3, "first": 2, "last": 2, "middle": "woven"}


@pytest.mark.parametrize(
    ("name", "parameters", "expected"),
    [
        ("nope", {"M": 6, "H": 0.25, "seed": 3}, lambda: theory.nope_model(6, 0.25, seed=3)),
        ("plain", {"M": 6, "slope": 0.5}, lambda: theory.plain_model(6, slope=0.5)),
        ("woven", {"M": 6, "N": 2}, lambda: theory.woven_model(6, 2)),
        ("stair", {"M": 6, "N": 2, "E": 3}, lambda: theory.stair_model(6, 2, 3)),
        ("mesa", MESA, lambda: theory.mesa_model(6, 2, 3, first=2, last=2, middle="woven")),
    ],
)
def test_a_name_gives_its_builders_model(name, parameters, expected):
    made, wanted = theory.construction(name, **parameters), expected()
    assert made.state_dict().keys() == wanted.state_dict().keys()
    for key, value in wanted.state_dict().items():
        assert torch.equal(made.state_dict()[key], value), key
    tokens = torch.zeros((1, 12), dtype=torch.long)
    assert torch.equal(made(tokens), wanted(tokens))


@pytest.mark.parametrize(
    ("name", "parameters", "message"),
    [
        ("ladder", {}, "unknown construction 'ladder'; known: nope, plain, woven, stair, mesa"),
        ("nope", {"M": 6, "N": 2}, "nope: unknown parameter 'N'; known: M, H, shape, seed, dtype"),
        ("woven", {"M": 6, "slop": 1}, "woven: unknown parameter 'slop'; known: M, N, H, recovers, recovery, slope"),
        ("stair", {"M": 6}, "stair: N, E must be given"),
        ("mesa", {"M": 6, "N": 2, "E": 2}, "mesa: first, last must be given"),
    ],
)
def test_bad_requests_name_what_is_known(name, parameters, message):
    for make in (theory.build, theory.construction):
        with pytest.raises(ValueError, match=message):
            make(name, **parameters)


@pytest.mark.parametrize("parameter", ["weave", "distances", "factors", "grown"])
def test_what_is_a_methods_is_no_models(parameter):
    with pytest.raises(ValueError, match=f"rotary: {parameter} is no part of a model's weights; attach a method"):
        theory.build("rotary", M=8, **{parameter: 2.0})
