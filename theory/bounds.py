"""Closed forms of the theorems: how far a remapped construction reaches. Numbers and numpy arrays, no torch.

Positions t count from 1, with <bos> at t = 1. M is the window, N the remap's window, E the stair's width (None: the
remap of theorem 3.3), H the threshold, all of the paper; `slope` is the additive encoding's m in q.k - m * W(t - i)
(the paper's is 1). The head output of every theorem is o_t = M / D(t) - 1 + H, so o_t > H exactly where D(t) < M.
"""

import math
from itertools import accumulate
from numbers import Integral, Real
from typing import Any

import numpy as np

from mesa.errors import Refused
from theory.recovery import rounded
from theory.weave import rerope, stair

_BLOCK = 2**16  # positions that are looked at together
_WIDEST = 10**5  # of stairs, whose lines are computed one by one


def check_sizes(N: int, E: int | None = None, slope: float = 1.0) -> None:
    """Raises Refused, naming the value and the remedy, for an N or E that is no size in tokens, or such a slope."""
    _check_integers(N=N, E=E)
    for name, size in (("N", N), ("E", E)):
        if size is not None and size < 1:
            raise Refused(f"{name}={size} is below 1; take {name} >= 1")
    if E is not None and E > _WIDEST:
        raise Refused(f"E={E} exceeds {_WIDEST}; take E <= {_WIDEST}")
    if not (isinstance(slope, Real) and 0 <= slope < math.inf):
        raise Refused(f"slope={slope} is not a finite number from 0 on; take 1, the paper's")


def _check_integers(**sizes: int | None) -> None:
    """Raises Refused for a size that is not an integer."""
    for name, size in sizes.items():
        if size is not None and not isinstance(size, Integral):
            raise Refused(f"{name}={size} is not an integer; take a number of tokens")


def check_window(M: int, N: int, E: int | None = None, slope: float = 1.0) -> None:
    """Raises Refused, naming the value and the remedy, where the theorems' conditions do not hold.

    Theorem 3.3 holds for 1 <= N <= M - 1 and M >= 3; the corollary for N <= M - 2 and E >= 2 (E = 1 is the plain
    encoding). The paper asks for N << M only.
    """
    _check_integers(M=M, N=N, E=E)
    if M < 3:
        raise Refused(f"M={M} is below 3: the remap has nothing to extend; take M >= 3")
    if N < 1:
        raise Refused(f"N={N} is below 1; take 1 <= N <= {M - 1}")
    if N >= M:
        raise Refused(f"N={N} is not below M={M}; take N <= {M - 1}")
    if E is not None and E < 2:
        raise Refused(f"E={E} is below 2: a stair of width 1 is the plain encoding; take E >= 2")
    if E is not None and N > M - 2:
        raise Refused(f"N={N} leaves Stair PE no room below M={M}; take N <= {M - 2}")
    check_sizes(N, E, slope)


def partial_sum(terms: Any, slope: float = 1.0) -> Any:
    """S(n) = sum of e^(-slope * j) over j < n: the normaliser of a plain encoding's attention (paper eq. 16)."""
    return np.expm1(-slope * np.asarray(terms)) / math.expm1(-slope) if slope else np.asarray(terms)


def bos_denominator(positions: Any) -> Any:
    """A_t = sum of e^j over j < t: layer 1 of theorem 3.2 gives <bos> the attention x_t = 1 / A_t."""
    return np.expm1(np.asarray(positions)) / math.expm1(1)


def last_recovered(N: int) -> int:
    """The last t whose remapped position comes out as exactly N + 1: 10, 24, 60 for N = 2, 3, 4.

    The MLP's step from N + 1 to N + 2 begins at c = sqrt(x_(N+1) x_(N+2)), so 1 / x_t must not exceed
    sqrt(A_(N+1) A_(N+2)). The paper (theorem 3.3) lets it be N + 1 for ever; later it grows like ln t.
    """
    nearest, following = float(bos_denominator(N + 1)), float(bos_denominator(N + 2))
    return math.floor(N + 1 + math.sqrt(nearest) * math.sqrt(following) - nearest)


