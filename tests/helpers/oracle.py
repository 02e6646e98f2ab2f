"""Attention by formula, pair by pair, in float64: slow, obvious, and independent of plans and executors."""

import math

import newer
import numpy as np


def stair(r, window, width):
    return r if r <= window else window + math.ceil((r - window) / width)


def relative(name, t, i, *, trained, prompt, **parameters):
    """Effective relative position of the pair, or None where it is masked."""
    if t < i:
        return None
    if name in newer.RELATIVE:
        return newer.RELATIVE[name](t, i, trained, prompt, **parameters)
    return _relative(name, t, i, trained, prompt, **parameters)


def _relative(
    name, t, i, trained, prompt,
    window=0, width=0, first=0, last=0, split=0, k=0, group=0, boundary=0, gap=0, weave="stair", middle="local",
):  # fmt: skip
    r = t - i
    if name in ("origin", "dynamic-ntk", "ntk-mixed"):
        return r
    if name == "nope":
        return 0
    if name == "gap":
        return r + gap if i < boundary <= t else r
    if name == "rerope":
        return min(r, window)
    if name == "leaky-rerope":
        return r if r < window else window + (r - window) / k
    if name == "lm-infinite":
        return min(r, window) if r < window or i < first else None
    if name == "streaming-llm":
        if r <= window:
            return r
        return min(t, first + window) - i if i < first else None
    if name == "self-extend":
        return r if r < window else t // group - i // group + window - window // group
    if name == "stair":
        return stair(r, window, width)
    assert name == "mesa"
    return mesa(t, i, trained, prompt, window, width, first, last, split, weave, middle)


def split_prompt(trained, prompt, first, last, split):
    """DynamicSplit: where the last chunk begins, and the width of the middle ones."""
    n, m = divmod(prompt - last - first, trained - first)
    chunk = trained - first
    if m >= split:
        n += 1
        chunk = (prompt - last - first) // n
    return first + n * chunk, chunk


def query_scale(name, t, trained, prompt, first=0, last=0, split=0, **_):
    """log-n; under Mesa only where all keys are seen."""
    if name == "mesa" and prompt > trained and t < split_prompt(trained, prompt, first, last, split)[0]:
        return 1.0
    return max(1.0, math.log(t + 1) / math.log(trained))


def mesa(t, i, trained, prompt, window, width, first, last, split, weave, middle):
    r = t - i
    if weave == "rerope":
        woven = min(r, window)
    elif weave == "leaky-rerope":
        woven = r if r < window else window + (r - window) / width
    else:
        woven = stair(r, window, width)
    if prompt <= trained:
        return r if t < trained else woven
    begin_last, chunk = split_prompt(trained, prompt, first, last, split)
    if t >= begin_last:
        return woven
    if t < first:
        return r
    begin = first + (t - first) // chunk * chunk
    if i >= begin:
        return r
    if i >= first:
        return None
    local = first + (t - begin) - i
    return max(local, woven) if middle == "woven" else local


def frequencies(name, dim, length, trained, base=10000.0, factor=4.0, k=12.0):
    if name == "dynamic-ntk" and length > trained:
        base = base * (factor * length / trained - (factor - 1)) ** (dim / (dim - 2))
    values = [base ** (-2 * m / dim) for m in range(dim // 2)]
    if name == "ntk-mixed":
        a = math.log(k) / (dim / 2) ** 0.75
        values = [value * math.exp(-a * (m + 1) ** 0.75) for m, value in enumerate(values)]
    return values


def rotated_dot(query, key, relative_position, values):
    """q^T R(relative) k, half-split convention: dim m pairs with dim m + d/2."""
    total, half = 0.0, len(values)
    for m, frequency in enumerate(values):
        cos, sin = math.cos(relative_position * frequency), math.sin(relative_position * frequency)
        q1, q2, k1, k2 = query[m], query[m + half], key[m], key[m + half]
        total += cos * (q1 * k1 + q2 * k2) + sin * (q2 * k1 - q1 * k2) * -1
    return total


def attention(name, query, key, value, *, trained, prompt, log_n, slope=None, **parameters):
    """Output (token, dim) of one head for all tokens; query, key, value are (token, dim) float64.

    With a `slope`, positions enter as ALiBi's bias in place of rotation.
    """
    length, dim = query.shape
    if name in newer.FREQUENCIES:
        values = newer.FREQUENCIES[name](dim, trained, 1e4, **parameters)
    else:
        values = frequencies(name, dim, length, trained)
    output = np.zeros_like(value)
    for t in range(length):
        log_factor = query_scale(name, t, trained, prompt, **parameters) if log_n else 1.0
        scores, seen = [], []
        for i in range(t + 1):
            r = relative(name, t, i, trained=trained, prompt=prompt, **parameters)
            scale = log_factor * newer.factor(name, t, i, trained, prompt, **parameters)
            if r is not None:
                seen.append(i)
                if slope is None:
                    scores.append(scale * rotated_dot(query[t], key[i], r, values) / math.sqrt(dim))
                else:
                    scores.append(scale * float(query[t] @ key[i]) / math.sqrt(dim) - slope * r)
        weights = np.exp(np.array(scores) - max(scores))
        output[t] = (weights / weights.sum()) @ value[seen]
    return output
