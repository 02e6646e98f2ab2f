"""The floors of the house, as data: imports run down only. What draws and reads needs no torch."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FLOORS = """
    mesa.plan             <-
    mesa.methods          <- mesa.plan
    mesa.checkpoints      <-
    mesa                  <- mesa.plan mesa.methods mesa.checkpoints
    mesa.engine           <- mesa
    mesa.checking         <- mesa mesa.engine
    probe.options         <-
    probe.statistics      <-
    probe.capture         <- mesa probe.options
    probe.request         <- mesa probe.options probe.capture
    probe.tasks           <- mesa
    probe.files           <-
    probe.experiment      <- mesa probe.files probe.capture
    probe.evaluation      <- mesa probe.statistics probe.options probe.request probe.tasks probe.capture probe.files probe.experiment
    probe.store           <- probe.files probe.options
    probe.thresholds      <- mesa probe.statistics probe.tasks probe.capture probe.evaluation probe.store
    probe.predict.law     <- mesa probe.thresholds
    probe.figures         <- mesa probe.files probe.capture probe.store probe.thresholds probe.predict.law
    probe.predict         <- mesa probe.statistics probe.request probe.tasks probe.capture probe.files probe.experiment probe.evaluation probe.store probe.thresholds probe.predict.law probe.figures
    probe.attention       <- mesa probe.statistics probe.options probe.files probe.request probe.tasks probe.capture probe.experiment probe.evaluation probe.store probe.thresholds
    probe.interventions   <- mesa probe.statistics probe.options probe.files probe.request probe.tasks probe.capture probe.experiment probe.evaluation probe.store probe.thresholds
    probe.status          <- probe.experiment probe.store
    probe.mechanism_report <- probe.files probe.store probe.figures probe.interventions probe.attention
    probe.glossary        <-
    probe.plan          <- mesa probe.options probe.request probe.tasks probe.capture probe.evaluation probe.thresholds
    probe.inputs          <- mesa probe.options probe.tasks probe.capture probe.store probe.plan
    probe.verdict         <- probe.statistics probe.evaluation probe.store probe.thresholds
    probe.report          <- probe.files probe.store probe.thresholds probe.figures probe.mechanism_report probe.verdict probe.glossary
    probe.stages          <- mesa probe.capture probe.experiment probe.evaluation probe.store probe.thresholds probe.plan probe.inputs
    probe.opened          <- probe.files probe.evaluation probe.store probe.thresholds probe.figures probe.interventions probe.attention probe.verdict probe.report
    probe.run             <- mesa probe
    probe                 <- mesa probe
    theory                <- mesa
    theory.claims         <- mesa theory
    theory.report         <- mesa theory
    mesa_lens.arguments   <- mesa probe
    mesa_lens.paper       <- mesa probe mesa_lens.arguments
    mesa_lens.dashboard   <- mesa probe theory mesa_lens.paper
    mesa_lens             <- mesa probe theory mesa_lens
    research              <- mesa probe theory mesa_lens
"""  # noqa: E501
"""From the ground up: folders (or modules with a floor of their own) <- what they may import beside themselves.

A name on the left is the folder's own files, one on the right all of them that stand further up in this table.
"""
PACKAGES = ("mesa", "probe", "theory", "mesa_lens")
WITHOUT_TORCH = """
    mesa mesa.methods mesa.plan mesa.settings mesa.support
    mesa.fingerprints probe.options probe.request probe.experiment.lock
    mesa.checkpoints mesa.checkpoints.fetched mesa.checkpoints.gguf_file mesa.checkpoints.place
    probe probe.experiment.journal probe.statistics probe.evaluation.summary probe.evaluation.text
    probe.tasks.sources
    probe.store.store probe.store.reader probe.store.results probe.store.select probe.store.cache
    probe.thresholds.search probe.thresholds.predict probe.thresholds.analysis probe.verdict.tables
    probe.figures.figure_data probe.figures.heatmap probe.figures.interactive probe.figures.static probe.figures.render
    probe.figures.tables probe.figures.export probe.figures.curves probe.figures.drift probe.figures.thresholds
    probe.figures.locate probe.figures.anatomy probe.figures.mechanism_export probe.figures.mobile_layout
    probe.figures.styles
    probe.interventions probe.interventions.loss_gap probe.interventions.sentences
    probe.attention probe.attention.sentences probe.mechanism_report probe.report
    probe.verdict probe.verdict.verdict probe.opened
    probe.status mesa_lens.status
    mesa_lens.cli mesa_lens.export mesa_lens.report mesa_lens.fetching mesa_lens.paper.command
    mesa_lens.paper.sections
    theory theory.bounds theory.weave theory.claim theory.figures
