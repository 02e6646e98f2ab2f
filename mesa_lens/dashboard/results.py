"""Results of `mesa-lens eval` and `paper` under the root folder, known by the files that they end with."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from mesa_lens.dashboard.runs import changed, folders, holds_run, is_inside, name_of

PAPER, HARNESS, EVALUATION = "paper", "lm-eval", "eval"
REPORT = "report.html"
_ENDS = {  # what lies in a folder, the first being what is read
    PAPER: ("results.json", REPORT),
    HARNESS: ("harness.json",),
    EVALUATION: ("summary.json", "samples.csv"),
}


@dataclass(frozen=True)
class Result:
    """kind: the command it is of. name: the path from the root on."""

    kind: str
    name: str
    path: Path

    @property
    def file(self) -> Path:
        """What is read."""
        return self.path / _ENDS[self.kind][0]

    @property
    def label(self) -> str:
        """What a selector calls it."""
        return f"{self.name} ({self.kind})"


def results(root: Path) -> list[Result]:
    """The results at most three folders below `root`, newest first; none of which a file is a link out of `root`."""
    results = [
        Result(kind, name_of(folder, root), folder)
        for folder in folders(root)
        for kind, names in _ENDS.items()
        if not holds_run(folder) and all((folder / name).is_file() for name in names)
        if all(is_inside(folder / name, root) for name in names)
    ]
    return sorted(results, key=lambda result: (-changed(result.file), result.label))
