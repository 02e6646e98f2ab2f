"""The options that say which model is loaded, and how; the same in every command that loads one."""

from __future__ import annotations

import argparse
from typing import Any

from mesa_lens.options import LOAD, add_threads
from mesa_lens.values import window, word


def add_model_options(command: argparse.ArgumentParser) -> None:
    """Adds --model and how to load it, and --trained-length."""
    model = command.add_argument_group("model")
    model.add_argument(
        "--model",
        type=word,
        default="default",
        help="default, nope, alibi (shipped), smollm2 (once fetched), a local folder, a .gguf file, or a hub id",
    )
    model.add_argument("--revision", type=word, help="hub revision")
    model.add_argument(
        "--dtype",
        type=word,
        help="float32, float16, bfloat16 or float64 (None: float32 on a CPU, else the checkpoint's)",
    )
    add_device(model)
    model.add_argument("--device-map", type=word, help="accelerate's placement, e.g. auto; in place of --device")
    model.add_argument("--trust-remote-code", action="store_true", help="run code that the checkpoint brings")
    model.add_argument("--trained-length", type=window, help="trained window M in tokens (None: the config's word)")


def add_device(group: Any) -> None:
    """Adds --device and --threads."""
    group.add_argument("--device", type=word, default="cpu", help="e.g. cpu or cuda:0")
    add_threads(group)


def load_options(args: argparse.Namespace) -> dict[str, Any]:
    """What `mesa.load` is to be called with, beside the model's name."""
    return {name: getattr(args, name) for name in LOAD}
