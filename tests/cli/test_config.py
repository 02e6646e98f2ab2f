"""`mesa-lens config`: what it prints, given to stock transformers, is the method; what it cannot state, it says."""

import copy
import json
import math
import re
import shlex
from pathlib import Path

import families
import matrix
import pytest
import tiny
import torch

import mesa
from mesa.errors import Refused
from mesa.methods.base import SERVERS
from mesa.settings import read_config
from mesa_lens import config as command
from mesa_lens.cli import main
from mesa_lens.config import serving

M = tiny.TRAINED
LENGTH = 80  # over 3 M
EQUAL = ("llama", "phi3", "gemma3_text unscaled", "mixtral", "qwen2 sliding", "phi")


def served_logits(model, keys, ids):
    """Those of stock transformers with these keys in its config.json."""
    config = type(model.config).from_dict(copy.deepcopy({**model.config.to_dict(), **keys}))
    stock = type(model)(config).eval()
    stock.load_state_dict(model.state_dict())
    with torch.no_grad():
        return stock(ids, use_cache=False).logits


@pytest.mark.parametrize("name", ["origin", "crop"])
def test_a_model_without_stated_positions_is_served_as_it_is(name, capsys):
    assert main(["config", name, "--model", "alibi", "--length", "1000"]) == 0
    assert "--max-model-len" in capsys.readouterr().out


def test_a_folder_with_a_blank_is_quoted():
    model = families.shared("llama")
    commands = serving(mesa.make("origin", trained_length=M), model.config, 2 * M, "my model").commands
    assert all("my model" in shlex.split(commands[server]) for server in ("vLLM", "SGLang"))


def test_what_loads_the_model_is_in_each_command():
    source = {"revision": "v1 b", "trust_remote_code": True}
    served = serving(mesa.make("origin", trained_length=M), families.shared("llama").config, M, "org/a", source=source)
    for server in ("vLLM", "SGLang"):
        assert {"org/a", "--revision=v1 b", "--trust-remote-code"} <= set(shlex.split(served.commands[server]))
    assert "mesa.load('org/a', revision='v1 b', trust_remote_code=True)" in served.python


def test_a_length_is_required(capsys):
    assert main(["config", "pi"]) == 2
    assert "arguments are required: --length; see" in capsys.readouterr().err


@pytest.mark.parametrize("words", ["--dtype float16", "--device cuda", "--device-map auto"])
def test_options_of_weights_are_refused_as_none_are_loaded(words, capsys):
    assert main(["config", "yarn", "--length", "1k", *words.split()]) == 2
    assert f"unrecognized arguments: {words}" in capsys.readouterr().err
    assert main(["config", "yarn", "--length", "1k", "--trust-remote-code"]) == 0


@pytest.mark.parametrize("name", ["pi", "dynamic-ntk", "yarn", "cope", "ntk-mixed:log_n=false"])
@pytest.mark.parametrize("family", EQUAL)
def test_stock_transformers_with_the_config_gives_the_methods_logits(family, name):
    model, ids = families.shared(family), tiny.tokens(length=LENGTH)
    method = read_config(name, M)
    served = serving(method, model.config, LENGTH)
    if family == "phi" and name == "yarn":  # half of each head's dims turn
        assert served.config is None
        assert "4 of the 8 dims" in served.notes[0]
        return
    if family == "phi3" and name in ("pi", "dynamic-ntk", "yarn"):  # whose config.json could not be read
        assert (served.config, served.commands) == (None, {})
        assert "Phi3Config does not take it: " in served.notes[0]
        assert "longrope" in served.notes[0]
        return
    with torch.no_grad(), mesa.applied(model, method):
        ours = model(ids, use_cache=False).logits
    assert (served_logits(model, served.config, ids) - ours).abs().max() < 1e-5
    with torch.no_grad():
        plain = model(ids, use_cache=False).logits
    if not (family == "phi" and name == "cope"):  # whose clipped pairs are none there
        assert (plain - ours).abs().max() > 1e-3  # the nearest mistake: it states nothing


