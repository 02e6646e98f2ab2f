"""The summary of an anatomy run, with intervals, from its journal and moments."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from probe.attention.heads import PARTS as MASS_PARTS
from probe.attention.phases import first_unmet
from probe.attention.request import LEAST_TEXTS, AnatomyPlan
from probe.attention.run import moments_path, texts_read
from probe.attention.sentences import LEAST, RETRIEVES, text_of
from probe.attention.vectors import vector_results
from probe.experiment.journal import Journal
from probe.files import write_json
from probe.statistics import half_width, student, wilson
from probe.store.results import ANATOMY, VECTORS

_OFFSETS = (0, 1)
_UNBOUNDED = ("entropy", "mean_distance")  # all other values are shares


def write(plan: AnatomyPlan, journal: Journal, out: Path) -> tuple[dict[str, Any], str]:
    """The summary, which is written to the run's folder beside the vectors' arrays, and its main results as text."""
    summary, texts = summarize(plan, journal), texts_read(plan, out)
    summary["vectors"], arrays = _vectors(plan, out, texts)
    wanted = plan.methods if "vectors" in plan.parts else {}
    summary["texts_left"] = sum(max(0, len(plan.sliding) - texts[name]) for name in wanted)
    if "vectors" not in plan.parts and (out / ANATOMY).exists():
        earlier = json.loads((out / ANATOMY).read_text(encoding="utf-8"))
        summary["vectors"] = earlier.get("vectors") if _has_settings_of(earlier, summary) else None
    if arrays:
        np.savez_compressed(out / VECTORS, allow_pickle=False, **arrays)
    if journal.rows or arrays:
        write_json(out / ANATOMY, summary)
    return summary, text_of(summary)


def summarize(plan: AnatomyPlan, journal: Journal) -> dict[str, Any]:
    """The summary of the journal's rows of a plan, of every part, ready for JSON.

    Values are [mean, low, high]: the mean over prompts and its 95% interval over prompts, null where there is one
    prompt. `n` says how many there are.
    """
    summary: dict[str, Any] = {
        "model": plan.request.model,
        "trained_length": plan.trained_length,
        "seed": plan.request.seed,
        "executor": plan.request.executor,
        "versions": {package: version(package) for package in ("mesa-lens", "torch", "transformers")},
        "parts": plan.parts,
        "lengths": plan.lengths,
        "layers": plan.layers,
        "reference": plan.reference,
        "methods": {name: method.describe() for name, method in plan.methods.items()},
        "tasks_left": sum(key not in journal.rows for key in plan.keys),
        **{name: [] for name in ("heads", "all_heads", "retrieval", "unmet", "frequencies", "lens")},
    }
    for part in ("heads", "frequencies", "retrieval", "lens"):
        for length in plan.lengths:
            for name in plan.methods:
                keys = ((part, name, length, number) for number in range(plan.request.samples))
                rows = [journal.rows[key] for key in keys if key in journal.rows]
                if rows:
                    _add(summary, plan, part, {"method": name, "length": length, "n": len(rows)}, rows)
    summary["retrieval_heads"] = retrieval_heads(summary)
    summary["lens_differs"] = lens_differences(plan, journal)
    return summary


def _add(
    summary: dict[str, Any],
    plan: AnatomyPlan,
    part: str,
    labels: dict[str, Any],
    rows: Sequence[Mapping[str, Any]],
) -> None:
    """Adds one part's entries of a method and length to the summary."""
    if part == "lens":
        losses, ends = intervals(np.array([row["nll"] for row in rows])), rows[0]["ends"]
        for row, layer in enumerate(plan.layers):
            for column, (begin, end) in enumerate(zip([1, *ends[:-1]], ends, strict=True)):
                entry = {**labels, "layer": layer, "begin": begin, "end": end, "nll": losses[row][column]}
                summary["lens"].append(entry)
        return
    if part == "retrieval":
        scores = np.array([row["score"] for row in rows])
        for entry in _by_head(plan, labels, {f"offset_{offset}": scores[..., offset] for offset in _OFFSETS}):
            best = max(_OFFSETS, key=lambda offset: entry[f"offset_{offset}"][0])
            summary["retrieval"].append({**entry, "best_offset": best, "best": entry[f"offset_{best}"]})
        return
    if part == "heads":
        names, whole, more = ("entropy", "mean_distance", "sink", "previous"), "all_heads", {}
        mass = np.array([row["mass"] for row in rows])
        values = {f"mass_{name}": mass[..., at] for at, name in enumerate(MASS_PARTS)}
    else:
        names, whole, values = ("norms", "attention"), "unmet", {}
        more = {"first_unmet": first_unmet(plan.methods[labels["method"]], plan.config, labels["length"])}
    values |= {name: np.array([row[name] for row in rows]) for name in names}
    for at, span in enumerate(rows[0]["spans"]):
        here = {name: value[:, at] for name, value in values.items()}
        means = {name: intervals(value.mean((1, 2)), _largest(name)) for name, value in here.items()}
        summary[whole].append({**labels, "span": span, **more, **means})
        summary[part] += _by_head(plan, {**labels, "span": span}, here)


