"""The whole path of a probe run: check, capture, measure, store, analyse, report."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from mesa.models import Loaded, load
from probe.capture.bridge import bridge_to
from probe.capture.capture import capture, check_memory
from probe.evaluation.by_length import evaluate
from probe.inputs import check_values, prepare
from probe.plan import ProbePlan, ProbeRequest, plan, provenance
from probe.report import write_report
from probe.store import store
from probe.thresholds.analysis import table


def run_probe(request: ProbeRequest, out: Path, *, overwrite: bool = False) -> tuple[dict[str, Any], str]:
    """Runs it all into the folder `out`; returns the summary (as in summary.json) and its table as text.

    Everything that can be checked is checked before the weights are loaded. The store appears under its name only
    when it is whole. Raises FileExistsError for a store that is there already, unless `overwrite`.
    """
    made = plan(request)
    _check_memory(made)
    prepared = prepare(made)
    path = out / "store.zarr"
    store.create(
        path,
        methods=list(made.methods),
        prompts=made.prompts,
        layers=made.kept.layers,
        positions=made.kept.positions,
        dims=made.kept.dims,
        hooks=request.spec.hooks,
        dtype=request.spec.dtype,
        attrs=provenance(made),
        overwrite=overwrite,
    )
    try:
        _fill(made, prepared, path)
    except BaseException:
        store.discard(path)
        raise
    summary = write_report(out)
    heading = f"model {request.model}, trained length M = {made.trained_length} tokens, captured {made.length}\n\n"
    return summary, f"{heading}{table(summary)}\n\nwrote {out / 'report.html'}"


def _check_memory(made: ProbePlan) -> None:
    """MemoryError where captured values or a pass cannot fit; a device map places the model wherever there is room."""
    options = made.request.load
    device = options.get("device") or "cpu"
    if options.get("device_map") or not str(device).startswith("cpu"):
        check_memory(made.host_bytes, made.length)
        if not options.get("device_map"):
            check_memory(made.pass_bytes, made.length, device)
    else:
        check_memory(made.pass_bytes + made.host_bytes, made.length)


def _fill(made: ProbePlan, prepared: tuple[list[np.ndarray], dict[str, list[int]]], path: Path) -> None:
    request, (documents, tokens) = made.request, prepared
    loaded = load(request.model, **request.load)
    check_values(loaded, made, next(iter(tokens.values())))
    if request.samples:  # before the capture: the bridge wraps the model
        measured = evaluate(
            loaded, made.methods, made.lengths, request.samples, request.seed, documents, request.executor
        )
        store.write_evaluation(path, measured)
    _capture_all(loaded, made, tokens, path)
    store.finish(path)


def _capture_all(loaded: Loaded, made: ProbePlan, tokens: Mapping[str, list[int]], path: Path) -> None:
    bridge = bridge_to(loaded.model, loaded.tokenizer)
    hooks, kept = made.request.spec.hooks, made.kept
    with tqdm(total=len(made.methods) * len(tokens), desc="capturing hidden states", unit="pass") as bar:
        for name, method in made.methods.items():
            for prompt, ids in tokens.items():
                values = capture(bridge, ids, method, hooks, kept, executor=made.request.executor)
                for hook, layers in values.items():
                    for layer, states in zip(kept.layers, layers, strict=True):
                        store.write(path, hook, name, prompt, layer, states)
                bar.update()
