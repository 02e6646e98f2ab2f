"""The whole path of a probe run: check, capture, measure, store, analyse, report."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tqdm import tqdm

from mesa.models import Loaded, load
from probe.capture.bridge import bridge_to
from probe.capture.capture import capture, check_memory
from probe.evaluation import by_length
from probe.evaluation.journal import Journal
from probe.evaluation.plan import EvalPlan
from probe.inputs import check_values, prepare
from probe.plan import ProbePlan, ProbeRequest, measuring, plan, provenance
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
    if overwrite:
        (out / by_length.JOURNAL).unlink(missing_ok=True)
    documents, tokens = prepared
    measured, journal = measuring(made, documents), None
    try:
        if request.samples:
            journal = Journal(out / by_length.JOURNAL, measured.settings)
        _fill(made, measured, journal, tokens, path)
    except BaseException:
        store.discard(path)
        if journal is not None:
            journal.drop_empty()
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


def _fill(
    made: ProbePlan, measured: EvalPlan, journal: Journal | None, tokens: Mapping[str, list[int]], path: Path
) -> None:
    loaded = load(made.request.model, **made.request.load)
    check_values(loaded, made, next(iter(tokens.values())))
    if journal is not None:  # before the capture: the bridge wraps the model
        by_length.measure(measured, loaded, journal)
        store.write_evaluation(path, by_length.scores(measured, journal))
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
