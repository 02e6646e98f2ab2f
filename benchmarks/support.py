"""The table of families in docs/models.md and methods, from `mesa.check` on a tiny random model of every family.

`python benchmarks/support.py` prints it (two minutes); a family is added in tests/helpers/families.py.
"""

import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "helpers")]

import families  # noqa: E402
import tiny  # noqa: E402

import mesa  # noqa: E402
from mesa.checking.rows import FAILED, PASSED, Report  # noqa: E402
from mesa.methods import standard_methods  # noqa: E402
from mesa.support import ALIBI, REFUSED, ROTARY, missing, table  # noqa: E402

PRETENDED = 32


def checked(family: str, folder: Path, methods: str = "all") -> tuple[str, Report]:
    """A family's model type, and the report of its tiny model."""
    model = families.build(family)
    report = mesa.check(model, tiny.tokenizer(folder), methods=methods, pretended=PRETENDED, name=family)
    return model.config.model_type, report


def cells(reports: Iterable[tuple[str, Report]], refused: Sequence[str] = tuple(REFUSED)) -> dict[str, dict[str, str]]:
    """By model type and method: why not, or empty where all that was run on models of this type passed."""
    cells_by_type: dict[str, dict[str, str]] = {}
    for kind, report in reports:
        whole = [row for row in report.rows if not row.method and row.result == FAILED]
        for name, method in standard_methods().items():
            rows = [row for row in report.rows if row.method == name]
            failed = [row for row in (*whole, *rows) if row.result == FAILED]
            passed = any(row.result == PASSED for row in rows)
            why = missing(kind, method) or (f"{failed[0].check} failed" if failed else "" if passed else "not run")
            row = cells_by_type.setdefault(kind, {})
            if failed or name not in row:
                row[name] = why
            elif not row[name].endswith("failed"):
                row[name] = row[name] and why  # one config of a type that passed is enough
    refused_rows = {
        kind: {name: missing(kind, method) for name, method in standard_methods().items()} for kind in refused
    }
    order = [*ROTARY, *ALIBI, *refused]
    return dict(sorted((cells_by_type | refused_rows).items(), key=lambda row: order.index(row[0])))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        print(table(cells(checked(family, Path(place)) for family in families.FAMILIES)))
