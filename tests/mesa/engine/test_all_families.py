"""Families of transformers as tiny random models of generic sizes: `make test-families`."""

import cases
import oracle
import pytest
import structures
import torch
from matrix import ABSOLUTE, REFUSED, UNTURNED, WORKS, build
from tiny import tokens

import mesa

pytestmark = pytest.mark.slow


@torch.no_grad()
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("family", WORKS)
def test_family(family):
    model, ids = build(family), tokens(1, 30)
    stock = model(ids, use_cache=False).logits
    allowed = 1e-4 * max(1.0, float(stock.abs().max()))
    for name in ("origin", "rerope", "self-extend", "stair", "mesa", "lm-infinite", "streaming-llm"):
        method, sizes = cases.method(name, log_n=False), cases.oracle_parameters(name)

        def at(t, i, name=name, sizes=sizes):
            distance = oracle.relative(name, t, i, trained=cases.TRAINED, prompt=30, **sizes)
            return None if distance is None else (distance, 0)

        wanted = stock if name == "origin" else None if family in ABSOLUTE else structures.by_pairs(model, ids, at)
        for executor in ("dense", "fused"):
            with mesa.applied(model, method, executor=executor):
                got = model(ids, use_cache=False).logits
            wanted = got if wanted is None else wanted
            if name == "rerope":
                assert (float((got - stock).abs().max()) > 5 * allowed) == (family not in UNTURNED)
            torch.testing.assert_close(got, wanted, atol=allowed, rtol=0, msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("family", REFUSED)
def test_family_is_refused(family):
    model = build(family)
    with pytest.raises(ValueError, match=r"not supported|gives positions"), mesa.applied(model, cases.method("rerope")):
        pass
