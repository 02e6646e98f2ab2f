"""A file is written whole or not at all: next to its place first, then renamed (`probe.files.write`)."""

import ast
from pathlib import Path

ROOT = Path(__file__).parents[1]
IN_PLACE = {"write_text", "write_bytes", "savefig", "save_pretrained", "to_netcdf", "tofile", "dump"}
"""Methods that write to a path."""
TO_A_PATH = {"to_csv", "to_json", "savez"}
"""Those that write to a path where one is their first argument."""
ELSEWHERE = {
    "probe/files.py": "writes what is renamed",
    "probe/experiment/lock.py": "the lock, which is known by its file and not its name",
    "probe/experiment/ray.py": "no file",
    "probe/commands/eval/harness.py": "a temporary folder",
    "probe/figures/static.py": "to memory",
    "probe/figures/export.py": "to memory",
    "probe/store/cache.py": "to memory",
    "mesa/models.py": "a folder that is renamed",
    "mesa_lens/fetch.py": "a folder that is renamed",
    "probe/glossary.py": "a page of the documentation",
}
FILES = [path for name in ("mesa", "probe", "theory", "mesa_lens") for path in sorted((ROOT / name).rglob("*.py"))]


def writes(path):
    """Lines that write to a path in place."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.Call):
            continue
        name = getattr(node.func, "attr", getattr(node.func, "id", ""))
        texts = [
            part.value
            for part in (*node.args, *(word.value for word in node.keywords))
            if isinstance(part, ast.Constant)
        ]
        is_open = name == "open" and any(str(text)[:1] in "wax" and len(str(text)) <= 3 for text in texts)
        if is_open or name in IN_PLACE or (name in TO_A_PATH and node.args):
            yield node.lineno, ast.unparse(node)


def test_every_file_that_is_replaced_is_written_next_to_it_first():
    lines_of = {path.relative_to(ROOT).as_posix(): list(writes(path)) for path in FILES}
    assert {name: lines for name, lines in lines_of.items() if lines and name not in ELSEWHERE} == {}
    assert [name for name in ELSEWHERE if not lines_of[name]] == []
