"""GGUF files load as the model that was quantized, or are refused in one line."""

import shutil
import sys
import time
from pathlib import Path

import pytest
import tiny_gguf
import torch
import xarray as xr
from transformers.utils import logging

from mesa.models import config_of, load, origin, tokenizer_of
from mesa_lens.cli import main

IDS = torch.arange(3, 63)[None] * 7 % 300


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    file = tmp_path_factory.mktemp("gguf") / "Tiny.Q4_1.gguf"
    return file, tiny_gguf.write(file)


@torch.no_grad()
def logits(loaded):
    return loaded.model(IDS).logits


def test_logits_are_those_of_the_dequantized_weights(paths, capfd):
    file, folder = paths
    loaded, plain = load(str(file)), load(str(folder))
    torch.testing.assert_close(logits(loaded), logits(plain), atol=1e-5, rtol=0)
    assert (loaded.quantization, loaded.revision, plain.quantization) == ("Q4_1", "local", None)
    assert loaded.model.dtype == torch.float32
    captured = capfd.readouterr()
    assert captured.out + captured.err == ""  # no bars
    assert logging.is_progress_bar_enabled()
    with torch.no_grad():  # how far pairs taken for halves would be
        for layer in plain.model.model.layers:
            weight = layer.self_attn.q_proj.weight
            weight.copy_(tiny_gguf.permuted(weight.clone(), 4))
    assert (logits(loaded) - logits(plain)).abs().max() > 0.01


def test_config_and_tokenizer_come_without_weights(paths):
    file, folder = paths
    config, stated = config_of(str(file)), config_of(str(folder))
    assert config.max_position_embeddings == stated.max_position_embeddings == 160
    assert config.rope_parameters == stated.rope_parameters
    assert origin(str(file), config) == {"model_revision": "local", "quantization": "Q4_1"}
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
    assert (attrs["quantization"], attrs["trained_length"]) == ("Q4_1", 160)


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
