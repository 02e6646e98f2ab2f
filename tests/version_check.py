"""Six tiny families with the packages that this Python has: `mesa-lens check`, and a cached decode beside one pass."""

import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "helpers")]

import families  # noqa: E402
import tiny  # noqa: E402
import torch  # noqa: E402
import transformers  # noqa: E402

import mesa  # noqa: E402
from mesa.outside import cache_in, with_cache  # noqa: E402

FAMILIES = ("llama", "mistral sliding", "qwen3", "gemma3_text", "phi", "gpt_neox")
METHODS = ("origin", "rerope", "mesa")
TOLERANCE = 1e-5
"""Of logits, as a share of the largest; a decode without its cache is .1 and more off."""


@torch.no_grad()
def decoded(model, method: str) -> float:
    """How far a token after token by a cache is from one pass over all, as a share of the largest logit."""
    ids = tiny.tokens(1, 60)
    with mesa.applied(model, mesa.make(method, 24), prompt_length=50):
        whole = model(ids, use_cache=False).logits
        output = model(ids[:, :50], use_cache=True)
        parts, cache = [output.logits], cache_in(output)
        for at in range(50, 60):
            parts.append(model(ids[:, at : at + 1], use_cache=True, **with_cache(model, cache)).logits)
    return float((torch.cat(parts, 1) - whole).abs().max() / whole.abs().max())


def main() -> int:
    """Prints a line a family; how many failed."""
    failed = 0
    print(f"torch {torch.__version__}, transformers {transformers.__version__}", flush=True)
    for family in FAMILIES:
        model = families.build(family)
        with tempfile.TemporaryDirectory() as folder:
            model.save_pretrained(folder)
            tiny.tokenizer(Path(folder))
            command = [sys.executable, "-m", "mesa_lens", "check", "--model", folder]
            done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        worst = max(decoded(model, method) for method in METHODS)
        passed = done.returncode == 0 and worst <= TOLERANCE
        print(f"{family}: check {done.returncode}, cached decode off by {worst:.1e}", flush=True)
        if not passed:
            failed += 1
            print(done.stdout[-2000:], done.stderr[-2000:], sep="\n", flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(main())
