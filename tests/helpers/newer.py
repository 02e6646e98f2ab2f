"""Formulas of the methods that came later, pair by pair, for the oracle: distances and factors on scores."""


def pi(t, i, trained, prompt, factor=4.0):
    return (t - i) / (factor or max(1.0, prompt / trained))


def crop(t, i, trained, prompt):
    alone = prompt - trained <= t < prompt and i < prompt - trained  # a query of the last M, a key before them
    return t - i if t - i < trained and not alone else None


RELATIVE = {"pi": pi, "crop": crop}
"""By method; called with 0 <= i <= t: the relative position, or None where the pair is masked."""

FACTOR = {}
"""By method: the factor on the score, where it has one."""


def factor(name, t, i, trained, prompt, **parameters):
    return FACTOR[name](t, i, trained, prompt, **parameters) if name in FACTOR else 1.0
