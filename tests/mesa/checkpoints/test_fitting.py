"""Model folders whose parts do not fit, names that are not there, and what a config states of M: told in one line."""

import copy
import json
import sys
from unittest.mock import Mock

import pytest
import tiny
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoTokenizer, LlamaConfig, MptConfig

import mesa
from mesa.checkpoints import place
from mesa.errors import NotFound, Refused
from mesa.models import config_of, load, tokenizer_of
from mesa.support import length_choice, note_stated, trained_length
from mesa_lens.cli import main
from probe.request import ModelOptions


@pytest.fixture
def folder(tmp_path):
    return tiny.folder(tmp_path / "model")


def changed_config(folder, **changes):
    """The folder's config.json with changes; None takes a key out."""
    path = folder / "config.json"
    config = {**json.loads(path.read_text()), **changes}
    path.write_text(json.dumps({key: value for key, value in config.items() if value is not None}))


def changed_weights(folder, change):
    path = folder / "model.safetensors"
    save_file({name: change(name, weight) for name, weight in load_file(path).items()}, path, {"format": "pt"})


def refused(call, *args):
    with pytest.raises(Refused) as caught:
        call(*args)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_weights_of_another_shape_are_named_with_both_shapes(folder, capfd):
    changed_weights(folder, lambda name, weight: weight[:-5].clone() if "up_proj" in name else weight)
    said = refused(load, str(folder))
    assert "3 weights of another shape" in said
    assert "model.layers.0.mlp.up_proj.weight (43, 32), not (48, 32)" in said
    assert "REPORT" not in "".join(capfd.readouterr())


@pytest.mark.parametrize(("dtype", "name"), [(torch.int8, "I8"), (torch.uint8, "U8"), (torch.float8_e4m3fn, "F8_E4M3")])
def test_integers_without_scales_are_refused_by_name(folder, dtype, name):
    changed_weights(folder, lambda key, weight: weight.to(dtype) if "q_proj" in key else weight)
    assert f"model.layers.0.self_attn.q_proj.weight as {name}" in refused(load, str(folder))


@pytest.mark.parametrize(
    ("method", "package"), [({"quant_method": "gptq", "bits": 4}, "optimum"),
                            ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "bitsandbytes")],
)  # fmt: skip
def test_a_package_that_is_missing_is_named(folder, method, package):
    changed_config(folder, quantization_config=method)
    said = refused(load, str(folder))
    assert "a package that it needs" in said
    assert package in said
    assert "damaged" not in said


def test_code_of_a_folder_runs_only_when_it_is_allowed_and_its_class_is_taken_as_its_base(folder, capfd):
    changed_config(folder, architectures=["Mine"], auto_map={"AutoModelForCausalLM": "code.Mine"})
    (folder / "code.py").write_text(
        "from transformers import LlamaForCausalLM\nclass Mine(LlamaForCausalLM):\n    pass\n"
    )
    loaded = load(str(folder), trust_remote_code=True)
    assert type(loaded.model).__name__ == "Mine"
    assert capfd.readouterr().err == ""
    report = mesa.check(loaded.model, loaded.tokenizer, methods="rerope")
    assert not report.failed
    assert all(row.result != "not run" for row in report.rows)


def test_a_class_that_takes_the_place_of_a_models_own_code_is_named_or_refused(folder, capfd):
    """The folder lacks the code: nothing of it is read."""
    changed_config(folder, auto_map={"AutoConfig": "code.MyConfig", "AutoModelForCausalLM": "code.Mine"})
    path = folder / "tokenizer_config.json"
    stated = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps({**stated, "auto_map": {"AutoTokenizer": ["code.Slow", None]}}))
    assert type(load(str(folder)).model).__name__ == "LlamaForCausalLM"
    config_of(str(folder))
    own, words = capfd.readouterr().err.splitlines()  # once each
    assert "(code.Mine), which is not run: transformers' LlamaForCausalLM is used" in own
    assert "(code.Slow), which is not run: transformers' " in words
    assert own.endswith("--trust-remote-code")
    for changes in ({"model_type": "t5"}, {"model_type": "mine"}):
        changed_config(folder, **changes)
        assert "it runs Python code that comes with it; read that code" in refused(config_of, str(folder))


