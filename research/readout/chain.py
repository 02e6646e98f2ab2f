"""The readout of a large model in one pass a text: `python research/readout/chain.py --minutes 60`, resumable.

Windows are length - M tokens apart, so that the prompt of M tokens of each is how the next one's begins: a pass of
`--length` tokens leaves the last states of both. Plan, probes, summary and files are those of `mesa-lens readout`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from unittest.mock import patch

sys.path.insert(0, str(Path(__file__).parents[2]))

import numpy as np
import torch

import mesa
from mesa.decoder import decoder_of, layers_of, removed
from probe.commands.readout.plan import STATES, ReadoutKey, ReadoutPlan, plan
from probe.commands.readout.result import READOUT
from probe.commands.readout.run import LogitLens, ReadoutExperiment, read_lens, run_and_report
from probe.experiment.pool import Task, deadline, is_over
from probe.experiment.run import opened
from probe.figures.export import csv_bytes, row_table
from research.readout.run import request_of, tables
from research.script import load_options, make_parser, run

MODULES = (
    "_pydecimal", "turtle", "typing", "inspect", "tarfile", "pydoc", "zipfile", "subprocess", "doctest", "pickle",
    "optparse", "ipaddress", "enum", "datetime", "ssl", "pathlib", "threading", "locale", "uuid", "shutil", "socket",
)  # fmt: skip
"""Of the standard library: none is among the shipped texts."""


def main(args: argparse.Namespace) -> None:
    """Passes that the folder lacks, then the probes and the tables."""
    out = args.out / args.name
    planned = planned_chain(args, args.text or written(args.out / "stdlib"))
    until = deadline(args.minutes)
    experiment = ReadoutExperiment(planned)
    with opened(experiment, out, overwrite=args.overwrite) as (journal, _):
        left = [pair for pair in passes(planned) if any(key not in journal.rows for key in pair)]
        model = mesa.load(args.model, **load_options(args)).model if left else None
        for number, pair in enumerate(left):
            if is_over(until):
                break
            print(f"pass {number + 1} of {len(left)}: {pair[0].method}, text {pair[0].number}", flush=True)
            for key, states in zip(pair, last_states(planned, model, pair), strict=True):
                task = Task(STATES, key, 0)
                experiment.record(journal, task, (lens_row(planned, model, key, states), states))
    if not experiment.tasks(journal.rows):
        print(run_and_report(planned, out, until=until).text)
        for name, rows in tables(READOUT.read(out)).items():
            (Path(__file__).parent / "results" / f"{out.name}{name}.csv").write_bytes(csv_bytes(row_table(rows)))


def written(folder: Path) -> Path:
    """A folder with the files of MODULES."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in MODULES:
        spec = find_spec(name)
        assert spec, name
        assert spec.origin, name
        (folder / f"{name}.py").write_bytes(Path(spec.origin).read_bytes())
    return folder


def planned_chain(args: argparse.Namespace, text: Path) -> ReadoutPlan:
    """The command's plan, with windows that are length - M tokens apart."""
    request = request_of(args, lengths=(args.length,), tokens=args.tokens, text=str(text))
    _, trained = request.checked_model()

    def spaced(
        documents: Sequence[np.ndarray], tokens: int, count: int, scored: int = 1
    ) -> tuple[list[np.ndarray], list[tuple[int, int]]]:
        joined = np.concatenate(documents)
        starts = [(0, number * (tokens - trained)) for number in range(count)]
        assert starts[-1][1] + tokens <= len(joined), f"{len(joined)} tokens of text are too few"
        return [joined], starts

    with patch("probe.commands.readout.plan.window_places", spaced):
        return plan(request)


def passes(planned: ReadoutPlan) -> Iterator[list[ReadoutKey]]:
    """The states that one pass leaves: of a text at the longest length, and of the one before it at M."""
    trained, longest = planned.lengths
    for method in planned.ordered:
        for half in (range(planned.training), range(planned.training, len(planned.windows))):
            for text in half:
                before = [ReadoutKey(STATES, method, trained, text - 1, "")] if text > half[0] else []
                yield [ReadoutKey(STATES, method, longest, text, ""), *before]
            yield [ReadoutKey(STATES, method, trained, half[-1], "")]


@torch.no_grad()
def last_states(planned: ReadoutPlan, model: Any, pair: Sequence[ReadoutKey]) -> list[np.ndarray]:
    """States (layer, token, dim) of the last tokens of each prompt; the first prompt begins with the others."""
    prompts = [planned.prompt(key.number, key.length) for key in pair]
    assert all((prompts[0][: len(each)] == each).all() for each in prompts)
    rows = [slice(len(each) - planned.tokens, len(each)) for each in prompts]
    kept: list[list[np.ndarray]] = []

    def keep(module: Any, args: Any, output: Any) -> None:
        states = (output[0] if isinstance(output, tuple) else output)[0]
        kept.append([states[each].float().numpy().copy() for each in rows])

    layers = layers_of(model)
    hooks = [layers[number].register_forward_hook(keep) for number in planned.layers]
    with mesa.applied(model, planned.methods[pair[0].method]), removed(hooks):
        decoder_of(model)(torch.from_numpy(prompts[0])[None], use_cache=False)
    return [np.stack(each) for each in zip(*kept, strict=True)]


def lens_row(planned: ReadoutPlan, model: Any, key: ReadoutKey, states: np.ndarray) -> dict[str, Any]:
    """The journal's row of a text, as the command's worker writes it."""
    targets = planned.prompt(key.number, key.length)[-planned.tokens + 1 :].tolist()
    read = read_lens(LogitLens(model), torch.from_numpy(states), planned.layers, targets)
    means = {name: np.median(each, 1) if name == "rank" else each.mean(1) for name, each in read.items()}
    return {"lens": {name: each.tolist() for name, each in means.items()}, "loss": float(means["loss"][-1])}


def parser() -> argparse.ArgumentParser:
    """The script's parser."""
    top = make_parser(__doc__, "runs/readout", "readout")
    top.set_defaults(model="gemma3-270m")
    top.add_argument("--name", default="gemma3-270m", help="of the results")
    top.add_argument("--text", type=Path, help="a folder (None: MODULES)")
    top.add_argument("--properties", default="previous-1", help="what is probed")
    top.add_argument("--methods", default="origin", help="names, Origin first; more may be added to a finished run")
    top.add_argument("--length", type=int, default=49152, help="tokens beyond M")
    top.add_argument("--samples", type=int, default=12, help="texts, half of them to train on")
    top.add_argument("--tokens", type=int, default=1024, help="last tokens of each text that are read")
    top.add_argument("--layers", default="5,11,17", help="e.g. 5,11,17-20")
    return top


if __name__ == "__main__":
    run(main, parser())
