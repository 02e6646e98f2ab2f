"""Theorem 3.2's feed-forward layer: how many positions it recovers, and that its steps are exact."""

from __future__ import annotations

import math
from typing import Any

import mpmath
import numpy as np

from theory.claims.base import Claim, Verdict, grid
from theory.claims.settings import Settings
from theory.parts import CONST, POSITION, Shape
from theory.recovery import KINDS, longest, sharpness, worst_error
from theory.weave import plain_model


def recovery_ranges(settings: Settings) -> Claim:
    """The measured table: how many positions each MLP recovers, in each dtype; and the log-domain steps far out.

    Margin: what is left of half a position, beyond which another one is nearer. The naive sum fails as printed.
    """
    table: dict[str, dict[str, int]] = {}
    error = 0.0
    for kind in KINDS:
        table[kind] = {dtype: longest(kind, dtype) for dtype in ("float32", "float64")}
        for dtype, limit in table[kind].items():
            error = max(error, measured_error(kind, dtype, limit))
    short = worst_error("naive", "float64", table["naive"]["float64"] + 4)
    far = 1024 if settings.quick else 4200
    table["log"] = dict.fromkeys(("float32", "float64"), far)
    error = max(error, *(measured_error("log", dtype, far) for dtype in table["log"]))
    ranges = "; ".join(f"{kind} {row['float32']} / {row['float64']}" for kind, row in table.items())
    return Claim(
        name="recovery",
        statement="The MLP can always recover t from x_t = e^-(t-1)/S(t)",
        citation="Theorem 3.2, proof",
        parameters={"MLP": grid(list(table)), "dtype": "{float32, float64}"},
        tested=f"largest T with every t <= T recovered to 0.01, float32 / float64: {ranges} (log: as far as tried)",
        expected=Verdict.CORRECTED,
        margin=min(0.5, short) - error,
        error=error,
        unit="position",
        correction="within the dtype's exponent range, where the MLP is written so that nothing cancels",
        counterexample=f"naive, float64, T = {table['naive']['float64'] + 4}: {short:.2g} positions off",
        details={"ranges": table},
    )


def measured_error(kind: str, dtype: str, positions: int) -> float:
    """The worst position error of `kind` in the built transformer, in positions."""
    settings = Settings(dtype=dtype)
    options = settings.options(recovers=positions, recovery=kind, shape=Shape(heads=1))
    recovered = plain_model(min(positions, 8), **options).recovered_position(positions)
    return float(np.abs(recovered - np.arange(1, positions + 1)).max())


def exact_recovery(settings: Settings) -> Claim:
    """Interval arithmetic on the built weights: every step is exactly 0 or 1 at every x_t, so o_M = H exactly."""
    K = 128 if settings.quick else 700
    interval: Any = mpmath.iv
    interval.dps = 30
    model = plain_model(8, settings.H, **Settings(seed=settings.seed).options(recovers=K, shape=Shape(heads=1)))
    W_1, W_2 = (model.get_buffer(f"blocks.0.mlp.{name}").numpy() for name in ("W_1", "W_2"))
    slack = step_slack(W_1[[CONST, POSITION]], W_2[POSITION], interval)
    return Claim(
        name="3.2-exact",
        statement="In exact arithmetic the step MLP recovers t itself, so at t = M o is H: nothing is claimed there",
        citation="Theorem 3.2 (T = M is left out)",
        parameters={"K": K, "b": sharpness()},
        tested=f"all steps k < {K} of the built W_1 and W_2, interval arithmetic (mpmath)",
        expected=Verdict.HOLDS,
        margin=slack,
        unit="step",
    )


def step_slack(read: np.ndarray, written: np.ndarray, interval: Any) -> float:
    """By how much the least clear step of the MLP is 0 at x_k and 1 at x_(k+1), exactly; not positive where one is not.

    read: W_1's rows CONST and POSITION; written: W_2's row POSITION. Units: a constant 1, K - 1 that begin a step,
    K - 1 that end it, and one that takes x away.
    """
    (constant, *bias, no_bias), (flat, *gain, once) = read.tolist()
    steps = len(bias) // 2
    as_built = [constant, flat, no_bias, once, *written.tolist()] == [1, 0, 0, 1, 1, *[1] * steps, *[-1] * steps, -1]
    if not as_built or any(bias[k] - bias[k + steps] != 1 or gain[k] != gain[k + steps] for k in range(steps)):
        return -1.0
    slack, width = math.inf, interval.exp(1) - 1
    for k in range(1, steps + 1):
        at, following = (width / (interval.exp(t) - 1) for t in (k, k + 1))
        begins, ends = bias[k - 1] + gain[k - 1] * at, bias[k - 1 + steps] + gain[k - 1] * following
        slack = min(slack, float((-begins).a), float(ends.a))
    return slack


CLAIMS = {
    "recovery": recovery_ranges,
    "3.2-exact": exact_recovery,
}
