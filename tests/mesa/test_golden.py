"""Outputs of the public implementations (tests/mesa/golden/params.json names them), matched to 1e-4.

The nearest wrong formula (a window off by one, no log-n, floor for ceil) is off by 0.1 to 1 in logits.
"""

import math
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import DynamicCache, LlamaForCausalLM

import mesa
from mesa.methods import interpolated
from mesa.plan import Constant

GOLDEN = Path(__file__).parent / "golden"
TOLERANCE = 1e-4
METHODS = {
    "origin": mesa.Origin(trained_length=128),
    "dynamic_ntk": mesa.DynamicNTK(trained_length=128, factor=4.0),
    "ntk_mixed": mesa.NTKMixed(trained_length=128, k=12),
    "rerope": mesa.ReRoPE(trained_length=128, window=32),
    "leaky_rerope": mesa.LeakyReRoPE(trained_length=128, window=32, k=16),
    "lm_infinite": mesa.LMInfinite(trained_length=128, first=10, window=128),
    "streaming": mesa.StreamingLLM(trained_length=128, first=4, window=124),
    "selfextend": mesa.SelfExtend(trained_length=128, window=32, group=8),
    "selfextend_log": mesa.SelfExtend(trained_length=128, window=32, group=8, log_n=True),
    "mesa": mesa.MesaExtrapolation(
        trained_length=128, width=8, first=10, last=32, split_threshold=200, headroom=8, variant="reference"
    ),
    "pi": mesa.PI(trained_length=128, factor=4.0),
    "yarn": mesa.YaRN(trained_length=128, factor=4.0),
    "dca": mesa.DCA(trained_length=128),
    "string": mesa.STRING(trained_length=128, local=16),
    "lampe": mesa.LaMPE(trained_length=128),
    "dca_mscale": mesa.DCA(trained_length=128, mscale=True),
}


@pytest.fixture(scope="module")
def model() -> LlamaForCausalLM:
    return LlamaForCausalLM.from_pretrained(GOLDEN / "tiny_model", dtype=torch.float32).eval()


@pytest.mark.parametrize("executor", ["dense", "fused"])
@pytest.mark.parametrize("length", [64, 200, 333])
@pytest.mark.parametrize("name", list(METHODS))
def test_method_reproduces_its_public_implementation(model, name, length, executor):
    golden = np.load(GOLDEN / f"{name}.npz")
    ids = torch.from_numpy(golden[f"L{length}_input_ids"]).reshape(1, -1)
    tokens = golden[f"L{length}_tokens"].reshape(-1)
    cache = DynamicCache()
    with torch.no_grad(), mesa.applied(model, METHODS[name], executor=executor) as attachment:
        logits = model(ids, past_key_values=cache).logits[0]
        np.testing.assert_allclose(logits[:, :64], golden[f"L{length}_prompt_logits"].reshape(-1, 64), atol=TOLERANCE)
        assert logits[-1].argmax() == tokens[0]
        if name == "dynamic_ntk" and length > 128:
            return  # from here on Hugging Face keeps old keys in their old base; we do not, by design
        for token, following, expected in zip(tokens, [*tokens[1:], None], decode_logits(golden, length), strict=True):
            logits = model(torch.tensor([[token]]), past_key_values=cache).logits[0]
            np.testing.assert_allclose(logits[-1, :64], expected, atol=TOLERANCE)
            assert following is None or logits[-1].argmax() == following
    assert all(attachment.calls[layer] == 1 + len(tokens) for layer in range(3))


def off(model, name, method) -> float:
    """The largest difference of a method's logits from a golden's, in its longest prompt and the tokens after it."""
    golden, cache = np.load(GOLDEN / f"{name}.npz"), DynamicCache()
    ids, tokens = (torch.from_numpy(golden[f"L333_{part}"]).reshape(1, -1) for part in ("input_ids", "tokens"))
    expected = np.concatenate([golden["L333_prompt_logits"].reshape(-1, 64), decode_logits(golden, 333)])
    with torch.no_grad(), mesa.applied(model, method):
        parts = [model(part, past_key_values=cache).logits[0, :, :64] for part in (ids, *tokens.split(1, 1))]
    return float(np.abs(torch.cat(parts).numpy() - expected).max())


