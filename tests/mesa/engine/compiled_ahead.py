"""Triton's kernels compiled for GPUs that are not there: run by test_compiled.py, which needs Triton."""

import sys

import torch
from triton.backends.compiler import GPUTarget
from triton.runtime import driver, jit

from mesa.engine.gpu import decode, kernels, triton_kernels
from mesa.engine.spans import PairSpan
from mesa.plan import Carry

TARGETS = {
    "A100": (GPUTarget("cuda", 80, 32), 163),
    "RTX 4090": (GPUTarget("cuda", 89, 32), 99),
    "H100": (GPUTarget("cuda", 90, 32), 227),
    "B200": (GPUTarget("cuda", 100, 32), 227),
    "RTX 5090": (GPUTarget("cuda", 120, 32), 99),
    "MI300": (GPUTarget("hip", "gfx942", 64), 64),
}
"""And KiB of shared memory that a program may have."""

SPANS = {
    "plain": (PairSpan((0, 300), (0, 300), 0, None),),
    "a window": (PairSpan((0, 300), (0, 300), 0, 100),),
    "a carry": (PairSpan((60, 300), (0, 240), 60, None, Carry(50, -9, False)),),
    "a carry in a window": (PairSpan((60, 300), (0, 240), 60, 200, Carry(50, -9, False)),),
}
used = list[int]()
"""Bytes of shared memory of each kernel that was compiled."""


class Driver:
    """Of a GPU of a kind, on which nothing can run."""

    def __init__(self, target, number):
        self.target, self.number = target, number

    def get_current_target(self):
        return self.target

    def get_current_device(self):
        return self.number  # what is compiled is kept by device

    def get_current_stream(self, device=None):
        return 0


def compiled_only(self, *given, grid, warmup, **options):
    used.append(run(self, *given, grid=grid, warmup=True, **options).metadata.shared)


run, jit.JITFunction.run = jit.JITFunction.run, compiled_only
for number, (name, (target, shared)) in enumerate(TARGETS.items()):
    driver.set_active(Driver(target, number))
    used.clear()
    triton_kernels.shared_memory = lambda _, size=shared: size * 1024
    for dim in (64, 100, 128, 256):
        for carries, spans in (("carry" in title, spans) for title, spans in SPANS.items()):
            query, key, value = kernels.trial(spans, torch.bfloat16, dim)
            into, log_sum = torch.zeros(query.shape[2], 1, 4, dim, dtype=torch.bfloat16), torch.zeros(4, query.shape[2])
            for added in (None, log_sum):
                scoring = kernels.Scoring(0.1, 2.0 if dim == 128 else None)
                states = query, key, value, spans, scoring, {}, into
                kernels.by_triton(*states, query.flip(3) if carries else None, added)
    for dtype, dim, group in ((torch.bfloat16, 128, 8), (torch.float32, 64, 8), (torch.float16, 80, 16)):
        decode._difference(triton_kernels, torch.device("cpu"), dtype, dim, group)
    print(f"{name}: {len(used)} kernels, at most {max(used) // 1024} KiB of {shared}")
    if max(used) > shared * 1024:
        sys.exit(1)
