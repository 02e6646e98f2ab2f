"""What one attention layer would take on a GPU, counted without one, stays within limits; and the counting counts."""

import sys
from pathlib import Path

import pytest
import torch

sys.path.append(str(Path(__file__).parents[3] / "benchmarks"))
import budgets
from on_paper import on_paper
from torch.nn.attention.flex_attention import flex_attention

from mesa.methods import make, standard_methods
from mesa.support import unfit

LENGTH = 32768
QUICK = {
    "llama-3-8b": {"origin", "rerope", "yarn", "dca", "lampe", "streaming-llm", "stair", "mesa"},
    "llama-2-7b": {"yarn"}, "qwen3-0.6b": set(), "qwen3-32b": {"rerope"}, "gemma-2-27b": {"dca"},
    "gpt-oss-20b": {"stair"}, "hunyuan-7b": {"stair"},
}  # fmt: skip
"""What is counted in the quick suite, by model: plans that differ, and the cells nearest to a limit."""


@pytest.fixture(scope="module")
def device():
    with on_paper() as device:
        pass
    return device


@pytest.fixture(scope="module")
def models(device):
    known = {}

    def model(name):
        if name not in known:
            with device:
                known[name] = budgets.model_of(name, device)
        return known[name]

    return model


@pytest.fixture(scope="module")
def row_of(device, models):
    """What is counted of a model's layers under a method, each counted once."""
    known = {}

    def row(model, method, batch=1):
        if (model, method, batch) not in known:
            with on_paper(device):
                counts = budgets.counted(device, models(model), method, LENGTH, batch)
            assert all(len(layers) == budgets.DEPTH for layers in counts.values())
            assert all(layer.launches for layers in counts.values() for layer in layers)
            known[model, method, batch] = budgets.row(model, method, LENGTH, counts, batch)
        return known[model, method, batch]

    return row


def cells():
    for model, (_, _, trained) in budgets.MODELS.items():
        config = budgets.config_of(model)
        for name in standard_methods():
            if unfit(config, type(make(name, trained))):
                continue
            yield pytest.param(model, name, marks=[] if name in QUICK[model] else [pytest.mark.slow])


@pytest.mark.parametrize(("model", "name"), list(cells()))
def test_a_layer_stays_within_its_budget(model, name, row_of):
    row = row_of(model, make(name, budgets.MODELS[model][2]))
    assert not budgets.over(row, budgets.size_of(model, LENGTH)), row


@pytest.mark.parametrize(("name", "launches"), [("rerope", 17), ("stair", 18)])
def test_a_short_prompt_is_one_block(name, launches, device, models):
    method = make(name, 2048)
    with on_paper(device):
        counts = budgets.counted(device, models("qwen3-0.6b"), method, 8192)
    row = budgets.row("qwen3-0.6b", method, 8192, counts)
    assert row["prefill launches"] <= launches
    assert not budgets.over(row, budgets.size_of("qwen3-0.6b", 8192)), row


def padded():
    """Plans that differ; the quick suite has one of each kind: plain, by frequencies, in chunks."""
    for name in ("origin", "dynamic-ntk", "lampe", "mesa", "rerope", "dca", "streaming-llm", "stair"):
        is_quick = name in ("origin", "dynamic-ntk", "mesa")
        yield pytest.param(name, marks=() if is_quick else pytest.mark.slow)


@pytest.mark.parametrize("name", list(padded()))
def test_rows_of_different_padding_take_the_launches_of_one_text(name, row_of):
    """A set of launches a row was eight times as many, and gathering the output twice the memory of keys and values."""
    one, padded = (row_of("llama-3-8b", make(name, 8192), batch) for batch in (1, 8))
    assert not budgets.over(padded, 8 * budgets.size_of("llama-3-8b", LENGTH)), padded
    assert padded["prefill launches"] <= 1.3 * one["prefill launches"]  # one may use a larger share in fewer blocks
    assert padded["decode launches"] == one["decode launches"] == 2
    assert padded["decode extra"] <= one["decode extra"] + 0.01


@pytest.mark.parametrize(
    "name", ["mesa", *(pytest.param(name, marks=pytest.mark.slow) for name in ("rerope", "stair", "dynamic-ntk"))]
)
def test_a_method_in_some_heads_stays_within_the_budget_of_all(name, row_of):
    row = row_of("llama-3-8b", make(name, 8192, heads=dict.fromkeys(range(budgets.DEPTH), (0, 3, 17))))
    assert not budgets.over(row, budgets.size_of("llama-3-8b", LENGTH)), row


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