def test_layers_that_stay_as_trained_keep_their_rotary_parameters():
    model = families.build("gemma3_text unscaled", sliding_window=8)
    stated, ids = model.config.rope_parameters, tiny.tokens(length=LENGTH)
    method = mesa.YaRN(trained_length=M)
    keys = serving(method, model.config, LENGTH).config
    assert keys["rope_parameters"]["sliding_attention"] == stated["sliding_attention"]
    assert keys["rope_parameters"]["full_attention"]["rope_type"] == "yarn"
    with torch.no_grad(), mesa.applied(model, method):
        ours = model(ids, use_cache=False).logits
    assert (served_logits(model, keys, ids) - ours).abs().max() < 1e-5


def test_where_sliding_layers_share_their_rotary_parameters_all_layers_are_named():
    model = families.build("qwen2 sliding", sliding_window=8)
    served = serving(mesa.YaRN(trained_length=M), model.config, LENGTH)
    assert served.config is None
    assert not served.commands
    assert "yarn:layers=(0, 1, 2)" in served.notes[0]
    method = read_config("yarn:layers=(0, 1, 2)", M)
    keys, ids = serving(method, model.config, LENGTH).config, tiny.tokens(length=LENGTH)
    with torch.no_grad(), mesa.applied(model, method):
        ours = model(ids, use_cache=False).logits
    assert (served_logits(model, keys, ids) - ours).abs().max() < 1e-5


def test_a_factor_that_the_config_has_is_multiplied():
    model = families.shared("gemma3_text")
    keys = serving(mesa.PI(trained_length=M, factor=4), model.config, LENGTH).config
    assert keys["rope_parameters"]["full_attention"]["factor"] == 8.0
    assert keys["rope_parameters"]["sliding_attention"]["factor"] == 4.0


def test_servers_get_the_length_in_the_way_each_reads_it():
    config = families.shared("llama").config
    lines = serving(mesa.YaRN(trained_length=M), config, LENGTH, "org/model").commands
    words = shlex.split(lines["vLLM"])
    assert words[:5] == ["vllm", "serve", "org/model", "--max-model-len", "80"]
    keys = json.loads(words[words.index("--hf-overrides") + 1])
    assert keys["max_position_embeddings"] == LENGTH  # vLLM multiplies it by no factor of YaRN
    assert keys["rope_parameters"]["original_max_position_embeddings"] == M
    assert lines["llama.cpp"].endswith("-c 80 --rope-scaling yarn --yarn-orig-ctx 24 --rope-scale 4")
    lines = serving(mesa.PI(trained_length=M), config, 96).commands
    words = shlex.split(lines["SGLang"])
    keys = json.loads(words[words.index("--json-model-override-args") + 1])
    assert keys["max_position_embeddings"] == M  # times the factor: 96
    assert isinstance(keys["rope_parameters"]["factor"], float)  # an integer is no factor for vLLM


def test_other_servers_have_the_base_of_dynamic_ntk_at_the_longest_text():
    config = families.shared("llama").config
    served = serving(mesa.DynamicNTK(trained_length=M), config, LENGTH)
    base = float(served.commands["llama.cpp"].rpartition(" ")[2])
    assert math.isclose(base, 1e4 * (4 * LENGTH / M - 3) ** (8 / 6), rel_tol=1e-6)
    assert "fixed" in served.notes[0]


def test_dca_and_group_attention_have_the_sizes_of_the_method():
    config = families.shared("qwen2").config
    served = serving(mesa.DCA(trained_length=64), config, 200)
    words = shlex.split(served.commands["SGLang"])
    keys = json.loads(words[words.index("--json-model-override-args") + 1])
    assert keys["dual_chunk_attention_config"] == {"chunk_size": 48, "local_size": 8}
    assert served.checked["SGLang"] == "0.5.18"
    assert "vLLM" not in served.commands
    assert not serving(mesa.DCA(trained_length=64), families.shared("llama").config, 200).commands
    line = serving(mesa.SelfExtend(trained_length=64, window=15, group=4), config, 200).commands["llama.cpp"]
    assert line.endswith("--grp-attn-n 4 --grp-attn-w 16")  # which must be a multiple


