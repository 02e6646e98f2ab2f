"""Whether anything of a run that ended early is kept, and how it goes on."""

from __future__ import annotations

from pathlib import Path


def again(out: Path, overwrite: bool) -> str:
    """How the unfinished run in the folder `out` goes on."""
    return f"{'without --overwrite, the' if overwrite else 'the'} same command goes on from {out}"


def keeps(out: Path) -> bool:
    """Whether the folder, or one in it, holds anything to go on from: a cell, a captured pass, a store, moments."""
    from probe.evaluation.journal import has_cells
    from probe.store.reader import partial_path, store_of, whole_passes

    def holds(folder: Path) -> bool:
        store = store_of(folder)
        partial = partial_path(store)
        moments = any(folder.glob("moments-*.npz"))
        captured = partial.exists() and whole_passes(partial)
        return bool(captured) or store.exists() or any(map(has_cells, folder.glob("*.jsonl"))) or moments

    return any(map(holds, [out, *(path for path in out.glob("*") if path.is_dir())]))
