"""What one attention layer takes on a GPU, counted without one: launches, memory, copies of keys, transfers.

A model of the shapes of a known one runs by `mesa.applied` on tensors without numbers (on_paper.py). Counted is what
each layer's attention does between its queries, keys and values and its output, for a prompt and for a token decoded
after it. Launches are dispatched operations that run something; a compiled function is one.

    python benchmarks/budgets.py                                  # Llama-3-8B, 32768 tokens: results/budgets.md
    python benchmarks/budgets.py --model gemma-2-27b --length 65536 --out FOLDER
    python benchmarks/budgets.py --methods rerope,dca             # prints which operations they launch

`torch.compile` is replaced while counting: what a function compiles at its first call is one launch then, what was
compiled when its module was imported is not. Slices and `~` of tensors on the device are fine here.
"""

from __future__ import annotations

import argparse
import json
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from on_paper import META, Counts, Device, on_paper
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    GptOssConfig,
    HunYuanDenseV1Config,
    LlamaConfig,
    Qwen3Config,
)

import mesa
from mesa.engine import plug, structure
from mesa.engine.gpu import kernels
from mesa.methods import make, standard_methods
from mesa.support import unfit

FOLDER = Path(__file__).parent / "results"
LIMITS = {"prefill launches": 60, "decode launches": 2, "extra": 0.5, "copies": 0, "transfers": 0}
"""Of a layer; `extra` and `copies` in bytes of all keys and values, for prompt and token alike."""
EXTRA_BYTES = 40 * 2**20
"""That `extra` may always be: half of the keys and values of a short prompt is little."""

MODELS: dict[str, tuple[Any, dict[str, Any], int]] = {
    "llama-3-8b": (
        LlamaConfig,
        {"hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128,
         "intermediate_size": 14336, "vocab_size": 128256, "rope_theta": 500000.0},
        8192,
    ),
    "llama-2-7b": (
        LlamaConfig,
        {"hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 32, "head_dim": 128,
         "intermediate_size": 11008, "vocab_size": 32000},
        4096,
    ),
    "qwen3-0.6b": (
        Qwen3Config,
        {"hidden_size": 1024, "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128,
         "intermediate_size": 3072, "vocab_size": 151936, "rope_theta": 1000000.0},
        2048,
    ),
    "qwen3-32b": (
        Qwen3Config,
        {"hidden_size": 5120, "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 128,
         "intermediate_size": 25600, "vocab_size": 151936, "rope_theta": 1000000.0},
        32768,
    ),
    "gemma-2-27b": (
        Gemma2Config,
        {"hidden_size": 4608, "num_attention_heads": 32, "num_key_value_heads": 16, "head_dim": 128,
         "intermediate_size": 36864, "vocab_size": 256000, "query_pre_attn_scalar": 144},
        8192,
    ),
    "gpt-oss-20b": (
        GptOssConfig,
        {"hidden_size": 2880, "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 64,
         "intermediate_size": 2880, "vocab_size": 201088, "num_local_experts": 32},
        4096,
    ),
    "hunyuan-7b": (  # norms after the rotation
        HunYuanDenseV1Config,
        {"hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128,
         "intermediate_size": 14336, "vocab_size": 128167},
        32768,
    ),
}  # fmt: skip
"""By name: the config's class, its shapes, and the trained length M (tokens)."""
DEPTH = 4
"""Layers: the later half are counted, so that each kind of layer has been met; memory in all."""


def config_of(name: str, small: bool = False) -> Any:
    """The config of a model of these shapes; small: all but the attention's."""
    cls, shapes, trained = MODELS[name]
    fewer = {"intermediate_size": 64, "vocab_size": 97} if small else {}
    fewer |= {"hidden_size": 64} if small and "head_dim" in shapes else {}
    experts = {"num_local_experts": 4} if "num_local_experts" in shapes else {}
    given = {**shapes, **fewer, **experts, "num_hidden_layers": DEPTH, "max_position_embeddings": trained}
    return cls(**given, pad_token_id=0)


def model_of(name: str, device: Device) -> Any:
    """A model without numbers, whose rotary frequencies are known and whose structure a small one's probe gave.

    Its MLPs give back what they are given.
    """
    torch.manual_seed(0)
    small = AutoModelForCausalLM.from_config(config_of(name, small=True)).eval()
    known = structure._examined(small)
    config = config_of(name)
    with META:
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()
    structure._cache[structure._key(model)] = known
    for layer in model.model.layers:
        tupled = hasattr(layer.mlp, "router")  # a mixture's scores come out as well
        layer.mlp.forward = (lambda states: (states, None)) if tupled else (lambda states: states)
    model.lm_head.forward = lambda states: states[..., :1]
    for module, real in zip(model.modules(), small.modules(), strict=True):
        for path, buffer in real.named_buffers(recurse=False):
            setattr(module, path, device.put(buffer))
    return model


@contextmanager
def layers_counted(device: Device, into: dict[str, list[Counts]]) -> Iterator[None]:
    """Each layer's attention, from its queries, keys and values to its output, adds its counts."""
    inner = plug.Attachment.attention

    def attention(self: Any, module: Any, query: Tensor, key: Tensor, value: Tensor, *args: Any, **kwargs: Any) -> Any:
        with device.counting((key, value)) as counts:
            output = inner(self, module, query, key, value, *args, **kwargs)
        counts.extra -= query.numel() * query.itemsize
        into["prefill" if query.shape[2] > 1 else "decode"].append(counts)
        return output

    with mock.patch.object(plug.Attachment, "attention", attention):
        yield


