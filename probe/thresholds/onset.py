"""Onsets of a method: where its states first leave what they did inside the window, by threshold dims or by drift."""

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Annotated

import numpy as np
import xarray as xr
from pydantic.dataclasses import dataclass

from mesa.errors import Refused
from probe.store.result_file import InWords, formerly
from probe.thresholds.drift import FALSE_DETECTIONS, WARM_UP
from probe.thresholds.search import CrossingRule, SearchWindow, full_window, layout_of, search, searches

# Where each method crosses the limits; and a control, what is found inside the window
# The negative control of the rule `paper` is the same search and onset at places inside the window, and at M.

TOP = 10
"""Dims that an onset is the median of."""
MIN_EVALUATED_DIMS = 5
"""Fewer evaluated dims give no onset."""
PLACES = 16
"""Positions inside the window at which the search is put."""
ALPHA = 0.05
"""With more of the places like M than this, M is not told from them."""
_PAIR = ("layer", "dim")


@dataclass(frozen=True)
class ThresholdOnset(InWords):
    """Where a method crosses the limits of the best threshold dims, in tokens. No prediction of failure.

    length: median crossing over the evaluated dims; None if not more than half of them cross, or if it is not `known`.
    evaluated: best dims at which the method keeps to the safe side inside the window, as Origin does.
    crossed: how many of the evaluated cross. chosen: how many best dims there were.
    captured: up to which length. descriptive: the reference's own: dims are chosen on it, so its length follows the
        stated M by construction.
    """

    method: str
    length: int | None
    evaluated: Annotated[int, formerly("judged", "evaluated")]
    crossed: int
    chosen: int
    least: int
    captured: int
    descriptive: bool = False

    @property
    def known(self) -> bool:
        """Whether `least` dims are evaluated, so that no length means none."""
        return self.evaluated >= self.least

    def __str__(self) -> str:
        """The onset in words."""
        if not self.chosen:
            return "no threshold dim"
        if self.chosen < self.least:
            return f"too few threshold dims: {self.chosen}, {self.least} are needed"
        if not self.evaluated:
            return "beyond the limits already inside the window"
        if not self.known:
            return f"cannot tell: {self.evaluated} of {self.chosen} dims can be evaluated, {self.least} are needed"
        if self.length is None:
            return f"none up to {self.captured}"
        return f"{self.length} (descriptive)" if self.descriptive else str(self.length)


def best(crossings: xr.Dataset, top: int) -> list[tuple[int, int]]:
    """Up to `top` threshold dims, (layer, dim), of one prompt's `search`, best first; of each dim its best layer only.

    The residual stream carries a dim's value from layer to layer: two layers of one dim are no two witnesses.
    """
    if "prompt" in crossings.dims:
        raise Refused(f"choose one of the prompts {crossings['prompt'].values.tolist()}, e.g. crossings.isel(prompt=0)")
    rank = crossings["rank"].transpose(*_PAIR).values
    layers, dims = (crossings[name].values.tolist() for name in _PAIR)
    ranked = sorted((int(rank[at]), *at) for at in zip(*np.nonzero(rank), strict=True))
    pairs: dict[int, tuple[int, int]] = {}
    for _, layer, dim in ranked:
        pairs.setdefault(dims[dim], (layers[layer], dims[dim]))
    return list(pairs.values())[:top]


def excluded(crossings: xr.Dataset) -> xr.DataArray:
    """Where a method is beyond the limit inside the window too often for its crossing to be counted."""
    return crossings["inside"] > 1 - crossings.attrs["share"]


def crossing_texts(crossings: xr.Dataset) -> xr.DataArray:
    """Where each method crosses the limit: a position, 'never', or 'excluded'."""
    texts = [
        "excluded" if out else "never" if np.isnan(at) else f"{at:.0f}"
        for at, out in zip(crossings["crossing"].values.flat, excluded(crossings).values.flat, strict=True)
    ]
    return crossings["crossing"].copy(data=np.reshape(np.array(texts, object), crossings["crossing"].shape))


