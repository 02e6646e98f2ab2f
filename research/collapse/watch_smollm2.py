"""Does `probe.watch` warn on SmolLM2, as it is by default? rule.md, evaluated.

mesa-lens fetch smollm2
python research/collapse/watch_smollm2.py               # results/watch-smollm2.csv; 25 minutes on two cores
python research/collapse/watch_smollm2.py --layer 26    # results/watch-smollm2-26.csv
"""

from __future__ import annotations

import argparse
import sys
import sysconfig
import warnings
from pathlib import Path

import pandas as pd
import torch

sys.path.insert(0, str(Path(__file__).parents[2]))

import mesa
import probe
from research.collapse.run import RESULTS

LENGTH, FILES = 12288, 18


def texts() -> tuple[list[Path], list[Path]]:
    """The largest modules of the standard library: those to fit on, and every third, to watch."""
    modules = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"), key=lambda path: (-path.stat().st_size, path))
    largest = modules[:FILES]
    return [path for number, path in enumerate(largest) if number % 3 != 2], largest[2::3]


@torch.no_grad()
def main(layer: int | None) -> None:
    """Writes a row for each window: its end, ratio, and whether it is detected."""
    table = RESULTS / ("watch-smollm2.csv" if layer is None else f"watch-smollm2-{layer}.csv")
    loaded, (fitted, watched) = mesa.load("smollm2"), texts()
    rows = []
    prompts = [path.read_text(encoding="utf-8") for path in fitted]
    with probe.watch(loaded, prompts, samples=len(fitted), layer=layer) as watching:
        warnings.simplefilter("ignore")
        for path in watched:
            ids = loaded.tokenizer(path.read_text(encoding="utf-8"), return_tensors="pt")["input_ids"][:, :LENGTH]
            for name in ("origin", "rerope"):
                with mesa.applied(loaded.model, mesa.make(name, 8192)):
                    loaded.model(ids, logits_to_keep=1, use_cache=False)
                detected = {position for _, position, _ in watching.detections}
                for position, ratio in watching.distances[0]:
                    of_window = {"position": position, "ratio": round(ratio, 4), "detected": position in detected}
                    rows.append({"text": path.stem, "method": name, "limit": round(watching.limit, 4)} | of_window)
                pd.DataFrame(rows).to_csv(table, index=False)
                print(rows[-1], flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layer", type=int, help="whose states are watched (None: the default at the time)")
    main(parser.parse_args().layer)
