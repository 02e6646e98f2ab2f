"""Expected shares of stock's time on an H100, computed from plans (benchmarks/h100.py) and never measured.

Launches are those that budgets.py counts, of a layer at 32768 tokens. Checked: the operations of attention that it
counts, as a share of the computed ones.

    python benchmarks/cost.py            # Llama-3-8B: results/cost.md
"""

from __future__ import annotations

import argparse
import textwrap
from pathlib import Path
from typing import Any

from budgets import DEPTH, FOLDER, MODELS, config_of, counted, model_of
from h100 import pass_parts, seconds, stock_parts
from on_paper import on_paper

from mesa.methods import make, standard_methods
from mesa.support import unfit

COUNTED, LENGTHS = 32768, (8192, 32768, 131072)
LAYERS = {"llama-3-8b": 32, "llama-2-7b": 32, "qwen3-32b": 64, "gemma-2-27b": 46, "gpt-oss-20b": 24}


def row(name: str, method: Any, counts: dict[str, Any]) -> list[str]:
    """A method's row of the table."""
    config = config_of(name)
    config.num_hidden_layers = LAYERS[name]
    launches = {phase: max(layer.launches for layer in layers[DEPTH // 2 :]) for phase, layers in counts.items()}
    computed = pass_parts(config, method, COUNTED, COUNTED)[0].flops / LAYERS[name]
    shares = [
        seconds(*pass_parts(config, method, length, new, launches=launches[phase]))
        / seconds(*stock_parts(config, length, new))
        for phase, tokens in (("prefill", LENGTHS), ("decode", (1,) * len(LENGTHS)))
        for length, new in zip(LENGTHS, tokens, strict=True)
    ]
    checked = f"{counts['prefill'][-1].flops / computed:.2f}"
    return [method.name, *map(str, launches.values()), checked, *(f"{share:.2f}" for share in shares)]


def page(name: str) -> str:
    """The table in Markdown."""
    lengths = [f"{length // 1024}k" for length in LENGTHS]
    columns = ["method", "launches", "of a token", "operations counted / computed"]
    columns += [f"{phase} {length}" for phase in ("prefill", "token") for length in lengths]
    lines = [columns, ["---"] * len(columns)]
    with on_paper() as device:
        model = model_of(name, device)
        for method in (make(one, MODELS[name][2]) for one in standard_methods()):
            if not unfit(model.config, type(method)):
                lines.append(row(name, method, counted(device, model, method, COUNTED)))
    stock = config_of(name)
    stock.num_hidden_layers = LAYERS[name]
    times = ", ".join(
        f"{1000 * seconds(*stock_parts(stock, length, length)):.0f} and "
        f"{1000 * seconds(*stock_parts(stock, length, 1)):.1f} ms at {label}"
        for length, label in zip(LENGTHS, lengths, strict=True)
    )
    table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    about = " ".join((__doc__ or "").split("    python")[0].split())
    return (
        f"# Computed, never measured: shares of stock's time on an H100, {name}, M = {MODELS[name][2]}\n\n"
        f"{textwrap.fill(about, 120)}\n"
        f"Stock's prompt and token, computed: {times}.\n\n{table}\n"
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=MODELS, default="llama-3-8b")
    parser.add_argument("--out", type=Path, default=FOLDER)
    options = parser.parse_args()
    named = "" if options.model == "llama-3-8b" else f"-{options.model}"
    (options.out / f"cost{named}.md").write_text(page(options.model))
