"""Families of transformers as tiny random models of generic sizes: `make test-families`."""

import cases
import pytest
import torch
from bridged import held_to_the_model
from matrix import ABSOLUTE, ALIBI, BRIDGED, BRIDGED_ALONE, REFUSED, UNTURNED, WORKS, build
from structures import NAMES, everywhere, held_to_pairs
from tiny import tokens

import mesa
from mesa.engine import structure
from mesa.models import load
from mesa.support import windows_of

OTHERWISE = ("minimax", "moshi")
"""MiniMax takes its window whatever its layer_types say; Moshi has a mask without one."""
pytestmark = pytest.mark.slow


@torch.no_grad()
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("family", WORKS)
def test_family(family):
    """A padded batch, decoded with a cache, by both executors, under eight methods."""
    model, ids = build(family), tokens(1, 30)
    for name in NAMES:
        held_to_pairs(model, name, family in ABSOLUTE)
    stock = model(ids, use_cache=False).logits
    with mesa.applied(model, everywhere(model, cases.method("rerope", log_n=False))):
        moved = (model(ids, use_cache=False).logits - stock).abs().max() / stock.abs().max()
    assert structure.windows(model) == windows_of(model.config) or family in OTHERWISE
    assert (float(moved) > 5e-4) == (family not in UNTURNED)


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
@pytest.mark.parametrize("family", BRIDGED_ALONE)
def test_a_family_without_methods_has_a_bridge(family):
    model, bridge, ids = build(family), mesa.bridge(build(family), load().tokenizer), tokens(2, 30)
    for logits in (bridge(ids), bridge.run_with_cache(ids)[0]):
        torch.testing.assert_close(logits, model(ids, use_cache=False).logits, atol=1e-4, rtol=0)
