"""How long the dashboard's panels take on a store as large as a 70B model's at 32k; all layers share one file.

`python benchmarks/slices.py [--layers 80] [--positions 32768] [--dims 8192]` writes a region, links it for the others,
opens the store as the dashboard does, and prints seconds a panel, beside those of one chunk a region. It takes a GiB of
disk and two of memory. Files are in the page cache: a disk adds the bytes that are read over its speed.
"""

import argparse
import os
import tempfile
import time
from pathlib import Path

import numpy as np

from probe.figures.heatmap import default_regions, regions, survey
from probe.store import reader as store_regions, store
from probe.store.reader import open_run, partial_path

PANELS = {
    "one dim, all layers x positions": lambda hidden, trained: hidden.sel({"dim": 7}).load(),
    "one position, all layers x dims": lambda hidden, trained: hidden.sel({"position": 700}).load(),
    "one layer, dims x positions around M and the end, read": lambda hidden, trained: _opening(hidden, trained).load(),
    "one layer, dims x positions around M and the end, drawn": lambda hidden, trained: survey(
        _opening(hidden, trained), [["origin"]]
    ),
    "one layer, all dims x positions": lambda hidden, trained: hidden.sel({"layer": [0]}).load(),
}


def _opening(hidden, trained):
    return regions(hidden.sel({"layer": [0]}), default_regions(hidden["position"].values, trained))


def write_store(folder: Path, layers: int, positions: int, dims: int, trained: int) -> float:
    """Writes the store; returns the seconds that its one region took."""
    path = folder / "store.zarr"
    expected = store.Template(
        methods=["origin"],
        prompts=["repeated"],
        layers=range(layers),
        axes={"resid_post": {"position": range(positions), "dim": range(dims)}},
        dtype="float16",
        attrs={"trained_length": trained, "model": "synthetic"},
    )
    store.create(path, expected)
    block = np.random.default_rng(0).normal(size=(256, dims)).astype(np.float16)
    values = np.tile(block, (-(-positions // 256), 1))[:positions]
    began = time.perf_counter()
    store.write(path, "resid_post", "origin", "repeated", 0, values)
    took = time.perf_counter() - began
    chunks = partial_path(path) / "resid_post" / "c" / "0" / "0"
    for layer in range(1, layers):
        file = chunks / str(layer) / "0" / "0"
        file.parent.mkdir(parents=True)
        os.link(chunks / "0" / "0" / "0", file)
    store.finish(path)
    return took


def timed(folder: Path, trained: int, times: int = 3) -> dict[str, np.ndarray]:
    """Seconds of each panel, on the clock and of CPU, each the least of some."""
    hidden = open_run(folder).hidden["resid_post"].sel({"method": ["origin"], "prompt": "repeated"})
    fastest = {}
    for name, panel in PANELS.items():
        for _ in range(times):
            began, used = time.perf_counter(), time.process_time()
            panel(hidden, trained)
            took = np.array([time.perf_counter() - began, time.process_time() - used])
            fastest[name] = np.minimum(took, fastest.get(name, took))
    return fastest


def main() -> None:
    """Prints the table."""
    command = argparse.ArgumentParser(description=__doc__)
    for name, value in {"layers": 80, "positions": 32768, "dims": 8192, "trained": 4096}.items():
        command.add_argument(f"--{name}", type=int, default=value)
    command.add_argument("--few", type=int, default=2, help="layers of the store with one chunk a region")
    args = command.parse_args()
    size, scale = (args.positions, args.dims), args.layers / args.few
    with tempfile.TemporaryDirectory() as place:
        cut = write_store(Path(place, "cut"), args.layers, *size, args.trained)
        cuts = timed(Path(place, "cut"), args.trained)
        store_regions.WHOLE = 2**62
        whole = write_store(Path(place, "whole"), args.few, *size, args.trained)
        wholes = timed(Path(place, "whole"), args.trained, 1)
    print(f"{args.layers} layers x {size[0]} positions x {size[1]} dims in float16: seconds (of CPU)\n")
    print("| panel | many chunks a region | one chunk a region |\n|---|---|---|")
    print(f"| writing a region | {cut:.1f} | {whole:.1f} |")
    for name in PANELS:
        times, note = (scale, "*") if "all layers" in name else (1, "")
        wall, cpu = times * wholes[name]
        print(f"| {name} | {cuts[name][0]:.2f} ({cuts[name][1]:.2f}) | {wall:.1f} ({cpu:.1f}){note} |")
    print(f"\n*: of {args.few} layers, times {scale:g}")


if __name__ == "__main__":
    main()