def threshold_onsets(crossings: xr.Dataset, top: int = TOP, least: int = MIN_EVALUATED_DIMS) -> list[ThresholdOnset]:
    """Where each method crosses the limits of the best threshold dims, one onset a method.

    Args:
        crossings: One prompt's `search`.
        top: Dims that an onset is the median of, fewer if no more qualify; default 10.
        least: Fewer evaluated dims than that, or than `top`, give no onset; default 5.

    Returns:
        A list of `ThresholdOnset`: `length` in tokens (None: no onset), `evaluated`, `crossed` and `chosen` dims. It
        predicts no failure.

    Raises:
        Refused: `crossings` is of several prompts.

    Examples:
        >>> run = probe.open_run("runs/example")
        >>> hidden = probe.hook_values(run).sel(prompt="repeated")
        >>> crossings = probe.search(hidden, 256, probe.CrossingRule.scaled(256))
        >>> [(onset.method, onset.length) for onset in probe.threshold_onsets(crossings)]
        [('origin', 268), ('rerope', None)]
    """
    pairs = best(crossings, top)
    layer, dim = (
        crossings.get_index(name).get_indexer([pair[part] for pair in pairs]) for part, name in enumerate(_PAIR)
    )
    inside, crossing = (
        crossings[name].transpose("method", *_PAIR).values[:, layer, dim] for name in ("inside", "crossing")
    )
    methods = crossings["method"].values.tolist()
    return [_onset(crossings, *row, min(top, least)) for row in zip(methods, inside, crossing, strict=True)]


def _onset(crossings: xr.Dataset, method: str, inside: np.ndarray, crossing: np.ndarray, least: int) -> ThresholdOnset:
    evaluated = crossing[inside <= 1 - crossings.attrs["share"]]
    crossed = int(np.isfinite(evaluated).sum())
    fails = 2 * crossed > len(evaluated) and len(evaluated) >= least
    return ThresholdOnset(
        method=method,
        length=int(np.median(np.where(np.isnan(evaluated), np.inf, evaluated))) if fails else None,
        evaluated=len(evaluated),
        crossed=crossed,
        chosen=len(inside),
        least=least,
        captured=int(crossings.attrs["length"]),
        descriptive=method == crossings.attrs["reference"],
    )


def negative_control(
    hidden: xr.DataArray,
    trained_length: int,
    rule: CrossingRule,
    reference: str = "origin",
    *,
    count: int = PLACES,
    top: int = TOP,
    least: int = MIN_EVALUATED_DIMS,
) -> xr.Dataset:
    """What the search detects at places inside the window, where the model works.

    At a place p the search takes p for M and sees [warm_up, p) as its window and positions up to M beyond, fewer if
    fewer were captured beyond M. That is less than it sees at M, so each place has a partner `matched`: M with as many
    positions before and beyond. Places are spread evenly from 2 `sustained` behind warm_up to 2 `sustained` before M,
    both no less than the search needs.

    Args:
        hidden: Hidden states (method, [prompt,] layer, position, dim).
        trained_length: M, tokens.
        rule: Of the search.
        reference: The method that dims are chosen on; default 'origin'.
        count: The most places; default 16.
        top: Dims that an onset is the median of; default 10.
        least: Fewer evaluated dims give no onset; default 5.

    Returns:
        A Dataset, by `place`, and by prompt if there are several:

        - `first`, `last`, `matched_first`, `matched_last`: positions seen
        - `qualified`, `matched`: threshold dims, (layer, dim) pairs, at the place, and at M; of the attribute
          `searched`
        - `detected` (method): the onset that `threshold_onsets` gives there; NaN: none. Every one is false, since it
          lies inside the window. The reference's says that dims qualify, and no more: they are chosen on it

    Raises:
        Refused: Nowhere the positions that it needs were captured.

    Examples:
        >>> run = probe.open_run("runs/example")
        >>> hidden = probe.hook_values(run).sel(prompt="repeated")
        >>> control = probe.negative_control(hidden, 256, probe.CrossingRule.scaled(256), count=4)
        >>> control["place"].values.tolist(), control["qualified"].values.tolist(), control["matched"].values.tolist()
        ([96, 139, 181, 224], [41, 1, 0, 0], [190, 38, 21, 4])
    """
    pairs = _pairs(hidden["position"].values, trained_length, rule, count)
    places, partners = zip(*pairs, strict=True)
    searched = searches(hidden, [], rule, reference, likely=places, counted=partners)
    return _control(hidden, trained_length, reference, pairs, searched, top, least)


