"""What a lens reads: of the last layer the model's logits, of others what its own modules make of them."""

import cases
import matrix
import numpy as np
import pytest
import torch
from tiny import tokens

import mesa
from mesa.engine.bridge import hooked
from mesa.errors import Refused
from mesa.models import tokenizer_of
from probe.capture.capture import capture_states
from probe.commands.readout.run import LogitLens, lens_readout

pytestmark = pytest.mark.filterwarnings("ignore")
FAMILIES = "bloom cohere falcon_h1 gemma gemma2 gemma3 gpt_neox granite llama minicpm3 moshi qwen3_5".split()
"""ALiBi and rotary, hybrids, tied heads, soft caps, (1 + w), scaled logits, with and without an adapter."""
LAST = 12


@torch.no_grad()
@pytest.mark.parametrize("family", FAMILIES)
def test_the_last_layers_lens_is_the_model(family):
    model, ids, method = matrix.build(family), tokens(1, 40), cases.method("rerope")
    with mesa.applied(model, method):
        logits = model(ids, use_cache=False).logits[0, -LAST:]
    bridge = hooked(model, tokenizer_of("default"))
    states = capture_states(bridge, ids[0].tolist(), method)["resid_post"].values[-1, -LAST:]
    np.testing.assert_allclose(LogitLens(model)(torch.from_numpy(states), 1), logits, atol=1e-5 * logits.abs().max())
    read = lens_readout(bridge, ids[0].tolist(), method, tokens=LAST)
    losses = torch.nn.functional.cross_entropy(logits[:-1], ids[0, 1 - LAST :], reduction="none")
    np.testing.assert_allclose(read["loss"][-1], losses, atol=1e-4)
    np.testing.assert_allclose(read["probability"][-1], (-losses).exp(), atol=1e-5)
    np.testing.assert_allclose(read["kl"][-1], 0, atol=1e-9)
    assert read["layer"].values.tolist() == [0, 1]


@torch.no_grad()
def test_a_layer_below_is_read_by_norm_and_unembedding():
    model, ids, method = matrix.build("gemma2"), tokens(1, 40)[0].tolist(), cases.method("origin")
    bridge = hooked(model, tokenizer_of("default"))
    states = torch.from_numpy(capture_states(bridge, ids, method)["resid_post"].values)
    logits = model.lm_head(model.model.norm(states[0])) / model.config.final_logit_softcapping
    logits = model.config.final_logit_softcapping * torch.tanh(logits)
    logs, next_ids = logits[-LAST:-1].log_softmax(-1), torch.tensor(ids[1 - LAST :])[:, None]
    read = lens_readout(bridge, ids, method, tokens=LAST)
    np.testing.assert_allclose(read["loss"][0], -logs.gather(-1, next_ids)[:, 0], atol=1e-4)
    expected = (logs > logs.gather(-1, next_ids)).sum(-1) + 1
    assert read["rank"][0].values.tolist() == expected.tolist()
    np.testing.assert_allclose(read["entropy"][0], torch.distributions.Categorical(logits=logs).entropy(), atol=1e-4)
    last = model(torch.tensor([ids])).logits[0, -LAST:-1].log_softmax(-1)
    np.testing.assert_allclose(read["kl"][0], (last.exp() * (last - logs)).sum(-1), atol=1e-4)


def test_a_lens_of_the_users_is_called_with_its_layer():
    model, ids = matrix.build("llama"), tokens(1, 40)[0].tolist()
    seen = []

    def flat(states, layer):
        seen.append((layer, tuple(states.shape)))
        return torch.zeros(len(states), 160)

    bridge = hooked(model, tokenizer_of("default"))
    read = lens_readout(bridge, ids, cases.method("origin"), tokens=LAST, lens=flat)
    assert sorted(seen) == [(0, (LAST - 1, 64)), (1, (LAST - 1, 64))]
    np.testing.assert_allclose(read["loss"], np.log(160), rtol=1e-6)
    with pytest.raises(Refused, match="tokens=41 is not between 2 and the prompt's 40"):
        lens_readout(bridge, ids, cases.method("origin"), tokens=41)
    with pytest.raises(Refused, match="a lens cannot put states"):
        LogitLens(model)(torch.zeros(3, 7))
