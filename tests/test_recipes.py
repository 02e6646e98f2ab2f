"""The rows of architecture.md's table "To add" are followed in a copy of the tree, file by file, and used."""

import re
import shutil

import guests
import pytest

TABLE = (guests.ROOT / "docs" / "architecture.md").read_text(encoding="utf-8").split("## To add\n")[1].split("\n## ")[0]
CODE = (guests.ROOT / "docs" / "new-method.md").read_text(encoding="utf-8").split("```python\n")[1].split("```")[0]

ADDED = {
    "a method": {
        "mesa/methods/coarse.py": [("", f'"""Rounded distances."""\n\n{CODE}')],
        "mesa/methods/__init__.py": [
            ("from mesa.methods.gap", "from mesa.methods.coarse import Coarse\nfrom mesa.methods.gap"),
            ('"STRING", "CoPE"', '"STRING", "Coarse", "CoPE"'),
            ("        Gap,\n", "        Gap,\n        Coarse,\n"),
        ],
    },
    "an evaluation task": {
        "probe/eval_tasks/repeats.py": [("", (guests.PACKAGE / "guest" / "repeats.py").read_text(encoding="utf-8"))],
        "probe/evaluation.py": [
            ("\nTASKS:", "\nfrom probe.eval_tasks.repeats import REPEATS\n\nTASKS:"),
            ("*LIKELIHOOD, Latency()", "*LIKELIHOOD, Latency(), REPEATS"),
        ],
    },
    "a parameter": {
        "probe/commands/probe/__init__.py": [
            ('"method_settings", "texts")', '"method_settings", "texts", "note")'),
            ("    length: Tokens |", '    note: Text = option("", "words for the reader")\n    length: Tokens |'),
        ],
    },
    "a hook, or another quantity of a pass": {
        "probe/capture/spec.py": [
            (
                "HOOKS = {\n",
                'HOOKS = {\n    "z_norm": Hook("blocks.{layer}.attn.hook_z", {"position": None, "head": '
                "lambda config: config.num_attention_heads}, lambda tensor: tensor.norm(dim=-1)),\n",
            )
        ]
    },
    "a figure": {
        "probe/commands/probe/report.py": [
            (
                "    return Section(figures={name: chart}, tables",
                '    return Section(figures={name: chart, "own": chart}, tables',
            )
        ]
    },
    "a claim": {
        "theory/claims/corollary.py": [
            (
                "\n\ndef exact_stair_model",
                '\n\n@claim("own", ClaimVerdict.HOLDS, "ours")\ndef own(settings: VerifyOptions) -> Outcome:\n'
                '    """One is more than nothing."""\n'
                '    return Outcome({}, "all", Measurement(1.0), unit="one")\n\n\ndef exact_stair_model',
            )
        ]
    },
}
"""By row of the table: what is written, by file: (text, text in its place); "": a new file."""


pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def used(model, tmp_path_factory):
    """What each row's command line gave, in a copy of the tree with all of them."""
    folder = tmp_path_factory.mktemp("recipes")
    tree, run = folder / "tree", folder / "run"
    for package in ("mesa", "probe", "theory", "mesa_lens"):
        shutil.copytree(guests.ROOT / package, tree / package, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(guests.ROOT / "pyproject.toml", tree)
    for files in ADDED.values():
        for file, changes in files.items():
            for text, new in changes:
                before = "" if text == "" else (tree / file).read_text(encoding="utf-8")
                assert before.count(text) == 1, (file, text)
                (tree / file).write_text(before.replace(text, new), encoding="utf-8")
    probe = ["probe", "--model", model, "--out", run, "--methods", "origin,rerope", "--length", "480", "--samples", "0"]
    probe += ["--texts", "0", "--hooks", "resid_post,z_norm"]
    eval_options = [
        "--methods",
        "origin",
        "--lengths",
        "64",
        "--samples",
        "1",
        "--model",
        model,
        "--out",
        folder / "eval",
    ]
    lines = {
        "a method": ["methods", "explain", "coarse", "--length", "6"],
        "an evaluation task": ["eval", "--task", "repeats", *eval_options],
        "a hook, or another quantity of a pass": [*probe, "--note", "first"],
        "a parameter": [*probe, "--note", "second"],
        "a figure": ["export", "drift", run, "--format", "svg"],
        "a claim": ["verify", "--claim", "own"],
    }
    env = guests.visible(folder / "site", ours=tree, guest=False)
    return dict(zip(lines, guests.commands(env, *lines.values(), before=guests.UNDRAWN, cwd=tree), strict=True)), run


@pytest.mark.parametrize("row", ADDED)
def test_what_a_row_says_is_enough(used, row):
    (code, out, err), run = used[0][row], used[1]
    assert code == 0, err[-500:]
    seen = {
        "a method": "t // E * E",
        "an evaluation task": "repeats, loss (nats/token)",
        "a parameter": "",
        "a hook, or another quantity of a pass": "",
        "a figure": "own.svg",
        "a claim": "own",
    }
    assert seen[row] in out
    if row.startswith("a hook"):
        assert (run / "store.zarr" / "z_norm").is_dir()


@pytest.mark.parametrize("row", ADDED)
def test_the_table_names_the_files_that_were_changed(row):
    cell = re.search(rf"^\| {re.escape(row)} \| (.*?) \|", TABLE, re.MULTILINE)
    assert cell, f"docs/architecture.md has no row {row!r}"
    for file in ADDED[row]:
        parts = file.split("/")
        named = {file, parts[-1], "/".join(parts[:-1]) + "/", "its command's `__init__.py`", "the command's `page.py`"}
        assert any(name in cell[1] for name in named), (row, file)
