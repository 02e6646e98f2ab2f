"""The first lines of `mesa-lens check`: M, windows and rotary frequencies, and what the config calls them."""

import json
from copy import deepcopy

import families
import matrix
import pytest
import tiny
from transformers import AutoConfig, LlamaConfig

from mesa.errors import Refused
from mesa.support import note_stated, stated_text
from mesa_lens.cli import main

YARN = {"rope_type": "yarn", "rope_theta": 1e6, "factor": 4.0, "original_max_position_embeddings": 64}


def config_of(family):
    return AutoConfig.for_model(family.split()[0], **deepcopy(families.FAMILIES[family]))


@pytest.mark.parametrize(
    ("config", "text"),
    [
        (config_of("qwen3"), "M = 24 tokens, by the config's max_position_embeddings; rotary base 10000"),
        (
            LlamaConfig(max_position_embeddings=256, rope_parameters=YARN),
            "M = 64 tokens, by the config's original_max_position_embeddings (max_position_embeddings 256); "
            "rotary base 1000000, scaled already by yarn (factor 4, original_max_position_embeddings 64)",
        ),
        (
            config_of("gemma3_text"),
            "M = 24 tokens, by the config's max_position_embeddings; layers 0, 2 see 27 tokens; "
            "rotary base 100 in layers 0, 2; rotary base 10000 in layer 1, scaled already by linear (factor 2)",
        ),
        (
            config_of("gemma4_text"),
            "M = 24 tokens, by the config's max_position_embeddings; layer 0 sees 27 tokens; rotary base 100 in "
            "layer 0; rotary base 10000 in layers 1-2, which rotates a part of the pairs (proportional)",
        ),
        (
            config_of("mistral sliding"),
            "M = 24 tokens, by the config's max_position_embeddings; all layers see 27 tokens; rotary base 10000",
        ),
        (
            AutoConfig.for_model("llama", **families.DYNAMIC),
            "M = 24 tokens, by the config's max_position_embeddings; rotary base 10000, larger for prompts beyond M "
            "(dynamic, factor 4)",
        ),
        (config_of("mpt"), "M = 128 tokens, by the config's max_seq_len"),
    ],
    ids=["plain", "yarn", "two bases", "proportional", "windows", "dynamic", "alibi"],
)
def test_a_config_is_read_aloud(config, text):
    assert stated_text(config) == text


def test_chunks_are_named_as_what_states_m():
    assert stated_text(matrix.build("llama4").config) == (
        "M = 16 tokens, by the config's attention_chunk_size (max_position_embeddings 64); layer 0 sees 16 tokens; "
        "rotary base 500000"
    )


def test_the_users_m_is_named_next_to_the_configs():
    config = config_of("qwen3")
    assert stated_text(config, 24).startswith("M = 24 tokens, by the config's max_position_embeddings;")
    assert stated_text(config, 48).startswith(
        "M = 48 tokens, by --trained-length; the config's max_position_embeddings is 24;"
    )


def test_where_the_config_states_none_the_user_does():
    config = LlamaConfig()
    note_stated(config, {})
    with pytest.raises(Refused, match="give --trained-length"):
        stated_text(config)
    assert stated_text(config, 48).startswith("M = 48 tokens, by --trained-length; the config states none;")


def test_check_begins_with_it(tmp_path, capsys):
    folder = str(tiny.folder(tmp_path / "model"))
    words = ["check", "--model", folder, "--methods", "origin", "--minutes", "0.01"]
    text = "M = 160 tokens, by the config's max_position_embeddings; rotary base 10000"
    main(words)
    assert capsys.readouterr().out.startswith(f"{folder}: {text}\n\n")
    main([*words, "--json"])
    assert json.loads(capsys.readouterr().out)["positions"] == text