@dataclass(frozen=True, kw_only=True)
class Scaled(mesa.Method):
    """A method with another factor on its scores."""

    name, formula, source = "scaled", "", ""
    trained_length: int = 128
    method: mesa.Method
    factor: float

    @property
    def cached_position(self):
        return self.method.cached_position

    def plan(self, length, prompt_length=None):
        plan = self.method.plan(length, prompt_length)
        return replace(plan, regions=tuple(replace(each, query_scale=Constant(self.factor)) for each in plan.regions))


@dataclass(frozen=True, kw_only=True)
class Floored(mesa.YaRN):
    """YaRN whose ramp ends at the floor of where it should end at the ceiling."""

    def plan(self, length, prompt_length=None):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(interpolated.math, "ceil", math.floor)
            scale = super().plan(length, prompt_length).frequency_scale
            table = scale(np.arange(16), 32, 10000.0)
        return replace(super().plan(length), frequency_scale=lambda number, dims, base: torch.from_numpy(table))


MISTAKES = {
    "pi: n / M for 4": ("pi", mesa.PI(trained_length=128, factor=333 / 128), 0.1),
    "yarn: no factor on scores": ("yarn", Scaled(method=METHODS["yarn"], factor=1.0), 0.2),
    "yarn: a for a^2": ("yarn", Scaled(method=METHODS["yarn"], factor=0.1 * math.log(4) + 1), 0.1),
    "yarn: floor for ceil": ("yarn", Floored(trained_length=128), 0.3),
    "dca: a chunk off by one": ("dca", mesa.DCA(trained_length=128, chunk=81), 0.3),
    "dca: the largest distance off by one": ("dca", mesa.DCA(trained_length=128, most=97), 0.3),
    "dca: the paper's sizes": ("dca", mesa.DCA(trained_length=128, chunk=96, most=127), 0.7),
    "dca: no mscale": ("dca_mscale", METHODS["dca"], 0.01),
    "dca: decoding with the prompt's mscale": (
        "dca_mscale",
        Scaled(method=METHODS["dca"], factor=(0.05 * math.log(333 / 128) + 1) ** 2),
        5e-4,
    ),
    "string: S off by one": ("string", mesa.STRING(trained_length=128, local=16, window=44), 0.2),
    "string: W off by one": ("string", mesa.STRING(trained_length=128, local=17), 0.2),
    "string: no factor on scores": ("string", Scaled(method=METHODS["string"], factor=1.0), 0.1),
    "string: a for a^2": ("string", Scaled(method=METHODS["string"], factor=0.1 * math.log(2) + 1), 0.05),
    "lampe: h off by one": ("lampe", mesa.LaMPE(trained_length=128, window=17), 0.1),
    "lampe: U off by one": ("lampe", mesa.LaMPE(trained_length=128, mapped=45), 0.1),
    "lampe: no factor on scores": ("lampe", Scaled(method=METHODS["lampe"], factor=1.0), 0.1),
}
"""What comes nearest to a method without being it, by golden, and the least it is off in logits."""


@pytest.mark.parametrize("mistake", list(MISTAKES))
def test_the_nearest_mistakes_are_told_apart(model, mistake):
    name, method, least = MISTAKES[mistake]
    assert off(model, name, METHODS[name]) < TOLERANCE
    assert off(model, name, method) > least


@pytest.mark.parametrize(("name", "least"), [("string", 0.2), ("lampe", 0.1)])
def test_pairs_at_a_seam_count_once(model, name, least, monkeypatch):
    """In the public code's prefill the seam's pairs are in both parts."""
    method, plan = METHODS[name], type(METHODS[name]).plan

    def doubled(self, length, prompt_length=None):
        found = plan(self, length, prompt_length)
        bands = (each if each.farthest is None else replace(each, farthest=each.farthest + 1) for each in found.regions)
        return replace(found, regions=tuple(bands))

    monkeypatch.setattr(type(method), "plan", doubled)
    assert off(model, name, method) > least


def decode_logits(golden, length: int) -> np.ndarray:
    return golden[f"L{length}_decode_logits"].reshape(-1, 64)