def _by_head(plan: AnatomyPlan, labels: dict[str, Any], values: Mapping[str, np.ndarray]) -> list[dict[str, Any]]:
    """An entry a layer and head, of values (prompt, layer, head)."""
    columns = {name: intervals(value, _largest(name), counts="offset" in name) for name, value in values.items()}
    return [
        {**labels, "layer": layer, "head": head, **{name: value[row][head] for name, value in columns.items()}}
        for row, layer in enumerate(plan.layers)
        for head in range(plan.config.num_attention_heads)
    ]


def intervals(values: np.ndarray, largest: float = np.inf, *, counts: bool = False) -> Any:
    """[mean, low, high] over the first axis, nested like the others: a 95% interval, None for one prompt.

    Student's, within 0 and `largest`. counts: values are shares of a few trials; where they are all equal their
    interval is Wilson's, since equal scores do not imply certainty.
    """
    mean, ends = values.mean(0), [np.full(values.shape[1:], None)] * 2
    if len(values) > 1:
        low, high = (np.clip(mean + sign * half_width(values), 0, largest) for sign in (-1, 1))
        if counts:
            same = (values == values[0]).all(0)
            lower, upper = np.vectorize(lambda share: wilson(share * len(values), len(values)))(values[0])
            low, high = np.where(same, lower, low), np.where(same, upper, high)
        ends = [end.round(6).astype(object) for end in (low, high)]
    return np.stack([mean.round(6).astype(object), *ends], -1).tolist()


def _largest(name: str) -> float:
    return np.inf if name in _UNBOUNDED else 1.0


