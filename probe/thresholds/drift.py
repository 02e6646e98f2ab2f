"""The rule `drift`: where the states of a full layer leave what they did inside the window, all dims jointly.

On a pretrained model dims burst and return rather than step, each by little to the layer's massive activations, and
many of them together. So each dim is measured in ranges of its own motion inside the window, all dims of a short run of
positions are evaluated at once, and a sweep over pretended windows says how often the same rule would detect drift
where the model is known to work.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import xarray as xr

from mesa.errors import Refused
from mesa.plan import Plan, restarts

_SAMPLES = 16  # positions of a run that are read
_REFERENCE, _PRETENDED_REFERENCE = 512, 128  # positions of a reference that are read
_ROWS = 64  # positions computed at a time: they stay in the cache
_LEAST_RUNS = 8
_DRAWS = 200
_SHORTEST = 4  # the shortest pretended window is this part of M
_POSITIONS = ("first", "low", "high", "before")
FALSE_DETECTIONS, WARM_UP = "false detections", "warm-up throughout"
_RESOLUTION = {"bfloat16": 2.0**-8, "float16": 2.0**-11}


@dataclass(frozen=True, kw_only=True)
class DriftRule:
    """How drift is evaluated, a layer's dims jointly; lengths in tokens.

    `DriftRule.scaled(M)` is the default rule of a model.

    Args:
        run: Positions that are evaluated together.
        warm_up: Positions below it, and as many after a method restarts positions, are no part of the reference and not
            evaluated.
        held_out: Positions before M that are no part of the reference: few training texts reached them, so that drift
            may begin there already. After a restart, what sees relative positions as large is not evaluated beyond M.
        quantile: Of |x - centre| inside the window, a dim's range; default 0.99.
        clip: The most ranges that one dim counts; default 100, more in wide models (`most`).
        factor: How far the mean square, in ranges, must exceed the largest one inside the window, at least 1; default
            4.
        period: Positions at a multiple of it are compared with each other, of prompts that repeat; default 1.
        pretended: Windows inside M that the rule is tried on; default 16.
        alarm_rate: The most false detections, of those windows, of a layer that is evaluated; default 0.05.
        chance: The most chance, over all layers, that a model without drift has a layer detected; default 0.01.
        resolution: The least range, as a share of a dim's level, and of the layer's median level: what arithmetic and
            the store's dtype resolve; default 2^-20.

    Examples:
        >>> rule = probe.DriftRule.scaled(256)
        >>> rule.run, rule.warm_up, rule.held_out
        (2, 64, 64)
    """

    run: int
    warm_up: int
    held_out: int
    quantile: float = 0.99
    clip: float = 100.0
    factor: float = 4.0
    period: int = 1
    pretended: int = 16
    alarm_rate: float = 0.05
    chance: float = 0.01
    resolution: float = 2.0**-20

    def most(self, dims: int) -> float:
        """The ranges that one of `dims` counts at most: enough that one dim alone can pass the least limit."""
        return max(self.clip, 2 * math.sqrt(self.factor * dims))

    @classmethod
    def scaled(cls, trained_length: int, resolution: float = 2.0**-20, period: int = 1) -> DriftRule:
        """The default rule: runs of M/128, warm-up M/4, M/4 held out.

        Args:
            trained_length: M, tokens.
            resolution: As in `DriftRule`; default 2^-20.
            period: As in `DriftRule`; default 1.

        Returns:
            The rule.
        """
        quarter = trained_length // 4
        return cls(
            run=max(1, trained_length // 128), warm_up=quarter, held_out=quarter, resolution=resolution, period=period
        )


def find_drift(
    hidden: xr.DataArray,
    trained_length: int,
    rule: DriftRule | None = None,
    *,
    plans: Mapping[str, Plan] | None = None,
    reference: str = "origin",
) -> xr.Dataset:
    """Where each layer's states leave the range that they have inside the window.

    Args:
        hidden: Hidden states (method, [prompt,] layer, position, dim). Of several prompts the mean is evaluated: with
            many texts, the positional vector.
        trained_length: M, tokens.
        rule: Default: `DriftRule.scaled(M)`, at the resolution of the dtype.
        plans: By method, its plan of the pass. Where positions restart, states settle again, and are not evaluated
            until they have. Default: no method restarts positions.
        reference: The method whose ranges are the least; default 'origin'.

    Returns:
        A Dataset. With I the positions in [warm_up, M - held_out) that are no warm-up after a restart, for each method,
        layer and dim:

        - `centre` = median of x over I; two trends, of x with ln t and of x with t, by their slopes over I (median over
          pairs half of I apart)
        - `range` = `quantile` of |x - centre| over I, no less than the reference method's, and than `resolution` *
          |centre| of the dim and of the layer's median dim
        - z = distance of x from the span of `centre` and both trends, in ranges, at most `rule.most`: what stays, or
          goes on growing as before, as a power of t up to 1, is 0
        - `level` (method, layer, run) = mean of z^2 over the dims and positions of a run; `run` is its first position.
          In long windows not all positions are read: of a run 16 or more, of I 512 or more
        - `limit` (method, layer) = factor * max(1, largest level in I)
        - `first` (method, layer): the first run from M on, no warm-up, whose level is above the limit; NaN: none, or
          not trusted. `low`, `high`: its 95% interval over resampled dims (infinity: none), from where states were
          evaluated last. `warm_up` (method, run): left out. `before` (method, layer): the same in the M - held_out .. M
          tokens, which says that drift detected at M began earlier
        - `share` (method, layer, dim): the dim's part of the levels above the limit; 0 where there are none
        - `doubt` (method, layer): why a layer is not trusted, in words; empty where, of every second of `pretended`
          windows from M/4 to M - held_out, the same rule detects drift between window and M - held_out in at most
          `alarm_rate`; a level can pass the limit at all; and either no run from M on does, or more than chance
          explains, one of them by more than factor * what a random walk with the steps inside the window would reach
        - `chance` (method, layer): that runs alike inside and beyond M would pass factor * the largest level in I so
          often in any layer; NaN where none passes the limit, or not trusted
        - `effective_dims` (method, layer): how many dims move independently in I: the squared sum of the eigenvalues of
          the dims' correlation matrix over their sum of squares. Where they are few, false detections are far more
          common than `chance`
        - `false_positive_rate`: in what share of the other windows it does; NaN where none could be evaluated, which is
          not trusted. `windows` (method, layer): how many those are. `any_false_positive_rate` (method): the share with
          one in any trusted layer

    Raises:
        Refused: Too few positions were captured on either side of M, or values are not finite.

    Examples:
        >>> run = probe.open_run("runs/example")
        >>> drift = probe.find_drift(probe.hook_values(run).sel(prompt="repeated"), run.trained_length)
        >>> drift["first"].sel({"method": "origin"}).values.tolist()  # by layer, in tokens; nan: none
        [nan, nan, 316.0, nan]
    """
    rule = rule or DriftRule.scaled(trained_length, resolution(str(hidden.dtype)))
    position = hidden["position"].values
    runs = _Runs.of(position, rule.run, trained_length, rule.period)
    _check(runs, rule, trained_length, position)
    methods, layers = hidden["method"].values.tolist(), hidden["layer"].values
    first = reference if reference in methods else methods[0]
    rows: dict[str, list[dict[str, Any]]] = {name: [] for name in methods}
    for number in range(len(layers)):
        widths = None
        for name in sorted(methods, key=lambda method: method != first):
            states = _states(hidden.sel({"method": name}).isel(layer=number), runs)
            if not np.isfinite(states).all():
                raise Refused(f"the states of {name} in layer {layers[number]} are not finite; capture them again")
            begins = restarts(plans[name]) if plans and name in plans else {}
            evaluated = _judge(states, runs, rule, trained_length, begins, widths, len(layers))
            widths = evaluated["range"] if widths is None else widths
            rows[name].append(evaluated)
    variables: dict[str, tuple] = {"captured": ("run", runs.captured)}
    for name in [name for name in rows[first][0] if name not in ("false_positives", "warm_up")]:
        values = np.stack([[evaluated[name] for evaluated in of_method] for of_method in rows.values()])
        axes = ("run",) if name == "level" else ("dim",) if values.ndim == 3 else ()
        variables[name] = (("method", "layer", *axes), values, {"units": "position"} if name in _POSITIONS else {})
    variables["warm_up"] = (("method", "run"), np.stack([of_method[0]["warm_up"] for of_method in rows.values()]))
    variables["any_false_positive_rate"] = ("method", np.array([_any_rate(of_method) for of_method in rows.values()]))
    drift = xr.Dataset(
        variables,
        {"method": methods, "layer": layers, "run": runs.begin, "dim": hidden["dim"].values},
        {
            **asdict(rule),
            "trained_length": trained_length,
            "length": int(position[-1]) + 1,
            "reference": first,
            "hook": str(hidden.name),
        },
    )
    drift["run"].attrs["units"] = "position"
    drift["level"].attrs.update(long_name="mean square distance from the in-window range", units="ranges^2")
    return drift


def resolution(*dtypes: str | None) -> float:
    """The least relative motion that states computed and stored in these dtypes resolve; float32 accumulates errors."""
    return max(_RESOLUTION.get(str(dtype), 2.0**-20) for dtype in dtypes)


@dataclass(frozen=True)
class _Runs:
    """The sampled ones of the captured positions, and where each run begins among them.

    begin: each run's first position, `first` the first one captured. captured: how many of a run's were.
    """

    index: np.ndarray
    position: np.ndarray
    start: np.ndarray
    begin: np.ndarray
    captured: np.ndarray

    @property
    def first(self) -> np.ndarray:
        """The first sampled position of each run."""
        return self.position[self.start]

    @classmethod
    def of(cls, position: np.ndarray, run: int, trained: int, period: int) -> _Runs:
        """Some `_SAMPLES` of the captured positions, of every phase of `period`, of each run captured by half.

        One run begins at M.
        """
        number = (position - trained) // run
        numbers, first, counts = np.unique(number, return_index=True, return_counts=True)
        is_full, place = 2 * counts >= run, np.arange(len(position)) - np.repeat(first, counts)
        step = _prime_to(run // _SAMPLES, period)
        index = np.flatnonzero(np.repeat(is_full, counts) & (place % step == 0))
        start = np.unique(number[index], return_index=True)[1]
        return cls(index, position[index], start, numbers[is_full] * run + trained, counts[is_full])

    def mean(self, values: np.ndarray) -> np.ndarray:
        """Means by run of `values` (sampled position, ...)."""
        counts = np.diff(np.append(self.start, len(values)))
        return np.add.reduceat(values, self.start, axis=0) / counts.reshape(-1, *[1] * (values.ndim - 1))

    def expand(self, of_run: np.ndarray) -> np.ndarray:
        """A value a run, for their sampled positions."""
        return np.repeat(of_run, np.diff(np.append(self.start, len(self.position))))

    def thinned(self, chosen: np.ndarray, step: int, period: int) -> _Runs:
        """Of the runs `chosen`, about every `step`-th sampled position, of every phase; `index` is into this one's."""
        a_run = int(np.diff(np.append(self.start, len(self.position))).max())
        index = np.flatnonzero(self.expand(chosen))[:: step if period == 1 else _prime_to(step, period * a_run)]
        begin, start = np.unique(self.expand(self.begin)[index], return_index=True)
        return _Runs(index, self.position[index], start, begin, self.captured[np.isin(self.begin, begin)])


