"""What the figures show, as labelled arrays: measured on the constructions, with the closed forms' T* beside them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import xarray as xr

from mesa.weave import rerope
from theory.bounds import extended_length
from theory.claims.corollary import exact_stair_model
from theory.claims.positions import measured_error
from theory.claims.settings import Settings
from theory.claims.theorem3 import ONE_HEAD, ideal_denominator
from theory.labels import IDEAL, NOPE, PE, STAIR, WEAVE
from theory.model import Construction
from theory.nope import nope_model
from theory.parts import Shape
from theory.recovery import KINDS, longest, worst_error
from theory.weave import plain_model, woven_model


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
        PE: plain_model(M, settings.H, **_recovering(length, settings)),
        WEAVE: woven_model(M, N, settings.H, **settings.chosen_mlp(M, shape=ONE_HEAD)),
        STAIR: exact_stair_model(M, N, E, length, settings),
    }
    attention = {name: model.bos_attention(length) for name, model in models.items()}
    attention[IDEAL] = 1 / ideal_denominator(N, length, settings)
    position = {name: model.recovered_position(length) for name, model in models.items() if name != NOPE}
    position[NOPE] = np.full(length, np.nan)
    position[IDEAL] = rerope(np.arange(length), N) + 1.0
    names = [NOPE, PE, WEAVE, IDEAL, STAIR]
    excess = {name: model.head_output(length) - settings.H for name, model in models.items()}
    excess[IDEAL] = M * attention[IDEAL] - 1
    dims = ("construction", "t")
    variables: dict[str, Any] = {
        "excess": (dims, np.stack([excess[name] for name in names]), {"long_name": "head output o_t - H"}),
        "position": (dims, np.stack([position[name] for name in names]), {"long_name": "recovered position"}),
        "attention": (dims, np.stack([attention[name] for name in names]), {"long_name": "attention on <bos>"}),
    }
    reach = {"T_weave": extended_length(M, N), "T_stair": extended_length(M, N, E)}
    coords = {"construction": names, "t": np.arange(1, length + 1)}
    return xr.Dataset(variables, coords, {"M": M, "N": N, "E": E, "H": settings.H, **reach})


def _recovering(positions: int, settings: Settings) -> dict[str, Any]:
    """Options for a construction that recovers that many positions; log steps where matrices overflow."""
    fits = settings.recovery != "log" and longest("steps", settings.dtype) >= positions
    return settings.options(recovers=positions, recovery="steps" if fits else "log", shape=ONE_HEAD)


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