def with_added(folder, *tokens):
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.add_tokens(list(tokens))
    tokenizer.save_pretrained(folder)
    return len(tokenizer) - len(tokens)


@pytest.mark.parametrize("read", [tokenizer_of, lambda name: load(name).tokenizer])
def test_texts_with_added_tokens_that_the_model_lacks_are_refused_and_others_read(folder, read):
    plain = AutoTokenizer.from_pretrained(folder)(["a text", "of words"]).input_ids
    first = with_added(folder, "<|turn|>", "[PAD]")
    tokenizer = read(str(folder))
    assert tokenizer(["a text", "of words"]).input_ids == plain
    tokenizer = copy.deepcopy(tokenizer)
    tokenizer.save_pretrained(folder / "again")
    assert AutoTokenizer.from_pretrained(folder / "again")("a text").input_ids == plain[0]
    assert tokenizer("").input_ids == tokenizer.encode("")
    for call in (tokenizer, tokenizer.encode, lambda text: tokenizer(["a", text]),
                 lambda text: tokenizer(text, return_tensors="pt")):  # fmt: skip
        said = refused(call, "a <|turn|> b")
        assert f"'<|turn|>', which is token {first}" in said
        assert f"knows {first}" in said


def test_a_probe_of_such_a_text_leaves_nothing(folder, tmp_path, capsys):
    with_added(folder, "hello")
    out = tmp_path / "run"
    assert main(["probe", "--model", str(folder), "--texts", "0", "--samples", "0", "--out", str(out)]) == 2
    assert "a text holds 'hello'" in capsys.readouterr().err
    assert not out.exists()


def test_a_tokenizer_that_puts_an_unknown_token_before_every_text_is_refused(folder):
    first = with_added(folder)
    changed_config(folder, vocab_size=first - 1)
    assert f"knows {first - 1} tokens and its tokenizer gives {first}" in refused(tokenizer_of, str(folder))


def test_a_padded_vocabulary_is_fine(folder):
    rows = json.loads((folder / "config.json").read_text())["vocab_size"] + 64
    tiny.model(vocabulary=rows, trained=160).save_pretrained(folder)
    assert not hasattr(load(str(folder)).tokenizer, "beyond")


def test_a_length_that_no_file_states_is_none(folder, capsys):
    assert trained_length(config_of(str(folder))) == 160
    changed_config(folder, max_position_embeddings=None)
    for config in (config_of(str(folder)), load(str(folder)).model.config):
        assert "states no trained length; give --trained-length" in refused(trained_length, config)
    report = mesa.check(load(str(folder)).model, None, methods="rerope", minutes=0.01)
    assert "no M in the config" in report.rows[0].detail
    assert main(["probe", "--model", str(folder), "--out", str(folder / "run")]) == 2
    assert "give --trained-length" in capsys.readouterr().err
    assert ModelOptions(model=str(folder), trained_length=96).checked_model()[1] == 96


def test_a_length_of_a_model_in_memory_may_be_a_default():
    report = mesa.check(tiny.model(), None, methods="rerope", minutes=0.01)
    assert "M = 24, by the config, which was read from no file" in report.rows[0].detail


@pytest.mark.parametrize(
    ("config", "stated", "length"),
    [
        (MptConfig(), {"d_model": 32}, None),
        (MptConfig(), {"max_seq_len": 2048}, 2048),
        (LlamaConfig(max_position_embeddings=2048), {"llama.context_length": 2048}, 2048),
        (LlamaConfig(max_position_embeddings=2048), {"max_position_embeddings": None}, None),
    ],
)
def test_what_states_a_length(config, stated, length):
    note_stated(config, stated)
    if length is None:
        refused(trained_length, config)
    else:
        assert trained_length(config) == length