@pytest.mark.parametrize("name", mesa.METHODS)
def test_what_a_method_says_of_servers_is_what_is_printed(name):
    method = mesa.make(name, M)
    served = serving(method, families.shared("qwen2").config, 4 * M)
    named = ({"transformers"} if served.config is not None else set()) | set(served.commands)
    assert named == set(method.served_by) <= set(SERVERS)
    if not named:
        assert "cannot be served" in str(served)
    assert ("log_n=false" in str(served)) == (name == "ntk-mixed")


def test_the_page_of_methods_says_the_same():
    page = (Path(__file__).parents[2] / "docs/methods.md").read_text(encoding="utf-8")
    lines = page.partition("## Served by")[2].partition("\n\nBut")[0].splitlines()
    rows = [line.strip("| ").split(" | ") for line in lines if line.startswith("| `")]
    said = {name: servers for names, servers in rows for name in re.findall(r"`([\w-]+)", names)}
    assert said.keys() == {name for name, method in mesa.METHODS.items() if method.servers}
    for name, servers in said.items():
        assert tuple(server for server in SERVERS if server in servers) == mesa.METHODS[name].servers


def test_the_lines_of_python_run():
    served = serving(mesa.ReRoPE(trained_length=256, window=20), mesa.load().model.config, 600, "default")
    names = {"mesa": mesa, "prompt": "import os\n" * 100}
    exec(served.python.replace("**loaded", "max_new_tokens=1, **loaded"), names)
    assert names["output"].shape[1] > 256
    assert "window=20" in served.python
    assert "log_n" not in served.python


def test_what_cannot_be_is_refused_before_a_model_is_read(capsys):
    assert main(["config", "yarn:factor=2", "--length", "1k"]) == 2
    assert "yarn:factor=4" in capsys.readouterr().err
    assert main(["config", "yearn", "--length", "1k"]) == 2
    assert "did you mean 'yarn'?" in capsys.readouterr().err
    assert main(["config", "yarn:", "--length", "1k"]) == 2
    assert "METHOD:PARAMETER=VALUE" in capsys.readouterr().err
    with pytest.raises(Refused, match="pi:factor=5"):
        serving(mesa.PI(trained_length=M), families.shared("llama").config, 100)


@pytest.mark.parametrize(("name", "trained", "length"), [("pi:factor=None", 300, 313), ("pi:factor=2.3", 3000, 6900)])
def test_a_factor_reaches_its_length_whatever_rounding_leaves(name, trained, length):
    assert serving(read_config(name, trained), families.shared("llama").config, length).commands


def test_json_has_the_same(capsys):
    assert main(["config", "yarn:factor=8", "--length", "2k", "--json"]) == 0
    served = json.loads(capsys.readouterr().out)
    assert served["config"]["rope_parameters"]["factor"] == 8.0
    assert served["trained_length"] == 256
    assert set(served["commands"]) == {"vLLM", "SGLang", "llama.cpp"}
    assert served["checked"] == command.CHECKED


@pytest.mark.slow
@pytest.mark.parametrize("name", ["pi", "dynamic-ntk", "yarn", "cope"])
@pytest.mark.parametrize("family", [family for family in matrix.WORKS if family != "minimax"])  # its config: no window
def test_every_family_is_served_as_computed_or_not_at_all(family, name):
    model, ids = matrix.build(family), tiny.tokens(length=60) % 60
    method = mesa.make(name, 16)  # below the sliding windows there
    try:
        with torch.no_grad(), mesa.applied(model, method):
            ours = model(ids, use_cache=False).logits
    except (Refused, UserWarning) as error:  # which would change nothing
        pytest.skip(str(error))
    served = serving(method, model.config, 60)
    if served.config is None:
        assert served.notes
    else:
        assert (served_logits(model, served.config, ids) - ours).abs().max() < 1e-4


@pytest.mark.parametrize(("error", "why"), [(ValueError(), "ValueError"), (KeyError("factor"), "'factor'")])
def test_a_refusal_without_a_text_names_its_kind(monkeypatch, error, why):
    model = families.shared("llama")

    def refuse(*_):
        raise error

    monkeypatch.setattr(type(model.config), "from_dict", refuse)
    served = serving(read_config("yarn", M), model.config, LENGTH)
    assert served.notes == (f"LlamaConfig does not take it: {why}",)
