"""What an anatomy run found, with intervals, from its journal and moments."""

from __future__ import annotations

import json
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from probe.evaluation.intervals import half_width, wilson
from probe.experiment.journal import Journal
from probe.files import write_json
from probe.mechanism.anatomy import files
from probe.mechanism.anatomy.frequencies import first_unmet
from probe.mechanism.anatomy.heads import PARTS as PARTS_OF_MASS
from probe.mechanism.anatomy.reading import read
from probe.mechanism.anatomy.request import LEAST_TEXTS, AnatomyPlan
from probe.mechanism.anatomy.verdicts import differing, retrieving
from probe.mechanism.anatomy.words import words

_HEADS = ("mass", "entropy", "mean_distance", "sink", "previous")
_OFFSETS = (0, 1)


def write(made: AnatomyPlan, journal: Journal, out: Path) -> tuple[dict[str, Any], str]:
    """The summary, which is written to the run's folder beside the vectors' arrays, and what a reader is told of it."""
    summary = summarize(made, journal)
    summary["vectors"], arrays = _vectors(made, out)
    summary["texts_left"] = _texts_left(made, out)
    forced = _forced(made, journal, out)
    if forced:
        summary["forced"] = forced
    folder = out / files.FOLDER
    if "vectors" not in made.parts and (folder / files.SUMMARY).exists():
        earlier = json.loads((folder / files.SUMMARY).read_text(encoding="utf-8"))
        summary["vectors"] = earlier.get("vectors") if _is_of(earlier, summary) else None
    if arrays:
        np.savez_compressed(folder / files.VECTORS, allow_pickle=False, **arrays)
    if journal.rows or arrays:
        write_json(folder / files.SUMMARY, summary)
    return summary, words(summary)


def summarize(made: AnatomyPlan, journal: Journal) -> dict[str, Any]:
    """The summary of what the journal holds of a plan's methods and lengths, of every part, ready for JSON.

    Values are [mean, low, high]: the mean over prompts and its 95% interval over prompts, null where there is one
    prompt. `n` says how many there are.
    """
    summary: dict[str, Any] = {
        "model": made.request.model,
        "trained_length": made.trained_length,
        "seed": made.request.seed,
        "executor": made.request.executor,
        "versions": {package: version(package) for package in ("mesa-lens", "torch", "transformers")},
        "parts": made.parts,
        "lengths": made.lengths,
        "layers": made.layers,
        "reference": made.reference,
        "methods": {name: method.describe() for name, method in made.methods.items()},
        "cells_left": sum(cell not in journal.rows for cell in made.cells),
        **{name: [] for name in ("heads", "all_heads", "retrieval", "unmet", "frequencies", "lens")},
    }
    for part in _ADD:
        for length in made.lengths:
            for name in made.methods:
                cells = ((part, name, length, number) for number in range(made.request.samples))
                rows = [journal.rows[cell] for cell in cells if cell in journal.rows]
                if rows:
                    here = {"method": name, "length": length, "n": len(rows)}
                    _ADD[part](summary, made, here, rows)
    summary["retrieval_heads"] = retrieving(summary)
    summary["lens_differs"] = differing(made, journal)
    return summary


def _heads(summary: dict[str, Any], made: AnatomyPlan, here: dict[str, Any], rows: Sequence[dict[str, Any]]) -> None:
    """Attention of each head, and the mean over all of them, inside and beyond M."""
    values = {name: np.array([row[name] for row in rows]) for name in _HEADS}
    masses = {f"mass_{part}": values["mass"][..., at] for at, part in enumerate(PARTS_OF_MASS)}
    values = {**masses, **{name: values[name] for name in _HEADS[1:]}}
    for at, span in enumerate(rows[0]["spans"]):
        own = {name: each[:, at] for name, each in values.items()}
        means = {name: triples(each.mean((1, 2)), _most(name)) for name, each in own.items()}
        summary["all_heads"].append({**here, "span": span, **means})
        summary["heads"] += _by_head(made, {**here, "span": span}, own)


def _frequencies(
    summary: dict[str, Any], made: AnatomyPlan, here: dict[str, Any], rows: Sequence[dict[str, Any]]
) -> None:
    """The share of unmet phases of each head, and the first position at which one is new, whatever is read."""
    values = {name: np.array([row[name] for row in rows]) for name in ("norms", "attention")}
    first = first_unmet(made.methods[here["method"]], made.config, here["length"])
    for at, span in enumerate(rows[0]["spans"]):
        own = {name: each[:, at] for name, each in values.items()}
        means = {name: triples(each.mean((1, 2)), _most(name)) for name, each in own.items()}
        summary["unmet"].append({**here, "span": span, "first_unmet": first, **means})
        summary["frequencies"] += _by_head(made, {**here, "span": span}, own)


