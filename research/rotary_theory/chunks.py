"""Mesa-Extrapolation in the rotary constructions, in closed form: what its chunks recover, D(T), where it must fail.

As theory.chunked, with h(u) = a sin(theta u). Local middle chunks recover the same. By rotation woven
ones recover what their own keys and the first chunk's, at distances R, tell, and the last one what Stair PE does; by
count both go on counting, to F + i - b and to i (K at most): nothing but the number of pairs is read. D(T) is the sum
over all keys of e^(h(v + x_i) - h(v)), v = p_T - 1 - W(T-1) the phase of <bos>, and x_i = W(T-1) + 1 - p_i - W(T-i), by
how much a key is ahead of it. Numbers and numpy arrays, no torch.
"""

from __future__ import annotations

import numpy as np

from mesa.methods.chunked import MesaExtrapolation
from research.rotary_theory.rotary import Rotary
from theory.chunked import chunk_log_denominators, woven_distance


def chunk_position(sizes: Rotary, method: MesaExtrapolation, prompt: int) -> np.ndarray:
    """What layer 1 of a rotary construction recovers at t = 1 .. `prompt`."""
    return sizes.written(chunk_log_denominators(sizes.bias, method, prompt))[0]


def chunk_denominator(sizes: Rotary, method: MesaExtrapolation, prompt: int) -> float:
    """D(T) at the end of a prompt of T = `prompt` tokens. Refused for a prompt that is not cut."""
    w = sizes.written(chunk_log_denominators(sizes.bias, method, prompt))[1]
    turned = np.exp(1j * sizes.theta * woven_distance(method, np.arange(prompt)))
    score = -sizes.amplitude * (w * w[-1].conj() * turned[::-1]).imag
    return float(np.exp(score - score[0]).sum())


def chunk_phases(sizes: Rotary, method: MesaExtrapolation, length: int) -> np.ndarray:
    """v, the phase of <bos> in tokens, at the end of prompts of 1 .. `length` tokens."""
    woven = woven_distance(method, np.arange(length))
    return sizes.written(sizes.log_denominators(woven * 1.0))[0] - 1 - woven


def chunk_share(sizes: Rotary, method: MesaExtrapolation, prompt: int, v: float) -> float:
    """What the last middle chunk alone adds to D(T), if it is local; by count also if it is woven. v: <bos>'s phase.

    Its first token is W(T-1) - F - W(T-1-b) =: x >= floor(b / E) - F ahead of <bos> and adds
    e^(2a sin(theta x / 2) cos(theta (v + x / 2))); those that follow fall behind by 1 - 1/E a token, about.
    """
    first, begin, end = method.chunks(prompt)[1], *method.chunks(prompt)[-3:-1]
    woven = woven_distance(method, np.arange(prompt))
    ahead = woven[-1] - (first + np.arange(end - begin)) - woven[::-1][begin:end]
    return float(np.exp(sizes.amplitude * (np.sin(sizes.theta * (v + ahead)) - np.sin(sizes.theta * v))).sum())


def chunks_fail_from(sizes: Rotary, method: MesaExtrapolation, longest: int) -> tuple[int, int]:
    """From which T on, and up to which, local middle chunks must fail at every T; `longest`: as far as is looked.

    They must where `chunk_share` is M or more, and where W(T-1) >= K - 1 + W(M-2): the M - 1 nearest keys get what
    <bos> gets or more (see rotary.fails_from; a chunk's smaller positions put them further ahead). Both
    as long as <bos> is a quarter turn behind at most.
    """
    M, woven = method.trained_length, woven_distance(method, np.arange(longest))
    span, phases = sizes.recovers - 1 + woven[M - 2], chunk_phases(sizes, method, longest)
    start, end = M + 1, M
    for T in range(M + 1, longest + 1):
        if -phases[T - 1] > sizes.quarter:
            break
        end = T
        if woven[T - 1] < span and chunk_share(sizes, method, T, phases[T - 1]) < M:
            start = T + 1
    return start, end
