"""Launches and new memory of a prompt's attention on a GPU by blocks of queries that are searched for, and of one size.

Counted without a GPU, as budgets.py does, for the shapes of a known model. A cell: launches of a layer, and the peak of
new memory as a share of all keys and values.

    python benchmarks/blocks.py                                  # Llama-3-8B, 32768 tokens
    python benchmarks/blocks.py --model llama-2-7b --methods rerope,mesa
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any
from unittest import mock

import budgets
from on_paper import on_paper

from mesa.engine.gpu import prefill
from mesa.methods import make
from mesa.support import unfit

Ranges = Callable[[Any], list[tuple[int, int]]]


def even(count: int) -> Ranges:
    """As many blocks of one size."""

    def ranges(planner: Any) -> list[tuple[int, int]]:
        size, end, blocks = -(-(planner.length - planner.start) // count), planner.length, []
        while end > planner.start:
            blocks.append((max(planner.start, end - size), end))
            end -= size
        return blocks

    return ranges


def shrinking(share: float, count: int) -> Ranges:
    """Blocks of a share of what is left, each at least one of `count` even ones."""

    def ranges(planner: Any) -> list[tuple[int, int]]:
        end, blocks = planner.length, []
        least = -(-(planner.length - planner.start) // count)
        while end > planner.start:
            size = max(-(-int((end - planner.start) * share) // 64) * 64, least)
            blocks.append((max(planner.start, end - size), end))
            end -= size
        return blocks

    return ranges


KINDS: dict[str, Ranges] = {
    "searched": prefill._Planner._ranges,
    **{f"{count} even": even(count) for count in (1, 2, 4, 6, 8)},
    "a third of what is left": shrinking(1 / 3, 8),
}


def main() -> None:
    """Prints a row for each method."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=budgets.MODELS, default="llama-3-8b")
    parser.add_argument("--length", type=int, default=32768)
    parser.add_argument("--methods", default="rerope,stair,mesa,string,dca,yarn")
    options = parser.parse_args()
    print("| method |", " | ".join(KINDS), f"|\n|{'---|' * (len(KINDS) + 1)}")
    with on_paper() as device:
        model = budgets.model_of(options.model, device)
        for name in options.methods.split(","):
            method, cells = make(name, budgets.MODELS[options.model][2]), []
            if unfit(model.config, type(method)):
                continue
            for ranges in KINDS.values():
                prefill._BLOCKS.clear()
                with mock.patch.object(prefill._Planner, "_ranges", ranges):
                    counts = budgets.counted(device, model, method, options.length)
                row = budgets.row(options.model, method, options.length, counts)
                cells.append(f"{row['prefill launches']}, {row['prefill extra']:.2f}")
            print(f"| {name} |", " | ".join(cells), "|", flush=True)


if __name__ == "__main__":
    main()