def stair_is_recovered(N: int, E: int) -> bool:
    """Whether the recovered position is W(t - 1) + 1 at every t under Stair PE: E - 1 <= (sqrt(e) - 1) e^(N + 1).

    Each stair beyond N holds E keys instead of one, which adds (E - 1) e^-(N+1) of A to the denominator A of position
    W(t - 1) + 1; the MLP's next step begins where that reaches sqrt(e) - 1.
    """
    return (math.sqrt(math.e) - 1) * math.exp(N + 1) >= E - 1


def ideal_position(positions: Any, N: int, E: int | None = None) -> Any:
    """The position that layer 1 recovers at t where it rounds ideally: W(t - 1) + 1.

    The paper prints W(t) for the stair (I_t in the corollary's proof), which is off by one.
    """
    distance = np.asarray(positions) - 1
    return (rerope(distance, N) if E is None else stair(distance, N, E)) + 1


def denominator(positions: Any, N: int, E: int | None = None, slope: float = 1.0) -> Any:
    """D(t) = 1 / (attention on `<bos>` in layer 2) in closed form, where positions are recovered ideally.

    Each key i adds e^(slope * (W(t-1) - W(i-1) - W(t-i))). Without a stair the keys fall in three groups: D = t for t
    <= N; S(t-N) + (2N+1-t) e^-(t-N-1) + S(t-N-1) for N < t <= 2N; 2 S(N) + (t-2N) e^-N beyond. With one: a
    recurrence up to t = 2N, a line for each phase beyond.

    Args:
        positions: t, one or an array, from 1 (`<bos>`) on.
        N: The window, in tokens.
        E: The width of a stair's step, in tokens, at most 100000; default None, theorem 3.3.
        slope: m of the additive encoding q.k - m W(t - i); default 1, the paper's.

    Returns:
        D, float64, in the shape of `positions`.

    Raises:
        Refused: A position, N, E or the slope is out of range.

    Examples:
        >>> theory.denominator([4, 5, 40], N=4).round(2).tolist()
        [4.0, 5.0, 3.69]
    """
    check_sizes(N, E, slope)
    t = np.asarray(positions)
    wrong = ~((t >= 1) & (t < math.inf))
    if np.any(wrong):
        raise Refused(f"position {t[wrong][0]} is below 1 or not finite: positions count from <bos> at 1")
    if E is not None:
        return _stair_denominator(np.asarray(t // 1), N, E, slope)
    middle = np.clip(t, N + 1, 2 * N)
    between = partial_sum(middle - N, slope) + partial_sum(middle - N - 1, slope)
    between = between + (2 * N + 1 - middle) * np.exp(-slope * (middle - N - 1))
    beyond = 2 * partial_sum(N, slope) + (t - 2 * N) * np.exp(-slope * N)
    return np.where(t <= N, t, np.where(t <= 2 * N, between, beyond)).astype(float)


def _stair_denominator(t: np.ndarray, N: int, E: int, slope: float) -> np.ndarray:
    """D(t) of Stair PE.

    For N < t <= 2N write n = t - 1 - N. The first n keys add B_n together, and so do the last n; each of the 2N + 2 - t
    between, whose distances are both at most N, adds e^(ceil(n / E) - n). B_0 = 0; B_n = 1 + B_(n-1) where a step
    begins, n mod E = 1, and 1 + e^-1 B_(n-1) elsewhere.
    """
    D = t.astype(float)
    early, beyond = (t > N) & (t <= 2 * N), t > 2 * N
    if early.any():
        factors = np.where(np.arange(1, N) % E == 1 % E, 1.0, math.exp(-slope))
        B = np.array([*accumulate(factors, lambda total, factor: 1 + factor * total, initial=0.0)])
        n = t[early].astype(int) - 1 - N
        D[early] = (N + 1 - n) * np.exp(slope * (-(-n // E) - n)) + 2 * B[n]
    phases, at = np.unique((2 * N + 1 + E - t[beyond] % E) % E, return_inverse=True)
    lines = np.array([_stair_line(N, E, phase, slope) for phase in phases.tolist()]).reshape(-1, 2)
    D[beyond] = lines[at, 0] + lines[at, 1] * t[beyond]
    return D


def _stair_line(N: int, E: int, phase: int, slope: float) -> tuple[float, float]:
    """(constant, rise): D(t) = constant + rise * t at the t > 2N whose phase (2N + 1 - t) mod E is `phase`.

    Write m = t - 1 - 2N, g = phase, N = kE + s with 0 <= s < E. The N nearest and the N first keys add
    e^(-u + floor((u + (g - s) mod E) / E)) for u < N, each. The m + 1 keys between add e^(k - N + c) where the
    distances' residues do not carry, and e^(k - N + c - 1) where they do, with c = 1 if g < s else 0. With m = qE - g,
    1 + q(g + 1) - g of them do not carry and q(E - 1 - g) do.
    """
    steps, rest = divmod(N, E)
    u = np.arange(N)
    ends = 2 * float(np.exp(slope * (-u + (u + (phase - rest) % E) // E)).sum())
    high = math.exp(slope * (steps - N + (phase < rest)))
    low = high * math.exp(-slope)
    rise = (high * (phase + 1) + low * (E - 1 - phase)) / E  # q = (t - 1 - 2N + g) / E
    constant = ends + high * (1 - phase) + rise * (phase - 1 - 2 * N)
    return constant, rise


def _line_reach(M: int, N: int, E: int, phase: int, slope: float) -> float:
    """Where the line of one phase reaches M, but not before its first t > M, 2N: there is none of it before."""
    constant, rise = _stair_line(N, E, phase, slope)
    first = max(M, 2 * N) + 1
    return max((M - constant) / rise, float(first + (2 * N + 1 - first - phase) % E))


def extended_length(M: int, N: int, E: int | None = None, slope: float = 1.0) -> float:
    """T*: the length that remapping extends M to; o_t > H for M < t < T* (theorem 3.3, corollary).

    Theorem 3.3. D(t) = 2 S(N) + (t - 2N) e^-N grows by e^-N a token, so it reaches M at T* = 2N + e^N (M - 2 S(N)), and
    o_t < H for every t > T*: the window is extended by a factor of about e^N, not for ever as the paper has it.
    Positions are taken as recovered ideally; the real MLP recovers larger ones later, which lowers D, so it reaches at
    least as far.

    Corollary. D is one line for each phase of t within a step; T* is where the first of them reaches M. Where E divides
    N that is T* = 2N + e^(N (1 - 1/E)) (M - 2 S_E), 2 S_E = 6.33, 5.48, 5.20, 5.16 for E = 2, 3, 5, 50 and large N. The
    first failing position lies in T* <= t < T* + E (so T* says little for E > T*, and `first_failure` tells t); D
    oscillates, so some later positions succeed again.

    Args:
        M: The trained length, in tokens, at least 3.
        N: The window, in tokens, 1 to M - 1.
        E: The width of a stair's step, in tokens, 2 to 100000; default None, theorem 3.3.
        slope: m of the additive encoding; default 1. Far below 1, T* may come before t = 2N: then it is the first
            failing t.

    Returns:
        T* in tokens, real; infinity where e^N is beyond float64.

    Raises:
        Refused: The theorems' conditions on M, N and E do not hold, or the slope is below 0 or not finite.

    Examples:
        >>> round(theory.extended_length(M=4, N=2), 2), round(theory.extended_length(M=16, N=4, E=2), 2)
        (13.34, 85.8)
    """
    check_window(M, N, E, slope)
    early = np.arange(M + 1, 2 * N + 1)
    failing = early[denominator(early, N, E, slope) >= M]
    if failing.size:
        return float(failing[0])
    try:
        if E is None:
            return float(2 * N + math.exp(slope * N) * float(M - 2 * partial_sum(N, slope)))
        return min(_line_reach(M, N, E, phase, slope) for phase in range(E))
    except (OverflowError, ZeroDivisionError):
        return math.inf


def step_failure(M: int, N: int, K: int | None = None, b: float = 16.0, longest: int = 2 * 10**7) -> int | None:
    """The first t > M where o_t > H fails under the remap with the step MLP's own rounding; None up to `longest`.

    K: the positions that the MLP tells apart (default: all there are). b: how sharp its steps are (theory.recovery).
    D(t) = sum over keys i of e^(1 - p_i + W(t-1) - W(t-i)): p_i is k while 1 / x_i lies between sqrt(A_(k-1) A_k) and
    sqrt(A_k A_(k+1)), for e^(1/2) - e^(-1/2) times A_k tokens, which add e^(1/2) together. So D grows like
    e^(1/2) ln t, and the window is extended to about e^(M / sqrt(e)), e^(.607 M), where K does not end it before.
    Raises Refused for what `check_window` refuses.
    """
    check_window(M, N)
    if (K is None or K > N) and extended_length(M, N) > longest:  # by ideal recovery, which fails first
        return None
    far, near, begin = 0.0, np.zeros(N), 1  # sums of e^(1 - p) over keys beyond N, and of the last N keys one by one
    while begin <= longest:
        t = np.arange(begin, min(begin + _BLOCK, longest + 1))
        log_a = np.log(bos_denominator(np.minimum(t, N + 1)) + np.maximum(t - N - 1, 0))
        keys = np.append(near, np.exp(1 - np.minimum(rounded(log_a, b), math.inf if K is None else K)))
        sums, W = far + np.cumsum(keys[: len(t)]), np.minimum(t - 1, N)
        D = np.exp(W - N) * sums + sum(np.exp(W - r) * keys[N - r : N - r + len(t)] for r in range(N))
        failing = t[(D >= M) & (t > M)]
        if failing.size:
            return int(failing[0])
        far, near, begin = sums[-1], keys[len(t) :], begin + len(t)
    return None


def stair_failure(M: int, N: int, E: int) -> int:
    """The first t > M where o_t > H fails under Stair PE with theorem 3.2's own MLP, of K = M - 1 positions.

    Every key from t = N + E (M - 2 - N) + 2 on recovers K: p_i = min(W(i-1) + 1, K) in the D(t) of `step_failure`. What
    they add grows by e with every stair, so that it fails some E ln M tokens later at the latest: it reaches about E M
    tokens. For E with `stair_is_recovered`. Raises Refused for what `check_window` refuses.
    """
    t = max(M, N + E * (M - 2 - N) + 1)
    if extended_length(M, N, E) < t and (fails := first_failure(M, N, E)) <= t:
        return fails
    W, D = stair(np.arange(t), N, E), 0.0
    while D < M:
        t += 1
        W = np.append(W, stair(t - 1, N, E))
        D = np.exp(W[-1] - np.minimum(W, M - 2) - W[::-1]).sum()
    return t


def first_failure(M: int, N: int, E: int | None = None, slope: float = 1.0) -> int:
    """The first t > M at which o_t > H fails, from the closed forms.

    Args:
        M: The trained length, in tokens, at least 3.
        N: The window, in tokens, 1 to M - 1.
        E: The width of a stair's step, in tokens, 2 to 100000; default None, theorem 3.3.
        slope: m of the additive encoding; default 1.

    Returns:
        t in tokens, an integer; under ideal recovery exact up to about 10^12, beyond it may be one off.

    Raises:
        Refused: The theorems' conditions do not hold, or t is beyond 2^53.

    Examples:
        >>> theory.first_failure(M=4, N=2), theory.first_failure(M=16, N=4)
        (14, 712)
    """
    reach = extended_length(M, N, E, slope)
    if reach >= 2**53:
        raise Refused(f"T*={reach:.3g} is beyond exact integers; take a smaller N than {N}")
    t = max(M + 1, math.ceil(reach))
    while denominator(t, N, E, slope) < M:
        t += 1
    return t