def retrieval_heads(summary: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The heads that retrieve at the longest length up to M under the reference, with their scores beyond it.

    `inside`, and `beyond` by method, are [mean, low, high] at the offset that is better inside. `dies`: under the
    reference the score is less than half, and the intervals are disjoint. `keeps`: its interval lies above half;
    neither: the prompts do not decide. `revived`: by the methods whose score is at least half of that inside, with an
    interval above the reference's.
    """
    trained, reference = summary["trained_length"], summary["reference"]
    scores = {(row["method"], row["length"], row["layer"], row["head"]): row for row in summary["retrieval"]}
    lengths = sorted({row["length"] for row in summary["retrieval"] if row["method"] == reference})
    inside = [length for length in lengths if length <= trained][-1:]
    heads = []
    for length in (length for length in lengths if length > trained and inside):
        for (name, at, layer, head), row in scores.items():
            if (name, [at]) != (reference, inside) or row["best"][0] < RETRIEVES:
                continue
            offset, half = row["best_offset"], row["best"][0] / 2
            there = {method: scores.get((method, length, layer, head)) for method in summary["methods"]}
            beyond = {method: other[f"offset_{offset}"] for method, other in there.items() if other}
            if reference not in beyond:
                continue
            base = beyond[reference]
            dies = base[0] < half and _is_above(row["best"], base)
            keeps = base[1] is not None and base[1] >= half
            revived = [by for by, score in beyond.items() if dies and score[0] >= half and _is_above(score, base)]
            place = {"length": length, "layer": layer, "head": head, "offset": offset, "inside": row["best"]}
            heads.append({**place, "beyond": beyond, "dies": dies, "keeps": keeps, "revived": revived})
    return heads


def _is_above(first: Sequence[float | None], second: Sequence[float | None]) -> bool:
    """Whether an interval lies above another; without intervals (one prompt) never."""
    return first[1] is not None and second[2] is not None and first[1] > second[2]


def lens_differences(plan: AnatomyPlan, journal: Journal) -> list[dict[str, Any]]:
    """By method and length beyond M: from which layer on the lens' NLL in the last bucket differs from the reference's.

    It does where the reference's less the method's, paired by prompt, has a 95% interval without 0, is `LEAST` or more
    and has one sign at this and every layer above. `half_from_layer`: where at this and every layer above it is half or
    more of that after the last. `by_layer`: the differences, [mean, low, high], nats/token.
    """
    differences = []
    places = [(length, name) for length in plan.lengths for name in plan.methods if name != plan.reference]
    for length, name in (place for place in places if place[0] > plan.trained_length):
        keys = [[("lens", of, length, n) for of in (plan.reference, name)] for n in range(plan.request.samples)]
        pairs = [
            [journal.rows[key]["nll"] for key in pair] for pair in keys if all(key in journal.rows for key in pair)
        ]
        if len(pairs) < 2:
            continue
        losses = np.array(pairs)[..., -1]  # (prompt, method, layer)
        by_layer = [[float(less.mean()), *student(less.tolist())] for less in (losses[:, 0] - losses[:, 1]).T]
        signs = [0 if low <= 0 <= high or abs(mean) < LEAST else np.sign(mean) for mean, low, high in by_layer]
        is_half = [signs[-1] and mean / by_layer[-1][0] >= 0.5 for mean, _, _ in by_layer]
        half = next((row for row in range(len(signs)) if all(is_half[row:])), None)
        same = next((row for row in range(len(signs)) if signs[-1] and len({*signs[row:]}) == 1), None)
        differences.append(
            {
                "method": name,
                "length": length,
                "n": len(pairs),
                "from_layer": None if same is None else plan.layers[same],
                "half_from_layer": None if half is None else plan.layers[half],
                "by_layer": [[round(value, 4) for value in values] for values in by_layer],
            }
        )
    return differences


def _vectors(
    plan: AnatomyPlan, out: Path, texts: Mapping[str, int]
) -> tuple[dict[str, Any] | None, dict[str, np.ndarray]]:
    """The results on positional vectors, of the methods that have enough texts; None without the reference's."""
    length, names = plan.lengths[-1], [plan.reference, *(name for name in plan.methods if name != plan.reference)]
    paths = {name: moments_path(out, name, length) for name in names if texts[name] >= LEAST_TEXTS}
    if "vectors" not in plan.parts or plan.reference not in paths:
        return None, {}
    plans = {name: plan.methods[name].plan(length) for name in paths}
    results, arrays = vector_results(paths, plan.stride, plan.trained_length, plans)
    return {"length": length, **results}, {**arrays, "trained_length": np.array(plan.trained_length)}


def _has_settings_of(earlier: Mapping[str, Any], summary: Mapping[str, Any]) -> bool:
    """Whether an earlier summary is of the same settings: its moments, which hold them, may have been removed."""
    names = ("model", "trained_length", "seed", "executor", "layers")
    return earlier["lengths"][-1] == summary["lengths"][-1] and all(earlier[name] == summary[name] for name in names)
