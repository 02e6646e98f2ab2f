"""Imports run one way, from upper packages to lower ones. What draws and reads needs no torch."""

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LAYERS = """
    mesa.errors           <-
    mesa.namesakes        <-
    mesa.plan             <-
    mesa.methods          <- mesa.plan
    mesa.checkpoints      <-
    mesa                  <- mesa.namesakes mesa.plan mesa.methods mesa.checkpoints
    mesa.engine           <- mesa
    mesa.checking         <- mesa mesa.engine
    probe.options         <-
    probe.glossary        <-
    probe.statistics      <-
    probe.capture         <- mesa probe.options
    probe.request         <- mesa probe.options probe.capture
    probe.tasks           <- mesa
    probe.files           <-
    probe.identity        <- mesa probe.files
    probe.experiment      <- mesa probe.files probe.identity probe.capture
    probe.evaluation      <- mesa probe.statistics probe.options probe.request probe.tasks probe.capture probe.files probe.experiment
    probe.store           <- probe.files probe.options probe.identity
    probe.thresholds      <- mesa probe.statistics probe.tasks probe.capture probe.evaluation probe.store
    probe.law.formula     <- mesa probe.thresholds
    probe.figures         <- mesa probe.statistics probe.files probe.capture probe.store probe.thresholds probe.law.formula
    probe.law             <- mesa probe.statistics probe.request probe.tasks probe.capture probe.files probe.experiment probe.evaluation probe.store probe.thresholds probe.law.formula probe.figures
    probe.attention       <- mesa probe.statistics probe.options probe.files probe.request probe.tasks probe.capture probe.experiment probe.evaluation probe.store probe.thresholds
    probe.interventions   <- mesa probe.statistics probe.options probe.files probe.request probe.tasks probe.capture probe.experiment probe.evaluation probe.store probe.thresholds
    probe.status          <- probe.files probe.experiment probe.store
    probe.mechanism_report <- probe.glossary probe.files probe.store probe.figures probe.interventions probe.attention
    probe.plan          <- mesa probe.options probe.request probe.tasks probe.capture probe.evaluation probe.thresholds
    probe.verdict         <- probe.glossary probe.statistics probe.evaluation probe.store probe.thresholds
    probe.eval_report     <- probe.files probe.evaluation probe.figures probe.verdict probe.glossary
    probe.report          <- probe.files probe.store probe.thresholds probe.figures probe.mechanism_report probe.verdict probe.glossary
    probe.stages          <- mesa probe.capture probe.experiment probe.evaluation probe.store probe.thresholds probe.plan
    probe.opened          <- probe.files probe.evaluation probe.store probe.thresholds probe.figures probe.law probe.interventions probe.attention probe.verdict probe.report
    probe.run             <- mesa probe
    probe                 <- mesa probe
    theory                <- mesa
    theory.claims         <- mesa theory
    theory.report         <- mesa theory
    mesa_lens.arguments   <- mesa probe
    mesa_lens.dashboard   <- mesa probe theory
    mesa_lens             <- mesa probe theory mesa_lens
    research              <- mesa probe theory mesa_lens
"""  # noqa: E501
"""From the ground up: folders or modules <- what they may import: themselves, mesa.errors, and of the lines above."""
PACKAGES = ("mesa", "probe", "theory", "mesa_lens")
WITHOUT_TORCH = """
    mesa probe theory mesa.support mesa.checkpoints.gguf_file mesa_lens.dashboard.main mesa_lens.export
    mesa_lens.report mesa_lens.status probe.opened
    probe.report mesa_lens.verify
""".split()
"""With all that they import as they are loaded."""


@cache
def allowed() -> dict[str, set[str]]:
    """What each layer may import, itself included."""
    table: dict[str, set[str]] = {}
    for line in LAYERS.strip().splitlines():
        layers, below = (side.split() for side in line.split("<-"))
        lower = {layer for name in below for layer in table if f"{layer}.".startswith(f"{name}.")}
        table |= {layer: {*layers, *lower, "mesa.errors"} for layer in layers}
    return table


def layer_of(module: str) -> str:
    """The layer that a module belongs to: the longest that begins its name."""
    return max((layer for layer in allowed() if f"{module}.".startswith(f"{layer}.")), key=len)