def search_and_control(
    hidden: xr.DataArray, trained_length: int, rule: CrossingRule, reference: str
) -> tuple[xr.Dataset, xr.Dataset | str]:
    """`search` and `negative_control`, or why that cannot be made, in one reading of `hidden`."""
    position = hidden["position"].values
    try:
        pairs = _pairs(position, trained_length, rule, PLACES)
    except Refused as error:
        return search(hidden, trained_length, rule, reference), str(error)
    window = full_window(position, trained_length, rule)
    places, partners = zip(*pairs, strict=True)
    crossings, *searched = searches(hidden, [window], rule, reference, likely=places, counted=partners)
    return crossings, _control(hidden, trained_length, reference, pairs, searched, TOP, MIN_EVALUATED_DIMS)


def _control(
    hidden: xr.DataArray,
    trained_length: int,
    reference: str,
    pairs: Sequence[tuple[SearchWindow, SearchWindow]],
    searched: Sequence[xr.Dataset],
    top: int,
    least: int,
) -> xr.Dataset:
    """`negative_control`, from the searches at the places and at their partners."""
    windows, partners = zip(*pairs, strict=True)
    several = ["prompt"] if "prompt" in hidden.dims else []
    variables: dict[str, tuple] = {}
    for name, part in (("qualified", searched[: len(pairs)]), ("matched", searched[len(pairs) :])):
        variables[name] = (["place", *several], np.stack([at["qualified"].values for at in part]))
    lengths = np.array([_lengths(at, top, least) for at in searched[: len(pairs)]])
    lengths = lengths.reshape(*variables["qualified"][1].shape, -1)
    variables["detected"] = (["place", *several, "method"], lengths, {"units": "position"})
    for prefix, part in (("", windows), ("matched_", partners)):
        variables[f"{prefix}first"] = ("place", [window.first for window in part])
        variables[f"{prefix}last"] = ("place", [window.last for window in part])
    return xr.Dataset(
        variables,
        {"place": [window.at for window in windows], **{name: hidden[name].values for name in ("method", *several)}},
        {
            "trained_length": trained_length,
            "reference": reference,
            "searched": searched[0].attrs["searched"],
            "top": top,
            "least": min(top, least),
        },
    )


def false_onsets(control: xr.Dataset) -> xr.DataArray:
    """By method, the share of the places with an onset, which is false: it lies inside the window."""
    return control["detected"].notnull().mean("place")


def as_many(control: xr.Dataset) -> xr.DataArray:
    """The share of the places at which pairs qualify, no fewer than at M with as many positions."""
    qualified = control["qualified"]
    return ((qualified > 0) & (qualified >= control["matched"])).mean("place")


def _pairs(
    position: np.ndarray, trained: int, rule: CrossingRule, count: int
) -> list[tuple[SearchWindow, SearchWindow]]:
    """Of `count` places inside the window, those that can be searched, with their partners at M; Refused if none."""
    margin = max(8, rule.smoothing, 2 * rule.sustained)
    low, high = rule.warm_up + margin, trained - margin
    if low > high:
        raise Refused(
            f"places inside the window lie {margin} positions behind the {rule.warm_up} left out at the start "
            f"and as many before {trained}; there is no room"
        )
    pairs, reason = [], ""
    for at in np.unique(np.linspace(low, high, count).round().astype(int)).tolist():
        before, beyond = at - rule.warm_up, min(trained - at, int(position[-1]) - trained)
        pair = (SearchWindow(at, rule.warm_up, at + beyond), SearchWindow(trained, trained - before, trained + beyond))
        try:
            for window in pair:
                layout_of(position, window, rule)
        except Refused as error:
            reason = reason or str(error)
        else:
            pairs.append(pair)
    if not pairs:
        raise Refused(reason)
    return pairs


