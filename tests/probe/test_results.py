"""A result is read as it was written, or refused: no changed digit is ever another number."""

import json
import random
import re

import pytest

from probe.commands.predict.result import PREDICTION
from probe.files import read_result, write_result
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
