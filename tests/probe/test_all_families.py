"""Every command that measures on every family of transformers as a tiny model: `make test-families`."""

import json

import matrix
import pytest
import tiny

from mesa.support import windows_of
from mesa_lens.cli import main

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("undrawn"), pytest.mark.filterwarnings("ignore")]
M = 160
METHODS = ["--methods", "origin,rerope"]
COMMANDS = {
    "probe": ["--length", "400", "--samples", "2", "--lengths", "160,320", "--texts", "1", *METHODS],
    "predict": ["--samples", "2", "--methods", "rerope"],
    "locate": ["--lengths", "320", "--samples", "2", "--try", "patch", "--ways", "only", "--methods", "rerope"],
    "anatomy": ["--parts", "heads,tokens,retrieval", "--lengths", "200,320", "--samples", "1", *METHODS],
    "readout": ["--lengths", "320", "--samples", "4", "--tokens", "24", "--probe", "position", *METHODS],
}
ANSWERS = (
    "no method is significantly better than Origin",  # random weights, after all of locate's passes
    "predict rests on distances beyond M",  # no layer rotates and looks far
    "would change nothing",  # no layer looks far
    "attend several times in a pass",  # heads, of DiffLlama
    "states cannot be labelled by layer",  # HRM-Text and LongCat
    "pass on several streams",  # readout, of Gemma 3n
)
"""With what a command may end, in one line, where it cannot answer."""


def checkpoint(family, folder):
    """A model whose window holds a passkey prompt; layers that all have a window see beyond M."""
    tokenizer = tiny.byte_level()
    rows = len(tokenizer)
    sizes = {"vocab_size": rows, "vocab_size_per_layer_input": rows, "max_position_embeddings": M}
    model = matrix.build(family, **sizes)
    if windows_of(model.config) and len(windows_of(model.config)) == model.config.num_hidden_layers:
        model = matrix.build(family, **sizes, sliding_window=200)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


@pytest.mark.parametrize("family", [*(name for name in matrix.WORKS if name not in matrix.CLASSES), *matrix.ALIBI])
def test_every_command_runs(family, tmp_path, capsys):
    model, out = checkpoint(family, tmp_path / "model"), tmp_path / "run"
    of_model, ended = ["--model", model, "--trained-length", str(M)], {}
    for command, words in COMMANDS.items():
        ended[command] = main([command, *words, *of_model, "--out", str(out)]), capsys.readouterr().err[-400:]
    words = ["eval", "--task", "passkey,nll", "--lengths", "160,320", "--samples", "1", *METHODS, *of_model]
    ended["eval"] = main([*words, "--out", str(tmp_path / "eval")]), capsys.readouterr().err[-400:]
    ended["export"] = main(["export", "heatmap", str(out), "--format", "csv"]), capsys.readouterr().err[-400:]
    ended["report"] = main(["report", str(out)]), capsys.readouterr().err[-400:]
    failed = {command: said for command, (code, said) in ended.items() if code}
    if "probe" in failed:  # which export and report are of
        del failed["export"], failed["report"]
    assert [said for said in failed.values() if not any(answer in said for answer in ANSWERS)] == []
    if "probe" not in failed:
        summary = json.loads((out / "summary.json").read_text(encoding="utf-8"))
        assert [row["method"] for row in summary["methods"]] == ["origin", "rerope"]
        attrs = json.loads((out / "store.zarr" / "zarr.json").read_text(encoding="utf-8"))["attributes"]
        assert ("states_from" in attrs) == (family not in matrix.BRIDGED)