def _lengths(searched: xr.Dataset, top: int, least: int) -> list[list[float]]:
    """The onsets by prompt, one without any, and by method."""
    prompts = searched["prompt"].values.tolist() if "prompt" in searched.dims else [None]
    by_prompt = [searched if name is None else searched.sel(prompt=name) for name in prompts]
    return [[np.nan if p.length is None else p.length for p in threshold_onsets(at, top, least)] for at in by_prompt]


# Where a method's layers begin to drift, with an interval


@dataclass(frozen=True)
class DriftOnset(InWords):
    """Where a method's states begin to drift, by the rule `drift`; positions in tokens. It does not predict failure.

    length: the first run in which any layer is beyond its limit; None: none is. layer: that layer, the lowest of
        several. low, high: 95% interval of `length` over resampled dims; high: None where over 2.5% detect none.
    layers: the first run by layer, of those in which drift is detected. before: the first run among the held-out
        positions before M in which one of these layers is beyond its limit: the drift began there; None: it did not.
    untrusted: why drift is not evaluated, by layer: false detections, a range that no state can leave, or runs beyond
        the limit that chance (heavy tails) or a random walk explains. false_positive_rate: share of (layer,
        pretended window) pairs of the others in which the same rule detects drift where the model works,
        `false_positives` of `tried`; any_false_positive_rate: share of the windows with one in any of them; None where
        none could be evaluated.
    chance: the most chance, over all layers, of so clear a drift where nothing breaks; None: none detected.
    effective_dims: how many dims of that layer move independently inside the window; None: none detected, or not known.
    evaluated: captured positions from M on that are no warm-up, where a layer is trusted, of `beyond` from M to the
        captured length; the last of them before `until`. captured: up to which length.
    reason: why nothing was evaluated; else empty. descriptive: the reference's own, on which ranges are read: it comes
        after M by construction.
    """

    method: str
    length: int | None
    low: int | None
    high: int | None
    layer: int | None
    layers: dict[int, int]
    before: int | None
    untrusted: dict[int, str]
    false_positive_rate: Annotated[float | None, formerly("false_alarms", "false_positive_rate")]
    false_positives: Annotated[int, formerly("alarms", "false_positives")]
    tried: int
    any_false_positive_rate: Annotated[float | None, formerly("any_false_alarm", "any_false_positive_rate")]
    evaluated: Annotated[int, formerly("judged", "evaluated")]
    beyond: int
    until: int
    captured: int
    reason: str
    descriptive: bool = False
    chance: float | None = None
    effective_dims: float | None = None

    def __str__(self) -> str:
        """The onset in words."""
        if self.reason:
            return f"not evaluated: {self.reason}"
        if self.length is not None:
            return f"{self.length} (descriptive)" if self.descriptive else str(self.length)
        text = f"none up to {self.captured}"
        if self.evaluated < self.beyond:
            percent = min(99, max(1, round(100 * self.evaluated / self.beyond)))
            text = f"none up to {self.until} ({percent}% of positions evaluated)"
        layers = "layers" if len(self.untrusted) > 1 else "layer"
        return f"{text}; {layers} {ranges(self.untrusted)} not evaluated" if self.untrusted else text


