"""Python code that was written after SmolLM2's release: is it read as the shipped texts are?

    python research/real_model/after_release.py    # weights: `mesa-lens fetch smollm2`; minutes a pass of 16k tokens

fetches three wheels from PyPI into runs/after-release (pip; sha256 checked), takes the first 16384 tokens of the
largest module of each, and measures the NLL of their last 2048 tokens by method and prompt length, as `--sections nll`
of research/paper does: results/after-release.jsonl (resumable), after-release.csv. Beyond M `crop` is
origin at M tokens.

SmolLM2 was released in November 2024. The first file of each package was uploaded in 2025, as the index says
(`first_upload`), so no version of these modules was published under its name before.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
import sys
import urllib.request
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

sys.path.insert(0, str(Path(__file__).parents[2]))

import mesa
from mesa.fingerprints import identity, ids_fingerprint
from mesa.models import load, tokenizer_of
from probe.eval_tasks.score import nll
from probe.statistics import student
from research.script import Journal, add_executor, deadline, on_device, run

RESULTS = Path(__file__).parent / "results"
RELEASED = "2024-11-30"
M, LONGEST, TAIL = 8192, 16384, 2048
PASSES = (
    ("origin", M),  # what `crop` gives at every length beyond M
    *((name, length) for length in (LONGEST, 12288) for name in ("rerope", "origin", "mesa", "dynamic-ntk")),
    *((name, M) for name in ("rerope", "mesa", "dynamic-ntk")),
)
"""Methods and prompt lengths (tokens), in the order in which all texts are measured."""


@dataclass(frozen=True)
class Module:
    """A Python file of a wheel."""

    package: str
    version: str
    licence: str
    first_upload: str
    path: str
    sha256: str

    def text(self, folder: Path) -> str:
        """The file's text, fetched unless its wheel is in `folder`. ValueError for another sum or an earlier upload."""
        name = f"{self.package.replace('-', '_')}-{self.version}-py3-none-any.whl"
        if not (folder / name).exists():
            command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary", ":all:"]
            subprocess.run([*command, "-d", str(folder), f"{self.package}=={self.version}"], check=True)
            if not RELEASED < first_upload(self.package) == self.first_upload:
                raise ValueError(f"{self.package} was first uploaded on {first_upload(self.package)}")
        with zipfile.ZipFile(folder / name) as wheel:
            data = wheel.read(self.path)
        if hashlib.sha256(data).hexdigest() != self.sha256:
            raise ValueError(f"{name}: {self.path} is not the file that was measured")
        return data.decode("utf-8")


MODULES = (
    Module(
        "google-adk",
        "2.13.0",
        "Apache-2.0",
        "2025-03-17",
        "google/adk/plugins/bigquery_agent_analytics_plugin.py",
        "d3cd0f5a3b3d244dbc1b4d64c6ec33bb1931d811772af966baba9a7af38536d7",
    ),
    Module(
        "openai-agents",
        "0.24.0",
        "MIT",
        "2025-03-04",
        "agents/run_state.py",
        "fdccd128c5e9b7749f5226922f4507862e99ce89fd81284f696e0dd4a7d9eb28",
    ),
    Module(
        "strands-agents",
        "1.62.0",
        "Apache-2.0",
        "2025-05-14",
        "strands/tools/mcp/mcp_client.py",
        "5d0f1ceb767a3fd7754fcc1780c66df5efa33c7aa07d90fb1de40ffa1f8735b5",
    ),
)


def first_upload(package: str) -> str:
    """The day on which the index got a package's first file."""
    with urllib.request.urlopen(f"https://pypi.org/pypi/{package}/json", timeout=60) as answer:
        releases = json.load(answer)["releases"]
    return min(file["upload_time"] for files in releases.values() for file in files)[:10]


def main(args: argparse.Namespace) -> None:
    """Measures what the journal lacks, then writes the table."""
    over = deadline(args.minutes)
    args.texts.mkdir(parents=True, exist_ok=True)
    tokenizer = tokenizer_of("smollm2")
    windows = [np.array(tokenizer(module.text(args.texts)).input_ids[:LONGEST]) for module in MODULES]
    if any(len(window) < LONGEST for window in windows):
        raise ValueError(f"a file has fewer than {LONGEST} tokens")
    loaded: Any = load("smollm2", dtype="float32", device=args.device)
    settings = {
        "model": "smollm2",
        "modules": [f"{module.package} {module.version} {module.path} sha256 {module.sha256}" for module in MODULES],
        "documents": ids_fingerprint(windows),
        **identity("smollm2", loaded.model.config),
    }
    journal = Journal(RESULTS / "after-release.jsonl", settings)
    for name, length in PASSES:
        for number, window in enumerate(windows):
            if (name, length, number) in journal.rows:
                continue
            if over():
                return
            with mesa.applied(loaded.model, mesa.make(name, M), executor=args.executor):
                loss = float(nll(loaded.model, window[-length:], TAIL, reduction="mean"))
            journal.add((name, length, number), {"nll": round(loss, 4), **on_device(args)})
            print(name, length, number, f"{loss:z.4f}", flush=True)
            write_table(journal)


def write_table(journal: Journal) -> None:
    """results/after-release.csv: the mean NLL, and it less that of crop, of the passes that all texts have."""
    values = {key: row["nll"] for key, row in journal.rows.items()}
    rows = []
    for name, length in PASSES:
        keys = [(name, length, number) for number in range(len(MODULES))]
        if all(key in values for key in keys):
            less = [values[key] - values["origin", M, key[2]] for key in keys]
            low, high = student(less)
            nats = {"nll": np.mean([values[key] for key in keys]), "less_crop": np.mean(less), "low": low, "high": high}
            rows.append({"method": name, "length": length, "texts": len(keys), **nats})
    if rows:
        pd.DataFrame(rows).round(4).to_csv(RESULTS / "after-release.csv", index=False)


def parser() -> argparse.ArgumentParser:
    """The script's parser."""
    top = argparse.ArgumentParser(prog="python research/real_model/after_release.py", description=__doc__)
    top.add_argument("--texts", type=Path, default=Path("runs/after-release"), help="folder of the wheels")
    add_executor(top)
    top.add_argument("--minutes", type=float, help="start nothing after this; the same command continues")
    return top


if __name__ == "__main__":
    run(main, parser())
