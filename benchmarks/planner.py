"""What the CPU's own way for Stair PE's far part saves: a prompt's attention with it, and by masked spans as the rest.

One layer of 8 heads of 64 dims in float32, M = T / 8, one thread; CPU time of both in turn in one process, each the
least of some repeats.

    python benchmarks/planner.py                    # stair and mesa, 512 to 8192 tokens
    python benchmarks/planner.py --methods stair --lengths 2048
"""

from __future__ import annotations

import argparse
import time
from unittest import mock

import torch

from mesa.engine import attention, cpu
from mesa.engine.rope import RotaryLayout, Rotation
from mesa.engine.schedule import Schedule
from mesa.methods import make

HEADS, DIM = 8, 64


@torch.no_grad()
def measured(name: str, length: int, repeats: int) -> tuple[float, float, float]:
    """Seconds with stairs and without, and the largest difference of outputs."""
    method = make(name, length // 8)
    plan, frequencies = method.plan(length, length), 10000.0 ** (-torch.arange(0, DIM, 2) / DIM)
    states = [torch.randn(1, length, HEADS, DIM).transpose(1, 2) for _ in range(3)]
    times, outputs = {True: [], False: []}, {}
    for _ in range(repeats):
        for apart in (True, False):
            with mock.patch.object(cpu, "stairs", cpu.stairs if apart else lambda regions: {}):
                rotation = Rotation(RotaryLayout(0, DIM // 2), frequencies)
                schedule = Schedule(plan, 0, method.cached_position, rotation)
                begin = time.process_time()
                outputs[apart] = attention.fused(schedule, *states, DIM**-0.5)[0]
                times[apart].append(time.process_time() - begin)
    return min(times[True]), min(times[False]), float((outputs[True] - outputs[False]).abs().max())


def main() -> None:
    """Prints a row for each method and length."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", default="stair,mesa")
    parser.add_argument("--lengths", default="512,2048,8192")
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(1)
    print("| method | tokens | with stairs (ms) | without, of that | outputs differ by |\n|---|---|---|---|---|")
    for length in map(int, options.lengths.split(",")):
        for name in options.methods.split(","):
            own, masked, apart = measured(name, length, options.repeats)
            print(f"| {name} | {length} | {own * 1e3:.1f} | {masked / own:.2f} | {apart:.0e} |", flush=True)


if __name__ == "__main__":
    main()
