"""The law of docs/law.md: excess loss from a plan's distances, and its fit to a model's own losses. No torch."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.optimize import isotonic_regression
from scipy.special import stdtrit

from mesa.methods import Method, make
from mesa.methods.gap import Gap
from mesa.plan import Plan, Stepped, query_scales, relative_positions
from probe.commands.predict.result import Estimate, FarKeyCosts, FittedLaw
from probe.statistics import shown, student
from probe.store.result_file import or_nan
from probe.thresholds.failure import lasting
from probe.thresholds.stated_window import NATS_ABOVE

POWERS = np.array([*np.arange(0, 2.05, 0.1), 2.5, 3, 4, 6, 8, 12])
"""The powers p that distances beyond M are tried with; 0 counts keys, a large one follows the largest distance."""
_GRID = 40  # lengths between M and the longest
_BLOCK = 2_000_000  # query-key pairs at a time


@dataclass(frozen=True)
class FarKeys:
    """What some queries of a prompt see beyond M.

    sums: (power, query), the sum over their keys at distances d >= M of (d - M + 1)^p, for each of `POWERS`.
    scales: (query,), the factor on the query's scores.
    """

    sums: np.ndarray
    scales: np.ndarray
    groups: tuple[int, ...] = (0,)
    """Where each group of queries begins."""

    @classmethod
    def grouped(cls, parts: Sequence[FarKeys]) -> FarKeys:
        """All of them, a group each."""
        starts = np.cumsum([0, *(len(part.scales) for part in parts[:-1])])
        sums, scales = (
            np.concatenate(arrays, axis=-1) for arrays in zip(*((p.sums, p.scales) for p in parts), strict=True)
        )
        return cls(sums, scales, tuple(starts.tolist()))

    def weighted_sums(self, power: float, scale_power: float) -> np.ndarray:
        """Z (query,): the sums at `power`, between `POWERS` in logarithms, times scale^-`scale_power`."""
        place = float(np.interp(power, POWERS, np.arange(len(POWERS))))
        low, share = int(place), place - int(place)
        high = min(low + 1, len(POWERS) - 1)
        with np.errstate(divide="ignore"):  # the log of no far key is -inf, which gives 0 again
            logs = np.log(self.sums[[low, high]])
        sums = np.exp((1 - share) * logs[0] + share * logs[1]) if share else self.sums[low]
        return sums * self.scales**-scale_power

    def mean(self, values: np.ndarray) -> np.ndarray:
        """Of each group; values: (query,)."""
        return np.add.reduceat(values, self.groups) / np.diff([*self.groups, len(values)])


def far_keys(plan: Plan, queries: Sequence[int] | np.ndarray, trained_length: int) -> FarKeys:
    """The far keys of these queries under a plan; trained_length: M, in tokens."""
    queries = np.asarray(queries)
    step = max(1, _BLOCK // plan.length)
    sums = np.zeros((len(POWERS), len(queries)))
    for begin in range(0, len(queries), step):
        part = queries[begin : begin + step]
        distances = relative_positions(plan, part, np.arange(part.max() + 1))
        rows, columns = np.nonzero(distances >= trained_length)
        logs = np.log(distances[rows, columns] - trained_length + 1)
        values = np.ones(len(rows))
        for number, step_up in enumerate(np.diff(POWERS, prepend=0.0)):
            values = values * np.exp(step_up * logs) if step_up else values
            sums[number, begin : begin + step] = np.bincount(rows, values, minlength=len(part))
    return FarKeys(sums, query_scales(plan)[queries])


@dataclass(frozen=True)
class Law:
    """The excess loss at a query, by the far keys that it sees.

    trained_length: M, in tokens. excess: (position,), Origin's loss (nats/token) less that of a method that holds, at
    positions M - 1, M, ..., not falling. power: p. scale_power: q, what a factor on the query takes away.
    """

    trained_length: int
    excess: np.ndarray
    power: float
    scale_power: float = 0.0

    def at(self, far: FarKeys, factor: float = 1.0) -> np.ndarray:
        """The mean excess loss (nats/token) of each group of queries, whose Z is taken times `factor`.

        A query's is that of Origin where Z is the same, and at most the curve's last.
        """
        sums = far.weighted_sums(self.power, self.scale_power) * factor
        return far.mean(np.interp(sums, self._origin(), self.excess))

    def is_beyond(self, far: FarKeys) -> bool:
        """Whether a query has a larger Z than Origin at the longest length, of which the curve says nothing."""
        return bool((far.weighted_sums(self.power, self.scale_power) > 1.01 * self._origin()[-1]).any())

    def _origin(self) -> np.ndarray:
        """Z of Origin at the curve's positions."""
        return np.concatenate([[0], np.cumsum(np.arange(1.0, len(self.excess)) ** self.power)])


