"""What one attention layer would take on a GPU, counted without one, stays within limits; and the counting counts."""

import sys
from inspect import signature
from pathlib import Path

import pytest
import torch

sys.path.append(str(Path(__file__).parents[3] / "benchmarks"))
import budgets
from on_paper import on_paper
from torch.nn.attention.flex_attention import flex_attention
from torch.nn.attention.varlen import varlen_attn

from mesa.methods import make, standard_methods

LENGTH = 16384
OVER = {"dynamic-ntk", "ntk-mixed", "yarn", "cope", "lampe", "stair", "mesa"}
"""Methods that are over a limit so far: with memory for all keys turned, or for two parts' queries at few turns."""


@pytest.fixture(scope="module")
def device():
    with on_paper() as device:
        pass
    return device


@pytest.fixture(scope="module")
def model(device):
    with device:
        return budgets.model_of("llama-3-8b", device)


def case(name):
    over = [pytest.mark.xfail(strict=True, reason="over a limit")] if name in OVER else []
    return pytest.param(name, marks=over)


@pytest.mark.skipif(
    "enable_gqa" not in signature(varlen_attn).parameters, reason="this torch has no varlen_attn for GQA"
)
@pytest.mark.parametrize("name", [case(name) for name in standard_methods()])
def test_a_layer_stays_within_its_budget(name, device, model):
    method = make(name, 8192)
    with on_paper(device):
        counts = budgets.counted(device, model, method, LENGTH)
    row = budgets.row("llama-3-8b", method, LENGTH, counts)
    assert all(len(layers) == budgets.DEPTH for layers in counts.values())
    assert all(layer.launches for layers in counts.values() for layer in layers)
    assert not budgets.over(row), row


def test_launches_bytes_copies_and_transfers_are_counted():
    with on_paper() as device, torch.no_grad():
        key = torch.empty(1, 2, 8, 4, device="cuda", dtype=torch.bfloat16)  # 128 bytes
        query = torch.empty(1, 4, 8, 4, device="cuda", dtype=torch.bfloat16)  # 256 bytes
        assert key.device.type == "cuda"
        with device.counting((key,)) as counts:
            part = key[:, :, 2:6]  # a view
            assert (counts.launches, counts.copied, counts.extra) == (0, 0, 0)
            part.repeat_interleave(2, 1).mul_(2)  # 128 bytes, two launches
            assert (counts.launches, counts.copied) == (2, 128)
            scores = query @ key.repeat(1, 2, 1, 1).transpose(-1, -2)  # 256 bytes beside scores of 512
            assert (counts.launches, counts.copied) == (4, 128 + 256)
            scores.clone()  # no key
            assert counts.copied == 128 + 256
            index = torch.tensor([0, 3, 5]).to("cuda")
            assert counts.transfers == 0
            assert (index + 1).tolist() == [1, 4, 6]
            assert counts.transfers == 1
        assert counts.extra == 512 + 512  # scores and what was made of them
        turned = torch.compile(lambda states: (states * 2 + 1).sin())
        with device.counting((key,)) as counts:
            turned(query)
        assert (counts.launches, counts.extra) == (1, 256)
        with device.counting((key,)) as counts:
            attended = torch.compile(flex_attention)(query, key, key, scale=1.0, enable_gqa=True)
        assert (counts.launches, counts.extra, attended.shape) == (1, 256, query.shape)
        with pytest.raises(RuntimeError, match=r"numbers of a \(8, 4\) tensor"):
            query[0, 0].tolist()
