"""Numbers as they are read: none is a zero with a minus sign."""

import ast
import re
from pathlib import Path

from probe.statistics import shown
from probe.store.result_file import ranged

ROOT = Path(__file__).parents[1]
FOLDERS = ("research probe/commands probe/thresholds probe/figures mesa_lens/dashboard").split()
FILES = "probe/run.py probe/store/result_file.py".split()
SIGNED = re.compile(r"(?:^|:)[<>^=]?[+\- ]?#?0?\d*[,_]?\.(?:[1-9]|\?)f")
"""A fixed number of decimals, without the z that makes -0.00 of it 0.00."""


def signed_zeros(text):
    """The format specs in Python source under which a small negative number reads as -0.00."""
    specs = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FormattedValue) and isinstance(node.format_spec, ast.JoinedStr):
            parts = node.format_spec.values
            spec = "".join(part.value if isinstance(part, ast.Constant) else "?" for part in parts)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and "%" not in node.value:
            spec = node.value if node.value.startswith(("{:", ".", "+.")) else ""
        else:
            continue
        specs += [spec] if SIGNED.search(spec) else []
    return specs


def test_a_format_that_can_give_a_negative_zero_is_reported():
    for source in ("f'{x:.2f}'", "f'{x:>7.1f}'", "f'{x:.{n}f}'", "'+.2f'"):
        assert signed_zeros(source), source
    assert not signed_zeros("f'{x:+z.3f} {x:.0f}'")


def test_no_table_prints_a_negative_zero():
    paths = [ROOT / name for name in FILES] + [path for name in FOLDERS for path in (ROOT / name).rglob("*.py")]
    assert len(paths) > 100
    assert [path for path in paths if signed_zeros(path.read_text())] == []


def test_intervals_have_no_negative_zero():
    assert shown(-0.001, -0.004, 0.004, "+z.2f") == "+0.00 [+0.00, +0.00]"
    assert ranged(-0.001, -0.004, 0.004) == "0.00 [0.00, 0.00]"