def ranges(numbers: Iterable[int]) -> str:
    """Numbers as text, runs of them as ranges: '1-3, 7'."""
    ordered = sorted(map(int, numbers))
    runs = [[number for _, number in run] for _, run in groupby(enumerate(ordered), lambda pair: pair[1] - pair[0])]
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def drift_onsets(drift: xr.Dataset) -> list[DriftOnset]:
    """Where states first drift, one onset a method.

    Args:
        drift: One prompt's `find_drift`.

    Returns:
        A list of `DriftOnset`: `length` in tokens (None: not detected), its 95% interval `low` to `high`, `layer`,
        `layers`, `untrusted` and false detections. It predicts no failure.

    Examples:
        >>> run = probe.open_run("runs/example")
        >>> drift = probe.find_drift(probe.hook_values(run).sel(prompt="repeated"), run.trained_length)
        >>> [(onset.method, onset.length, onset.layer) for onset in probe.drift_onsets(drift)]
        [('origin', 316, 2), ('rerope', None, None)]
    """
    return [_drift_onset(drift.sel({"method": name})) for name in drift["method"].values.tolist()]


def top_dims(drift: xr.Dataset, top: int) -> list[tuple[int, int]]:
    """Up to `top` (layer, dim) that carry most of the reference's drift, best first; of each dim its best layer only.

    Ranked by the dim's share of its layer's drift, among the layers with drift no later than a run after the first.
    """
    at = drift.sel({"method": drift.attrs["reference"]})
    first = at["first"].values
    if not np.isfinite(first).any():
        return []
    early = first <= np.nanmin(first) + drift.attrs["run"]
    share = np.where(early[:, None], at["share"].values, 0)
    layers, dims = drift["layer"].values, drift["dim"].values
    best = share.argmax(0)
    order = np.argsort(-share.max(0), kind="stable")[:top]
    return [(int(layers[best[dim]]), int(dims[dim])) for dim in order if share[best[dim], dim] > 0]


def _drift_onset(at: xr.Dataset) -> DriftOnset:
    method, layers, first, doubt = str(at["method"].item()), at["layer"].values, at["first"].values, at["doubt"].values
    trusted, doubts = doubt == "", dict(zip(layers.tolist(), doubt.tolist(), strict=True))
    detected = np.flatnonzero(np.isfinite(first))
    row = detected[first[detected].argmin()] if detected.size else None
    ends = [None if row is None else _integer(float(at[name].values[row])) for name in ("first", "low", "high")]
    length, trained_length = int(at.attrs["length"]), int(at.attrs["trained_length"])
    runs = (at["run"].values >= trained_length) & ~at["warm_up"].values
    evaluated = int(at["captured"].values[runs].sum())
    until = min(length, int(at["run"].values[runs][-1]) + int(at.attrs["run"])) if evaluated else trained_length
    effective = at["effective_dims"].values
    every_rate, any_rate = at["false_positive_rate"].values, float(at["any_false_positive_rate"])
    rates, windows, began = every_rate[trusted], at["windows"].values[trusted], at["before"].values[detected]
    began = began[np.isfinite(began)]
    untried = "" if np.isfinite(every_rate).any() else " could not be tried"
    reasons = sorted(why + untried * (why == FALSE_DETECTIONS) for why in set(doubts.values()))
    reason = "" if trusted.any() else " or ".join(reasons)
    return DriftOnset(
        method=method,
        length=ends[0],
        low=ends[1],
        high=ends[2],
        layer=None if row is None else int(layers[row]),
        layers={int(layers[number]): int(first[number]) for number in detected},
        before=int(began.min()) if began.size else None,
        untrusted={layer: why for layer, why in doubts.items() if why} if evaluated else {},
        false_positive_rate=float(np.nanmean(rates)) if np.isfinite(rates).any() else None,
        false_positives=round(float(np.nansum(rates * windows))),
        tried=int(windows.sum()),
        any_false_positive_rate=any_rate if np.isfinite(any_rate) else None,
        chance=float(at["chance"].values[detected].min()) if detected.size else None,
        effective_dims=None if row is None or np.isnan(effective[row]) else float(effective[row]),
        evaluated=evaluated if trusted.any() else 0,
        beyond=length - trained_length,
        until=until,
        captured=length,
        reason=reason if evaluated else WARM_UP,
        descriptive=method == at.attrs["reference"],
    )


def _integer(value: float) -> int | None:
    return int(value) if np.isfinite(value) else None
