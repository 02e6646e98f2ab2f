"""The whole path of a probe run: check, capture, measure, store, analyse, report."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tqdm import tqdm

from mesa.models import Loaded, load
from probe.capture.bridge import bridge_to
from probe.capture.capture import capture
from probe.capture.memory import check_memory
from probe.evaluation import by_length
from probe.evaluation.journal import Journal
from probe.evaluation.plan import EvalPlan
from probe.evaluation.run import missing_cells
from probe.inputs import check_values, prepare
from probe.plan import ProbePlan, ProbeRequest, measuring, plan, template
from probe.report import REPORTED, remove_report, write_report
from probe.store import store
from probe.store.reader import partial_path, whole_passes
from probe.thresholds.analysis import table

STORE = "store.zarr"


def run_probe(
    request: ProbeRequest, out: Path, *, overwrite: bool = False, by: str = "drift"
) -> tuple[dict[str, Any], str]:
    """Runs it all into the folder `out`; returns the summary (as in summary.json) and its table as text.

    by: the rule that failures are predicted by (of `probe.thresholds.analysis.RULES`).

    Everything that can be checked is checked before the weights are loaded. The store appears under its name only
    when it is whole; a run that was cut short goes on where it was. Raises FileExistsError for a folder that holds
    another run, or this one from end to end, unless `overwrite`.
    """
    made = plan(request)
    path = out / STORE
    if not overwrite and is_whole(made, out):
        raise FileExistsError(f"{path} already holds a run with the same config; use --overwrite or another --out")
    if overwrite or store.found(path, **template(made)) != path:
        _capture_and_measure(made, out, overwrite)
    with _kept(out, None, overwrite):
        summary = write_report(out, by)
    heading = f"model {request.model}, trained length M = {made.trained_length} tokens, captured {made.length}\n\n"
    return summary, f"{heading}{table(summary)}\n\nwrote {out / 'report.html'}"


def is_whole(made: ProbePlan, out: Path) -> bool:
    """Whether the folder holds this very run with its report; FileExistsError, naming what differs, for another run."""
    path = out / STORE
    return store.found(path, **template(made)) == path and all((out / name).exists() for name in REPORTED)


def _capture_and_measure(made: ProbePlan, out: Path, overwrite: bool) -> None:
    """Makes the store whole, from where a former run was cut short."""
    _check_memory(made)
    documents, tokens = prepare(made)
    measured, path = measuring(made, documents), out / STORE
    if overwrite:
        (out / by_length.JOURNAL).unlink(missing_ok=True)
    journal = Journal(out / by_length.JOURNAL, measured.settings) if made.request.samples else None
    store.create(path, **template(made), overwrite=overwrite)
    with _kept(out, journal, overwrite):
        _fill(made, measured, journal, tokens, path)
        remove_report(out)
        store.finish(path)


@contextmanager
def _kept(out: Path, journal: Journal | None, overwrite: bool) -> Iterator[None]:
    """Says of whatever ends the run early how to go on; a run that has kept nothing leaves nothing."""
    try:
        yield
    except BaseException as error:
        partial = partial_path(out / STORE)
        if partial.exists() and not (journal and journal.rows) and not whole_passes(partial):
            store.discard(out / STORE)
        else:
            again = "without --overwrite, the" if overwrite else "the"
            error.add_note(f"what is done is kept: {again} same command goes on from {out}")
        raise


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
    """Measures and captures what is missing."""
    done = whole_passes(partial_path(path))
    passes = [(name, prompt) for name in made.methods for prompt in tokens if (name, prompt) not in done]
    if passes or (journal is not None and missing_cells(measured, journal)):
        loaded = load(made.request.model, **made.request.load)
        check_values(loaded, made, next(iter(tokens.values())))
        if journal is not None:  # before the capture: the bridge wraps the model
            by_length.measure(measured, loaded, journal)
        _capture_all(loaded, made, passes, tokens, path)
    if journal is not None:
        store.write_evaluation(path, by_length.scores(measured, journal))


def _capture_all(
    loaded: Loaded, made: ProbePlan, passes: Sequence[tuple[str, str]], tokens: Mapping[str, list[int]], path: Path
) -> None:
    bridge = bridge_to(loaded.model, loaded.tokenizer)
    hooks, kept = made.request.spec.hooks, made.kept
    with tqdm(total=len(passes), desc="capturing hidden states", unit="pass") as bar:
        for name, prompt in passes:
            values = capture(bridge, tokens[prompt], made.methods[name], hooks, kept, executor=made.request.executor)
            for hook, layers in values.items():
                for layer, states in zip(kept.layers, layers, strict=True):
                    store.write(path, hook, name, prompt, layer, states)
            bar.update()
