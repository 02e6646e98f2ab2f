"""GGUF files load as the model that was quantized, or are refused in one line."""

import json
import shutil
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import gguf
import pytest
import tiny_gguf
import torch
import xarray as xr
from markupsafe import escape
from transformers.utils import logging

from mesa.checkpoints.gguf_file import quantization_of
from mesa.checkpoints.place import CACHE
from mesa.models import config_of, load, origin, tokenizer_of
from mesa.support import trained_length
from mesa_lens.cli import main
from probe.commands.eval.page import EVALUATED
from probe.files import read_result

IDS = torch.arange(3, 63)[None] * 7 % 300


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory):
    """Where converted files are kept."""
    with pytest.MonkeyPatch.context() as patched:
        folder = tmp_path_factory.mktemp("cache")
        patched.setenv(CACHE, str(folder))
        yield folder / "converted"


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    file = tmp_path_factory.mktemp("gguf") / "Tiny.Q4_1.gguf"
    return file, tiny_gguf.write(file)


@torch.no_grad()
def logits(loaded):
    return loaded.model(IDS).logits


def test_logits_are_those_of_the_dequantized_weights(paths, cache, capfd):
    file, folder = paths
    shutil.rmtree(cache, ignore_errors=True)
    loaded, plain = load(str(file)), load(str(folder))
    torch.testing.assert_close(logits(loaded), logits(plain), atol=1e-5, rtol=0)
    assert (loaded.quantization, loaded.revision, plain.quantization) == (tiny_gguf.QUANTIZATION, "local", None)
    assert loaded.model.dtype == torch.float32
    captured = capfd.readouterr()
    assert captured.out == ""
    assert captured.err == f"converting {file} to safetensors once (0 MB, kept in {cache})\n"  # no bars
    assert logging.is_progress_bar_enabled()
    with torch.no_grad():  # how far pairs taken for halves would be
        for layer in plain.model.model.layers:
            weight = layer.self_attn.q_proj.weight
            weight.copy_(tiny_gguf.permuted(weight.clone(), 4))
    assert (logits(loaded) - logits(plain)).abs().max() > 0.01


