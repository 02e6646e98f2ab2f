"""What `mesa-lens predict` writes, for the dashboard's page."""

import numpy as np

import mesa

M, LENGTHS = 64, [128, 256, 512]


def prediction(refusal: str = "") -> dict:
    """What `mesa-lens predict` writes, of a model that loses 1 nat/token every 100 tokens beyond M."""
    positions = list(range(M - 1, 511))
    method = mesa.ReRoPE(trained_length=M)
    ends = {"excess_ends": [0.0, 0.2], "nll": {"value": 2.0, "ends": [1.9, 2.1]}}
    row = {
        "config": method.describe(),
        "refusal": "",
        "cost_inside": 0.1,
        "predicted": [{"length": length, "excess": 0.1, **ends} for length in LENGTHS],
        "failure": {"length": None, "ends": [None, None]},
    }
    law = {
        "power": {"value": 0.5, "ends": [0.4, 0.6]},
        "power_over_no_gap": 0.6,
        "power_over_masked": 0.4,
        "needed_factors": [0.5, 2.0],
        "origin_fails": 114,
        "scale_power": {"value": 0.0, "ends": [0, 0]},
        "excess": {"position": positions, "value": (np.arange(len(positions)) / 100).tolist(), "ends": [[], []]},
        "gaps": [],
    }
    base = {"model": "m", "trained_length": M, "lengths": LENGTHS, "texts": 8, "refusal": refusal}
    base["misfit"] = {"rms": 0.07, "too_large": False, "units": "nats/token", "gaps": 9, "largest_cost": 1.5}
    others = {"yarn": {"config": {}, "refusal": "rotary frequencies are changed"}, "lm-infinite": row}
    return {
        **base,
        "law": None if refusal else law,
        "methods": {"origin": {"config": {}, "refusal": ""}, "rerope": row, **others},
    }
