"""A result is read as it was written, or refused: no changed digit is ever another number."""

import json
import random
import re
import shutil
from dataclasses import replace
from typing import Literal

import pytest
from pydantic.dataclasses import dataclass
from synthetic import edit, hidden_states, write_run

from probe.commands.anatomy.result import ANATOMY, TOKENS
from probe.commands.eval.page import EVALUATED, HARNESS_SCORES
from probe.commands.locate.result import LOCATED
from probe.commands.predict.result import PREDICTION
from probe.experiment.journal import Journal
from probe.files import read_result, write_result
from probe.run_folder import RUN, RunFolder
from probe.status import status_of

SUMMARY = {
    "model": "tiny",
    "trained_length": 160,
    "lengths": [200, 320],
    "refusal": "",
    "nan": float("nan"),
    "methods": [{"name": "origin", "excess": [0.123456789012, 1e-9], "failure": [200, None]}],
}


def test_a_result_comes_back_and_every_changed_digit_is_noticed(tmp_path):
    path = tmp_path / "predict" / "prediction.json"
    path.parent.mkdir()
    write_result(path, SUMMARY)
    assert read_result(path) == {**SUMMARY, "nan": None}
    text = path.read_text()
    for match in re.finditer(r"[0-9]", text):
        digit = random.Random(match.start()).choice([d for d in "0123456789" if d != match[0]])
        path.write_text(text[: match.start()] + digit + text[match.end() :])
        with pytest.raises(ValueError, match=r"prediction.json is damaged.*`mesa-lens predict --out"):
            PREDICTION.find(tmp_path)


@pytest.mark.parametrize(
    "text", [json.dumps({"model": "no checksum"}), "[" * 200_000, '{"a":' * 200_000, "", "[]", "5", "null", "{", "\x00"]
)
def test_a_damaged_result_is_refused_by_its_name(text, tmp_path):
    path = tmp_path / "predict" / "prediction.json"
    path.parent.mkdir()
    path.write_text(text)
    with pytest.raises(ValueError, match=r"prediction.json is damaged.*`mesa-lens predict --out"):
        PREDICTION.find(tmp_path)
    (path.parent / "journal.jsonl").write_text('{"settings": {"model": "tiny"}, "crc32": true, "cells": 0}\n')
    assert status_of(tmp_path).state == "unfinished"
    assert "prediction.json is damaged" in status_of(tmp_path).text()


@dataclass(frozen=True)
class Small:
    """What every result says of its run."""

    model: str
    trained_length: int = 256
    version: Literal[1] = 1


OURS, OTHERS = (
    {
        "model": name,
        "trained_length": 256,
        "seed": 0,
        "weights": f"sha256 {name}",
        "config": "sha256 1",
        "tokenizer": "sha256 2",
    }
    for name in ("ours", "others")
)


def leave(folder, kind, settings):
    """A journal and a result of a run with these settings."""
    path = folder / kind.path
    path.parent.mkdir(parents=True, exist_ok=True)
    journal = RunFolder(folder).journal_of(path, kind.command)
    Journal(journal, settings, lambda key: None).add(("nll", 256), {"nll": 1.0})
    kind.write(folder, Small(settings["model"], settings["trained_length"]))
    return path


@pytest.mark.parametrize(
    "kind", [LOCATED, ANATOMY, TOKENS, PREDICTION, EVALUATED, HARNESS_SCORES], ids=lambda kind: str(kind.path)
)
def test_a_result_of_another_model_is_never_the_runs(kind, tmp_path, capsys):
    kind = replace(kind, type=Small)
    run = write_run(tmp_path / "run", hidden_states(windows=2, layers=1, dims=2, prompts=("repeated",)))
    edit(run, lambda attrs: attrs.update(OURS))
    path = leave(run, kind, OURS)
    journal = RunFolder(run).journal_of(path, kind.command)
    assert kind.find(run) == Small("ours")
    moved = {**OURS, "model": "./moved/ours"}
    renamed = leave(tmp_path / "moved", kind, moved)

    def left_out(text):
        capsys.readouterr()
        assert kind.find(run) is None
        assert text in capsys.readouterr().err
        with pytest.raises(ValueError, match=f"{re.escape(str(path))} is left out") as error:
            kind.read(run)
        assert text in str(error.value)

    written = path.read_bytes()
    for settings, text in (
        (OTHERS, "of model others, not ours"),
        ({**OTHERS, "model": "ours"}, "it changed since"),
        ({**OURS, "trained_length": 512}, "another trained_length (512 there, 256 now)"),
        ({**OURS, "revision": "main"}, "another revision (main there, None now)"),
    ):
        shutil.rmtree(tmp_path / "other", ignore_errors=True)
        path.write_bytes(leave(tmp_path / "other", kind, settings).read_bytes())
        left_out(text)  # next to the run's own journal
        if kind in (LOCATED, ANATOMY, PREDICTION):
            assert status_of(run).state == "unfinished"
        rows, _ = journal.read_bytes(), journal.unlink()
        left_out(text)  # and without one
        journal.write_bytes(rows)
    path.write_bytes(renamed.read_bytes())
    assert kind.find(run) == Small("./moved/ours")

    path.write_bytes(written)
    older = read_result(path)
    del older[RUN]
    write_result(path, older)
    assert kind.find(run) == Small("ours")  # by its journal
    write_result(path, {**older, "model": "others"})
    left_out("of model others, not ours")
    write_result(path, older)
    journal.unlink()
    left_out("nothing tells from another")
    path.write_bytes(written)
    assert kind.find(run) == Small("ours")  # by what it says
