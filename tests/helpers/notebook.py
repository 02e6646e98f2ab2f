"""Runs a notebook's code cells as Jupyter does, in one process; run with a notebook's path it stores the outputs."""

import ast
import contextlib
import io
import json
import os
import sys
import tempfile
from base64 import b64encode
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"
TUTORIAL, BRIDGE, PROBES = (DOCS / f"{name}.ipynb" for name in ("tutorial", "transformerlens", "probes"))
STORED = ("text/plain", "text/html", "image/png")
"""What is kept of an output: a page can show it, and it stays small."""


def code_cells(book):
    return [cell for cell in book["cells"] if cell["cell_type"] == "code"]


def source(cell):
    return "".join(cell["source"])


def run_cells(cells):
    """Each cell's outputs in nbformat's form; the cells share their names. What a cell raises is raised."""
    names = {}
    return [_run(source(cell), number, names) for number, cell in enumerate(cells, 1)]


def bundle(value):
    """What Jupyter would show of a value, in the MIME types of `STORED`."""
    if hasattr(value, "_repr_mimebundle_"):
        types = value._repr_mimebundle_()
    else:
        types = {"text/plain": repr(value)}
        if page := getattr(value, "_repr_html_", lambda: None)():
            types["text/html"] = page
    kept = {name: types[name] for name in STORED if name in types}
    return {name: b64encode(data).decode() if isinstance(data, bytes) else data for name, data in kept.items()}


def _run(code, number, names):
    tree, stdout = ast.parse(code), io.StringIO()
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    value = None
    with contextlib.redirect_stdout(stdout):
        exec(compile(tree, f"cell {number}", "exec"), names)
        if last is not None:
            value = eval(compile(ast.Expression(last.value), f"cell {number}", "eval"), names)
    outputs = []
    if text := stdout.getvalue().splitlines(keepends=True):
        outputs.append({"name": "stdout", "output_type": "stream", "text": text})
    if value is not None:
        result = {"data": bundle(value), "execution_count": number, "metadata": {}, "output_type": "execute_result"}
        outputs.append(result)
    return outputs


def store(path):
    book = json.loads(path.read_text(encoding="utf-8"))
    cells = code_cells(book)
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        for number, (cell, outputs) in enumerate(zip(cells, run_cells(cells), strict=True), 1):
            cell |= {"execution_count": number, "outputs": outputs}
    path.write_text(json.dumps(book, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    sys.stderr.write(f"{path}: {os.path.getsize(path)} bytes\n")


if __name__ == "__main__":
    for name in sys.argv[1:] or (TUTORIAL, BRIDGE, PROBES):
        store(Path(name).absolute())