""".split()


@cache
def floors() -> dict[str, set[str]]:
    """What may be imported by each folder or module of the table, itself included; KeyError for a name not above."""
    allowed: dict[str, set[str]] = {}
    for line in FLOORS.strip().splitlines():
        own, below = (side.split() for side in line.split("<-"))
        under = {room: [up for up in allowed if f"{up}.".startswith(f"{room}.")] for room in below}
        assert all(under[room] or room in own for room in below), f"{line.strip()}: something stands further down"
        allowed |= {room: {*own, *(up for rooms in under.values() for up in rooms)} for room in own}
    return allowed


def room_of(module: str) -> str:
    """The entry of the table that a module belongs to: the longest that begins its name."""
    return max((room for room in floors() if f"{module}.".startswith(f"{room}.")), key=len)


def imports(path: Path) -> Iterator[tuple[int, str]]:
    """Line and module of every import of ours, also in functions and for types; a door's lazy names are left out.

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


def files(root: Path) -> dict[str, Path]:
    """Every file of the packages under `root`, by its module's name."""
    paths = sorted(path for package in PACKAGES for path in (root / package).rglob("*.py"))
    return {".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__"): path for path in paths}


def circle(root: Path) -> list[str]:
    """Modules under `root` that import each other in a circle, in one folder or over several; empty if none do."""
    paths = files(root)
    graph = {
        own: {name if name in paths else name.rpartition(".")[0] for _, name in imports(path)} - {own}
        for own, path in paths.items()
    }
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return error.args[1]
    return []


def offences(root: Path) -> list[str]:
    """Every import of the packages under `root` that is relative or not in the table, as 'file:line ...'."""
    allowed, found = floors(), []
    for module, path in files(root).items():
        relative, room = path.relative_to(root), room_of(module)
        for line, name in imports(path):
            if name.startswith("."):
                found.append(f"{relative}:{line} imports {name}; write its package out")
            elif room_of(name) not in allowed[room]:
                found.append(f"{relative}:{line} imports {name}; {room} may import {', '.join(sorted(allowed[room]))}")
    return found


def test_imports_run_down_only():
    assert not (found := offences(ROOT)), "\n".join(found)


@pytest.mark.parametrize(
    ("file", "text", "line"),
    [
        ("mesa/methods/new.py", "def f():\n    from mesa.engine import plug\n", 2),
        ("mesa/models.py", "import mesa.engine.plug\n", 1),
        ("probe/store/new.py", "if TYPE_CHECKING:\n    from probe.thresholds.search import search\n", 2),
        ("probe/figures/new.py", "\nfrom probe.verdict import verdict\n", 2),
        ("probe/tasks/new.py", "import probe.run\n", 1),
        ("probe/request.py", "from probe.tasks.base import Setting\n", 1),
        ("probe/plan.py", "from probe.run import run_probe\n", 1),
        ("probe/inputs.py", "def f():\n    from probe.report import write_report\n", 2),
        ("probe/report.py", "from probe import plan\n", 1),
        ("probe/verdict/new.py", "from probe.run import run_probe\n", 1),
        ("probe/figures/new.py", "from research import pictures\n", 1),
        ("probe/store/new.py", "\nfrom ..thresholds import search\n", 2),
        ("mesa/new.py", "from . import engine\n", 1),
        ("mesa/checkpoints/new.py", "from mesa import models\n", 1),
        ("theory/parts.py", "from theory.claims import Claim\n", 1),
        ("theory/bounds.py", "from theory import report\n", 1),
        ("mesa_lens/dashboard/views/new.py", "from mesa_lens.methods import run_list\n", 1),
    ],
)
def test_an_import_upwards_is_named(tmp_path, file, text, line):
    path = tmp_path / file
    path.parent.mkdir(parents=True)
    path.write_text(text)
    (found,) = offences(tmp_path)
    assert found.startswith(f"{file}:{line} imports ")


def test_no_modules_import_each_other_in_a_circle():
    assert not circle(ROOT)


def test_a_circle_is_found_in_one_folder(tmp_path):
    for name, text in {"a": "from probe.store import b", "b": "def f():\n    from probe.store.a import x"}.items():
        (tmp_path / "probe" / "store").mkdir(parents=True, exist_ok=True)
        (tmp_path / "probe" / "store" / f"{name}.py").write_text(text)
    assert not offences(tmp_path)
    assert set(circle(tmp_path)) == {"probe.store.a", "probe.store.b"}


def test_every_folder_has_a_floor():
    folders = {path.parent for package in PACKAGES for path in (ROOT / package).rglob("*.py")}
    missing = {".".join(folder.relative_to(ROOT).parts) for folder in folders} - set(floors())
    assert missing == {"mesa_lens.dashboard.views"}  # the dashboard's


def test_reading_and_drawing_needs_no_torch():
    code = "import sys\nfor name in ('torch', 'transformers', 'transformer_lens'): sys.modules[name] = None\n"
    code += "\n".join(f"import {name}" for name in WITHOUT_TORCH)
    code += "\nfrom mesa_lens.cli import main\nraise SystemExit(main(['methods']))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert "R = min(r, N)" in done.stdout