def imports(path: Path) -> Iterator[tuple[int, str]]:
    """Line and module of every import of ours, also in functions; a package's lazy names are left out.

    Relative ones begin with a dot.
    """
    tree = ast.parse(path.read_text())
    if path.name == "__init__.py":
        tree.body = [node for node in tree.body if not (isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node))]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [f"{'.' * node.level}{node.module or ''}.{alias.name}" for alias in node.names]
        else:
            continue
        yield from ((node.lineno, name) for name in names if name.split(".")[0] in (*PACKAGES, "research", ""))


def modules(root: Path) -> dict[str, Path]:
    """Every file of the packages under `root`, by its module's name."""
    paths = sorted(path for package in PACKAGES for path in (root / package).rglob("*.py"))
    return {".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__"): path for path in paths}


def cycle(root: Path) -> list[str]:
    """Modules under `root` that import each other in a circle; empty if none do."""
    paths = modules(root)
    graph = {
        module: {name if name in paths else name.rpartition(".")[0] for _, name in imports(path)} - {module}
        for module, path in paths.items()
    }
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return error.args[1]
    return []


def offences(root: Path) -> list[str]:
    """Every import of the packages under `root` that is relative or not in the table, as 'file:line ...'."""
    lines = []
    for module, path in modules(root).items():
        layer = layer_of(module)
        for line, name in imports(path):
            if name.startswith(".") or layer_of(name) not in allowed()[layer]:
                lines.append(f"{path.relative_to(root)}:{line} imports {name}; {layer} may not, or not relatively")
    return lines


def test_imports_are_those_of_the_table():
    assert not offences(ROOT)
    assert not cycle(ROOT)


@pytest.mark.parametrize(
    ("file", "text", "line"),
    [
        ("mesa/methods/new.py", "def f():\n    from mesa.engine import plug\n", 2),
        ("probe/store/new.py", "if TYPE_CHECKING:\n    from probe.thresholds.search import search\n", 2),
        ("probe/request.py", "import probe.run\n", 1),
        ("probe/figures/new.py", "from research import pictures\n", 1),
        ("probe/store/new.py", "\nfrom ..thresholds import search\n", 2),
    ],
)
def test_an_import_upwards_is_named(tmp_path, file, text, line):
    path = tmp_path / file
    path.parent.mkdir(parents=True)
    path.write_text(text)
    (offence,) = offences(tmp_path)
    assert offence.startswith(f"{file}:{line} imports ")


def test_a_cycle_in_one_folder_is_named(tmp_path):
    folder = tmp_path / "probe" / "store"
    folder.mkdir(parents=True)
    (folder / "a.py").write_text("from probe.store import b")
    (folder / "b.py").write_text("def f():\n    from probe.store.a import x")
    assert not offences(tmp_path)
    assert set(cycle(tmp_path)) == {"probe.store.a", "probe.store.b"}


def test_every_folder_is_in_the_table():
    folders = {path.parent for package in PACKAGES for path in (ROOT / package).rglob("*.py")}
    missing = {".".join(folder.relative_to(ROOT).parts) for folder in folders} - set(allowed())
    assert missing == {"mesa_lens.dashboard.views"}  # the dashboard's


def test_reading_and_drawing_needs_no_torch():
    code = "import sys\nfor name in ('torch', 'transformers', 'transformer_lens'): sys.modules[name] = None\n"
    code += "\n".join(f"import {name}" for name in WITHOUT_TORCH)
    code += "\nfrom mesa_lens.cli import main\nraise SystemExit(main(['methods']))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert "R = min(r, N)" in done.stdout


@pytest.mark.parametrize(("name", "is_named"), [("Mesa", True), ("theory", True), ("mesa-other", False)])
def test_a_distribution_that_shares_a_folder_with_ours_is_named(tmp_path, name, is_named):
    info = tmp_path / f"{name.replace('-', '_')}-3.1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 3.1\n")
    paths = os.pathsep.join([str(ROOT), str(tmp_path)])
    words, environment = [sys.executable, "-c", "import mesa"], {**os.environ, "PYTHONPATH": paths}
    done = subprocess.run(words, capture_output=True, text=True, check=True, env=environment)
    said = f"the package {name} 3.1 shares the folder {name.lower()}/ with mesa-lens" in done.stderr
    assert said == is_named
