"""What is refused before a run because it does not fit in memory, and what is said of it."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, Gemma2Config, Lfm2Config

from mesa.engine.structure import new_cache
from mesa.models import config_of, load
from mesa_lens.cli import main
from probe.capture import memory
from probe.commands.probe import ProbeRequest
from probe.commands.probe.plan import plan
from probe.commands.probe.run import check_fits, longest_that_fits
from probe.experiment import run as running
from probe.experiment.estimate import Speed
from probe.experiment.pool import Task
from probe.experiment.run import Experiment, ModelSpec

FAST = Speed(0.0, 1e-9, 0.0, 256, (None,))


def free(monkeypatch, size):
    monkeypatch.setattr(memory, "free_bytes", lambda device="cpu": size)
    monkeypatch.setattr("mesa.device.free_bytes", lambda device="cpu": size)


@pytest.mark.parametrize("executor", ["fused", "dense"])
@pytest.mark.parametrize(("length", "longest"), [(512, 4096), (4096, 512)])
def test_the_option_of_the_longer_pass_is_named(monkeypatch, length, longest, executor):
    planned = plan(ProbeRequest(methods="origin", length=length, lengths=(256, longest), texts=0, executor=executor))
    free(monkeypatch, memory.placed_bytes(planned.config, {}))
    named = f"--lengths {longest}" if longest > length else f"--length {length}"
    remedy = "shorten --lengths$" if longest > length else "shorten --length or keep fewer --layers"
    with pytest.raises(MemoryError, match=rf"{named} needs .*; {remedy}"):
        check_fits(planned)


@pytest.mark.parametrize(("device_map", "longest"), [(None, 320), ("auto", 2048)])
def test_a_device_map_places_what_this_machine_cannot_hold(monkeypatch, device_map, longest):
    planned = plan(ProbeRequest(methods="origin", load={"device_map": device_map}))
    free(monkeypatch, 0)
    assert longest_that_fits(planned, FAST, 1.0, 0.0) == longest
    free(monkeypatch, 2**30)
    experiment = Experiment()
    experiment.plan, experiment.remedy = planned, "shorten --lengths"
    monkeypatch.setattr(experiment, "tasks", lambda rows: [Task("measure", (), 2**30)])
    if device_map:
        experiment.check_memory()
    else:
        with pytest.raises(MemoryError, match="shorten --lengths"):
            experiment.check_memory()


@pytest.mark.parametrize("model", ["default", "nope", "alibi"])
def test_weights_are_counted_without_loading_them(model):
    parameters = load(model).model.parameters()
    config, state = config_of(model), torch.random.get_rng_state()
    before = config.to_dict()
    assert memory.placed_bytes(config, {}) == sum(parameter.nbytes for parameter in parameters)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert config.to_dict() == before


def test_weights_that_cannot_be_known_are_not_counted():
    config = config_of("default")
    assert memory.placed_bytes(config, {"dtype": "bfloat16"}) == memory.placed_bytes(config, {}) // 2 > 0
    assert memory.placed_bytes(config, {"device_map": "auto"}) == 0
    assert memory.placed_bytes(SimpleNamespace(dtype=None), {"device": "cuda"}) == 0
    assert memory.placed_bytes(SimpleNamespace(model_type="none", dtype=None), {}) == 0
    config.quantization_config = {"bits": 4}
    assert memory.placed_bytes(config, {}) == 0


def test_a_run_is_refused_before_weights_are_loaded_that_leave_no_room(monkeypatch, tmp_path, capsys):
    planned = plan(ProbeRequest(methods="origin", length=512, texts=0, lengths=(256, 512)))
    monkeypatch.setattr(running, "load", None)
    weights = memory.placed_bytes(planned.config, {})
    needed = planned.pass_bytes + planned.host_bytes
    free(monkeypatch, weights + needed)
    check_fits(planned)
    free(monkeypatch, weights + needed - 1)
    with pytest.raises(MemoryError, match=r"--length 512 needs about .* besides the weights \(\d+ MiB\)"):
        check_fits(planned)
    free(monkeypatch, weights - 1)
    for check in (lambda: check_fits(planned), ModelSpec("default").loaded):
        with pytest.raises(MemoryError, match=r"the weights take about \d+ MiB in float32, .* a narrower --dtype"):
            check()
    assert main(["probe", "--methods", "origin", "--out", str(tmp_path / "out")]) == 1
    assert capsys.readouterr().err.splitlines()[-1].startswith("mesa-lens: the weights take about")


def test_the_longest_length_leaves_room_for_the_weights(monkeypatch):
    planned = plan(ProbeRequest(methods="origin"))
    needed = memory.prompt_bytes(planned.config, 2048, 4) + 1
    free(monkeypatch, needed)
    assert longest_that_fits(planned, FAST, 1.0, 0.0) < 2048
    free(monkeypatch, needed + memory.placed_bytes(planned.config, {}))
    assert longest_that_fits(planned, FAST, 1.0, 0.0) == 2048


def test_a_prompt_counts_the_keys_that_a_cache_holds_after_one_pass():
    sizes: dict[str, Any] = {"vocab_size": 99, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 4}
    sizes |= {"num_attention_heads": 4, "num_key_value_heads": 2, "pad_token_id": 0}
    gemma = Gemma2Config(**sizes, head_dim=8, sliding_window=8, layer_types=["sliding_attention", "full_attention"] * 2)
    for config in (gemma, Lfm2Config(**sizes, layer_types=["conv", "full_attention", "conv", "conv"])):
        model: Any = AutoModelForCausalLM.from_config(config)
        cache = new_cache(model)
        with torch.no_grad():
            model(torch.arange(64)[None], past_key_values=cache)
        held = [getattr(layer, name, None) for layer in cache.layers for name in ("keys", "values")]
        size = sum(tensor.untyped_storage().nbytes() for tensor in held if tensor is not None)
        assert memory.prompt_bytes(config, 64, 4) == size + 64 * 12 * 32 * 4
