"""`mesa-lens anatomy` from the command line to its files, resumed, on another runner, and what it refuses."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import tiny
from commands import main

from probe.commands.anatomy.page import attention_view, loss_view
from probe.commands.anatomy.result import TOKENS, Retrieval
from probe.commands.anatomy.run import AnatomyExperiment, intervals, retrieval_heads
from probe.store.result_file import Interval

M, LENGTH = 160, 320
METHODS = ("origin", "rerope")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A tiny model's folder with a text in it, so that little is to be tokenized."""
    model = tiny.folder(tmp_path_factory.mktemp("model"), trained=M)
    drawn = np.random.default_rng(0).choice(["a text", "of a few", "words,", "to make", "a", "tokenizer", "from"], 1500)
    (model / "text.txt").write_text(" ".join(drawn))
    return model


def run(folder, out, *options):
    some = ("--methods", ",".join(METHODS), "--lengths", f"{M},{LENGTH}")
    some += () if "tokens" in options else ("--samples", "2")
    text = ("--text", str(folder / "text.txt"))
    return main(["anatomy", "--model", str(folder), "--out", str(out), *some, *text, *options])


@pytest.fixture(scope="module")
def whole(folder, tmp_path_factory):
    out = tmp_path_factory.mktemp("whole")
    assert run(folder, out) == 0
    return out


def test_what_a_report_leaves_out_of_its_folder_is_said(folder, tmp_path, capsys):
    assert run(folder, tmp_path, "--parts", "heads", "--layers", "0") == 0
    assert "left out of this report" not in capsys.readouterr().err
    assert run(folder, tmp_path, "--parts", "heads", "--layers", "0", "--methods", "origin") == 0
    line = f"{tmp_path} also holds rerope, left out of this report; --methods origin,rerope shows all\n"
    assert line in capsys.readouterr().err


def test_a_text_is_captured_token_by_token_and_opens_as_html(folder, tmp_path):
    assert run(folder, tmp_path, "--parts", "tokens") == 0
    tokens = TOKENS.find(tmp_path)
    assert (len(tokens.tokens), list(tokens.methods)) == (LENGTH, list(METHODS))
    losses, shape = tokens.methods["rerope"].nll, np.shape(tokens.methods["rerope"].key)
    assert (len(losses), shape) == (LENGTH - 1, (3, 4, len(tokens.queries), 12))
    html = loss_view(tokens)
    assert html.count("<i class=") - 8 == 2 * (LENGTH - 1)  # 8: the scale
    assert f'title="{LENGTH - 1}: {losses[-1]:.2f}"' in html
    assert f"beyond M {np.mean(tokens.methods['origin'].nll[M - 1 :]):.2f} under origin" in html
    assert "Layer 2, head 3:" in attention_view(tokens, "rerope", 2, 3)
    with pytest.raises(ValueError, match="layer 2, head 4 was not captured"):
        attention_view(tokens, None, 2, 4)
    with pytest.raises(ValueError, match="method 'mesa' was not captured token by token; known: origin, rerope"):
        loss_view(tokens, "mesa")


def test_overwriting_removes_what_a_run_wrote_and_nothing_else(whole, tmp_path):
    folder = Path(shutil.copytree(whole, tmp_path / "run")) / "anatomy"
    (folder / "mine.csv").write_text("mine")
    written = [path for pattern in AnatomyExperiment.written for path in folder.glob(pattern)]
    assert {path.name for path in folder.iterdir()} - {path.name for path in written} == {"journal.jsonl", "mine.csv"}


def test_every_part_is_in_the_summary(whole):
    result = json.loads((whole / "anatomy" / "summary.json").read_text())
    assert result["text_source"]["documents"] == {"text.txt": 1}
    assert "1 document, " in (whole / "anatomy" / "report.html").read_text()
    spans = {(row["length"], row["span"]) for row in result["heads"]}
    assert spans == {(M, "inside M"), (LENGTH, "inside M"), (LENGTH, "beyond M")}
    assert len(result["heads"]) == 2 * 3 * 3 * 4  # methods, spans, layers, heads
    assert len(result["retrieval"]) == 2 * 2 * 3 * 4
    for row in result["heads"]:
        masses = {part: row[f"mass_{part}"][0] for part in ("first", "near", "window", "beyond")}
        assert sum(masses.values()) == pytest.approx(1, abs=1e-5)
        assert (masses["beyond"] > 0) == (row["span"] == "beyond M")
        assert row["sink"][1] <= row["sink"][0] <= row["sink"][2]
    for row in result["retrieval"]:
        assert row["best"] == row[f"offset_{row['best_offset']}"]
        assert row["best"][0] == max(row["offset_0"][0], row["offset_1"][0])
    assert result["tasks_left"] == 0
    heads = [row for row in result["heads"] if (row["method"], row["length"], row["span"]) == ("origin", M, "inside M")]
    (mean,) = (row for row in result["all_heads"] if (row["method"], row["length"]) == ("origin", M))
    assert mean["entropy"][0] == pytest.approx(np.mean([row["entropy"][0] for row in heads]), abs=1e-5)


def test_a_head_is_lost_and_recovered_by_its_intervals():
    scores = {  # inside, beyond under origin, beyond under rerope; lost, kept, recovered by
        0: ([0.9, 0.8, 1.0], [0.1, 0.0, 0.2], [0.8, 0.7, 0.9], True, False, ["rerope"]),
        1: ([0.9, 0.8, 1.0], [0.1, 0.0, 0.2], [0.2, 0.1, 0.3], True, False, []),
        2: ([0.9, 0.1, 1.0], [0.1, 0.0, 0.2], [0.8, 0.7, 0.9], False, False, []),  # too uncertain
        3: ([0.9, 0.8, 1.0], [0.7, 0.6, 0.8], [0.9, 0.8, 1.0], False, True, []),
        4: ([0.2, 0.2, 0.2], [0.0, 0.0, 0.0], [0.2, 0.2, 0.2]),  # does not retrieve
    }
    rows = []
    for head, values in scores.items():
        for (method, length), score in zip((("origin", M), ("origin", 640), ("rerope", 640)), values, strict=False):
            score = Interval(*score)
            rows.append(Retrieval(method, length, 4, 0, head, Interval(0.0, 0.0, 0.0), score, 1, score))
    entry = retrieval_heads(rows, M, "origin", ["origin", "rerope"])
    result = {row.head: (row.lost, row.kept, row.recovered_by) for row in entry}
    assert result == {head: tuple(values[3:]) for head, values in scores.items() if head < 4}


def test_intervals_are_over_prompts():
    values = np.array([[0.0, 5.0], [1.0, 5.0], [2.0, 5.0]])
    (first, second) = intervals(values)
    assert first == [1.0, 0.0, 3.484138]  # 1 +- 4.303 / sqrt(3), Student's t, and no less than can be
    assert second == [5.0, 5.0, 5.0]
    assert intervals(values[:, :1] / 2, 1.0) == [[0.5, 0.0, 1.0]]
    assert intervals(values[:2] * 0, 1.0, counts=True) == [[0.0, 0.0, 0.65762]] * 2  # Wilson's of 0 of 2
    assert intervals(values[:2, 1:] / 5, 1.0, counts=True) == [[1.0, 0.34238, 1.0]]
    assert intervals(values[:2, 1:] / 15, 1.0, counts=True) == [[0.333333, 0.045255, 0.840618]]  # a tie is no certainty
    assert intervals(values[:1]) == [[0.0, None, None], [5.0, None, None]]
