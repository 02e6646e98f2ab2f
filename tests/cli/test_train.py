"""`mesa-lens train-default`: a whole checkpoint or nothing, and no numbers from a loss that is none."""

import json

import pytest
import torch

from mesa.models import load
from mesa_lens.cli import main
from mesa_lens.training import card, train
from probe.tasks import corpus


@pytest.fixture
def short(monkeypatch):
    """A corpus of one file, so that a step takes no time."""
    monkeypatch.setattr(corpus, "training_files", lambda: corpus_files()[:1])


corpus_files = corpus.training_files


def begun(out, *more):
    return main(["train-default", "--out", str(out), "--tokens", "3072", *more])


def interrupted(*given):
    raise KeyboardInterrupt


def test_an_interrupt_keeps_a_whole_checkpoint_or_nothing(short, tmp_path, monkeypatch, capsys):
    out = tmp_path / "made"
    with monkeypatch.context() as patch:
        patch.setattr(train.LlamaForCausalLM, "save_pretrained", interrupted)
        assert begun(out) == 1
    assert not out.exists()
    assert "nothing half-written was left" in capsys.readouterr().err
    monkeypatch.setattr(card, "measure", interrupted)
    assert begun(out) == 1
    assert f"the newest checkpoint is kept in {out}" in capsys.readouterr().err
    assert load(str(out)).model.config.max_position_embeddings == 256
    assert json.loads((out / "training.json").read_text())["steps"] == 1
    assert not [path.name for path in out.iterdir() if path.is_dir() or path.name.startswith(".")]
    assert begun(out) == 2
    assert f"--out {out} already holds a model" in capsys.readouterr().err


def test_a_loss_that_is_no_number_ends_it(short, tmp_path, monkeypatch, capsys):
    nothing = torch.full((), torch.nan, requires_grad=True)
    monkeypatch.setattr(train, "loss_of", lambda model, *given: nothing + 0 * model.lm_head.weight.sum())
    assert begun(tmp_path / "made", "--seed", "3") == 1
    assert "the loss of step 0 is nan; try another --seed" in capsys.readouterr().err
    assert not (tmp_path / "made").exists()
