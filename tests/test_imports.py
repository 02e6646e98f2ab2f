"""Imports run one way (`[tool.importlinter]` in pyproject.toml). What draws and reads needs no torch."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
WITHOUT_TORCH = """
    mesa probe theory mesa.support mesa.checkpoints.gguf_file mesa_lens.dashboard.main mesa_lens.export
    mesa_lens.report mesa_lens.status probe.run
    probe.commands.probe.report mesa_lens.verify
""".split()
"""With all that they import as they are loaded."""


def test_imports_run_one_way():
    words = [str(Path(sys.executable).with_name("lint-imports")), "--no-logo", "--no-cache"]
    done = subprocess.run(words, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr


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


@pytest.mark.parametrize("is_lost", [False, True], ids=["replaced", "uninstalled"])
@pytest.mark.parametrize("name", ["mesa", "probe", "theory"])
def test_a_package_that_another_replaced_is_named_with_the_repair(tmp_path, name, is_lost):
    for package in ("mesa", "probe", "theory", "mesa_lens"):
        (tmp_path / package).mkdir()
        for file in (ROOT / package).iterdir():
            (tmp_path / package / file.name).symlink_to(file)
    (tmp_path / name / "__init__.py").unlink()
    if not is_lost:
        (tmp_path / name / "__init__.py").write_text("raise SystemExit('the code of another package ran')\n")
    info = tmp_path / f"{name}-3.1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 3.1\n")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}

    def ends(*words):
        words = [sys.executable, "-W", "ignore", *words]
        done = subprocess.run(words, capture_output=True, text=True, check=False, env=environment, cwd=tmp_path)
        return done.returncode, done.stderr

    code, said = ends("-m", "mesa_lens", "methods")
    assert (code, said.count("\n")) == (2, 1)
    assert f"{tmp_path / name}" in said
    assert f"the package {name} 3.1 is installed over it; `pip uninstall -y {name}`" in said
    imported = {"mesa": ("probe", "theory", "theory.bounds"), "probe": ("mesa_lens.dashboard.server",)}.get(name, ())
    for module in imported:
        code, raised = ends("-c", f"import {module}")
        assert (code, raised.splitlines()[-1]) == (1, said.strip().replace("mesa-lens: ", "ImportError: ", 1))
    if name == "theory":  # which the others do not need
        assert ends("-c", "import probe") == (0, "")
