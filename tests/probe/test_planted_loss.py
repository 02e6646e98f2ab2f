"""A model whose loss breaks at a known position under one method: commands find where, and nothing where nothing is.

Passkeys it cannot answer, so length is evaluated by tail NLL alone.
"""

import json
import math

import pytest
import torch
from commands import main

from mesa.engine.plug import attachment_of
from mesa.models import load

M, BREAK, NEVER = 160, 250, 10**9
ASKED = "--methods origin,rerope --seed 3 --samples 6"

pytestmark = pytest.mark.usefixtures("undrawn")


def plant(monkeypatch, position):
    """Has loaded models know every next token, more or less, but from `position` on under Origin none."""

    def planted(module, args, kwargs, output):
        ids = args[0] if args else kwargs["input_ids"]
        following, last = ids.roll(-1, 1), output.logits.shape[1]
        positions = torch.arange(ids.shape[1] - last, ids.shape[1])
        sure = 6 + 0.5 * torch.randn(last, generator=torch.Generator().manual_seed(int(ids.sum())))
        attached = attachment_of(module)
        if attached is None or attached.method.name == "origin":
            sure[positions >= position] = 0.0
        output.logits = torch.zeros_like(output.logits).scatter_(
            -1, following[:, -last:, None], sure.expand(len(ids), last)[..., None]
        )
        return output

    def loaded(*args, **options):
        loaded_model = load(*args, **options)
        loaded_model.model.register_forward_hook(planted, with_kwargs=True)
        return loaded_model

    monkeypatch.setattr("probe.experiment.run.load", loaded)


def probed(model, out):
    options = f"{ASKED} --length 480 --lengths 80,160,320,480 --refine 4 --texts 0 --layers 0-1 --dims 0-3"
    assert main(["probe", "--model", model, *options.split(), "--out", str(out)]) == 0
    summary = json.loads((out / "summary.json").read_text())
    sentences = {sentence["heading"]: sentence["text"] for sentence in summary["verdict"]["sentences"]}
    return {row["method"]: row for row in summary["methods"]}, sentences


def test_probe_finds_where_the_loss_breaks_and_what_fixes_it_is_compared_with_truncation(model, tmp_path, monkeypatch):
    plant(monkeypatch, BREAK)
    rows, sentences = probed(model, tmp_path)
    loaded_model = rows["origin"]["measured"]
    assert (loaded_model["length"], loaded_model["before"], loaded_model["text"]) == (260, 250, "(250, 260]")
    assert loaded_model["length"] - BREAK <= M // 16
    assert rows["rerope"]["measured"]["length"] is None
    assert sentences["What fails"].startswith("Failure begins between 250 and 260 tokens (1.6x M, ")
    assert sentences["What fixes it"].startswith("rerope does not fail by tail NLL up to 480 tokens (3x M)")
    assert "rerope does not clearly beat truncation by tail NLL (6 texts)." in sentences["What fixes it"]
    assert "Use " not in sentences["What fixes it"]


def test_probe_finds_nothing_where_nothing_breaks(model, tmp_path, monkeypatch):
    plant(monkeypatch, NEVER)
    rows, sentences = probed(model, tmp_path)
    assert {row["measured"]["length"] for row in rows.values()} == {None}
    assert sentences["What fails"].startswith("No failure")


def test_eval_finds_the_break_between_the_same_lengths(model, tmp_path, monkeypatch):
    plant(monkeypatch, BREAK)
    options = f"{ASKED} --task nll,nll-position --lengths 240,260,320"
    assert main(["eval", "--model", model, *options.split(), "--out", str(tmp_path)]) == 0
    cells = json.loads((tmp_path / "summary.json").read_text())["cells"]
    means = {(cell["task"], cell["method"], cell["length"]): cell["mean"] for cell in cells}
    vocabulary = load(model).model.config.vocab_size
    known = math.log(1 + (vocabulary - 1) * math.exp(-6))
    lost = math.log(vocabulary) - known
    # of the tail's targets 220 to 259 those from 251 on are lost, of the last 20 the same ones
    for task, shares in {"nll": (0, 9 / 40, 1), "nll-position": (0, 9 / 20, 1)}.items():
        for length, share in zip((240, 260, 320), shares, strict=True):
            assert means[task, "origin", length] == pytest.approx(known + share * lost, abs=0.25)
            assert means[task, "rerope", length] == pytest.approx(known, abs=0.25)
