"""Collects scores by model, method and length: results.md and the data of `space/`.

python research/leaderboard/run.py --model default    # measures a shipped model first; interrupted, it continues
python research/leaderboard/run.py                    # collects
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import pandas as pd

sys.path.insert(0, str(Path(__file__).parents[2]))

from probe.statistics import shown, student, wilson
from research.real_model.run import M as SMOLLM2_WINDOW, cells
from research.script import run

ROOT = Path(__file__).parents[2]
RESULTS = Path(__file__).parent / "results"
SCORES = ROOT / "space" / "leaderboard.csv"
PAGE = Path(__file__).parent / "results.md"
SHIPPED = {"default": "shipped, rotary", "alibi": "shipped, ALiBi", "nope": "shipped, no positions"}
SMOLLM2 = "SmolLM2-135M-Instruct"
WINDOW, SAMPLES = 256, 20
Samples = dict[int, float]
SECTIONS = {"nll": ("nll",), "passkey": ("passkey", "passkey-12k")}
COLUMNS = [*"model window task method length samples value low high less_crop less_low less_high".split()]
TITLES = {
    "nll": "NLL of the same last tokens (nats/token; lower is better), in brackets less `crop`'s on the same texts",
    "passkey": "passkeys found (share; higher is better), with Wilson's 95% interval",
}


def measure(model: str, out: Path) -> None:
    """Evaluates every method on a shipped model, and keeps samples.csv under results/."""
    from mesa_lens.cli import main as mesa_lens

    words = ["eval", "--model", model, "--task", "nll,passkey", "--lengths", "256,512,1k,2k", "--samples", str(SAMPLES)]
    if mesa_lens([*words, "--out", str(out)]):
        raise RuntimeError(f"the evaluation of {model} failed")
    samples = pd.read_csv(out / "samples.csv")
    RESULTS.mkdir(exist_ok=True)
    samples[["task", "method", "length", "sample", "metric", "score"]].to_csv(RESULTS / f"{model}.csv", index=False)


def row(model: str, window: int, task: str, method: str, length: int, scores: Samples, crop: Samples) -> list[object]:
    """A line of the table: the mean; passkeys have Wilson's interval, NLL the paired difference to `crop`."""
    values = [*scores.values()]
    line = [model, window, task, method, length, len(values), sum(values) / len(values)]
    if task == "passkey":
        return [*line, *wilson(sum(values), len(values)), None, None, None]
    pairs = [value - crop[sample] for sample, value in scores.items() if sample in crop]
    if method == "crop" or not pairs:
        return [*line, *[None] * 5]
    return [*line, None, None, sum(pairs) / len(pairs), *student(pairs)]


def collect() -> pd.DataFrame:
    """Every score: shipped models from results/, SmolLM2 from the journals of research/real_model."""
    by_cell: dict[tuple[str, int, str, str, int], Samples] = {}
    for name, title in SHIPPED.items():
        if (RESULTS / f"{name}.csv").is_file():
            samples = pd.read_csv(RESULTS / f"{name}.csv")
            for line in samples.itertuples(index=False):
                key = (title, WINDOW, line.task, line.method, line.length)
                by_cell.setdefault(key, {})[line.sample] = line.score
    for task, sections in SECTIONS.items():
        for method, length, scores in (cell for section in sections for cell in cells(section)):
            key = (SMOLLM2, SMOLLM2_WINDOW, task, method, length)
            by_cell[key] = {score["sample"]: score["value"] for score in scores}
    rows = [row(*key, scores, by_cell.get((*key[:3], "crop", key[4]), {})) for key, scores in by_cell.items()]
    return pd.DataFrame(rows, columns=pd.Index(COLUMNS)).astype(dict.fromkeys(COLUMNS[6:], float))


def tables(scores: pd.DataFrame) -> str:
    """A table by model and task: a row per method, best mean at the longest length first."""
    parts = []
    for (model, window, task), group in scores.groupby(["model", "window", "task"], sort=False):
        lengths = sorted(group["length"].unique())
        order = group.pivot_table(index="method", columns="length", values="value")
        order = order.sort_values(lengths[::-1], ascending=task == "nll").index
        cell = {(line.method, line.length): line for line in group.itertuples()}
        counts = " to ".join(map(str, sorted({group["samples"].min(), group["samples"].max()})))
        head = f"**{model}**, M = {window}: {TITLES[task]}; {counts} samples"
        lines = [head, "", "| method | " + " | ".join(map(str, lengths)) + " |", "|---" * (len(lengths) + 1) + "|"]
        for method in order:
            texts = [shown_cell(cell.get((method, length))) for length in lengths]
            lines.append(f"| `{method}` | " + " | ".join(texts) + " |")
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


def shown_cell(line: Any) -> str:
    """A cell of the page: empty where nothing was measured."""
    if line is None:
        return ""
    if line.task == "passkey":
        return shown(line.value, line.low, line.high, "z.2f")
    if pd.isna(line.less_crop) or max(abs(line.less_low), abs(line.less_high)) < 0.005:  # none that shows
        return f"{line.value:z.2f}"
    return f"{line.value:z.2f} ({shown(line.less_crop, line.less_low, line.less_high, '+z.2f')})"


def parser() -> argparse.ArgumentParser:
    """The script's parser."""
    top = argparse.ArgumentParser(prog="python research/leaderboard/run.py", description=__doc__)
    top.add_argument("--model", choices=SHIPPED, help="measure this shipped model first")
    top.add_argument("--out", type=Path, default=Path("runs/leaderboard"), help="folder of the evaluation")
    return top


def main(args: argparse.Namespace) -> None:
    """Measures if asked, then writes the table and the page."""
    if args.model:
        measure(args.model, args.out / args.model)
    scores = collect()
    scores.round(4).to_csv(SCORES, index=False)
    before, mark, rest = PAGE.read_text(encoding="utf-8").partition("<!-- scores -->\n")
    _, end, after = rest.partition("<!-- end -->")
    PAGE.write_text(before + mark + "\n" + tables(scores) + "\n\n" + end + after, encoding="utf-8")


if __name__ == "__main__":
    run(main, parser())
