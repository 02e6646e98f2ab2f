"""Runs what an `AnatomyPlan` asks for, prompt by prompt; an interrupted run goes on where it was."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import xarray as xr
from tqdm import tqdm
from transformer_lens.model_bridge import TransformerBridge

from mesa.models import load
from probe.capture.bridge import bridge_to
from probe.capture.memory import check_beside
from probe.evaluation.clock import is_over
from probe.evaluation.journal import Journal
from probe.mechanism.anatomy import files, moments
from probe.mechanism.anatomy.collect import collect
from probe.mechanism.anatomy.frequencies import unmet_share
from probe.mechanism.anatomy.heads import head_statistics
from probe.mechanism.anatomy.lens import logit_lens
from probe.mechanism.anatomy.queries import by_span
from probe.mechanism.anatomy.request import AnatomyPlan, Cell, needed_bytes, tokens
from probe.mechanism.anatomy.retrieval import retrieval_scores

_SAMPLE = 256
"""Tokens of a bucket that the logit lens reads."""
_DIGITS = 7


def anatomy(made: AnatomyPlan, out: Path, *, overwrite: bool = False, until: float | None = None) -> Journal:
    """The journal of the folder `out`, with every cell of the plan and the moments beside it, unless `until` came.

    Raises MemoryError before any pass for what does not fit, FileExistsError for the folder of another run.
    """
    remedy = "shorten --lengths, give fewer --layers or --methods, or leave vectors out of --parts"
    check_beside(needed_bytes(made), made.request.load, remedy)
    if not overwrite:
        files.open_journal(made, out)  # before the weights are loaded
    loaded = load(made.request.model, **made.request.load)
    journal = files.open_journal(made, out, overwrite=overwrite)
    journal.expect(len({*journal.rows, *made.cells}))
    bar = tqdm(desc="looking inside", unit="token", unit_scale=True, smoothing=0.05, total=sum(tokens(made).values()))
    with bar, torch.no_grad():
        bridge = bridge_to(loaded.model, loaded.tokenizer)
        for cell in made.cells:
            if cell not in journal.rows:
                journal.add(cell, {"config": files.config_of(made.methods[cell[1]]), **_row(bridge, made, cell)})
                if is_over(until):
                    return journal
            bar.update(cell[2])
        for name in made.methods if "vectors" in made.parts else ():
            if _gather(bridge, made, name, out, bar, until):
                break
    return journal


def _gather(bridge: TransformerBridge, made: AnatomyPlan, name: str, out: Path, bar: tqdm, until: float | None) -> bool:
    """Adds the texts that a method's moments lack, and stores them after each; whether the time is over."""
    path = files.moments_path(out, name, made.lengths[-1])
    known = moments.load(path) if path.exists() else None
    done = 0 if known is None else int(known["count"].sum())
    bar.update(sum(map(len, made.sliding[:done])))
    for ids in made.sliding[done:]:
        known = collect(
            bridge,
            [ids.tolist()],
            made.methods[name],
            made.spec,
            dtype=made.dtype,
            known=known,
            executor=made.request.executor,
        )
        _record(known, made)
        path.parent.mkdir(parents=True, exist_ok=True)
        moments.save(known, path)
        bar.update(len(ids))
        if is_over(until):
            return True
    return False


def _record(known: xr.Dataset, made: AnatomyPlan) -> None:
    """Has moments tell of the plan's settings, and under `forced` of what was changed on the way."""
    changed = files.changed(known.attrs.get("settings", made.settings), made)
    if changed:
        known.attrs["forced"] = [*known.attrs.get("forced", []), changed]
    known.attrs["asked"] = len(made.sliding) * len(made.methods)
    known.attrs["settings"] = json.loads(json.dumps(made.settings))


def _row(bridge: TransformerBridge, made: AnatomyPlan, cell: Cell) -> dict[str, Any]:
    """What a cell measures, ready for JSON. Raises RuntimeError for what is not finite."""
    part, name, length, number = cell
    looks: dict[str, Callable[[], dict[str, Any]]] = {
        "heads": lambda: _spans(made, head_statistics(model, [ids], method)),
        "frequencies": lambda: _spans(made, unmet_share(model, [ids], method)),
        "lens": lambda: _lens(bridge, made, ids, name),
        "retrieval": lambda: _plain(
            {"score": retrieval_scores(model, [made.passkeys[length][number]], method)[0].sel(layer=made.layers)}
        ),
    }
    model: Any = bridge.original_model
    method = made.methods[name]
    ids = [] if part == "retrieval" else made.texts[length][number].tolist()
    return looks[part]()


def _spans(made: AnatomyPlan, data: xr.Dataset) -> dict[str, Any]:
    """Means inside and beyond M, (span, layer, head, ...), of one prompt."""
    means = by_span(data).isel(prompt=0).sel(layer=made.layers)
    values = {str(name): each.transpose("span", "layer", "head", ...) for name, each in means.data_vars.items()}
    return {"spans": means["span"].values.tolist(), **_plain(values)}


def _lens(bridge: TransformerBridge, made: AnatomyPlan, ids: list[int], name: str) -> dict[str, Any]:
    ends = buckets(len(ids), made.trained_length)
    options = {"sample": _SAMPLE, "executor": made.request.executor}
    found = logit_lens(bridge, [ids], made.methods[name], ends, made.layers, **options)
    return {"ends": found["bucket"].values.tolist(), **_plain({"nll": found.isel(prompt=0)})}


def buckets(length: int, trained_length: int) -> list[int]:
    """Where the lens' buckets of predicted tokens end: M/2, M, 2 M, 4 M, ... and the length itself."""
    ends, end = {length}, max(2, trained_length // 2)
    while end < length:
        ends.add(end)
        end *= 2
    return sorted(ends)


def _plain(values: dict[str, xr.DataArray]) -> dict[str, Any]:
    for name, each in values.items():
        if not np.isfinite(each.values).all():
            raise RuntimeError(f"{name} is not finite; try --dtype float32")
    return {name: np.round(each.values.astype(float), _DIGITS).tolist() for name, each in values.items()}