@torch.no_grad()
def counted(device: Device, model: Any, method: Any, length: int, rows: int = 1) -> dict[str, list[Counts]]:
    """The counts of all layers, of a prompt of `length` tokens and of a token after it. rows: padded texts."""
    result: dict[str, list[Counts]] = {"prefill": [], "decode": []}
    ids = torch.zeros(rows, length + 1, dtype=torch.long, device="cuda")
    pads = torch.arange(rows)[:, None] * length // (2 * rows)  # on the left
    mask = device.put((torch.arange(length + 1) >= pads).long())
    with ExitStack() as stack:
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        stack.enter_context(mock.patch.object(kernels, "agrees", return_value=True))
        stack.enter_context(layers_counted(device, result))
        stack.enter_context(mesa.applied(model, method))
        masks = [{"attention_mask": mask.narrow(1, 0, end)} if rows > 1 else {} for end in (length, length + 1)]
        cache = model(ids.narrow(1, 0, length), use_cache=True, **masks[0]).past_key_values
        model(ids.narrow(1, length, 1), past_key_values=cache, use_cache=True, **masks[1])
    return result


def row(model: str, method: Any, length: int, counts: dict[str, list[Counts]], rows: int = 1) -> dict[str, Any]:
    """A method's row: of launches the most of a layer, of all else the most of prompt and token. rows: of the batch."""
    size = rows * size_of(model, length)
    result: dict[str, Any] = {"method": method.name}
    for phase, layers in counts.items():
        result[f"{phase} launches"] = max(layer.launches for layer in layers[DEPTH // 2 :])
    for phase, layers in counts.items():
        result[f"{phase} extra"] = max(0.0, round(max(layer.extra for layer in layers) / size, 3))
        result[f"{phase} copies"] = round(max(layer.copied for layer in layers) / size, 3)
        result[f"{phase} transfers"] = sum(layer.transfers for layer in layers[1:])
    return result


def size_of(model: str, length: int) -> int:
    """Bytes of all keys and values of a text, bfloat16."""
    config = config_of(model)
    dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return 2 * 2 * config.num_key_value_heads * dim * length


def over(row: dict[str, Any], size: int) -> list[str]:
    """The columns of a row that are over the limits. size: bytes of all keys and values."""
    bars = LIMITS | {"extra": max(LIMITS["extra"], EXTRA_BYTES / size)}
    limits = {column: bars.get(column, bars.get(column.partition(" ")[2])) for column in row if column != "method"}
    return [column for column, limit in limits.items() if limit is not None and row[column] > limit]


def rows(name: str, length: int, names: Sequence[str] = (), show: bool = False) -> list[dict[str, Any]]:
    """One row a method that fits, of those named, or of all; show: print the last layer's launches."""
    methods = [make(method, MODELS[name][2]) for method in names or standard_methods()]
    table = []
    with on_paper() as device:
        model = model_of(name, device)
        for method in methods:
            if unfit(model.config, type(method)):
                continue
            counts = counted(device, model, method, length)
            for phase, layers in counts.items() if show else ():
                print(method.name, phase, layers[-1].names)
            table.append(row(name, method, length, counts))
    return table


def page(name: str, length: int, table: list[dict[str, Any]]) -> str:
    """The rows in Markdown; what is over its limit is bold."""
    columns = list(table[0])
    lines = [columns, ["---"] * len(columns)]
    for row in table:
        wrong = over(row, size_of(name, length))
        lines.append([f"**{row[column]}**" if column in wrong else str(row[column]) for column in columns])
    body = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    limits = "; ".join(f"{column} {limit}" for column, limit in LIMITS.items())
    return (
        f"# One attention layer on a GPU, counted: {name}, {length} tokens, M = {MODELS[name][2]}\n\n"
        "Counted without a GPU (benchmarks/budgets.py), bfloat16, one prompt and one token after it. Launches: the "
        "most of a layer,\nonce its plan is laid out. Extra: the peak of memory beside queries, keys, values and "
        "output; copies: keys and values\ncopied; both as shares of all keys and values. Transfers to the host: after "
        f"the first layer.\n\nLimits: {limits}; extra of {EXTRA_BYTES >> 20} MiB always fits. Over them: bold.\n\n"
        f"{body}\n"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Writes the page; the number of rows over a limit."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=MODELS, default="llama-3-8b")
    parser.add_argument("--length", type=int, default=32768)
    parser.add_argument("--methods", default="", help="by comma: print these and their operations, write nothing")
    parser.add_argument("--out", type=Path, default=FOLDER)
    options = parser.parse_args(arguments)
    names = [name for name in options.methods.split(",") if name]
    table = rows(options.model, options.length, names, show=bool(names))
    text = page(options.model, options.length, table)
    print(text)
    if not names:
        options.out.mkdir(parents=True, exist_ok=True)
        named = "" if (options.model, options.length) == ("llama-3-8b", 32768) else f"-{options.model}-{options.length}"
        (options.out / f"budgets{named}.json").write_text(json.dumps(table, indent=1) + "\n")
        (options.out / f"budgets{named}.md").write_text(text)
    return sum(bool(over(row, size_of(options.model, options.length))) for row in table)


if __name__ == "__main__":
    sys.exit(bool(main()))
