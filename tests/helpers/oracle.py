"""Attention by formula, pair by pair, in float64: slow, obvious, and independent of plans and executors."""

import math

import numpy as np


def stair(r, window, width):
    return r if r <= window else window + math.ceil((r - window) / width)


def plain(t, i, **_):
    return t - i


def streaming_llm(t, i, window, first, **_):
    if t - i <= window:
        return t - i
    return min(t, first + window) - i if i < first else None


def self_extend(t, i, window, group, **_):
    return t - i if t - i < window else t // group - i // group + window - window // group


def crop(t, i, trained, prompt):
    alone = prompt - trained <= t < prompt and i < prompt - trained  # a query of the last M, a key before them
    return t - i if t - i < trained and not alone else None


def dca(t, i, chunk, most, **_):
    u, v, apart = t % chunk, i % chunk, t // chunk - i // chunk
    if apart == 0:
        return t - i
    return min(u + chunk, most) - v if apart == 1 else min(2 * chunk - 1, most) - v


def lampe(t, i, trained, prompt, window, tail):
    r, last = t - i, prompt - 1
    if prompt < 2 * window or r < window:
        return r
    as_llama2 = prompt * 4096 / trained
    public = 1536
    if as_llama2 >= 8192:
        public = int(2489.1055552214357 / (1 + math.exp(-(8.673006440952035e-05 * as_llama2 - 0.648012322406978))))
    mapped = [public * trained // 4096 * x // last for x in range(prompt)]
    end = max(x for x in range(prompt) if mapped[x] == mapped[tail])
    near = window - mapped[window] - 1
    if r >= prompt - end:
        return max(0, r - (last - end - mapped[last - end] - near))
    return max(0, mapped[min(t, last)] + near - mapped[min(i, last)])


def split_prompt(trained, prompt, first, last, split_threshold):
    """DynamicSplit: where the last chunk begins, and the width of the middle ones."""
    n, m = divmod(prompt - last - first, trained - first)
    chunk = trained - first
    if m >= split_threshold:
        n += 1
        chunk = (prompt - last - first) // n
    return first + n * chunk, chunk


def mesa(t, i, trained, prompt, window, width, first, last, split_threshold, weave="stair", middle="local"):
    r = t - i
    if weave == "rerope":
        woven = min(r, window)
    elif weave == "leaky-rerope":
        woven = r if r < window else window + (r - window) / width
    else:
        woven = stair(r, window, width)
    if prompt <= trained:
        return r if t < trained else woven
    begin_last, chunk = split_prompt(trained, prompt, first, last, split_threshold)
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


RELATIVE = {
    **dict.fromkeys(("origin", "dynamic-ntk", "ntk-mixed", "yarn", "cope"), plain),
    "nope": lambda t, i, **_: 0,
    "gap": lambda t, i, boundary, gap, **_: t - i + gap if i < boundary <= t else t - i,
    "pi": lambda t, i, trained, prompt, factor=4.0: (t - i) / (factor or max(1.0, prompt / trained)),
    "rerope": lambda t, i, window, **_: min(t - i, window),
    "leaky-rerope": lambda t, i, window, k, **_: t - i if t - i < window else window + (t - i - window) / k,
    "lm-infinite": lambda t, i, window, first, **_: min(t - i, window) if t - i < window or i < first else None,
    "stair": lambda t, i, window, width, **_: stair(t - i, window, width),
    "string": lambda t, i, window, local, **_: t - i if t - i < window else t - i - window + local,
    "streaming-llm": streaming_llm,
    "self-extend": self_extend,
    "crop": crop,
    "dca": dca,
    "lampe": lampe,
    "mesa": mesa,
}
"""By method, for 0 <= i <= t: the effective relative position, or None where the pair is masked."""


def relative(name, t, i, **parameters):
    """Effective relative position of the pair, or None where it is masked."""
    return None if t < i else RELATIVE[name](t, i, **parameters)


def query_scale(name, t, trained, prompt, first=0, last=0, split_threshold=0, **_):
    """log-n; under Mesa only where all keys are seen."""
    if name == "mesa" and prompt > trained and t < split_prompt(trained, prompt, first, last, split_threshold)[0]:
        return 1.0
    return max(1.0, math.log(t + 1) / math.log(trained))


def factor(name, t, i, trained, prompt, mscale=False, **parameters):
    """The factor on the score besides log-n."""
    if name in ("lampe", "string"):
        return (0.1 * math.log(2) + 1) ** 2
    if name == "yarn":
        return (0.1 * math.log(parameters.get("factor", 4.0)) + 1) ** 2
    steps = [max(prompt if token < prompt else token + 1, trained) for token in (t, i)]
    return math.prod(0.05 * math.log(n / trained) + 1 for n in steps) if mscale else 1.0


def frequencies(name, dim, length, trained, base=10000.0, factor=4.0, clip=None, **_):
    """The inverse frequencies."""
    grown = name == "dynamic-ntk" and length > trained
    by = base * (factor * length / trained - (factor - 1)) ** (dim / (dim - 2)) if grown else base
    values = [by ** (-2 * m / dim) for m in range(dim // 2)]
    if name == "ntk-mixed":
        a = math.log(12) / (dim / 2) ** 0.75
        values = [value * math.exp(-a * (m + 1) ** 0.75) for m, value in enumerate(values)]
    if name == "yarn":
        low, high = (dim * math.log(trained / (b * 2 * math.pi)) / (2 * math.log(base)) for b in (32, 1))
        low, high = max(math.floor(low), 0), min(math.ceil(high), dim - 1)
        for m, own in enumerate(values):
            share = min(max((m - low) / (high - low if high > low else 0.001), 0), 1)
            values[m] = own * (1 - share) + own / factor * share
    if name == "cope":
        slow = [m for m, value in enumerate(values) if 2 * math.pi / value > trained]
        slow = slow if clip is None else list(range(dim // 2))[-clip:]
        for place, m in enumerate(slow):
            values[m] *= math.cos(math.pi * place / (len(slow) - 1) / 2) ** 2
    return values


def rotated_dot(query, key, relative_position, values):
    """q^T R(relative) k, half-split convention: dim m pairs with dim m + d/2."""
    total, half = 0.0, len(values)
    for m, frequency in enumerate(values):
        cos, sin = math.cos(relative_position * frequency), math.sin(relative_position * frequency)
        q1, q2, k1, k2 = query[m], query[m + half], key[m], key[m + half]
        total += cos * (q1 * k1 + q2 * k2) + sin * (q2 * k1 - q1 * k2) * -1
    return total


def attention(name, query, key, value, *, trained, prompt, log_n, slope=None, begin=0, **parameters):
    """Output (token, dim) of one head for the tokens from `begin` on; query, key, value are (token, dim) float64.

    With a `slope`, positions enter as ALiBi's bias in place of rotation.
    """
    length, dim = query.shape
    values = frequencies(name, dim, length, trained, **parameters)
    output = np.zeros_like(value[begin:])
    for t in range(begin, length):
        log_factor = query_scale(name, t, trained, prompt, **parameters) if log_n else 1.0
        scores, seen = [], []
        for i in range(t + 1):
            r = relative(name, t, i, trained=trained, prompt=prompt, **parameters)
            scale = log_factor * factor(name, t, i, trained, prompt, **parameters)
            if r is not None:
                seen.append(i)
                if slope is None:
                    scores.append(scale * rotated_dot(query[t], key[i], r, values) / math.sqrt(dim))
                else:
                    scores.append(scale * float(query[t] @ key[i]) / math.sqrt(dim) - slope * r)
        weights = np.exp(np.array(scores) - max(scores))
        output[t - begin] = (weights / weights.sum()) @ value[seen]
    return output
