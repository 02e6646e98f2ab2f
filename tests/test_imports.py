"""Data flows one way: mesa -> probe -> command; theory uses mesa. What draws and reads needs no torch."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MAY_IMPORT = {"mesa": set(), "probe": {"mesa"}, "theory": {"mesa"}, "mesa_lens": {"mesa", "probe", "theory"}}
WITHOUT_TORCH = """
    mesa mesa.checkpoints mesa.gguf_header mesa.methods mesa.place mesa.plan mesa.settings mesa.support mesa.weave
    probe.evaluation.journal probe.evaluation.summary probe.tasks.sources probe.store.store probe.store.reader
    probe.store.select probe.thresholds.search probe.thresholds.predict probe.thresholds.analysis
    probe.figures.heatmap probe.figures.interactive probe.figures.static probe.figures.render probe.figures.tables
    probe.figures.export probe.figures.evaluation_chart probe.report
    probe.study.variants probe.study.results probe.study.score probe.study.table probe.study.report
    mesa_lens.cli mesa_lens.export mesa_lens.fetching theory.bounds theory.cli theory.figures theory.plots
""".split()


@pytest.mark.parametrize("package", list(MAY_IMPORT))
def test_packages_import_only_what_comes_before_them(package):
    ours = set(MAY_IMPORT) - {package}
    for path in (ROOT / package).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            wrong = {name for name in names if name.split(".")[0] in ours - MAY_IMPORT[package]}
            assert not wrong, f"{path.relative_to(ROOT)} imports {wrong}"


def test_reading_and_drawing_needs_no_torch():
    code = "import sys\nfor name in ('torch', 'transformers', 'transformer_lens'): sys.modules[name] = None\n"
    code += "\n".join(f"import {name}" for name in WITHOUT_TORCH)
    code += "\nfrom mesa_lens.cli import main\nraise SystemExit(main(['methods']))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert "R = min(r, N)" in done.stdout
