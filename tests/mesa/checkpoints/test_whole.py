"""A checkpoint gives its model all weights, none too many, and numbers only."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import matrix
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    MixtralConfig,
    MixtralForCausalLM,
)

from mesa.errors import Refused
from mesa.fingerprints import identity
from mesa.models import chosen_dtype, config_of, load
from mesa.support import check_config, trained_length
from mesa_lens.cli import main

QUERY = "model.layers.1.self_attn.q_proj.weight"


def changed(model, folder, change):
    """A copy of the checkpoint with other weights."""
    shutil.copytree(model, folder)
    weights = load_file(folder / "model.safetensors")
    change(weights)
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    return str(folder)


def without_a_layer(weights):
    for name in [name for name in weights if ".layers.2." in name]:
        del weights[name]


def with_value(value):
    def change(weights):
        weights[QUERY][3, 4] = value

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda weights: weights.pop(QUERY), rf"lacks 1 weight of its model: {QUERY}; its config\.json"),
        (lambda weights: weights.update({f"{QUERY}2": weights[QUERY].clone()}), "has 1 weight that its model does"),
        (lambda weights: weights.update({"x": weights.pop(QUERY)}), "lacks 1 weight "),
        (
            without_a_layer,
            r"lacks 9 weights of its model: model\.layers\.2\.input_layernorm\.weight, .*, \.\.\.; its config",
        ),
        (with_value(float("nan")), rf"1 of 1024 numbers of {QUERY} are not finite"),
        (with_value(-float("inf")), rf"1 of 1024 numbers of {QUERY} are not finite"),
    ],
)
def test_a_checkpoint_that_does_not_fit_its_model_is_refused(model, tmp_path, change, message):
    with pytest.raises(ValueError, match=message):
        load(changed(model, tmp_path / "model", change))


def test_too_little_memory_is_not_taken_for_a_damaged_file(model, monkeypatch):
    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", lambda *_, **__: torch.empty(2**60, dtype=torch.uint8))
    with pytest.raises(RuntimeError, match="can't allocate memory"):
        load(model)


@pytest.mark.parametrize("alone", [True, False])
def test_an_adapter_is_refused_whether_its_model_is_beside_it_or_not(model, tmp_path, alone):
    """Without PEFT transformers would leave it out without a word; with it, load the model that it names."""
    if not alone:
        shutil.copytree(model, tmp_path / "model")
    (tmp_path / "model").mkdir(exist_ok=True)
    (tmp_path / "model" / "adapter_config.json").write_text('{"base_model_name_or_path": "other"}')
    with pytest.raises(Refused, match=r"model' is an adapter .*; merge it into its model"):
        load(str(tmp_path / "model"))


@pytest.mark.parametrize(
    "file", ["config.json", "modeling_mine.py", "spiece.model", "a.tiktoken", "chat_template.jinja"]
)
def test_what_is_edited_in_a_models_folder_changes_what_it_is_known_by(model, tmp_path, file):
    folder = str(shutil.copytree(model, tmp_path / "model"))
    before = identity(folder, None)
    with (tmp_path / "model" / file).open("a") as edited:
        edited.write(" ")
    assert sum(before[what] != now for what, now in identity(folder, None).items()) == 1


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ("tokenizer.json", r"no tokenizer in .*model \(tokenizer\.json, .*\); copy its files there"),
        ("*.safetensors", r"no weights in .*model \(\*\.safetensors\); copy them there, or convert others"),
    ],
)
def test_a_folder_without_a_part_says_which(model, tmp_path, files, message):
    shutil.copytree(model, tmp_path / "model")
    for file in (tmp_path / "model").glob(files):
        file.rename(file.with_suffix(".bin"))
        file.mkdir()  # a folder in a file's place is none
    with pytest.raises(FileNotFoundError, match=message):
        load(str(tmp_path / "model"))


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"num_hidden_layers": 10**9}, "num_hidden_layers is 1000000000, not within 1 to 10000"),
        ({"model_type": "qwen2", "num_hidden_layers": 10**9}, "num_hidden_layers is 1000000000"),
        ({"num_key_value_heads": 0}, "num_key_value_heads is 0"),
        ({"num_key_value_heads": 3}, "no multiple of num_key_value_heads, 3"),
        ({"rope_theta": 0}, "rope_theta is 0, no finite number above 0"),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": float("nan")}}, "rope_theta is nan"),
        ({"rms_norm_eps": float("inf")}, "rms_norm_eps is inf"),
        ({"num_local_experts": -1}, "num_local_experts is -1, not within 0 to 65536"),
        (None, "holds no keys and values"),
    ],
    ids=str,
)
def test_a_config_that_no_model_can_have_is_named(model, tmp_path, changes, complaint):
    folder = shutil.copytree(model, tmp_path / "model")
    stored = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(None if changes is None else {**stored, **changes}))
    with pytest.raises(ValueError, match=f"{folder}.*{complaint}") as error:
        config_of(str(folder))
    assert "config.json" in str(error.value)


def test_large_finite_weights_are_taken_and_what_older_checkpoints_hold_beside(model, tmp_path):
    def change(weights):
        weights[QUERY][:] = 3e38  # their sum is infinite
        weights["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(4)

    assert load(changed(model, tmp_path / "model", change)).model.dtype == torch.float32


@pytest.mark.parametrize("place", ["device", "device_map"])
def test_weights_on_a_cpu_are_float32_however_it_is_named(model, tmp_path, place):
    load(model).model.bfloat16().save_pretrained(tmp_path)
    for file in Path(model).glob("tokenizer*"):
        shutil.copy(file, tmp_path)
    assert chosen_dtype(config_of(str(tmp_path)), {place: "cpu"}) == "float32"
    assert load(tmp_path, **{place: "cpu"}).model.dtype == torch.float32


@pytest.mark.filterwarnings("ignore")
def test_experts_run_in_float64(model, tmp_path):
    shutil.copytree(model, tmp_path / "model")
    sizes = {"vocab_size": config_of(str(model)).vocab_size, "hidden_size": 32, "intermediate_size": 48}
    MixtralForCausalLM(MixtralConfig(**sizes, num_hidden_layers=1, num_local_experts=2)).save_pretrained(
        tmp_path / "model"
    )
    loaded = load(tmp_path / "model", dtype="float64").model
    assert loaded(torch.arange(5)[None]).logits.dtype == torch.float64


@pytest.mark.filterwarnings("ignore")
def test_a_dense_model_of_a_family_with_experts_states_none(model, tmp_path):
    """As Granite-4's dense checkpoints do."""
    shutil.copytree(model, tmp_path / "model")
    sizes = {"vocab_size": config_of(str(model)).vocab_size, "num_local_experts": 0, "num_experts_per_tok": 0}
    matrix.build("granitemoehybrid", **sizes).save_pretrained(tmp_path / "model")
    assert load(tmp_path / "model").model.model.layers[0].block_sparse_moe is None


