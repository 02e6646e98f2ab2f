"""What `run_with_cache` of the residual stream adds to memory, on TransformerLens' bridge and on `mesa.bridge`.

`python benchmarks/hooks.py [--lengths 2048,4096,8192]` runs every case in a process of its own and prints MiB: the peak
of the process's resident memory in the call, less what it was before. Lengths go far beyond the shipped model's window:
memory is what is measured. Time is not: it follows the machine's load.
"""

import argparse
import contextlib
import resource
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
BRIDGES = {"TransformerLens": "stock", "mesa.bridge": "", "Origin": "origin", "ReRoPE": "rerope"}
"""Bridges and methods by what the table calls them."""
MIB = 2**20


def added(kind: str, length: int) -> float:
    """MiB that one call adds in this process; a call of 64 tokens comes first."""
    import torch
    from transformer_lens.model_bridge import TransformerBridge

    import mesa
    from mesa.support import trained_length

    torch.set_num_threads(1)
    loaded = mesa.load()
    model, tokenizer = loaded.model, loaded.tokenizer
    if kind == "stock":
        built = TransformerBridge.boot_transformers(type(model).__name__, hf_model=model, tokenizer=tokenizer)
    else:
        built = mesa.bridge(model, tokenizer)
    method = mesa.make(kind, trained_length(model.config)) if kind not in ("", "stock") else None
    ids = torch.randint(2, len(tokenizer), (1, length), generator=torch.Generator().manual_seed(0))
    with torch.no_grad(), mesa.applied(model, method) if method else contextlib.nullcontext():
        for tokens in (ids[:, :64], ids):
            before = int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
            built.run_with_cache(tokens, names_filter=lambda hook: hook.endswith("hook_resid_post"), return_type=None)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / MIB - before / MIB


def main() -> None:
    """Prints the table."""
    command = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    command.add_argument("--lengths", default="2048,4096,8192", help="tokens (%(default)s)")
    command.add_argument("--one", nargs=2, metavar=("KIND", "LENGTH"), help="measure one case and print its MiB")
    given = command.parse_args()
    if given.one:
        print(added(given.one[0], int(given.one[1])))
        return
    lengths = given.lengths.split(",")
    print("| MiB | " + " | ".join(f"{length} tokens" for length in lengths) + " |\n|---" + "|---" * len(lengths) + "|")
    for name, kind in BRIDGES.items():
        row = []
        for length in lengths:
            case = [sys.executable, __file__, "--one", kind, length]
            row.append(f"{float(subprocess.run(case, check=True, capture_output=True, text=True).stdout):.0f}")
        print(f"| {name} | " + " | ".join(row) + " |", flush=True)


if __name__ == "__main__":
    main()
