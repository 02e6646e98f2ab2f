"""TransformerLens' benchmarks of a bridge, on the kind that is asked for; without a method, and under Origin, with
references from the stock bridge.
"""

import contextlib
import inspect
import io
import json
import os
import warnings
from pathlib import Path

import bridges
import torch
from transformer_lens import benchmarks
from transformer_lens.benchmarks import weight_processing

TEXT = "The quick brown fox jumps over the lazy dog and"
OTHERS = ("audio", "encoder", "vision", "multimodal", "text_quality", "all_components", "model", "suite")
"""Words in the names of those for other models, or that compare other things than a bridge."""


def functions():
    """The benchmarks of a bridge of a causal language model, by name."""
    named = {**vars(weight_processing), **vars(benchmarks)}
    return {
        name.removeprefix("benchmark_"): function
        for name, function in sorted(named.items())
        if name.startswith("benchmark_") and inspect.isfunction(function) and not any(word in name for word in OTHERS)
    }


def references():
    """What the stock bridge computes, by the parameter of the benchmarks that takes it."""
    if bridges.METHOD not in ("", "origin"):
        return {}
    bridge = bridges.stock()
    with torch.no_grad():
        logits, cache = bridge.run_with_cache(TEXT)
        loss = float(bridge(TEXT, return_type="loss"))
    states = dict(cache.items())
    return {
        "reference_hooks": list(bridge.hook_dict),
        "reference_activations": states,
        "reference_cache": states,
        "reference_logits": logits,
        "reference_loss": loss,
    }


def said(function, given):
    """'passed', or what the benchmark says, of a bridge of its own."""
    parameters = inspect.signature(function).parameters
    given = {**given, "test_text": TEXT, "test_prompts": ["one two", "three four five"], "max_new_tokens": 3}
    try:
        result = function(bridges.bridge(), **{name: given[name] for name in parameters if name in given})
    except Exception as error:
        return f"{type(error).__name__}: {error}"[:300]
    return "passed" if result.passed else f"{result.severity.name}: {result.message}"[:300]


def main():
    warnings.simplefilter("ignore")
    with contextlib.redirect_stderr(io.StringIO()):
        given = references()
        outcomes = {f"benchmark_{name}": said(function, given) for name, function in functions().items()}
    Path(os.environ["PEERS_OUT"]).write_text(json.dumps(outcomes, indent=1))


if __name__ == "__main__":
    main()
