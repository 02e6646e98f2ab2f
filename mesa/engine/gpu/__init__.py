"""Attention on devices other than CPUs, behind one function.

In: a schedule and a layer's states. Out: its attention. Open first: prefill.py, the executor of a prompt; decode.py is
that of one token, kernels.py chooses and tries kernels, triton_kernels.py has our own.
"""

import torch
from torch import Tensor

from mesa.engine.gpu.decode import by_two_launches
from mesa.engine.gpu.prefill import attend_blocks, is_jointly
from mesa.engine.key_ranges import key_ranges, query_of, single_softmax
from mesa.engine.schedule import JointSchedule, Schedule


def attend_jointly(schedule: JointSchedule, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor | None:
    """Attention output (batch, head, query, dim) of several schedules at once; None where our kernels cannot."""
    with torch.cuda.device_of(query):
        if query.shape[2] == 1:
            return by_two_launches(schedule, query, key, value, scale)
        return attend_blocks(schedule, query, key, value, scale) if is_jointly(schedule, query, scale) else None


def attend(schedule: Schedule, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
    """Attention output (batch, head, query, dim); arguments as an executor's (`attention.fused`)."""
    with torch.cuda.device_of(query):  # Triton launches on the current device
        if query.shape[2] > 1 or schedule.slopes is not None:
            return attend_blocks(schedule, query, key, value, scale)
        output = by_two_launches(schedule, query, key, value, scale)
        if output is not None:
            return output
        ranges = key_ranges(schedule, query.device, query.dtype)
        if not ranges.ranges:
            return query.new_zeros(*query.shape[:3], value.shape[3])
        rows = query_of(schedule, query, ranges)
        return single_softmax(schedule, ranges, rows, key, value, scale).view(*query.shape[:3], -1)
