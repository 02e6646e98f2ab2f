"""Imported for its effect: MKL finds its kernels for cos, exp and others in one thread, before it is asked in several.

PyTorch with MKL 2024.2, as 2.13 is built, has a race there (pytorch/pytorch#188792): if the first call of such a
function in a process is spread over threads, a part of its output may have half the digits: rotary's cos is 1.4e-4 off.
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
