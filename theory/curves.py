"""What the figures and the (N, M, E) table show, measured on the constructions, with the closed forms beside it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from theory.bounds import extended_length, first_failure
from theory.claims.corollary import exact_stair_model
from theory.claims.settings import Settings
from theory.claims.theorem2 import measured_error
from theory.claims.theorem3 import ONE_HEAD, ideal_denominator
from theory.constructions import nope_model, plain_model, woven_model
from theory.figures import IDEAL, NOPE, PE, STAIR, WEAVE, curve_data
from theory.model import Construction
from theory.parts import Shape
from theory.recovery import KINDS, worst_error
from theory.weave import rerope


@dataclass(frozen=True)
class Example:
    """The parameters that figures are drawn for."""

    M: int = 16
    N: int = 3
    E: int = 3
    settings: Settings = field(default_factory=Settings)

    @classmethod
    def of(cls, settings: Settings) -> Example:
        """The user's parameters, or the default example."""
        if settings.M is None and settings.N is None and settings.E is None:
            return cls(settings=settings)
        return cls(*settings.triples()[0], settings=settings)

    @property
    def length(self) -> int:
        """Tokens: beyond T* where that is within reach."""
        return int(min(2.5 * extended_length(self.M, self.N), 2000))


def curves(example: Example) -> xr.Dataset:
    """o_t - H, the recovered position and the attention on <bos>, over (construction, t); T* in attrs."""
    M, N, E, settings, length = example.M, example.N, example.E, example.settings, example.length
    models: dict[str, Construction] = {
        NOPE: nope_model(M, settings.H, **settings.options(shape=ONE_HEAD)),
        PE: plain_model(M, settings.H, **settings.wide_mlp(length, shape=ONE_HEAD)),
        WEAVE: woven_model(M, N, settings.H, **settings.chosen_mlp(M, shape=ONE_HEAD)),
        STAIR: exact_stair_model(M, N, E, length, settings),
    }
    rows = {
        name: (
            model.head_output(length) - settings.H,
            np.full(length, np.nan) if name == NOPE else model.recovered_position(length),
            model.bos_attention(length),
        )
        for name, model in models.items()
    }
    ideal = 1 / ideal_denominator(N, length, settings)
    rows[IDEAL] = (M * ideal - 1, rerope(np.arange(length), N) + 1.0, ideal)
    return curve_data({name: rows[name] for name in (NOPE, PE, WEAVE, IDEAL, STAIR)}, M, N, E, settings.H)


def head_output_by_dimension(example: Example) -> xr.DataArray:
    """Layer 2's attention output under the plain encoding, free heads included, over (dimension, t); from 1 as t is."""
    shape = Shape(model=12, heads=3)
    model = plain_model(example.M, example.settings.H, **example.settings.options(shape=shape))
    length = 4 * example.M
    output = model.captured(length, model.output_hook)[model.output_hook].double().numpy().T
    coords = {"dimension": np.arange(1, len(output) + 1), "t": np.arange(1, length + 1)}
    attrs = {"long_name": "layer 2 attention output", "M": example.M, "H": example.settings.H}
    return xr.DataArray(output, coords, ("dimension", "t"), attrs=attrs)


def recovery_errors(dtype: str, ranges: np.ndarray) -> xr.DataArray:
    """The worst position error over (MLP, positions) of MLPs built for each of `ranges`, in `dtype`; inf: overflow."""
    errors = [[worst_error(kind, dtype, int(positions)) for positions in ranges] for kind in KINDS]
    errors.append([measured_error("log", dtype, int(positions)) for positions in ranges])
    coords = {"mlp": [*KINDS, "log"], "positions": ranges}
    return xr.DataArray(np.array(errors), coords, ("mlp", "positions"), attrs={"dtype_name": dtype})


POSITIONS = 64
"""K of the weave's step MLP, which decides where it fails beyond T*."""

Case = tuple[int, int, int | None]
"""N, M and E; E None is the weave of theorem 3.3."""


def table_cases(settings: Settings) -> tuple[list[Case], str]:
    """The (N, M, E) to try, the user's or a grid, and a note on those left out: T* exceeds the longest run."""
    widths = (None, 2, 3, 5) if settings.E is None else (None, settings.E)
    windows = (1, 2, 3, 4) if settings.N is None else (settings.N,)
    lengths = (4, 6, 8, 12, 16, 24) if settings.M is None else (settings.M,)
    cases = [(N, M, E) for E in widths for N in windows for M in lengths if N + (E is not None) < M]
    longest = settings.longest_run
    run = [(N, M, E) for N, M, E in cases if extended_length(M, N, E) < longest]
    omitted = len(cases) - len(run)
    note = f"{omitted} of {len(cases)} cases are left out: their T* exceeds the {longest} tokens that are run"
    return run, note if omitted else ""


def table_row(case: Case, settings: Settings) -> dict[str, Any]:
    """The case, its T* (`reach`), and its first failing t > M: by the closed form (`ideal`) and `measured` as built.

    measured is None where nothing fails up to `tried`. The stair's MLP tells W(t - 1) + 1 positions apart, the
    weave's 64.
    """
    N, M, E = case
    measured, tried = measured_failure(M, N, E, settings)
    reach = {"reach": extended_length(M, N, E), "ideal": first_failure(M, N, E)}
    return {"N": N, "M": M, "E": E, **reach, "measured": measured, "tried": tried}


def measured_failure(M: int, N: int, E: int | None, settings: Settings) -> tuple[int | None, int]:
    """The first t > M at which the built transformer fails, None for none, and how far was tried."""
    weave = settings.options(recovers=max(M, POSITIONS), recovery=settings.recovery, shape=ONE_HEAD)
    length = 0
    while length < settings.longest_run:
        length = min(max(4 * length, 256), settings.longest_run)
        stair = exact_stair_model(M, N, E, length, settings) if E is not None else None
        model = stair or woven_model(M, N, settings.H, **weave)
        failing = np.flatnonzero(model.head_output(length)[M:] <= settings.H)
        if failing.size:
            return int(failing[0]) + M + 1, length
    return None, length


def as_table(rows: list[dict[str, Any]]) -> pd.DataFrame:
    """Rows as a table of whole numbers, empty where there is none; only `reach` is real."""
    return pd.DataFrame(rows).astype(dict.fromkeys(("E", "measured"), "Int64"))
