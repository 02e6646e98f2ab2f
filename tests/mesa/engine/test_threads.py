"""A pass has its own state: in several threads, and where gradient checkpointing computes layers again."""

import sys
import time
from concurrent.futures import ThreadPoolExecutor

import cases
import matrix
import pytest
import tiny
import torch
from families import build
from transformer_lens.factories.architecture_adapter_factory import ArchitectureAdapterFactory
from transformer_lens.model_bridge import TransformerBridge

import mesa

LENGTHS = (9, 61, 24, 80)


@pytest.fixture(autouse=True)
def eager_switches():
    """Threads take turns as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


def tokens(length, batch=1):
    return torch.randint(2, 97, (batch, length), generator=torch.Generator().manual_seed(length))


@torch.no_grad()
def passes(model, lengths):
    """Logits of prompts, each with a padded row, and of two tokens that follow."""
    results = []
    for length in lengths:
        ids, mask = tiny.padded(3, 0, length=length + 2, seed=length)
        results.append(tiny.in_pieces(model, ids, length, length + 1, mask=mask)[:, 3:])
    return results


@pytest.mark.parametrize(
    ("family", "name"),
    [("llama", "rerope"), ("llama", "dynamic-ntk"), ("llama", "mesa"), ("phi3 longrope", "rerope")],
)
def test_threads_do_not_see_each_other(family, name):
    model, orders = build(family), [LENGTHS, LENGTHS[::-1], LENGTHS[2:] + LENGTHS[:2]]
    with mesa.applied(model, cases.method(name)) as attachment:
        alone = [passes(model, order) for order in orders]
        with ThreadPoolExecutor(len(orders)) as pool:
            together = list(pool.map(lambda order: passes(model, order), orders))
    for expected, got in zip(alone, together, strict=True):
        for one, other in zip(expected, got, strict=True):
            torch.testing.assert_close(other, one, atol=1e-6, rtol=0)
    assert set(attachment.calls.values()) == {2 * 3 * 3 * len(LENGTHS)}


def attached(model):
    """Logits under a method that is attached for them, or why it was not."""
    try:
        with mesa.applied(model, cases.method("rerope")):
            return tiny.logits(model, tokens(30))
    except mesa.Refused as refused:
        return str(refused)


def test_threads_attach_each_to_its_own_model():
    """Models of different configs, so that each is tried."""
    models = [build("mistral", rope_parameters={"rope_type": "default", "rope_theta": 50.0 + n}) for n in range(4)]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(attached, models))
    for model, got in zip(models, together, strict=True):
        assert torch.equal(got, attached(model))


def test_threads_build_one_bridge_at_a_time(monkeypatch):
    """TransformerLens' adapters are the process's: of two at a time one found the other's."""
    registry, seen = ArchitectureAdapterFactory._adapters, []
    stock = registry["LlamaForCausalLM"]

    def boot(*_, **__):
        seen.append(registry["LlamaForCausalLM"])
        time.sleep(0.05)
        return torch.nn.Module()

    monkeypatch.setattr(TransformerBridge, "boot_transformers", boot)
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(lambda model: mesa.bridge(model, None), [tiny.model() for _ in range(3)]))
    assert [adapter.__base__ for adapter in seen] == [stock] * 3
    assert registry["LlamaForCausalLM"] is stock


def test_threads_that_attach_to_one_model_have_it_or_are_refused():
    model = build("llama")
    expected = attached(model)
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(attached, [model] * 24))
    assert all("already attached" in got if isinstance(got, str) else torch.equal(got, expected) for got in results)
    assert torch.equal(attached(model), expected)
    assert "generate" not in vars(model)


def gradients(model):
    return {name: weight.grad.clone() for name, weight in model.named_parameters()}


def losses(model):
    """Two passes' losses, one graph: the first is computed again after the second ran."""
    return sum(model(ids, labels=ids, use_cache=False).loss for ids in (tokens(61), tokens(30)))


def checkpointed(model, options):
    """transformers called it gradient checkpointing before."""
    name = next(name for name in ("activation", "gradient") if hasattr(model, f"{name}_checkpointing_enable"))
    getattr(model, f"{name}_checkpointing_enable")(options)


@pytest.mark.parametrize("name", ["rerope", "mesa"])
@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointed_layers_find_their_own_pass(name, reentrant):
    model, method = tiny.model().train(), cases.method(name)
    with mesa.applied(model, method, executor="dense"):
        losses(model).backward()
        expected = gradients(model)
        model.zero_grad()
        model.enable_input_require_grads()
        checkpointed(model, {"use_reentrant": reentrant})
        losses(model).backward()
    for weight, gradient in gradients(model).items():
        torch.testing.assert_close(gradient, expected[weight], atol=1e-6, rtol=1e-4)


def test_checkpointed_layers_with_a_rotary_module_of_theirs_are_an_error():
    model = matrix.build("recurrent_gemma").train()
    checkpointed(model, {"use_reentrant": False})
    message = "rerope: gradient checkpointing is not supported on this recurrent_gemma model: .* turn it off"
    with mesa.applied(model, cases.method("rerope", layers=(1,)), executor="dense"):
        loss = losses(model)
        with pytest.raises(RuntimeError, match=message):
            loss.backward()


@pytest.mark.parametrize("stock", ["sdpa", "eager"])
def test_a_layer_computed_anew_after_the_block_is_an_error(stock):
    model = tiny.model().train()
    model.set_attn_implementation(stock)
    checkpointed(model, {"use_reentrant": False})
    with mesa.applied(model, cases.method("rerope"), executor="dense"):
        after, in_another = losses(model), losses(model)
    with pytest.raises(RuntimeError, match=r"let it end, backward\(\) included, in the block"):
        after.backward()
    refused = pytest.raises(RuntimeError, match="block of rerope has ended")
    with mesa.applied(model, cases.method("mesa"), executor="dense"), refused:
        in_another.backward()