VISION = {
    "llama4": {
        "intermediate_size": 128, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 28,
        **dict.fromkeys(("hidden_size", "vision_output_dim", "projector_input_dim", "projector_output_dim"), 32),
    },
    "qwen3_5": {"depth": 1, "hidden_size": 32, "num_heads": 2, "intermediate_size": 32, "out_hidden_size": 64},
}  # fmt: skip


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("family", "trained"), [("llama4", 16), ("qwen3_5", 64)])
def test_of_a_model_with_images_the_text_model_is_taken(family, trained, model, tmp_path):
    folder = shutil.copytree(model, tmp_path / "model")
    text = matrix.build(family, vocab_size=config_of(str(model)).vocab_size).config.to_dict()
    config = AutoConfig.for_model(family, text_config=text, vision_config=VISION[family])
    both = AutoModelForImageTextToText.from_config(config).eval()
    both.save_pretrained(folder)
    ids = torch.arange(20)[None]
    with torch.no_grad():
        text_logits = (both.language_model if family == "llama4" else both)(ids).logits
        assert torch.equal(load(folder).model(ids).logits, text_logits)
    for config in (config_of(str(folder)), load(folder).model.config):
        check_config(config)
        assert (config.model_type, config._name_or_path) == (f"{family}_text", str(folder))
        assert trained_length(config) == trained
    stored = json.loads((folder / "config.json").read_text())
    for key in ("num_hidden_layers", "max_position_embeddings", "attention_chunk_size"):
        stored["text_config"].pop(key, None)
    stored["text_config"] |= {"num_hidden_layers": 1, "layer_types": ["full_attention"], "no_rope_layers": [1]}
    (folder / "config.json").write_text(json.dumps(stored))
    with pytest.raises(Refused, match="states no trained length"):
        trained_length(config_of(str(folder)))
    with pytest.raises(Refused, match=r"its config\.json and weights do not fit"):
        load(folder)


def test_states_that_are_no_numbers_end_the_run_with_the_layer_s_name(model, tmp_path, capsys):
    def change(weights):
        for name in ("up_proj", "gate_proj"):
            weights[f"model.layers.1.mlp.{name}.weight"] *= 1e38

    folder = changed(model, tmp_path / "model", change)
    words = ["eval", "--model", folder, "--task", "passkey", "--methods", "origin", "--lengths", "96", "--samples", "1"]
    assert main([*words, "--out", str(tmp_path / "out")]) == 1
    assert "the states of layer 1 are not finite; run the model with --dtype float64" in capsys.readouterr().err
    assert not (tmp_path / "out" / "journal.jsonl").exists()


def test_a_model_of_the_hub_is_known_by_its_commit(model, tmp_path):
    """From a cache, without a network: a branch that has moved is another model."""
    commit, cache = "0123456789abcdef0123456789abcdef01234567", tmp_path / "models--org--name"
    shutil.copytree(model, cache / "snapshots" / commit)
    (cache / "refs").mkdir()
    (cache / "refs/main").write_text(commit)
    lines = "import sys; from mesa.models import config_of, load, origin; from mesa.fingerprints import identity"
    lines += "; config = config_of('org/name'); print(load('org/name').revision, origin('org/name', config), "
    lines += "identity('org/name', config)['weights'])"
    environment = os.environ | {"HF_HUB_CACHE": str(tmp_path), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run([sys.executable, "-c", lines], env=environment, capture_output=True, text=True)
    assert done.stdout == f"{commit} {{'model_revision': '{commit}'}} commit {commit}\n", done.stderr
