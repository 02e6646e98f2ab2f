"""`locate` and `anatomy` on theorem 3.2's model: the head that the proof builds is the one that is named."""

import json

import pytest
import torch

import theory
from mesa_lens.cli import main

M, TOKEN, OUTPUT, READ = 32, 67, 2, 7
REROPE = ("--methods", "rerope", "--set", "rerope.window=4", "--set", "rerope.log_n=False", "--dtype", "float64")


@pytest.fixture(scope="module")
def read_out(tmp_path_factory):
    """The model with o also in a direction of its own, by which it bets on TOKEN while o is above H; two texts."""
    model, folder = theory.build("plain", M=M), tmp_path_factory.mktemp("read")
    with torch.no_grad():
        model.transformer.wte.weight[:, READ] = 0
        for block in model.transformer.blocks:
            block.attn.out_proj.weight[READ] = 0
            block.ffn.down_proj.weight[READ] = 0
        last = model.transformer.blocks[-1].attn.out_proj.weight
        last[READ] = last[OUTPUT]
        model.lm_head.weight.zero_()
        model.lm_head.weight[TOKEN, READ] = 40
    theory.save(model, folder)
    (folder / "text.txt").write_text(
        theory.pretrained.byte_tokenizer().decode([TOKEN] * 1950 + [TOKEN + 1] + [TOKEN] * 49)
    )
    return folder


def test_the_built_head_alone_restores_the_loss(read_out, tmp_path, capsys):
    """Layer 1 is woven, too, where everything is; that layer 2's head sees nothing far is enough."""
    options = ["--try", "weave,smallest", "--lengths", "100", "--samples", "2", "--text", str(read_out / "text.txt")]
    assert main(["locate", "--model", str(read_out), "--out", str(tmp_path), *REROPE, *options, "--json"]) == 0
    summary = json.loads(capsys.readouterr().out)
    alone = {
        (each["layer"], each["head"]): each["share"]
        for each in summary["effects"]
        if (each["kind"], each["way"]) == ("weave", "only")
    }
    assert {place: round(share, 6) for place, share in alone.items()} == {
        (0, None): 0, (0, 0): 0, (0, 1): 0, (1, None): 1, (1, 0): 1, (1, 1): 0,
    }  # fmt: skip
    assert summary["smallest"][0]["heads"] == [[1, 0]]
