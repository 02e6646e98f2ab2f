"""Closed forms for Mesa-Extrapolation in the constructions: what its chunks recover, D(t), where it must fail.

Positions t count from 1 and W is Stair PE. A prompt of T tokens is cut into a first chunk of F tokens, middle chunks
that begin after b tokens, and a last chunk. With the corollary's bias, layer 1 recovers

    p_i = i                       in the first chunk,
        = F + i - b               in a middle chunk, if it is 'local' (the paper's),
        = max(F + i - b, W(i-1) + 1) there, if it is 'woven' (but up to 0.353 less at its very first token),
        = W(i-1) + 1              in the last chunk,

and layer 2, at the prompt's end t = T, D(t) = sum over keys i of e^(W(t-1) + 1 - p_i - W(t-i)). The first
token of a local middle chunk alone adds e^(W(t-1) - F - W(t-1-b)), about e^(b/E - F): whatever N is, D(t) exceeds M
where the last middle chunk begins beyond about E (F + ln M). Numpy, no
torch.
"""

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
from scipy.special import logsumexp

from mesa.errors import Refused
from mesa.methods.chunked import MesaExtrapolation
from theory.bounds import check_window, denominator
from theory.recovery import rounded
from theory.weave import stair

Bias = Callable[[np.ndarray], np.ndarray]

SHORT = 0.353
"""The most that a remapped chunk's first token falls short of W(i-1) + 1: 1 - b (1 - e^-1/2 / (1 - 1/e)), b = 16.

It sees itself at distance 0 and of the first chunk next to nothing: 1 / x is e^W, where A_(W+1) is e^W (1 + 1/e + ..).
The next token has e^W (1 + 1/e), which is beyond the step.
"""


def mesa_method(
    M: int, N: int, E: int, first: int, last: int, split_threshold: int = 1, middle: str = "local"
) -> MesaExtrapolation:
    """The method whose plans the construction obeys; Refused for what it or the corollary refuses."""
    check_window(M, N, E)
    sizes: dict[str, Any] = {"trained_length": M, "window": N, "width": E, "first": first, "last": last}
    return MesaExtrapolation(**sizes, split_threshold=split_threshold, middle=middle, log_n=False)


def woven_distance(method: MesaExtrapolation, distance: np.ndarray) -> np.ndarray:
    """W of the method's stair."""
    return stair(distance, method.window, method.width)


def chunk_log_denominators(bias: Bias, method: MesaExtrapolation, prompt: int) -> np.ndarray:
    """log of 1 / x_t at t = 1 .. `prompt` of so long a prompt; Refused for one that is not cut.

    bias: layer 1's scores by effective distance.
    """
    if prompt <= method.trained_length:
        raise Refused(f"prompt={prompt} is not cut into chunks; take more than M={method.trained_length} tokens")
    borders, index = method.chunks(prompt), np.arange(prompt)
    plain, log_a = (
        np.logaddexp.accumulate(scores) - scores for scores in map(bias, (index, woven_distance(method, index)))
    )
    first = borders[1]
    log_a[:first] = plain[:first]
    for begin, end in pairwise(borders[1:-1]):
        log_a[begin:end] = plain[first : first + end - begin]
        if method.middle == "woven":
            pairs = index[begin:end, None] - np.arange(first)
            scores = bias(np.maximum(pairs - (begin - first), woven_distance(method, pairs)))
            chunk_sum = np.logaddexp.accumulate(bias(np.arange(end - begin)))
            log_a[begin:end] = np.logaddexp(chunk_sum, logsumexp(scores, 1)) - scores[:, 0]
    return log_a


def mesa_position(method: MesaExtrapolation, prompt: int) -> np.ndarray:
    """What layer 1 recovers at t = 1 .. `prompt`."""
    return rounded(chunk_log_denominators(lambda distance: -1.0 * distance, method, prompt))


def mesa_exponents(method: MesaExtrapolation, prompt: int) -> np.ndarray:
    """The exponents of D(T) at the end of a prompt of T tokens: W(T-1) + 1 - p_i - W(T-i) for the keys i = 1 .. T."""
    woven = woven_distance(method, np.arange(prompt))
    return woven[-1] + 1 - mesa_position(method, prompt) - woven[::-1]


def mesa_denominator(method: MesaExtrapolation, prompt: int) -> float:
    """D(T) at the end of a prompt of T tokens; infinite beyond float64."""
    with np.errstate(over="ignore"):
        return float(np.exp(mesa_exponents(method, prompt)).sum())


def woven_bound(method: MesaExtrapolation, t: int) -> float:
    """What D(t) does not exceed with remapped middle chunks, t the last token of a prompt, where Stair PE recovers.

    No p_i is below Stair PE's but at the first tokens of the middle chunks after the first one, by SHORT at most: seen
    distances are Stair PE's or larger on the first chunk and larger in its own, unseen pairs only shorten the sum, and
    1 / x is e^W(i-1) at least. So D exceeds Stair PE's by (e^SHORT - 1) times its terms at these tokens. They are one
    in a chunk of w tokens: where F + w and L are at least N, the reach is T* / (1 + 1.2 / w) at least.
    """
    begins = np.array(method.chunks(t)[2:-2], int)
    terms = woven_distance(method, begins) + woven_distance(method, t - 1 - begins)
    more = np.exp(float(stair(t - 1, method.window, method.width)) - terms).sum()
    return float(denominator(t, method.window, method.width)) + math.expm1(SHORT) * float(more)


def last_middle_chunk(method: MesaExtrapolation, prompt: int) -> int:
    """b: after how many tokens the last middle chunk begins."""
    return method.chunks(prompt)[-3]


def hopeless(method: MesaExtrapolation) -> int:
    """The least b at which local middle chunks have failed for certain: D(t) >= e^(floor(b / E) - F) >= M from it on.

    W(t-1) - W(t-1-b) >= floor(b / E) for every t > b and b >= 0, since W rises by one in E tokens at least.
    """
    return method.width * math.ceil(method.first + math.log(method.trained_length))


def fails_from(method: MesaExtrapolation) -> int:
    """The prompt length from which on every one has its last middle chunk at `hopeless` or beyond.

    With n = (T - L - F) // (M - F) >= 2 there are n middle chunks at least, none narrower than two thirds of M - F, so
    that the last begins after F + (n - 1) 2 (M - F) // 3 tokens at least: only finitely many T are left to look at.
    """
    first, width, limit = method.first, method.trained_length - method.first, hopeless(method)
    n = max(2, 1 + math.ceil((limit - first) / (2 * width // 3)))
    lengths = range(method.trained_length + 1, first + method.last + n * width + 1)
    return 1 + max((T for T in lengths if last_middle_chunk(method, T) < limit), default=method.trained_length)
