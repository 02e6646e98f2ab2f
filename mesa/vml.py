"""Imported for its effect: calls cos, exp and others once on one thread, since MKL chooses their kernels at first use.

With MKL 2024.2, which PyTorch 2.13 is built with, that choice is a race (pytorch/pytorch#188792): if several threads
make a function's first call, part of its output may have half the digits. Rotary's cos was then 1.4e-4 off.
"""

import torch

FUNCTIONS = (
    torch.acos, torch.asin, torch.atan, torch.cos, torch.erf, torch.erfc, torch.erfinv, torch.exp, torch.log,
    torch.log2, torch.log10, torch.sin, torch.sqrt, torch.tan, torch.tanh, torch.trunc,
)  # fmt: skip
"""Those that ATen passes to MKL (aten/src/ATen/cpu/vml.h)."""

for _function in FUNCTIONS:
    for _dtype in (torch.float32, torch.float64):
        _function(torch.ones(1, dtype=_dtype, device="cpu"))