def _judge(
    x: np.ndarray,
    runs: _Runs,
    rule: DriftRule,
    trained: int,
    restarts: Mapping[int, int],
    widths: np.ndarray | None,
    layers: int,
) -> dict[str, Any]:
    """The values of `find_drift` for one method and layer of `layers`, `x` (sampled position, dim).

    widths: the least range of each dim. `false_positives`: by window that measures, NaN: not evaluated.
    """
    known = trained - rule.held_out
    warm_up = _warm_up(runs.begin, rule, restarts, trained)
    usable = ~warm_up & (runs.begin + rule.run <= known)
    if usable.sum() < _LEAST_RUNS:  # it begins again too often to warm up
        return _unevaluated(x, runs)
    squares, centre, width = _squares(x, runs, usable, rule, _REFERENCE, widths)
    by_run = runs.mean(squares)
    level = by_run.mean(1)
    alarms = []
    for part in range(rule.pretended):
        window = int(trained / _SHORTEST + (known - trained / _SHORTEST) * part / rule.pretended)
        most, limit = _pretended(x, runs, rule, window, trained, restarts, widths)
        alarms.append(np.nan if np.isnan(most) else float(most > limit))
    rate = np.array(alarms[1::2])
    limit = rule.factor * max(1.0, float(level[usable].max()))
    evaluated = (runs.begin >= trained) & ~warm_up
    out = bool((level[evaluated] > limit).any())
    largest = float(level[usable].max())
    passed = int((level[evaluated] > rule.factor * largest).sum())
    by = rule.factor if largest else 1.0  # factor times 0 is no further than the largest run inside
    chance = layers * chance_of(passed, int(evaluated.sum()), int(usable.sum()), by)
    doubt = ""
    if not _rate(np.array(alarms[::2])) <= rule.alarm_rate:  # NaN: none could be evaluated
        doubt = FALSE_DETECTIONS
    elif limit >= rule.most(x.shape[1]) ** 2:
        doubt = "its range inside M is too wide to leave"
    elif out and chance > rule.chance:
        doubt = "no clearer than chance"
    elif out and not (level > rule.factor * _walk(x, runs, usable, rule, width))[evaluated].any():
        doubt = "no further than a random walk"
    evaluated &= not doubt
    first, low, high, share = _first_break(by_run, level, evaluated, runs, rule.run, limit, trained)
    held_out = (not doubt) & (runs.begin >= known) & (runs.begin < trained) & ~warm_up
    return {
        "level": level,
        "warm_up": warm_up,
        "limit": limit,
        "first": first,
        "low": low,
        "high": high,
        "before": _first_break(by_run, level, held_out, runs, rule.run, limit, known)[0],
        "share": share,
        "centre": centre,
        "range": width,
        "doubt": doubt,
        "chance": chance if out and not doubt else np.nan,
        "effective_dims": _effective_dims(x, runs, usable, rule),
        "false_positives": rate,
        "false_positive_rate": _rate(rate),
        "windows": np.isfinite(rate).sum(),
    }


