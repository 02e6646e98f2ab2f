"""Where a model runs, by torch.accelerator: CUDA, ROCm, XPU and others alike."""

from __future__ import annotations

import time

import psutil
import torch


def is_accelerator(device: torch.device | str) -> bool:
    """Whether it is on this machine's accelerator, whose memory is its own: not CPU or MPS."""
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    return accelerator is not None and torch.device(device).type == accelerator.type != "mps"


def free_bytes(device: torch.device | str = "cpu") -> int:
    """Free memory of an accelerator, or of the machine."""
    if is_accelerator(device):
        return torch.accelerator.get_memory_info(torch.device(device))[0]
    return psutil.virtual_memory().available


def now(device: torch.device | str) -> float:
    """Seconds on a clock, once the device has done all that it was given."""
    device = torch.device(device)
    if device.type not in ("cpu", "meta"):
        torch.accelerator.synchronize(device)
    return time.perf_counter()