def excess_curve(differences: np.ndarray, trained_length: int) -> np.ndarray:
    """The non-decreasing curve (positions from M - 1 on) closest to loss differences (position,) by squares; from 0."""
    return np.concatenate([[0.0], np.maximum(isotonic_regression(differences[trained_length:]).x, 0.0)])


def stored_law(law: FittedLaw, trained_length: int) -> Law:
    """The law that a prediction.json holds."""
    position = law.excess.position
    curve = np.interp(np.arange(trained_length - 1, position[-1] + 1), position, law.excess.value)
    return Law(trained_length, curve, law.power.value, law.scale_power.value if law.scale_power else 0.0)


def scored_queries(length: int, trained_length: int, count: int) -> np.ndarray:
    """Queries spread over those that predict the last M/4 tokens of a prompt of `length` tokens."""
    last = min(length, trained_length) // 4
    return np.unique(np.linspace(length - last - 1, length - 2, count).round().astype(int))


def far_keys_by_length(method: Method, lengths: Sequence[int], count: int) -> FarKeys:
    """The far keys of `count` scored queries of a prompt of each length, a group each."""
    trained = method.trained_length
    return FarKeys.grouped(
        [far_keys(method.plan(length), scored_queries(length, trained, count), trained) for length in lengths]
    )


def failure_length(lengths: Sequence[int], excess: np.ndarray) -> int | None:
    """The first length from which on the excess is `NATS_ABOVE` or more at every one; None: not at the longest."""
    return lasting(~(np.asarray(excess) < NATS_ABOVE), np.asarray(lengths))


def length_grid(lengths: Sequence[int], trained_length: int) -> list[int]:
    """These lengths, M, and others between it and the longest, spaced by equal factors."""
    between = np.geomspace(trained_length, max(lengths), _GRID).round().astype(int).tolist()
    return sorted({*lengths, *between})


ORIGIN, REFERENCE, LOG_N = "origin", "lm-infinite", "origin.log_n"
"""The passes by position: Origin, the method that holds, and Origin with log n."""
SCALE_POWERS = np.arange(0, 6.05, 0.1)
QUERIES = 16
"""Of a scored stretch, so many queries stand for all."""
_SPANS = 12  # of Origin with log n

PassAt = tuple[str, int]
"""A pass: the name of its method, and its tokens."""
Losses = Mapping[PassAt, np.ndarray]
"""Of each pass, NLL (text, token), the last tokens of the prompt."""


