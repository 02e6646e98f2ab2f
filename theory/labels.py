"""The constructions' names, as labels of data and figures."""

NOPE, PE, WEAVE, IDEAL, STAIR = "NoPE", "PE", "weave", "weave, ideal recovery", "Stair"
"""Theorem 3.1, theorem 3.2, theorem 3.3 with the step MLP, theorem 3.3 with ideal recovery, the corollary."""
