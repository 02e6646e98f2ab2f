"""Does what a probe reads at 2 M predict at which length a method fails? rule.md; 5 minutes on one core.

python research/readout/predicts.py       # writes results/default-predicts.csv
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

sys.path.insert(0, str(Path(__file__).parents[2]))

import mesa
from probe.commands.readout import ReadoutRequest
from probe.commands.readout.plan import fit_probe, plan
from research.collapse.run import methods_of, states
from research.script import load_options, make_parser, run
from research.thresholds_predict_failure.results import read_results
from research.thresholds_predict_failure.score import Estimate, advantage, score
from research.thresholds_predict_failure.tables import arithmetic, measured_lengths, onset_lengths, without_reference

STUDY = Path(__file__).parents[1] / "thresholds_predict_failure/results/default.json"
TABLE = Path(__file__).parent / "results/default-predicts.csv"
PROPERTY, LAYER, TIMES = "previous-1", 2, (1.5, 2)


def main(args: argparse.Namespace) -> None:
    """Measures every config of the study on the test texts; writes a row each, prints rank correlations."""
    if not args.evaluate:
        names = without_reference(read_results(STUDY))["config"].values.tolist()
        pd.DataFrame(measure(args, names)).to_csv(TABLE, index=False, float_format="%.4f")
    table = pd.read_csv(TABLE).set_index("config")
    print(table.round(3).to_string())
    for column in table:
        of, thresholds, more, distances, most = map(str, agreement(str(column)))
        print(f"{column}: {of}; thresholds {thresholds}, difference {more}; arithmetic {distances}, difference {most}")


def agreement(column: str) -> list[Estimate]:
    """The rank correlation of a column with measured lengths; thresholds' and the difference, arithmetic's and it."""
    results = without_reference(read_results(STUDY))
    table, measured = pd.read_csv(TABLE).set_index("config"), measured_lengths(results)
    sign = -1 if column.startswith("excess") else 1
    of_config = sign * table.loc[results["config"].values, [column]].to_numpy()
    value, onset = np.repeat(of_config, measured.shape[1], axis=1), onset_lengths(results)
    rivals = (np.where(np.isnan(onset), np.nanmax(onset), onset), arithmetic(results))
    return [
        score(value, measured, ()).correlation,
        *(each for rival in rivals for each in advantage(value, rival, measured)),
    ]


def measure(args: argparse.Namespace, names: list[str]) -> list[dict[str, Any]]:
    """What probes read under each config, and what it loses."""
    loaded = mesa.load(args.model, **load_options(args))
    planned = plan(ReadoutRequest(model=args.model, properties=(PROPERTY,), lengths=(512,)))
    trained, labels, training = planned.trained_length, planned.labels[PROPERTY], planned.training
    texts = np.broadcast_to(np.arange(len(planned.windows))[:, None], labels.known.shape)
    halves = [slice(None, training), slice(training, None)]

    def of_half(values: np.ndarray, half: slice) -> tuple[np.ndarray, ...]:
        known = labels.known[half]
        return values[LAYER][known], labels.values[half][known], texts[half][known]

    def read(config: Any, length: int, half: slice) -> tuple[np.ndarray, np.ndarray]:
        return states(loaded.model, config, [planned.prompt(text, length) for text in range(*half.indices(len(texts)))],
                      trained)  # fmt: skip

    texts_of = {name: name.replace(" ", ":", 1).replace(" ", ",") for name in ("origin", *names)}
    methods = methods_of(trained, [*texts_of.values()])
    rows, of_origin = list[dict[str, Any]](), None
    for name, text in texts_of.items():
        seen, _ = read(methods[text], trained, halves[0])
        probe = fit_probe(*of_half(seen, halves[0]))
        of_origin = of_origin or probe
        inside, level = read(methods[text], trained, halves[1])
        row = {"config": name, "in": probe.score(*of_half(inside, halves[1])).value}
        for times in TIMES:
            seen, loss = read(methods[text], int(times * trained), halves[1])
            part = of_half(seen, halves[1])
            row |= {
                f"transfer {times:g}M": probe.score(*part).value,
                f"Origin's {times:g}M": of_origin.score(*part).value,
            }
            row[f"excess {times:g}M"] = (loss - level).mean()
        rows.append(row)
        print(row, flush=True)
    return rows[1:]


if __name__ == "__main__":
    top = make_parser(__doc__, "runs/readout", "readout")
    top.add_argument("--evaluate", action="store_true", help="measure nothing")
    run(main, top)
