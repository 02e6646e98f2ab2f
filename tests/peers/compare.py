"""TransformerLens' own bridge benchmarks and integration tests, run on its bridge and on ours; `make test-peers`.

`python tests/peers/compare.py` fetches the source of the installed TransformerLens, runs both suites on its bridge
and on `mesa.bridge` of every kind, and compares. A kind is `none` (no method) or a method with an executor, as
`rerope:fused`. What fails beyond stock's failures must be in failures.toml with a reason; an entry that no longer
fails is an error too, so the list can only shrink. Models are copies of one: the shipped one, each of `--models`, or
with `--families` the tiny model of each of ten families (tests/helpers/matrix.py), with the shipped model's tokenizer.
"""

import argparse
import json
import os
import subprocess
import sys
import tarfile
import tomllib
from importlib.metadata import version
from pathlib import Path

HERE = Path(__file__).parent
KINDS = ("none", "origin:dense", "origin:fused", "mesa:dense")
FAMILIES = "gpt_oss,olmo3,qwen3_next,glm4,smollm3,llama4,cohere2,granite,deepseek_v3,falcon_h1"
FILES = """bridge_run_with_cache_pos_slice bridge_stop_at_layer bridge_start_at_layer bridge_manual_kv_cache
  bridge_self_consistency bridge_hook_scope attention_score_sentinel bridge_caching_hooks bridge_generate_return_cache
  bridge_generation bridge_run_with_cache_incl_bwd bridge_input_to_embed generate_attention_mask left_padding_positions
  generate_stream_batched bridge_generate_stopping_criteria""".split()


def source(folder: Path) -> Path:
    """TransformerLens' source without its package, so that its tests run on the installed one."""
    name = f"transformer_lens-{version('transformer-lens')}"
    if not (folder / name).exists():
        wanted = f"transformer-lens=={version('transformer-lens')}"
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", ":all:"]
        subprocess.run([*command, "--dest", str(folder), wanted], check=True)
        with tarfile.open(next(folder.glob("*.tar.gz"))) as archive:
            kept = [member for member in archive if not member.name.startswith(f"{name}/transformer_lens/")]
            archive.extractall(folder, kept, filter="data")
    return folder / name


def results(tests: Path, kind: str, model: str, suites: list[str]) -> dict[str, str]:
    """What each test says on a kind of bridge: 'passed', 'skipped', or why it failed."""
    out = tests.parent / f"{Path(model).stem}-{kind.replace(':', '-')}.json"
    environment = {
        **os.environ,
        "PEERS_KIND": kind,
        "PEERS_MODEL": model,
        "PEERS_OUT": str(out),
        "HF_HUB_OFFLINE": "1",
        "PYTHONPATH": os.pathsep.join(map(str, (HERE, HERE.parent / "helpers", HERE.parents[1], tests))),
    }
    said: dict[str, str] = {}
    for suite in suites:
        out.unlink(missing_ok=True)
        files = [f"tests/integration/model_bridge/test_{name}.py" for name in FILES]
        command = ["-m", "pytest", "-q", "-o", "addopts=", "-p", "redirect", "-p", "no:cacheprovider", *files]
        command = command if suite == "tests" else [str(HERE / "bridge_benchmarks.py")]
        done = subprocess.run([sys.executable, *command], cwd=tests, env=environment, capture_output=True, text=True)
        if not out.exists():
            raise SystemExit(f"{kind}: {suite} ended without results\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
        said |= json.loads(out.read_text())
    return said


def failed(said: dict[str, str]) -> set[str]:
    """The tests that did not pass."""
    return {test for test, word in said.items() if word not in ("passed", "skipped")}


def verdict(stock: dict[str, str], ours: dict[str, str], listed: dict[str, str]) -> list[str]:
    """What is wrong: tests that fail beyond stock's and are not listed, and listed ones that do not."""
    beyond = failed(ours) - failed(stock)
    lines = [f"fails, and is not listed: {test}: {ours[test]}" for test in sorted(beyond - set(listed))]
    lines += [f"is not there any more: {test}" for test in sorted(set(stock) - set(ours))]
    return lines + [
        f"listed, but does not fail beyond stock; remove it: {test}" for test in sorted(set(listed) - beyond)
    ]


def listed(kind: str, model: str = "default") -> dict[str, str]:
    """The tests that may fail on a kind of bridge of a model beyond stock's failures, with reasons."""
    entries = tomllib.loads((HERE / "failures.toml").read_text()).get("failure", [])
    entries = [entry for entry in entries if model in entry.get("models", [model])]
    kinds = {kind, "method"} if ":" in kind else {kind}
    return {test: entry["reason"] for entry in entries if kinds & {*entry["kinds"]} for test in entry["tests"]}


def compared(tests: Path, model: str, kinds: list[str], suites: list[str]) -> int:
    """Prints what the kinds of bridges of a model say beside stock; how many things are wrong."""
    stock, wrong = results(tests, "stock", model, suites), 0
    print(f"{model}, stock: {len(stock)} run, {len(failed(stock))} failed", flush=True)
    for kind in kinds:
        ours = results(tests, kind, model, suites)
        reasons = {test: reason for test, reason in listed(kind, model).items() if test in stock}
        beyond, lines = failed(ours) - failed(stock), verdict(stock, ours, reasons)
        print(f"{model}, {kind}: {len(ours)} run, {len(failed(ours))} failed, {len(beyond)} beyond stock")
        for test in sorted(beyond & set(reasons)):
            print(f"  listed: {test}: {reasons[test]}")
        for line in lines:
            print(f"  {line}")
        sys.stdout.flush()
        wrong += len(lines)
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kinds", default=",".join(KINDS), help="of bridges, separated by commas (%(default)s)")
    parser.add_argument("--models", default="default", help="what the bridges are of (%(default)s: the shipped one)")
    parser.add_argument("--families", dest="models", action="store_const", const=FAMILIES, help=f"those of {FAMILIES}")
    parser.add_argument("--suites", default="benchmarks,tests", help="what to run (%(default)s)")
    parser.add_argument("--folder", type=Path, default=Path("runs/peers"), help="for source and results (%(default)s)")
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    tests, kinds, suites = source(given.folder.resolve()), given.kinds.split(","), given.suites.split(",")
    return int(sum(compared(tests, model, kinds, suites) for model in given.models.split(",")) > 0)


if __name__ == "__main__":
    sys.exit(main())
