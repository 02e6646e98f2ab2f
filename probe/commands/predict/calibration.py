"""What a model's own losses say of the law: Origin's excess, the power of distance, the effect of a query's factor."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.special import stdtrit

from mesa.methods import Method, make
from mesa.methods.gap import Gap
from probe.commands.predict.formula import POWERS, FarKeys, Law, excess_curve, far_keys, scored_queries
from probe.statistics import shown, student
from probe.thresholds.stated_window import NATS_ABOVE

ORIGIN, REFERENCE, LOG_N = "origin", "lm-infinite", "origin.log_n"
"""The passes by position: Origin, the method that holds, and Origin with log n."""
SCALE_POWERS = np.arange(0, 6.05, 0.1)
QUERIES = 16
"""Of a scored stretch, so many queries stand for all."""
_SPANS = 12  # of Origin with log n

Key = tuple[str, int]
"""A pass: the name of its method, and its tokens."""
Losses = Mapping[Key, np.ndarray]
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