def gap_methods(trained_length: int, tokens: int, longest: int) -> dict[str, Method]:
    """The calibration's methods by name, for prompts of `tokens` tokens: without a gap, with gaps, and masked.

    A gap's distances are among those of Origin at `longest` tokens: of larger ones the curve says nothing.
    """
    sizes = [trained_length // 2, *(trained_length * times for times in (1, 2, 4, 7))]
    sizes = [size for size in sizes if size <= longest - tokens]
    methods: dict[str, Method] = {gap_name(): make("origin", trained_length)}
    for boundary in (tokens // 8, tokens // 4, tokens // 2):
        methods[gap_name(boundary)] = make("gap", trained_length, boundary=boundary, gap=0, masked=True)
        for size in sizes:
            methods[gap_name(boundary, size)] = make("gap", trained_length, boundary=boundary, gap=size)
    return methods


def gap_name(boundary: int | None = None, size: int | None = None) -> str:
    """What a calibration pass is called."""
    return "no gap" if boundary is None else f"masked {boundary}" if size is None else f"gap {boundary} {size}"


def window_means(losses: np.ndarray, prompt: int, length: int, trained_length: int) -> np.ndarray:
    """Mean NLL (text,) of the M/4 tokens before `length`; losses (text, token): the last tokens of `prompt` tokens."""
    end = losses.shape[1] - (prompt - length)
    return losses[:, end - min(length, trained_length) // 4 : end].mean(1)


@dataclass(frozen=True)
class Calibration:
    """Losses of the calibration, and the far keys of its passes. tokens: of a gap's prompt; longest: of the curve's.

    gaps: (boundary, size) of each, in tokens.
    """

    trained_length: int
    tokens: int
    longest: int
    losses: Losses
    gaps: tuple[tuple[int, int], ...]
    gap_keys: FarKeys
    log_n_keys: FarKeys
    log_n_spans: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, trained_length: int, tokens: int, longest: int, losses: Losses) -> Calibration:
        """From the losses of every pass."""
        passes = gap_methods(trained_length, tokens, longest).values()
        methods = [method for method in passes if isinstance(method, Gap) and not method.masked]
        queries = scored_queries(tokens, tokens, QUERIES)
        gap_keys = [far_keys(method.plan(tokens), queries, trained_length) for method in methods]
        plan = make(ORIGIN, trained_length, log_n=True).plan(longest)
        ends = np.unique(np.geomspace(trained_length, longest - 1, _SPANS + 1).astype(int)).tolist()
        spans = tuple(itertools.pairwise(ends))
        log_n = [far_keys(plan, np.unique(np.linspace(*span, QUERIES).astype(int)), trained_length) for span in spans]
        return cls(
            trained_length,
            tokens,
            longest,
            losses,
            tuple((method.boundary, method.gap) for method in methods),
            FarKeys.grouped(gap_keys),
            FarKeys.grouped(log_n),
            spans,
        )

    @property
    def texts(self) -> int:
        """How many."""
        return len(self.losses[ORIGIN, self.longest])

    @property
    def has_log_n(self) -> bool:
        """Whether Origin was measured with log n, as it is where a method puts a factor on queries."""
        return (LOG_N, self.longest) in self.losses

    def differences(self) -> np.ndarray:
        """Origin's loss less the reference's (text, position)."""
        return self.losses[ORIGIN, self.longest] - self.losses[REFERENCE, self.longest]

    def law(self, weights: np.ndarray) -> Law:
        """The law that fits the texts best, each counted as `weights` (text,) says."""
        curve = excess_curve(_mean(self.differences(), weights), self.trained_length)
        raw, controlled = self.fit_powers(curve, weights)
        return self.fit_scale_power(Law(self.trained_length, curve, (raw + controlled) / 2), weights)

    def fit_powers(self, curve: np.ndarray, weights: np.ndarray) -> tuple[float, float]:
        """The powers that fit the gaps' loss best: over no gap, and over the same keys masked."""
        costs, squares = self.costs(weights), np.zeros((2, len(POWERS)))
        for number, power in enumerate(POWERS):
            law = Law(self.trained_length, curve, float(power))
            squares[:, number] = ((law.at(self.gap_keys) - costs) ** 2).sum(1)
        raw, controlled = POWERS[squares.argmin(1)]
        return float(raw), float(controlled)

    def costs(self, weights: np.ndarray | None = None) -> np.ndarray:
        """The mean loss (control, gap) under each gap, over no gap and over masking."""
        return np.array(
            [[_mean(self.gap_cost(gap, masked=masked), weights) for gap in self.gaps] for masked in (False, True)]
        )

    def gap_cost(self, gap: tuple[int, int], *, masked: bool) -> np.ndarray:
        """The loss under a gap (text,) less that without one, or with the same keys masked."""
        other = gap_name(gap[0]) if masked else gap_name()
        gapped, control = (
            window_means(self.losses[name, self.tokens], self.tokens, self.tokens, self.tokens)
            for name in (gap_name(*gap), other)
        )
        return gapped - control

    def fit_scale_power(self, law: Law, weights: np.ndarray) -> Law:
        """The law with the `scale_power` that fits Origin with log n best; as it is where that was not run."""
        if not self.has_log_n:
            return law
        measured = _mean(self.losses[LOG_N, self.longest] - self.losses[REFERENCE, self.longest], weights)
        means = np.array([measured[begin:end].mean() for begin, end in self.log_n_spans])

        def squares(power: float) -> float:
            return float(((replace(law, scale_power=power).at(self.log_n_keys) - means) ** 2).sum())

        return replace(law, scale_power=float(min(SCALE_POWERS, key=squares)))

    def gap_rms(self, law: Law) -> float:
        """The root mean square (nats/token) of the law less the loss of the gaps, by either control."""
        return float(np.sqrt(((law.at(self.gap_keys) - self.costs()) ** 2).mean()))

    def needed_factors(self, law: Law) -> np.ndarray:
        """The factors on Z, from 1/16 to 16, with which the law would have the loss of each gap, by either control."""
        factors = np.geomspace(1 / 16, 16, 81)
        predicted = np.array([law.at(self.gap_keys, factor) for factor in factors])
        seen = self.gap_keys.mean(self.gap_keys.sums[0]) > 0
        least = 1e-9 * abs(np.log(factors))[:, None]  # of equal ones the factor closest to 1
        return np.concatenate([factors[(abs(predicted - cost) + least).argmin(0)][seen] for cost in self.costs()])

    def refusal(self) -> str:
        """Why nothing can be predicted from these losses; empty where something can.

        Intervals are Student's, over the quarters of what is scored of each text; 95%, of all gaps together.
        """
        end, last = self.longest - 1, self.trained_length // 4
        half = self.tokens // 2
        broken = quarters(self.losses[gap_name(), self.tokens] - self.losses[gap_name(half), self.tokens])
        if broken.mean() >= NATS_ABOVE / 2 and _is_above_zero(broken):
            return (
                f"{ORIGIN} already fails inside M = {self.trained_length}: without the first {half} of "
                f"{self.tokens} tokens it does better ({_shown(broken)}; {self.texts} texts); check --trained-length"
            )
        excess = quarters(self.differences()[:, end - last : end])
        if not _is_above_zero(excess):
            return (
                f"Origin is not clearly worse than {REFERENCE} at {self.longest} tokens ({_shown(excess)}; "
                f"{self.texts} texts), so there is no failure to predict up to there"
            )
        beyond = sorted({size for _, size in self.gaps if self.tokens - 1 + size >= self.trained_length})
        harms = {size: self._gap_harm(size) for size in beyond}
        confidence = 1 - 0.05 / len(harms)  # Bonferroni's: each size is a look
        if not any(_is_above_zero(harm, confidence) for harm in harms.values()):
            highs = [student(harm.tolist(), confidence)[1] for harm in harms.values()]
            more = any(high is None or high > 0 for high in highs)
            worst = max(harms, key=lambda size: harms[size].mean())
            return (
                f"no gap of {min(harms)} to {max(harms)} tokens clearly costs more than masking the same keys (most: "
                f"{_shown(harms[worst], confidence)}, {worst} tokens; {self.texts} texts): no effect of distances "
                f"beyond M is seen{'; longer --lengths or more --samples may show one' if more else ''}"
            )
        return ""

    def _gap_harm(self, size: int) -> np.ndarray:
        """The loss under gaps less that with the same keys masked, mean of the two smaller boundaries, by quarter."""
        boundaries = sorted({boundary for boundary, _ in self.gaps})[:2]
        harms = [
            self.losses[gap_name(boundary, size), self.tokens] - self.losses[gap_name(boundary), self.tokens]
            for boundary in boundaries
        ]
        return quarters(np.mean(harms, axis=0))


def resampled(texts: int, draws: int, seed: int = 0) -> Sequence[np.ndarray]:
    """Weights of texts: first all the same, then of `draws` draws with replacement.

    So many that a mean's 95% interval is as wide as Student's, from four texts on; of fewer texts it is narrower.
    """
    rng = np.random.default_rng(seed)
    drawn = max(1, round((texts - 1) * (1.96 / stdtrit(max(1, texts - 1), 0.975)) ** 2))
    return [np.ones(texts), *(rng.multinomial(drawn, np.full(texts, 1 / texts)).astype(float) for _ in range(draws))]


def quarters(losses: np.ndarray) -> np.ndarray:
    """Means of the quarters of each text's tokens; losses: (text, token)."""
    return np.array([part.mean(1) for part in np.array_split(losses, 4, axis=1)]).ravel()


def _is_above_zero(values: np.ndarray, confidence: float = 0.95) -> bool:
    low = student(values.tolist(), confidence)[0]
    return low is not None and low > 0


def _shown(values: np.ndarray, confidence: float = 0.95) -> str:
    return f"{shown(float(values.mean()), *student(values.tolist(), confidence), '+z.2f')} nats/token"


def _mean(values: np.ndarray, weights: np.ndarray | None) -> np.ndarray:
    return np.average(values, axis=0, weights=weights)


ONE, HALF = "one key moved", "half moved"
"""The passes: one ordinary key of the prompt's first half is moved, or all of them but the first token."""


@dataclass(frozen=True)
class Among:
    """Whether a pair is moved (or not): a query in the second half of the prompt, a chosen key of the first half.

    count: keys, spread evenly over the first half. first: the first token is one of them, else it never is.
    """

    half: int
    count: int
    first: bool
    moved: bool

    def __call__(self, query: Any, key: Any) -> Any:
        """For pairs, elementwise for arrays."""
        step = self.half // self.count
        skipped = step // 2 if self.first else 0
        chosen = (key < self.half) & (key % step == step // 2) & ((key != skipped) | (step == 1 and self.first))
        chosen = (chosen | (key == 0)) if self.first else chosen
        return (chosen & (query >= self.half)) == self.moved


@dataclass(frozen=True, kw_only=True)
class Moved(Method):
    """The chosen keys are `gap` tokens further from the second half of the prompt; below 0: they are not seen there."""

    name = "moved"
    formula = "R = r, r + G to some keys"
    source = "docs/law.md"
    experimental = True
    half: int
    count: int
    first: bool = False
    gap: int

    def plan(self, length: int, prompt_length: int | None = None) -> Plan:
        """Two regions: what stays, and what is moved."""
        stays, moves = (Among(self.half, self.count, self.first, moved) for moved in (False, True))
        regions = [self._causal(length, holds=stays)]
        if self.gap >= 0:
            regions.append(self._causal(length, query_position=Stepped(1, offset=self.gap), holds=moves))
        return Plan(length, tuple(regions))


def moved_methods(trained_length: int, tokens: int, longest: int) -> dict[str, Method]:
    """The passes' methods by name: on `tokens` tokens, as far as Origin's distances at `longest` tokens go."""
    half = tokens // 2
    return {
        name: Moved(trained_length=trained_length, half=half, count=count, gap=longest - tokens)
        for name, count in ((ONE, 1), (HALF, half))
    }


def kind_of(losses: Losses, trained_length: int, tokens: int, longest: int) -> FarKeyCosts | None:
    """What one far key costs and what all do; None where that was not measured."""
    keys: list[PassAt] = [(name, tokens) for name in (gap_name(), ONE, HALF)]
    if any(key not in losses for key in keys):
        return None
    base, one, half = (quarters(losses[key]) for key in keys)
    low, high = student((one - base - (half - base) / 2).tolist())
    harm = student((half - base).tolist())[0]
    clear = harm is not None and harm > 0 and low is not None and high is not None and not low <= 0 <= high
    distance = (longest - tokens + 5 * tokens / 8) / trained_length  # from the middle of what is scored
    few = low is not None and low > 0 if clear else None
    costs = student_estimate(one - base), student_estimate(half - base)
    return FarKeyCosts(few, round(distance, 2), costs[0], tokens // 2 - 1, costs[1])


def kind_sentence(kind: FarKeyCosts | None, fails: int | None) -> str:
    """Which kind, what that rests on, and when failure begins; empty where not measured. fails: Origin, in tokens."""
    if kind is None:
        return ""
    one, both = (shown(cost.value, *cost.ends, "+z.2f") for cost in (kind.one_key, kind.all_keys))
    costs = f"one ordinary key moved to {kind.distance:z.1f}x M costs {one} nats/token, {kind.keys} keys {both}."
    if kind.few is None:
        return f"Whether a few far keys are enough on this model cannot be told: {costs}"
    if kind.few:
        begins = "" if fails is None else f"; failure begins about when the largest distance passes {fails}"
        return f"On this model a few far keys are enough{begins}: {costs} For few far keys too little is predicted."
    begins = "" if fails is None else f"; failure begins when as many are as far as in origin at {fails} tokens"
    return f"On this model far keys add up{begins}: {costs}"


def student_estimate(values: np.ndarray) -> Estimate:
    """The mean with Student's interval."""
    low, high = student(values.tolist())
    return Estimate(float(values.mean()), (or_nan(low), or_nan(high)))
