"""The summary beside a store: the one rule by which it is taken for that store's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from probe.store.reader import Run, open_run, store_mark

REPORTED = ("report.html", "summary.json")
"""What a finished report consists of, beside its figures."""
MARK = "store"
"""The key of a summary that says which store it is of."""
VERDICT = "verdict"
"""The key of a summary that holds its verdict."""


def own_summary(folder: Path, run: Run | None = None) -> dict[str, Any] | None:
    """The summary in a run's folder; None unless the report is whole and of the very store that lies there.

    One that an older version wrote, without a verdict, is none either. run: that store, where it is open already.
    """
    if not all((folder / name).exists() for name in REPORTED):
        return None
    try:
        summary = json.loads((folder / REPORTED[-1]).read_text(encoding="utf-8"))
        own = summary.get(MARK) == store_mark((run or open_run(folder)).hidden.attrs)
    except (OSError, ValueError, AttributeError):  # not whole, or no store to be of
        return None
    return summary if own and VERDICT in summary else None