def _retrieval(
    summary: dict[str, Any], made: AnatomyPlan, here: dict[str, Any], rows: Sequence[dict[str, Any]]
) -> None:
    """The retrieval score of each head by offset, and the better of both, named."""
    scores = np.array([row["score"] for row in rows])
    for entry in _by_head(made, here, {f"offset_{offset}": scores[..., offset] for offset in _OFFSETS}):
        best = max(_OFFSETS, key=lambda offset: entry[f"offset_{offset}"][0])
        summary["retrieval"].append({**entry, "best_offset": best, "best": entry[f"offset_{best}"]})


def _lens(summary: dict[str, Any], made: AnatomyPlan, here: dict[str, Any], rows: Sequence[dict[str, Any]]) -> None:
    """NLL read from each layer, by bucket of positions."""
    losses, ends = triples(np.array([row["nll"] for row in rows])), rows[0]["ends"]
    for row, layer in enumerate(made.layers):
        for column, (begin, end) in enumerate(zip([1, *ends[:-1]], ends, strict=True)):
            summary["lens"].append({**here, "layer": layer, "begin": begin, "end": end, "nll": losses[row][column]})


_ADD = {"heads": _heads, "frequencies": _frequencies, "retrieval": _retrieval, "lens": _lens}


def _by_head(made: AnatomyPlan, here: dict[str, Any], values: dict[str, np.ndarray]) -> list[dict[str, Any]]:
    """An entry a layer and head, of values (prompt, layer, head)."""
    found = {name: triples(each, _most(name), counts="offset" in name) for name, each in values.items()}
    return [
        {**here, "layer": layer, "head": head, **{name: each[row][head] for name, each in found.items()}}
        for row, layer in enumerate(made.layers)
        for head in range(made.config.num_attention_heads)
    ]


def triples(values: np.ndarray, most: float = np.inf, *, counts: bool = False) -> Any:
    """[mean, low, high] over the first axis, nested as the others are: a 95% interval, None for one prompt.

    Student's, within 0 and `most`, the least and largest that a value can be. counts: values are shares of a few
    trials; where they are all the same their interval is Wilson's, since equal scores are no certainty.
    """
    mean, ends = values.mean(0), [np.full(values.shape[1:], None)] * 2
    if len(values) > 1:
        low, high = (np.clip(mean + sign * half_width(values), 0, most) for sign in (-1, 1))
        if counts:
            same = (values == values[0]).all(0)
            lower, upper = np.vectorize(lambda share: wilson(share * len(values), len(values)))(values[0])
            low, high = np.where(same, lower, low), np.where(same, upper, high)
        ends = [end.round(6).astype(object) for end in (low, high)]
    return np.stack([mean.round(6).astype(object), *ends], -1).tolist()


def _most(name: str) -> float:
    """The largest that a value can be: of shares 1."""
    return np.inf if name in ("entropy", "mean_distance") else 1.0


def _vectors(made: AnatomyPlan, out: Path) -> tuple[dict[str, Any] | None, dict[str, np.ndarray]]:
    """What positional vectors say, of the methods that have enough texts; None without the reference's."""
    if "vectors" not in made.parts:
        return None, {}
    names = [made.reference, *(name for name in made.methods if name != made.reference)]
    length = made.lengths[-1]
    paths = {name: files.moments_path(out, name, length) for name in names}
    paths = {name: path for name, path in paths.items() if files.texts_in(path) >= LEAST_TEXTS}
    if made.reference not in paths:
        return None, {}
    plans = {name: made.methods[name].plan(length) for name in paths}
    found, arrays = read(paths, made.stride, made.trained_length, plans)
    return {"length": length, **found}, {**arrays, "trained_length": np.array(made.trained_length)}


def _is_of(earlier: dict[str, Any], summary: dict[str, Any]) -> bool:
    """Whether an earlier summary is of the same settings: moments, which tell them all, may have been removed."""
    names = ("model", "trained_length", "seed", "executor", "layers")
    return earlier["lengths"][-1] == summary["lengths"][-1] and all(earlier[name] == summary[name] for name in names)


def _forced(made: AnatomyPlan, journal: Journal, out: Path) -> list[dict[str, Any]]:
    """What --force let change in what the summary is made of, each change once."""
    moved = [files.forced_in(files.moments_path(out, name, made.lengths[-1])) for name in made.methods]
    every = [*journal.forced, *(each for changes in moved for each in changes)]
    return [each for at, each in enumerate(every) if each not in every[:at]]


def _texts_left(made: AnatomyPlan, out: Path) -> int:
    """Texts that the moments lack."""
    if "vectors" not in made.parts:
        return 0
    there = (files.texts_in(files.moments_path(out, name, made.lengths[-1])) for name in made.methods)
    return sum(max(0, len(made.sliding) - count) for count in there)
