"""docs/tutorial.ipynb runs from end to end, and is stored small, with what it shows."""

import json
import re

import notebook
import numpy as np
import pytest
from synthetic import evaluation, hidden_states, write_run

import probe
from probe.eval_tasks import sources

M = 256
TEXT = notebook.TUTORIAL.read_text(encoding="utf-8")
BOOK = json.loads(TEXT)
CELLS = notebook.code_cells(BOOK)
STORED = [cell["outputs"] for cell in CELLS]


def kinds(outputs):
    """What each cell shows: streams by name, the rest by MIME types."""
    return [[sorted(output["data"]) if "data" in output else output["name"] for output in cell] for cell in outputs]


def printed(outputs):
    return "".join(line for output in outputs for line in output.get("text", ()))


def scores(outputs):
    return [float(number) for number in re.findall(r"(\d+\.\d\d) nats", printed(outputs))]


def test_every_cell_is_stored_with_its_output_and_the_file_is_small():
    assert len(TEXT.encode()) <= 1_000_000
    assert [cell["execution_count"] for cell in CELLS] == list(range(1, len(CELLS) + 1))
    assert all(STORED)
    types = {name for cell in STORED for output in cell for name in output.get("data", ())}
    assert types == set(notebook.STORED)
    assert not re.search(r"(?<![\w.])/(tmp|work|home|root)/", TEXT)


def test_its_pieces_run(tmp_path, monkeypatch):
    """All cells, with two texts and a synthetic run in place of the capture."""
    texts = sources.heldout()[:2]
    monkeypatch.setattr(sources, "heldout", lambda: texts)
    requests = []

    def captured(request, out, overwrite):
        requests.append((request, overwrite))
        hidden = hidden_states(M, windows=4, layers=2, dims=16, prompts=("repeated",))
        write_run(out, hidden, evaluation(M, windows=4), trained_length=M)

    monkeypatch.setattr(probe, "run_probe", captured, raising=False)
    monkeypatch.chdir(tmp_path)
    outputs = notebook.run_cells(CELLS)
    assert kinds(outputs) == kinds(STORED)
    ((request, overwrite),) = requests
    assert (request.length, request.texts, overwrite) == (1024, 0, True)
    written = (tmp_path / "runs" / "tutorial" / "exports").iterdir()
    assert sorted(path.suffix for path in written) == [".npz", ".png", ".svg"]
    origin, rerope, alone, patched = scores(outputs[5])
    assert rerope < alone < origin
    assert abs(alone - patched) < (origin - patched) / 4


@pytest.mark.slow
def test_it_runs_and_says_what_is_stored(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    outputs = notebook.run_cells(CELLS)
    assert kinds(outputs) == kinds(STORED)
    for number in (0, 5):
        assert len(scores(STORED[number])) > 3
        np.testing.assert_allclose(scores(outputs[number]), scores(STORED[number]), atol=0.03)
    assert printed(outputs[3]) == printed(STORED[3])
    first, stored = (cells[2][0]["data"]["text/plain"].partition("\n")[0] for cells in (outputs, STORED))
    assert first == stored


def test_the_notebook_of_the_bridge_runs_and_says_what_is_stored(tmp_path, monkeypatch):
    text = notebook.BRIDGE.read_text(encoding="utf-8")
    cells = notebook.code_cells(json.loads(text))
    stored = [cell["outputs"] for cell in cells]
    monkeypatch.chdir(tmp_path)
    outputs = notebook.run_cells(cells)
    assert kinds(outputs) == kinds(stored)
    for shown, kept in zip(outputs[:-1], stored[:-1], strict=True):
        numbers = [[float(number) for number in re.findall(r"\d+\.?\d*", printed(one))] for one in (shown, kept)]
        np.testing.assert_allclose(*numbers, atol=2.0)  # percentages; losses to .02 below
        losses = [[float(number) for number in re.findall(r"\d+\.\d\d", printed(one))] for one in (shown, kept)]
        np.testing.assert_allclose(*losses, atol=0.02)
    assert len(text.encode()) <= 500_000


@pytest.mark.slow
def test_the_notebook_of_probes_runs_and_says_what_is_stored(tmp_path, monkeypatch):
    text = notebook.PROBES.read_text(encoding="utf-8")
    cells = notebook.code_cells(json.loads(text))
    assert (len(json.loads(text)["cells"]), len(text.encode()) <= 20_000) == (10, True)
    monkeypatch.chdir(tmp_path)
    shown, stored = notebook.run_cells(cells), [cell["outputs"] for cell in cells]
    assert kinds(shown) == kinds(stored)
    for one, other in zip(shown, stored, strict=True):
        numbers = [[float(number) for number in re.findall(r"\d+\.?\d*", printed(each))] for each in (one, other)]
        np.testing.assert_allclose(*numbers, atol=0.05)
    assert len((tmp_path / "labels.csv").read_text(encoding="utf-8").splitlines()) > 3000
