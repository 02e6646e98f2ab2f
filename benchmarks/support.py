"""The lists of families in docs/models.md, from the tiny models of tests/helpers/matrix.py and transformers' own list.

`python benchmarks/support.py` writes them (two minutes); a family is added in tests/helpers/matrix.py.
"""

import re
import sys
import warnings
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "helpers")]

import families  # noqa: E402
import matrix  # noqa: E402
import tiny  # noqa: E402
import torch  # noqa: E402
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES  # noqa: E402

import mesa  # noqa: E402
from mesa.checking.rows import Report  # noqa: E402
from mesa.errors import Refused  # noqa: E402
from mesa.methods import standard_methods  # noqa: E402

PAGE = ROOT / "docs/models.md"
BEGIN, END = "<!-- families: benchmarks/support.py -->\n", "<!-- end of families -->\n"
PRETENDED = 32


def checked(family: str, folder: Path, methods: str = "all") -> tuple[str, Report]:
    """A family's model type, and the report of its tiny model."""
    model = families.build(family)
    report = mesa.check(model, tiny.tokenizer(folder), methods=methods, pretended=PRETENDED, name=family)
    return model.config.model_type, report


@torch.no_grad()
def refused(model: Any) -> dict[str, str]:
    """By method why the model cannot have it; those that it can give one pass' finite logits with both executors."""
    why, ids = {}, tiny.tokens(1, 30)
    for name, method in standard_methods().items():
        try:
            for executor in ("dense", "fused"):
                with mesa.applied(model, method(trained_length=24), executor=executor):
                    assert model(ids, use_cache=False).logits.isfinite().all(), (model.config.model_type, name)
        except Refused as error:
            why[name] = str(error)
    return why


def lists(why: dict[str, dict[str, str]]) -> str:
    """A Markdown table of families by what can be done with them, from what `refused` gave of each family."""
    count = len(standard_methods())
    works = [family for family, reasons in why.items() if len(reasons) < count]
    rows = [("Work under all methods", [family for family in works if not why[family]])]
    some: dict[tuple[str, ...], dict[str, list[str]]] = {}
    for family in works:
        if why[family]:
            said = _reason(next(iter(why[family].values())))
            some.setdefault(tuple(why[family]), {}).setdefault(said, []).append(family)
    for names, reasons in some.items():
        for reason, kinds in reasons.items():
            rows.append((f"Work except under {', '.join(f'`{name}`' for name in names)}: {reason}", kinds))
    none: dict[str, list[str]] = {}
    for family, reasons in why.items():
        if len(reasons) == count:
            none.setdefault(_reason(next(iter(reasons.values()))), []).append(family)
    rows += [(f"Refused: {reason}", kinds) for reason, kinds in none.items()]
    bridged, others = (
        [*matrix.BRIDGED, *matrix.BRIDGED_ALONE],
        sorted({*why} - {*matrix.BRIDGED, *matrix.BRIDGED_ALONE}),
    )
    alone = ", ".join(matrix.BRIDGED_ALONE)
    rows.append((f"On `mesa.bridge`: logits and states as without a bridge; {alone} without methods", sorted(bridged)))
    lacking = "TransformerLens has no adapter, or none for transformers 5.24 (codegen)"
    rows.append((f"Not on `mesa.bridge`: {lacking}", others))
    tried = {*matrix.TYPES.values(), *why}
    tried |= {kind.replace("-", "_") for kind in tried}
    others = sorted(kind for kind in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES if kind.replace("-", "_") not in tried)
    rows.append(("Not tried, or no decoder of this kind, of transformers' `AutoModelForCausalLM`", others))
    table = ["| | number | model types |", "|---|---|---|"]
    table += [f"| {what} | {len(kinds)} | {', '.join(kinds)} |" for what, kinds in rows]
    return "\n".join(table) + "\n"


def _reason(message: str) -> str:
    """The part of an error that does not name the model."""
    reason = re.sub(r"^.*?model type '[^']*'( is not supported)?: ", "", message)
    return re.sub(r" \(off by [^)]*\)", "", reason).removesuffix("; take another method")


def tried_families() -> dict[str, dict[str, str]]:
    """By family of the matrix and by method why it cannot have it."""
    return {family: refused(matrix.build(family)) for family in [*matrix.WORKS, *matrix.ALIBI, *matrix.REFUSED]}


def on_page() -> str:
    """The lists that docs/models.md has."""
    return PAGE.read_text(encoding="utf-8").split(BEGIN)[1].split(END)[0]


def sentences(listed: str, begin: str) -> set[str]:
    """The families in the rows of the table that begin with this word."""
    named = [row.split(" | ")[-1] for row in listed.splitlines() if row.startswith(f"| {begin}")]
    return {name.strip(" |") for names in named for name in names.split(",")}


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    text = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(text.replace(on_page(), lists(tried_families())), encoding="utf-8")
