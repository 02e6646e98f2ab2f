"""Every figure and table of what `mesa-lens anatomy` measured, for files, reports and pages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import xarray as xr

from probe.figures.anatomy import STATISTICS, head_map
from probe.figures.anatomy_charts import lens_chart
from probe.figures.cells import Cells
from probe.figures.export import Export, safe_name
from probe.figures.marks import Chart
from probe.figures.mechanism_export import row_table
from probe.figures.positional_charts import component_chart, cosine_chart, share_chart
from probe.figures.render import Figure
from probe.store.results import Anatomy, Row, number

_BY_ROW = ("heads", "all_heads", "unmet", "frequencies", "retrieval", "lens")


def head_figures(found: Anatomy, method: str, length: int) -> dict[str, Cells]:
    """The maps of one method at one length, by name; without those that were not run."""
    made = {name: head_map(found, name, method, length) for name in STATISTICS}
    return {name: figure for name, figure in made.items() if figure is not None}


def layer_figures(found: Anatomy, layer: int, methods: Sequence[str]) -> dict[str, Chart]:
    """The positional vectors of one layer, by name; without those that were not run."""
    made = {"cosine": cosine_chart(found, layer, methods), "components": component_chart(found, layer, methods)}
    return {name: figure for name, figure in made.items() if figure is not None}


def shown_layers(found: Anatomy) -> list[int]:
    """The first, the middle and the last layer."""
    layers = found.summary["layers"]
    return list(dict.fromkeys(layers[at] for at in (0, len(layers) // 2, -1)))


def known(found: Anatomy) -> dict[str, list[Any]]:
    """The methods, lengths and layers of the summary."""
    summary = found.summary
    return {"method": list(summary["methods"]), "length": summary["lengths"], "layer": summary["layers"]}


def anatomy_export(
    found: Anatomy,
    methods: Sequence[str] | None = None,
    lengths: Sequence[int] | None = None,
    layers: Sequence[int] | None = None,
) -> Export:
    """Figures as `anatomy-NAME-METHOD-LENGTH` or `anatomy-NAME-layerN`, and the tables behind them.

    Default: all; of figures by layer those of `shown_layers`. Raises ValueError for a method, length or layer that is
    not there.
    """
    asked, there = {"method": methods, "length": lengths, "layer": layers}, known(found)
    for name, values in asked.items():
        for value in values or ():
            if value not in there[name]:
                raise ValueError(f"{name} {value!r} was not looked at; known: {', '.join(map(str, there[name]))}")
    chosen = {name: list(values or there[name]) for name, values in asked.items()}
    figures: dict[str, Figure] = {}
    for length in chosen["length"]:
        lens = lens_chart(found, length, chosen["method"])
        figures |= {} if lens is None else {f"anatomy-lens-{length}": lens}
        for method in chosen["method"]:
            end = f"{safe_name(method)}-{length}"
            figures |= {f"anatomy-{name}-{end}": each for name, each in head_figures(found, method, length).items()}
    if _vectors_asked(found, chosen):
        shares = share_chart(found, chosen["method"])
        figures |= {} if shares is None else {"anatomy-shares": shares}
        for layer in layers or shown_layers(found):
            own = layer_figures(found, layer, chosen["method"])
            figures |= {f"anatomy-{name}-layer{layer}": figure for name, figure in own.items()}
    if not figures:
        wanted = "; ".join(f"{name} {', '.join(map(str, values))}" for name, values in chosen.items())
        raise ValueError(f"nothing is there for {wanted}; run those --parts of `mesa-lens anatomy`")
    return Export(figures, anatomy_tables(found, chosen))


def anatomy_tables(found: Anatomy, chosen: Mapping[str, Sequence[Any]]) -> dict[str, xr.Dataset]:
    """What was measured as tables, a row each; those with no row are left out. chosen: labels to keep, all if empty.

    `positions` has what is drawn of positional vectors, by method, layer and position.
    """
    summary, vectors = found.summary, found.vectors
    tables: dict[str, list[dict[str, Any]]] = {name: [_flat(row) for row in summary[name]] for name in _BY_ROW}
    tables["retrieval_heads"] = list(_retrieving(summary))
    tables["lens_differs"] = list(_differing(summary))
    if vectors is not None and _vectors_asked(found, chosen):
        tables["vectors"] = [_flat(row) for row in summary["vectors"]["layers"]]
    attrs = {name: summary[name] for name in ("model", "trained_length")}
    kept = {name: [row for row in rows if _is_chosen(row, chosen)] for name, rows in tables.items()}
    made = {name: row_table(rows).assign_attrs(attrs) for name, rows in kept.items() if rows}
    if vectors is not None and "vectors" in made:
        made["positions"] = _positions(vectors, chosen).assign_attrs(attrs)
    return made


def head_rows(summary: Mapping[str, Any], length: int | None = None) -> list[dict[str, Any]]:
    """Means over all heads with their intervals, unmet phases among them: a row a length, method and span."""
    keys = ("length", "method", "span")
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    for name in ("all_heads", "unmet"):
        for row in summary[name]:
            if length in (None, row["length"]):
                found.setdefault(tuple(row[key] for key in keys), {key: row[key] for key in keys}).update(row)
    return list(found.values())


def _vectors_asked(found: Anatomy, chosen: Mapping[str, Sequence[Any]]) -> bool:
    """Whether there are positional vectors, of a length that is asked for."""
    vectors = found.summary["vectors"]
    return bool(vectors) and vectors["length"] in chosen.get("length", [vectors["length"]])


def _is_chosen(row: Row, chosen: Mapping[str, Sequence[Any]]) -> bool:
    return all(row.get(label, values[0]) in values for label, values in chosen.items())


def _flat(row: Row) -> dict[str, Any]:
    """The row with a column for each number: intervals as _low and _high, parts under their names."""
    flat: dict[str, Any] = {}
    for name, value in row.items():
        if isinstance(value, Mapping):
            flat |= {f"{name}_{part}": each for part, each in value.items()}
        elif name == "components":
            flat |= {f"component_{at}": each for at, each in enumerate(value, 1)}
        elif isinstance(value, list):
            flat |= dict(zip((name, f"{name}_low", f"{name}_high"), map(number, value), strict=True))
        else:
            flat[name] = value
    return flat


def _retrieving(summary: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """A row for each head that retrieves inside M and each method beyond it."""
    for each in summary["retrieval_heads"]:
        place = {name: each[name] for name in ("length", "layer", "head", "offset", "dies", "keeps")}
        for method, beyond in each["beyond"].items():
            scores = _flat({"inside": each["inside"], "beyond": beyond})
            yield {"method": method, **place, **scores, "revived": method in each["revived"]}


def _differing(summary: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """A row for each layer of what the lens sets methods apart by."""
    for each in summary["lens_differs"]:
        place = {name: each[name] for name in ("method", "length", "n")}
        for layer, value in zip(summary["layers"], each["by_layer"], strict=True):
            yield {**place, "layer": layer, **_flat({"lower_by": value})}


def _positions(vectors: xr.Dataset, chosen: Mapping[str, Sequence[Any]]) -> xr.Dataset:
    scores = {
        f"component_{each}": vectors["score"].sel(component=each, drop=True) for each in vectors["component"].values
    }
    drawn = xr.Dataset({name: vectors[name] for name in ("cosine", "nearest")} | scores)
    return drawn.sel(
        {
            name: [each for each in drawn[name].values if each in chosen.get(name, [each])]
            for name in ("method", "layer")
        }
    )