def test_config_names_the_file_and_converts_nothing(paths, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv(CACHE, str(tmp_path))
    assert main(["config", "yarn", "--model", str(paths[0]), "--length", "600", "--json"]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    assert not [*tmp_path.iterdir()]
    served = json.loads(captured.out)
    assert f"vllm serve {paths[0]} " in served["commands"]["vLLM"]
    ours, kept = config_of(str(paths[0]), convert=False), config_of(str(paths[0]))
    assert served["trained_length"] == trained_length(ours) == trained_length(kept)
    same = ("model_type", "rope_parameters", "hidden_size", "num_attention_heads", "num_hidden_layers", "vocab_size")
    assert [getattr(ours, name) for name in same] == [getattr(kept, name) for name in same]
    assert main(["config", "yarn", "--model", str(paths[0]), "--length", "600", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == served


def test_a_file_is_converted_once_and_another_one_of_its_name_again(paths, cache, tmp_path, monkeypatch, capfd):
    first, second = (tmp_path / name / "Model.gguf" for name in ("one", "two"))
    shutil.copytree(paths[0].parent, first.parent)
    first.parent.joinpath(paths[0].name).rename(first)
    second.parent.mkdir()
    tiny_gguf.write(second, pre="gpt-2")
    one, two = load(str(first)), load(str(second))
    assert capfd.readouterr().err.count("converting") == 2
    monkeypatch.setattr(gguf, "GGUFReader", None)  # whoever reads a vocabulary again calls it
    again = load(str(first))
    assert config_of(str(second)).vocab_size == two.model.config.vocab_size
    assert "converting" not in capfd.readouterr().err
    torch.testing.assert_close(logits(again), logits(one), atol=0, rtol=0)
    assert len({folder.name for folder in cache.glob("Model-*")}) == 2
    assert load(str(first), dtype="bfloat16").model.dtype == torch.bfloat16


def test_what_a_killed_conversion_left_is_replaced_and_a_failed_one_leaves_nothing(paths, cache, tmp_path, capfd):
    shutil.rmtree(cache, ignore_errors=True)
    load(str(paths[0]))
    (kept,) = (folder for folder in cache.iterdir() if folder.is_dir())
    kept.rename(kept.with_name(f".{kept.name}"))
    (kept.with_name(f".{kept.name}") / "model.safetensors").unlink()
    load(str(paths[0]))
    assert [folder for folder in cache.iterdir() if folder.is_dir()] == [kept]
    file = tmp_path / "wrong.gguf"
    tiny_gguf.write(file, leave_out="tokenizer")
    with pytest.raises(ValueError, match="Cannot build a tokenizer"):
        load(str(file))
    assert [folder for folder in cache.iterdir() if folder.is_dir()] == [kept]


def test_a_full_disk_is_said_before_anything_is_written(paths, cache, monkeypatch):
    shutil.rmtree(cache, ignore_errors=True)
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: SimpleNamespace(free=1000))
    with pytest.raises(ValueError, match=f"has less than 0 MB free; set {CACHE}"):
        load(str(paths[0]))
    assert not list(cache.iterdir())


def test_config_and_tokenizer_come_without_weights(paths):
    file, folder = paths
    config, stated = config_of(str(file)), config_of(str(folder))
    assert config.max_position_embeddings == stated.max_position_embeddings == 160
    assert config.rope_parameters == stated.rope_parameters
    assert origin(str(file), config) == {"model_revision": "local", "quantization": tiny_gguf.QUANTIZATION}
    assert origin(str(folder), stated, "main") == {"model_revision": "main"}
    text = "A text  of 2026\n\n  17 words, isn't it? hello"
    ours, plain = tokenizer_of(str(file)), tokenizer_of(str(folder))
    assert ours(text)["input_ids"] == plain(text, add_special_tokens=False)["input_ids"]
    assert (ours.bos_token_id, ours.eos_token_id, ours.chat_template) == (0, 1, tiny_gguf.TEMPLATE)


@pytest.mark.usefixtures("undrawn", "unpainted")
def test_the_command_takes_a_file_and_records_its_quantization(paths, tmp_path):
    small = f"--length 400 --texts 0 --samples 0 --layers 0 --dims 0-3 --methods origin,rerope --out {tmp_path / 'out'}"
    assert main(["probe", "--model", str(paths[0]), *small.split()]) == 0
    attrs = xr.open_zarr(tmp_path / "out" / "store.zarr").attrs
    assert (attrs["quantization"], attrs["trained_length"]) == (tiny_gguf.QUANTIZATION, 160)


@pytest.mark.parametrize(
    ("file_type", "counts", "text"),
    [
        (None, {"Q4_1": 9}, "Q4_1"),
        (3, {"Q4_1": 9}, "Q4_1"),
        (0, {"F32": 9}, "F32"),
        (7, {"Q4_K": 9}, "Q8_0 (100% Q4_K)"),
        (15, {"Q5_0": 8 * [5], "Q8_0": [67], "F16": [0.5]}, "Q4_K_M (62% Q8_0, 37% Q5_0, below 1% F16)"),
        (None, {"Q5_0": 3 * [10], "Q8_0": [70]}, "70% Q8_0, 30% Q5_0"),
        (99999, {"Q4_1": 9}, "Q4_1"),
        ("no number", {"Q4_1": 9}, "Q4_1"),
    ],
)
def test_the_quantization_is_what_the_file_states_and_what_most_parameters_have(file_type, counts, text):
    """Eight small tensors of a type outnumber the one that holds most parameters."""
    tensors = [
        SimpleNamespace(tensor_type=SimpleNamespace(name=kind), n_elements=1000 * size, shape=shape)
        for kind, sizes in counts.items()
        for size in (sizes if isinstance(sizes, list) else [sizes])
        for shape in ((2, 2), (4,))[: 1 + (kind == "Q4_1")]  # vectors do not count
    ]
    assert quantization_of(file_type, tensors) == text


@pytest.mark.usefixtures("undrawn", "unpainted")
def test_a_tokenizer_that_was_not_compared_is_said_so(tmp_path, capsys):
    file, note = tmp_path / "Other.gguf", "read from the GGUF file, and not compared with the model's own"
    tiny_gguf.write(file, pre="gpt-2")
    assert origin(str(file), config_of(str(file)))["tokenizer_note"] == note
    common = f"--model {file} --methods origin,rerope --seed 1"
    scored = f"eval {common} --task nll --lengths 160 --samples 2 --out {tmp_path / 'out'}"
    probed = f"probe {common} --length 400 --texts 0 --samples 0 --layers 0 --dims 0-3 --out {tmp_path / 'probed'}"
    assert main(scored.split()) == 0
    assert capsys.readouterr().err.count(f"the tokenizer of {file} is {note}: it may give other tokens") == 1
    summary = EVALUATED.read(tmp_path / "out")
    assert summary.origin == {
        "model_revision": "local", "quantization": tiny_gguf.QUANTIZATION, "tokenizer_note": note
    }  # fmt: skip
    assert escape(note) in (tmp_path / "out" / "report.html").read_text()
    assert main(probed.split()) == 0
    run = read_result(tmp_path / "probed" / "summary.json")
    assert (run["quantization"], run["tokenizer_note"]) == (tiny_gguf.QUANTIZATION, note)


def refusal(path, capsys):
    began = time.monotonic()
    assert main(["probe", "--model", str(path), "--estimate"]) == 2
    assert time.monotonic() - began < 5
    errors = capsys.readouterr().err
    assert errors.startswith((f"mesa-lens: {str(path)!r} ", "mesa-lens: no GGUF file at"))
    assert errors.count("\n") == 1
    return errors


@pytest.mark.parametrize("kept", [3, 20, 60, 0.5, 0.999])
def test_a_file_that_is_cut_short_is_refused(paths, tmp_path, capsys, kept):
    whole = paths[0].read_bytes()
    file = tmp_path / "cut.gguf"
    file.write_bytes(whole[: kept if isinstance(kept, int) else int(len(whole) * kept)])
    assert ("is not a GGUF file" if kept < 4 and isinstance(kept, int) else "is cut short") in refusal(file, capsys)


def test_other_bytes_and_absent_files_are_refused(paths, tmp_path, capsys):
    whole = paths[0].read_bytes()
    file = tmp_path / "other.GGUF"
    assert "no GGUF file at" in refusal(file, capsys)
    file.write_bytes(b"PK" + whole[2:])
    assert "is not a GGUF file" in refusal(file, capsys)
    file.write_bytes(whole[:4] + b"\x09" + whole[5:])
    assert "of a version that gguf does not know" in refusal(file, capsys)
    file.write_bytes(whole[:8] + b"\xff" * 16 + whole[24:])  # counts beyond any file
    refusal(file, capsys)
    file.write_bytes(whole[:24] + b"\xff" * 400 + whole[424:])
    refusal(file, capsys)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"leave_out": "tokenizer"}, "cannot be loaded: Cannot build a tokenizer"),
        ({"leave_out": "blk.1.attn_q.weight"}, "lacks 1 weight of its model: model.layers.1.self_attn.q_proj"),
        ({"llama__rope__scaling__type": "yarn"}, "scales its rotary positions (yarn)"),
        ({"more": "rope_freqs.weight"}, "scales its rotary positions (rope_freqs.weight)"),
    ],
)
def test_what_would_load_as_another_model_is_refused(paths, tmp_path, changes, message):
    file = tmp_path / "wrong.gguf"
    tiny_gguf.write(file, Path(shutil.copytree(paths[1], tmp_path / "plain")), **changes)
    with pytest.raises(ValueError, match=r"wrong\.gguf") as caught:
        load(str(file))
    assert message in str(caught.value)


def test_without_the_package_its_extra_is_named(paths, monkeypatch):
    for name in ("gguf", "gguf.constants"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ValueError, match="pip install 'gguf"):
        config_of(str(paths[0]))
