"""Seconds and memory of the dashboard's pages on a large store: opened cold, then with a rule changed.

The store is synthetic (1.2 GB by default), under --folder, and removed at the end; each page is opened in a process of
its own, first beside the store alone, then beside what the report keeps. CPU seconds are what to compare by where
others use the machine; searches use two cores, so that on an idle machine they take about half as long.

    python benchmarks/dashboard.py
    python benchmarks/dashboard.py --runs runs
    python benchmarks/dashboard.py --layers 4 --positions 4096 --trained-length 2048
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from report import make_store
from streamlit.testing.v1 import AppTest

from mesa_lens.app import FEW_ARENAS
from mesa_lens.dashboard.runs import ROOT_VARIABLE
from probe.commands.probe.report import write_report

PAGES = ("overview", "thresholds", "heatmaps")
MORE = ("mechanism", "anatomy", "tokens", "predict", "compare", "results", "methods", "theory")
RULES = (("margin", 2.0), ("margin", 2.5), ("smoothing", 64), ("warm_up", 128), ("minimum_score", 8.0))


def measure(page: str) -> None:
    """Opens a page and changes what can be changed on it, printing what each step takes."""
    app = AppTest.from_string(f"from mesa_lens.dashboard.main import main\nmain({page!r})", default_timeout=600)
    timed(page, app.run)
    timed("  again", app.run)
    if page == "thresholds":
        for key, value in RULES:
            timed(f"  {key} {value:g}", app.number_input(key=key).set_value(value).run)
    if page == "heatmaps":
        timed("  raw values", app.selectbox(key="minus").set_value("nothing").run)
    if page == "theory":
        timed("  M", app.slider(key="theory_M").set_value(64).run)
    if page == "predict":
        timed("  window", app.slider(key="predict.leaky-rerope.window").set_value(16).run)


def timed(name: str, work: Callable[[], AppTest]) -> None:
    """Prints the seconds of a step, and the memory the process then holds."""
    wall, cpu = time.perf_counter(), time.process_time()
    app = work()
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    if app.exception or app.error:
        raise RuntimeError(f"{name}: {[*app.exception, *app.error]}")
    held_bytes = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    print(f"{name:20} {wall:6.1f} s {cpu:6.1f} s CPU {held_bytes / 2**20:6.0f} MiB", flush=True)


def main() -> None:
    """Makes the store, times the pages, writes the report, times them again."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", default="origin,rerope,stair-pe,mesa")
    for name, default in (("layers", 16), ("positions", 16384), ("dims", 576), ("trained-length", 8192)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--folder", help="where the store is made (default: the system's temporary folder)")
    parser.add_argument("--runs", help="a folder of runs that is there, such as the demo's: every page of it is timed")
    parser.add_argument("--page", choices=[*PAGES, *MORE], help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.page:
        measure(args.page)
        return
    if args.runs:
        for page in (*PAGES, *MORE):
            open_page(page, args.runs)
        return
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        path = Path(folder) / "run" / "store.zarr"
        make_store(
            path, args.methods.split(","), args.layers, args.positions, args.dims, args.trained_length, "float16"
        )
        for page in PAGES[1:]:
            open_page(page, folder)
        write_report(path)
        print("with what the report keeps:")
        for page in PAGES:
            open_page(page, folder)


def open_page(page: str, folder: str) -> None:
    """Measures a page in a process of its own, over the runs in the folder."""
    environment = {**FEW_ARENAS, **os.environ, ROOT_VARIABLE: folder}
    subprocess.run([sys.executable, __file__, "--page", page], env=environment, check=True)


if __name__ == "__main__":
    main()
