"""Every Python example of every page runs, top to bottom; where it prints, it prints what the page says."""

import itertools
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import synthetic
from families import build
from transformers import AutoModelForImageTextToText, Gemma3ForConditionalGeneration

ROOT = Path(__file__).parents[1]
_BLOCK = re.compile(r"^ *```py[^\n]*\n(.*?)^ *```$(?:\n\n^```\n(.*?)^```$)?", re.MULTILINE | re.DOTALL)
_PRINTS = re.compile(r"^print\(.*\)  # (.*)$", re.MULTILINE)
TREES = ("*.md", "docs/**/*.md", "research/**/*.md", "mesa/**/*.md", "benchmarks/**/*.md", "space/**/*.md")
PAGES = [
    page
    for tree in TREES
    for page in sorted(ROOT.glob(tree))
    if not page.name.startswith("api-") and _BLOCK.search(page.read_text(encoding="utf-8"))
]
"""Without those of docstrings, which tests/test_examples.py runs."""
NEEDS = {"nnsight": "nnsight"}
"""Pages that an extra is needed for."""
PATCHES = {"mm_tokens_per_image": 4, "vision_config": {"image_size": 16, "patch_size": 8, "num_hidden_layers": 1}}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A working folder with the runs that the pages open."""
    folder = tmp_path_factory.mktemp("examples")
    synthetic.write_run(folder / "runs" / "demo", synthetic.hidden_states(windows=7, layers=3, dims=64))
    shutil.copytree(ROOT / "mesa_lens" / "examples" / "smollm2-16k", folder / "runs" / "smollm2-16k")
    return folder


@pytest.fixture
def small_gemma(monkeypatch):
    """In place of the model that docs/models.md takes apart, which is on a hub."""
    text = build("gemma3_text").config

    def tiny(name):
        return Gemma3ForConditionalGeneration(Gemma3ForConditionalGeneration.config_class(text_config=text, **PATCHES))

    monkeypatch.setattr(AutoModelForImageTextToText, "from_pretrained", tiny)


@pytest.mark.usefixtures("undrawn", "small_gemma")
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_examples_run_as_printed(page, folder, monkeypatch, capsys):
    blocks = _BLOCK.findall(page.read_text(encoding="utf-8"))
    assert all(code.strip() for code, _ in blocks)
    pytest.importorskip(NEEDS.get(page.stem, "pytest"))
    monkeypatch.chdir(folder)
    code = "\n".join(code for code, _ in blocks)
    (script := folder / f"{page.stem}.py").write_text(code, encoding="utf-8")  # nnsight reads the source of its blocks
    before = {path for path in folder.rglob("*") if path.is_file()}
    exec(compile(code, str(script), "exec"), names := {})
    expected = [_PRINTS.findall(code) or output.splitlines() for code, output in blocks]
    printed = [line for line in capsys.readouterr().out.splitlines() if line]
    assert printed == [*itertools.chain(*expected)] or not any(expected)
    if (check := CHECKS.get(page.relative_to(ROOT).as_posix())) is not None:
        check(names, printed, {path for path in folder.rglob("*") if path.is_file()} - before)


def exported(names, printed, written):
    """Nothing is written, as the page says."""
    name, size = printed[0].split()
    assert (name, int(size) > 1000) == ("threshold-resid_post-repeated-layer1-dim50.svg", True)
    assert written == set()


def selected(names, printed, written):
    after = names["after"]
    assert (after["method"].item(), dict(after.sizes)) == ("origin", {"prompt": 2, "position": 101, "dim": 64})


def proven(names, printed, written):
    assert np.isfinite(names["cache"]["blocks.1.attn.hook_out"].numpy()).all()


CHECKS = {"docs/export.md": exported, "docs/run-folder.md": selected, "research/theorems/results.md": proven}
"""What else a page promises of its examples."""