def test_of_two_lengths_the_one_that_was_taken_is_named_with_the_reason(folder, capsys):
    assert not length_choice(config_of(str(folder)))
    rope = {"rope_type": "llama3", "rope_theta": 1e4, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    rope["original_max_position_embeddings"] = 160
    changed_config(folder, max_position_embeddings=1280, rope_parameters=rope)
    said = length_choice(config_of(str(folder)))
    assert said.startswith("M = 160 by the config's original_max_position_embeddings")
    assert "(llama3)" in said
    assert "--trained-length 1280" in said
    assert ModelOptions(model=str(folder)).checked_model()[1] == 160
    assert ModelOptions(model=str(folder), trained_length=1280).checked_model()[1] == 1280
    assert capsys.readouterr().err == f"{said}\n"
    loaded = load(str(folder))
    report = mesa.check(loaded.model, loaded.tokenizer, methods="rerope", minutes=0.01)
    assert said in report.rows[0].detail


def scaled(**more):
    return {"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, **more}}


@pytest.mark.parametrize(
    ("kind", "given", "length", "said"),
    [
        ("qwen2", scaled(original_max_position_embeddings=2048), 2048, "its rotary scaling (yarn); it also states"),
        ("qwen2", scaled(), 8192, "max_position_embeddings, which is taken as the length before its rotary scaling"),
        ("qwen2", scaled(), 8192, "(yarn, factor 4), as transformers does; if it is stretched already, give "
         "--trained-length 2048"),
        ("olmo3", {"rope_parameters": {
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
            "full_attention": scaled(original_max_position_embeddings=1024)["rope_parameters"],
        }}, 1024, "M = 1024 by the config's original_max_position_embeddings"),
        ("llama4_text", {"attention_chunk_size": 512}, 512, "layers that rotate see no further back than their chunk"),
        ("llama4_text", {"attention_chunk_size": None}, 8192, ""),
        ("llama4_text", {"attention_chunk_size": 512, "layer_types": ["full_attention"] * 48}, 8192, ""),
    ],
)  # fmt: skip
def test_a_length_by_what_a_config_calls_it(kind, given, length, said):
    config = AutoConfig.for_model(kind, **{"max_position_embeddings": 8192, **given})
    assert trained_length(config) == length
    assert said in length_choice(config)
    assert bool(said) == bool(length_choice(config))


def test_a_file_that_states_the_length_before_scaling_leaves_no_question():
    given = scaled(original_max_position_embeddings=8192)
    config = AutoConfig.for_model("qwen2", max_position_embeddings=8192, **given)
    note_stated(config, {"max_position_embeddings": 8192, **given})
    assert not length_choice(config)


def test_a_model_that_is_nowhere_is_refused_without_waiting(monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    calls = Mock(side_effect=ConnectionError("no route"))
    monkeypatch.setattr("huggingface_hub.HfApi.model_info", calls)
    for call in (load, config_of, tokenizer_of):
        place.cache_only.cache_clear()
        with pytest.raises(NotFound, match=r"no model 'no-such/model' .*cannot be reached \(no route\)"):
            call("no-such/model")
    assert calls.call_count == 3
    monkeypatch.setattr("huggingface_hub.try_to_load_from_cache", lambda *args, **options: "there")
    place.cache_only.cache_clear()
    assert place.cache_only("no-such/model")
    place.cache_only.cache_clear()


@pytest.mark.parametrize("command", ["probe", "eval --task nll --lengths 256", "locate", "predict", "anatomy", "check"])
def test_names_are_looked_up_before_torch_is_loaded(command, monkeypatch, capsys, tmp_path):
    words = command.split()
    out = [] if command == "check" else ["--out", str(tmp_path / "run")]
    for module in ("mesa.models", "probe.commands.probe.plan", "probe.evaluation", "mesa.engine.plug"):
        monkeypatch.setitem(sys.modules, module, None)  # importing it would be an error
    assert main([*words, "--model", str(tmp_path / "none"), *out]) == 2
    assert "no model at" in capsys.readouterr().err
    assert main([*words, "--methods", "rerope,rerrope", *out]) == 2
    assert "unknown method 'rerrope'" in capsys.readouterr().err
