"""Formulas of the methods that came later, pair by pair, for the oracle: distances, frequencies, factors on scores."""

import math


def pi(t, i, trained, prompt, factor=4.0):
    return (t - i) / (factor or max(1.0, prompt / trained))


def crop(t, i, trained, prompt):
    alone = prompt - trained <= t < prompt and i < prompt - trained  # a query of the last M, a key before them
    return t - i if t - i < trained and not alone else None


def as_trained(t, i, trained, prompt, **_):
    return t - i


def yarn_frequencies(dim, trained, base, factor=4.0):
    result = []
    for m in range(dim // 2):
        own = base ** (-2 * m / dim)
        low, high = (dim * math.log(trained / (b * 2 * math.pi)) / (2 * math.log(base)) for b in (32, 1))
        low, high = max(math.floor(low), 0), min(math.ceil(high), dim - 1)
        share = min(max((m - low) / (high - low if high > low else 0.001), 0), 1)
        result.append(own * (1 - share) + own / factor * share)
    return result


def yarn_factor(t, i, trained, prompt, factor=4.0):
    return (0.1 * math.log(factor) + 1) ** 2


def cope_frequencies(dim, trained, base, clip=None):
    values = [base ** (-2 * m / dim) for m in range(dim // 2)]
    slow = [m for m, value in enumerate(values) if 2 * math.pi / value > trained]
    slow = slow if clip is None else list(range(dim // 2))[-clip:]
    for place, m in enumerate(slow):
        values[m] *= math.cos(math.pi * place / (len(slow) - 1) / 2) ** 2
    return values


def dca(t, i, trained, prompt, chunk, most, **_):
    u, v, apart = t % chunk, i % chunk, t // chunk - i // chunk
    if apart == 0:
        return t - i
    return min(u + chunk, most) - v if apart == 1 else min(2 * chunk - 1, most) - v


def dca_factor(t, i, trained, prompt, mscale=False, **_):
    steps = [max(prompt if token < prompt else token + 1, trained) for token in (t, i)]
    return math.prod(0.05 * math.log(n / trained) + 1 for n in steps) if mscale else 1.0


def string(t, i, trained, prompt, window, local):
    return t - i if t - i < window else t - i - window + local


def sharper(t, i, trained, prompt, **_):
    return (0.1 * math.log(2) + 1) ** 2


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
        return r - (last - end - mapped[last - end] - near)
    return max(0, mapped[min(t, last)] + near - mapped[min(i, last)])


RELATIVE = {
    "lampe": lampe,
    "string": string,
    "dca": dca,
    "yarn": as_trained,
    "cope": as_trained,
    "pi": pi,
    "crop": crop,
}
"""By method; called with 0 <= i <= t: the relative position, or None where the pair is masked."""

FREQUENCIES = {"cope": cope_frequencies, "yarn": yarn_frequencies}
"""By method; called with rotary dims, M and the base: the inverse frequencies, where they are not the model's."""

FACTOR = {"lampe": sharper, "string": sharper, "dca": dca_factor, "yarn": yarn_factor}
"""By method: the factor on the score, where it has one."""


def factor(name, t, i, trained, prompt, **parameters):
    return FACTOR[name](t, i, trained, prompt, **parameters) if name in FACTOR else 1.0
