"""What runs of large models take, from the estimates of `mesa-lens probe --estimate`: configs alone, no weights.

`python benchmarks/sizes.py` prints a table. Hours are arithmetic: the passes' floating-point operations over what an
A100 does at 40% of its peak, all of them busy all the time; no such run was made.
"""

import tempfile
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, LlamaConfig

from mesa.models import tokenizer_of
from probe.capture.spec import CaptureSpec
from probe.commands.probe.plan import ProbeRequest, plan
from probe.commands.probe.run import work
from probe.experiment.estimate import passes_of
from probe.store.reader import layout

SHAPES = {
    "Llama-2-7B at 16k": (4096, 11008, 32, 32, 32, 4096, 16384),
    "Llama-2-70B at 32k": (8192, 28672, 80, 64, 8, 4096, 32768),
}
METHODS = "origin,rerope,dynamic-ntk,mesa"
RATE = 0.4 * 312e12  # an A100's operations a second in float16
GIB = 2**30


def planned(folder, shape, **more):
    """The plan of a probe run on a model of this shape."""
    hidden, inner, layers, heads, key_heads, window, length = shape
    config = LlamaConfig(
        vocab_size=32000,
        hidden_size=hidden,
        intermediate_size=inner,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=key_heads,
        max_position_embeddings=window,
    )
    config.architectures = ["LlamaForCausalLM"]
    config.save_pretrained(folder)
    tokenizer_of("default").save_pretrained(folder)  # a plan reads one; its sizes do not depend on which
    spec = CaptureSpec(dtype="float16", **more)
    request = ProbeRequest(model=str(folder), load={"dtype": "float16"}, methods=METHODS, length=length, spec=spec)
    return plan(request)


def operations(planned_run, parameters):
    """Floating-point operations of all passes: the weights', and the causal attention's."""
    config, total = planned_run.config, 0.0
    for (_, length), many in passes_of(work(planned_run)).items():
        attention = 2 * config.num_hidden_layers * length**2 * config.hidden_size
        total += many * (2 * parameters * length + attention)
    return total


def main() -> None:
    """Prints the table."""
    print("| | " + " | ".join(SHAPES) + " |\n|---|---|---|")
    rows: dict[str, list[str]] = {}
    for shape in SHAPES.values():
        with tempfile.TemporaryDirectory() as place:
            planned_run = planned(Path(place), shape)
            some = planned(Path(place), shape, dims=((0, 640),), layers=((0, 11),))
        with torch.device("meta"):
            parameters = sum(each.numel() for each in AutoModelForCausalLM.from_config(planned_run.config).parameters())
        kept, hidden = planned_run.kept, planned_run.config.hidden_size
        region = len(kept.positions) * hidden * 2
        chunk, _ = layout((len(kept.positions), hidden), 2)
        regions = planned_run.kept_bytes // region
        hours = operations(planned_run, parameters) / RATE / 3600
        tokens = sum(count * length for (_, length), count in passes_of(work(planned_run)).items())
        for name, value in {
            "weights in float16": f"{2 * parameters / GIB:,.0f} GiB",
            "a captured pass, in addition to the weights": f"{planned_run.pass_bytes / GIB:,.1f} GiB",
            "captured values of a pass, in the host's memory": f"{planned_run.host_bytes / GIB:,.0f} GiB",
            "store: all layers, positions and dims, 4 methods x 3 prompts": f"{planned_run.kept_bytes / GIB:,.0f} GiB",
            "the same, a method and prompt more": f"{planned_run.kept_bytes / 12 / GIB:,.0f} GiB",
            "store: layers 0-10, dims 0-639, all positions": f"{some.kept_bytes / GIB:,.1f} GiB",
            "captured values of a pass, of these alone": f"{some.host_bytes / GIB:,.1f} GiB",
            "files of the store, and chunks in each": f"{regions} of {region / 2**20:,.0f} MiB, "
            f"{-(-len(kept.positions) // chunk[0]) * -(-hidden // chunk[1])} each",
            "passes, in tokens": f"{tokens / 1e6:,.1f} million",
            "hours on one A100 at 40% (arithmetic)": f"{hours:,.1f}",
        }.items():
            rows.setdefault(name, []).append(value)
    for name, values in rows.items():
        print(f"| {name} | {' | '.join(values)} |")


if __name__ == "__main__":
    main()
