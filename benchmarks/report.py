"""Seconds and peak memory of what a report does with a store: the threshold search, the heatmaps, and all of it.

The store is synthetic, of SmolLM2-135M's size by default (30 layers of 576 dims; 1 GB a method), under --folder, and
removed at the end. CPU seconds are what to compare by where others use the machine.

    python benchmarks/report.py
    python benchmarks/report.py --positions 4096 --layers 8 --methods origin,rerope,mesa
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from probe.commands.probe.report import Maps, drawn_sections, full_summary, write_figures, write_report
from probe.store import store
from probe.store.reader import open_run
from probe.thresholds.analysis import analyse
from probe.thresholds.search import CrossingRule, search

HOOK, PROMPT = "resid_post", "repeated"


def make_store(
    path: Path,
    methods: list[str],
    layers: int,
    positions: int,
    dims: int,
    trained_length: int,
    dtype: str = "float32",
) -> None:
    """Writes noise about a level a dim; under the first method every seventh dim leaves it after 9/8 of M."""
    rng = np.random.default_rng(0)
    wanted = store.Template(
        methods=methods,
        prompts=[PROMPT],
        layers=range(layers),
        axes={HOOK: {"position": range(positions), "dim": range(dims)}},
        dtype=dtype,
        attrs={"trained_length": trained_length, "model": "synthetic"},
    )
    store.create(path, wanted)
    noise = rng.standard_normal((positions, dims), dtype=np.float32)
    for layer in range(layers):
        size = 3 * 1.1**layer * np.exp(rng.standard_normal(dims)).astype(np.float32)
        for method in methods:
            values = size * (0.05 * np.roll(noise, int(rng.integers(positions)), axis=0) + 1)
            if method == methods[0]:
                values[trained_length * 9 // 8 :, ::7] += 0.5 * size[::7]
            store.write(path, HOOK, method, PROMPT, layer, values.astype(np.float32))
    store.finish(path)


def timed(name: str, work: Callable[[], Any]) -> Any:
    """What `work` returns; prints its seconds and the process's peak memory so far."""
    wall, cpu = time.perf_counter(), time.process_time()
    result = work()
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    peak_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(f"{name:12} {wall:7.1f} s {cpu:7.1f} s CPU   peak so far {peak_bytes / 2**30:.2f} GiB", flush=True)
    return result


def main() -> None:
    """Makes the store, times each part and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", default="origin,rerope")
    for name, default in (("layers", 30), ("positions", 14336), ("dims", 576), ("trained-length", 8192)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--folder", help="where the store is made (default: the system's temporary folder)")
    args = parser.parse_args()
    trained, methods = args.trained_length, args.methods.split(",")
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        path = Path(folder) / "store.zarr"
        timed("make store", lambda: make_store(path, methods, args.layers, args.positions, args.dims, trained))
        run = open_run(path)
        timed("search", lambda: search(run.hidden[HOOK], trained, CrossingRule.scaled(trained), methods[0]))
        analysis = timed("analyse", lambda: analyse(run))
        maps = timed("pool", lambda: Maps.of(analysis))
        timed(
            "figures",
            lambda: write_figures(
                analysis, Path(folder) / "figures", maps, drawn_sections(analysis, full_summary(analysis))
            ),
        )
        timed("report", lambda: write_report(path))


if __name__ == "__main__":
    main()
