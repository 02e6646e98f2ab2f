"""docs/tutorial.ipynb runs from end to end, and is stored small, with what it shows."""

import json
import re
import tomllib

import notebook
import numpy as np
import pytest
from packaging.requirements import Requirement
from synthetic import evaluation, hidden_states, write_run

import probe
from probe.tasks import sources

M = 256
TEXT = notebook.TUTORIAL.read_text(encoding="utf-8")
BOOK = json.loads(TEXT)
CELLS = notebook.code_cells(BOOK)
STORED = [cell["outputs"] for cell in CELLS]


def kinds(outputs):
    """What each cell shows: streams by name, the rest by MIME types."""
    return [[sorted(each["data"]) if "data" in each else each["name"] for each in cell] for cell in outputs]


def said(outputs):
    return "".join(line for each in outputs for line in each.get("text", ()))


def scores(outputs):
    return [float(number) for number in re.findall(r"(\d+\.\d\d) nats", said(outputs))]


def test_every_cell_is_stored_with_its_output_and_the_file_is_small():
    assert len(TEXT.encode()) <= 1_000_000
    assert [cell["execution_count"] for cell in CELLS] == list(range(1, len(CELLS) + 1))
    assert all(STORED)
    types = {name for cell in STORED for each in cell for name in each.get("data", ())}
    assert types == set(notebook.STORED)
    assert not re.search(r"(?<![\w.])/(tmp|work|home|root)/", TEXT)


def test_links_lead_somewhere():
    links = re.findall(r"\]\(([^)#]+)\)", TEXT)
    assert links
    assert not [link for link in links if not (notebook.TUTORIAL.parent / link).exists()]


def test_an_extra_installs_what_opens_it():
    root = notebook.TUTORIAL.parents[1]
    extras = tomllib.loads((root / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    (wanted,) = map(Requirement, extras["notebook"])
    pins = dict(line.split("==") for line in (root / "constraints.txt").read_text().splitlines() if "==" in line)
    assert pins[wanted.name] in wanted.specifier
    assert {"ipykernel", "nbclient"} <= {*pins}
    for page in ("README.md", "docs/api.md"):
        text = " ".join((root / page).read_text().split())
        assert "pip install 'mesa-lens[notebook]'" in text
        assert "jupyter lab docs/tutorial.ipynb" in text


def test_its_pieces_run(tmp_path, monkeypatch):
    """All cells, with two texts and a made-up run in place of the capture."""
    texts = sources.heldout()[:2]
    monkeypatch.setattr(sources, "heldout", lambda: texts)
    asked = []

    def captured(request, out, overwrite):
        asked.append((request, overwrite))
        hidden = hidden_states(M, windows=4, layers=2, dims=16, prompts=("repeated",))
        write_run(out, hidden, evaluation(M, windows=4), trained_length=M)

    monkeypatch.setattr(probe, "run_probe", captured, raising=False)
    monkeypatch.chdir(tmp_path)
    made = notebook.run_cells(CELLS)
    assert kinds(made) == kinds(STORED)
    ((request, overwrite),) = asked
    assert (request.length, request.texts, overwrite) == (1024, 0, True)
    written = (tmp_path / "runs" / "tutorial" / "exports").iterdir()
    assert sorted(path.suffix for path in written) == [".npz", ".png", ".svg"]
    origin, rerope, alone, patched = scores(made[5])
    assert rerope < alone < origin
    assert abs(alone - patched) < (origin - patched) / 4


@pytest.mark.slow
def test_it_runs_and_says_what_is_stored(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    made = notebook.run_cells(CELLS)
    assert kinds(made) == kinds(STORED)
    for number in (0, 5):
        assert len(scores(STORED[number])) > 3
        np.testing.assert_allclose(scores(made[number]), scores(STORED[number]), atol=0.03)
    assert said(made[3]) == said(STORED[3])
    first, stored = (each[2][0]["data"]["text/plain"].partition("\n")[0] for each in (made, STORED))
    assert first == stored