def _walk(x: np.ndarray, runs: _Runs, usable: np.ndarray, rule: DriftRule, width: np.ndarray) -> np.ndarray:
    """The level of each run, did the states go on from the runs `usable` as a random walk.

    A walk's mean square step grows like the lag; that of noise stays, that of smooth states grows like its square. So
    the least of it per run, over lags up to half of those runs, is a walk's own, and next to nothing of the others.
    """
    levelled = _without_phases(x, runs.position % rule.period, np.flatnonzero(runs.expand(usable)))
    means = runs.mean(levelled)[usable] / width
    lags = [2**power for power in range((len(means) // 2).bit_length())]
    step = min(float(np.square(means[lag:] - means[:-lag]).mean()) / lag for lag in lags)
    return step * np.abs(runs.begin - runs.begin[usable].mean()) / rule.run


def _effective_dims(x: np.ndarray, runs: _Runs, usable: np.ndarray, rule: DriftRule) -> float:
    """Participation ratio of the eigenvalues of the dims' correlations over the runs `usable`; NaN: none varies."""
    reference = np.flatnonzero(runs.expand(usable))
    inner = _without_phases(x, runs.position % rule.period, reference)[reference].astype(np.float64)
    inner -= inner.mean(0)
    size = np.sqrt(np.square(inner).sum(0))
    inner = inner[:, size > 0] / size[size > 0]
    products = inner @ inner.T if len(inner) < inner.shape[1] else inner.T @ inner
    return inner.shape[1] ** 2 / np.square(products).sum() if inner.size else np.nan


def chance_of(passed: int, beyond: int, inside: int, factor: float) -> float:
    """The most chance that `passed` of the runs `beyond` M exceed `factor` times the largest of those `inside`.

    For independent runs from one distribution, inside and beyond, whose tail falls at least like 1 / level: states of
    finite variance. Then a run that exceeds the largest one inside exceeds factor times that in 1 / factor of the
    cases, and how many do has a geometric distribution.
    """
    return (beyond / (beyond + factor * inside)) ** passed


def _unevaluated(x: np.ndarray, runs: _Runs) -> dict[str, Any]:
    """Of a method that is in warm-up throughout: nothing is detected, nothing is known of false detections."""
    none, zeros = np.full(len(runs.begin), np.nan), np.zeros(x.shape[1])
    return {
        **dict.fromkeys((*_POSITIONS, "limit", "false_positive_rate", "chance", "effective_dims"), np.nan),
        **dict.fromkeys(("share", "centre", "range"), zeros),
        "doubt": WARM_UP,
        "level": none,
        "warm_up": np.ones(len(runs.begin), bool),
        "false_positives": np.array([]),
        "windows": 0,
    }


def _states(values: xr.DataArray, runs: _Runs) -> np.ndarray:
    """The sampled positions of one method and layer, (position, dim), the mean over prompts if there are several."""
    prompts = [values.isel(prompt=i) for i in range(values.sizes["prompt"])] if "prompt" in values.dims else [values]
    total = sum(one.load().transpose("position", "dim").values[runs.index].astype(np.float32) for one in prompts)
    return np.asarray(total, np.float32) / len(prompts)


def _warm_up(begin: np.ndarray, rule: DriftRule, restarts: Mapping[int, int], trained: int) -> np.ndarray:
    """The runs that are not evaluated: below `warm_up`, and after a restart the same again and what is held out again.

    And all after a restart within a word of several tokens: the tokens that are seen there are another mixture.
    """
    left_out = begin < rule.warm_up
    ends = [*restarts, np.inf][1:]
    for (at, reach), end in zip(restarts.items(), ends, strict=True):
        after = (begin + rule.run > at) & (begin < end)
        held_out = (begin - at + reach >= trained - rule.held_out) & (begin >= trained)
        within = (at - reach) % rule.period > 0
        left_out = left_out | (after & ((begin < at + rule.warm_up) | held_out | within))
    return left_out


def _squares(
    x: np.ndarray,
    runs: _Runs,
    usable: np.ndarray,
    rule: DriftRule,
    samples: int,
    widths: np.ndarray | None,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """z^2 (sampled position, dim), centre and range (dim), with the runs `usable` as reference."""
    reference = np.flatnonzero(runs.expand(usable))
    x = _without_phases(x, runs.position % rule.period, reference)
    reference = reference[:: max(1, len(reference) // samples)]
    inner = np.ascontiguousarray(x[reference].T)
    centre = _quantile(inner, 0.5)
    width = _quantile(np.abs(inner - centre[:, None]), rule.quantile)
    least = rule.resolution * np.maximum(np.abs(centre), np.median(np.abs(centre)))
    width = np.maximum.reduce(
        [width, np.maximum(least, np.finfo(np.float32).tiny), least if widths is None else widths]
    )
    clocks = np.log(runs.position + 1.0).astype(np.float32), runs.position.astype(np.float32)
    trends = [(clock[:, None], *_trend(inner, clock[reference])) for clock in clocks]
    z = np.empty(x.shape, np.float32)
    for first in range(0, len(x), _ROWS):
        rows = slice(first, first + _ROWS)
        low = high = centre
        for clock, offset, slope in trends:
            trend = offset + clock[rows] * slope
            low, high = np.minimum(trend, low), np.maximum(trend, high, out=trend)
        part = np.subtract(x[rows], high, out=z[rows])
        np.divide(np.maximum(part, np.subtract(low, x[rows], out=low), out=part), width, out=part)
        np.square(np.clip(part, 0, rule.most(x.shape[1]), out=part), out=part)
    return z, centre, width


def _trend(inner: np.ndarray, time: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Offset and slope (dim,) of `inner` (dim, sampled position of the reference) in proportion to `time`."""
    half = len(time) // 2
    passed = time[half : 2 * half] - time[:half]
    slope = _quantile((inner[:, half : 2 * half] - inner[:, :half]) / passed, 0.5)
    return _quantile(inner - slope[:, None] * time, 0.5), slope


def _without_phases(x: np.ndarray, phase: np.ndarray, reference: np.ndarray) -> np.ndarray:
    """`x` with the median over the reference the same in every phase: what differs by token is not position."""
    phases = np.unique(phase)
    if len(phases) == 1:
        return x
    levelled, centre = x.copy(), _quantile(np.ascontiguousarray(x[reference].T), 0.5)
    for number in phases:
        in_phase = reference[phase[reference] == number]
        if len(in_phase):
            levelled[phase == number] += centre - _quantile(np.ascontiguousarray(x[in_phase].T), 0.5)
    return levelled


def _quantile(values: np.ndarray, share: float) -> np.ndarray:
    """The nearest quantile of each row; faster than np.quantile, and than np.partition up to some 500 columns."""
    return np.sort(values, axis=1)[:, round(share * (values.shape[1] - 1))].copy()  # a view would be slow to read


def _first_break(
    squares: np.ndarray, level: np.ndarray, evaluated: np.ndarray, runs: _Runs, run: int, limit: float, known: int
) -> tuple[float, float, float, np.ndarray]:
    """First run among the `evaluated` whose level passes the limit, its interval, and the dims' shares.

    Below `known` nothing has broken; where it was not evaluated from there on, it may have started.
    """
    out = evaluated & (level > limit)
    if not out.any():
        return np.nan, np.nan, np.nan, np.zeros(squares.shape[1])
    total = squares[out].sum(0)
    dims = squares.shape[1]
    weights = np.random.default_rng(0).multinomial(dims, np.full(dims, 1 / dims), _DRAWS).T / dims
    drawn = squares[evaluated] @ weights.astype(np.float32) > limit
    firsts = np.where(drawn.any(0), runs.first[evaluated][drawn.argmax(0)], np.inf)
    low, high = np.quantile(firsts, [0.025, 0.975], method="nearest")
    at = int(out.argmax())
    earlier = np.flatnonzero((evaluated | (runs.begin < known))[:at])
    if earlier.size:
        low = min(low, runs.begin[earlier[-1]] + run)
    return float(runs.first[at]), float(low), float(high), total / total.sum()


def _pretended(
    x: np.ndarray,
    runs: _Runs,
    rule: DriftRule,
    window: int,
    trained: int,
    restarts: Mapping[int, int],
    widths: np.ndarray | None,
) -> tuple[float, float]:
    """Largest level from `window` on, were it the trained length, and the limit; NaN where it cannot be evaluated."""
    scale = window / trained
    warm_up = _warm_up(runs.begin, replace(rule, warm_up=int(rule.warm_up * scale)), restarts, trained)
    known = window - int(rule.held_out * scale)
    usable = ~warm_up & (runs.begin + rule.run <= known)
    tested = ~warm_up & (runs.begin >= window) & (runs.begin + rule.run <= trained - rule.held_out)
    if usable.sum() < _LEAST_RUNS or not tested.any():
        return np.nan, np.nan
    fewer = runs.thinned(usable | tested, max(1, int(runs.expand(usable).sum()) // _PRETENDED_REFERENCE), rule.period)
    inside = fewer.begin + rule.run <= known
    phase = fewer.position % rule.period
    if set(phase) - set(phase[fewer.expand(inside)]):
        return np.nan, np.nan
    level = fewer.mean(_squares(x[fewer.index], fewer, inside, rule, _PRETENDED_REFERENCE, widths)[0].mean(1))
    return float(level[~inside].max()), rule.factor * max(1.0, float(level[inside].max()))


def _prime_to(most: int, other: int) -> int:
    """The largest number up to `most`, at least 1, that has no factor in common with `other`."""
    return next((step for step in range(most, 1, -1) if math.gcd(step, other) == 1), 1)


def _check(runs: _Runs, rule: DriftRule, trained: int, position: np.ndarray) -> None:
    known = trained - rule.held_out
    if (known - rule.warm_up) // rule.run < _LEAST_RUNS:
        raise Refused(
            f"a trained window of {trained} leaves fewer than {_LEAST_RUNS} runs of {rule.run} positions in "
            f"[{rule.warm_up}, {known}); drift cannot be evaluated there, take the rule paper, or a longer window"
        )
    inside = int(((runs.begin >= rule.warm_up) & (runs.begin + rule.run <= known)).sum())
    for count, least, where in (
        (inside, _LEAST_RUNS, f"in [{rule.warm_up}, {known})"),
        (int((runs.begin >= trained).sum()), 1, f"from {trained} on"),
    ):
        if count < least:
            raise Refused(
                f"{count} runs of {rule.run} positions {where} were captured by half or more, of "
                f"{position[0]}-{position[-1]}; capture at least {least} there"
            )


def _rate(alarms: np.ndarray) -> float:
    """Share of alarms among the windows that could be evaluated; NaN where none could."""
    evaluated = alarms[np.isfinite(alarms)]
    return float(evaluated.mean()) if evaluated.size else np.nan


def _any_rate(layers: Sequence[dict[str, Any]]) -> float:
    """Share of the pretended windows with an alarm in any trusted layer."""
    alarms = [layer["false_positives"] for layer in layers if not layer["doubt"]]
    evaluated = np.stack(alarms)[:, np.isfinite(alarms).all(0)] if alarms else np.array([])
    return float(evaluated.any(0).mean()) if evaluated.size else np.nan
