"""Families of transformers as tiny random models of generic sizes: `make test-families`."""

import cases
import oracle
import pytest
import structures
import torch
from bridged import held_to_the_model
from matrix import ABSOLUTE, ALIBI, BRIDGED, REFUSED, UNTURNED, WORKS, build
from tiny import tokens

import mesa
from mesa.models import load

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


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("family", [*WORKS, *ALIBI])
def test_family_on_a_bridge(family):
    tokenizer = load().tokenizer
    if family in BRIDGED:
        held_to_the_model(family, tokenizer)
    else:
        with pytest.raises(ValueError, match="TransformerLens has no adapter for"):
            mesa.bridge(build(family), tokenizer)


@torch.no_grad()
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("family", ["deepseek_v4", "glm_moe_dsa"])
def test_a_family_without_methods_has_a_bridge(family):
    model, bridge, ids = build(family), mesa.bridge(build(family), load().tokenizer), tokens(2, 30)
    for logits in (bridge(ids), bridge.run_with_cache(ids)[0]):
        torch.testing.assert_close(logits, model(ids, use_cache=False).logits, atol=1e-4, rtol=0)
