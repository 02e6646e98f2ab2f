"""docs/new-family.md explains every reason for which a model is refused."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PAGE = " ".join((ROOT / "docs" / "new-family.md").read_text(encoding="utf-8").split())
EXPLAINED = {
    "its inputs are not one row of token ids": "its inputs are not one row of token ids",
    "its attention is not called through": "its attention is not called through transformers' AttentionInterface",
    "its attention makes a mask of its own": "it makes a mask of its own",
    "it has no rotary embeddings and no ALiBi": "it has no rotary embeddings and no ALiBi",
    "uses positions outside of attention": "layer L uses positions outside of attention",
    "is in none of its layers": "its attention is in none of its layers",
    "in a way that was not found": "layer L turns its queries and keys in a way that was not found",
    "is not what a method can follow": "the attention of layer L is not what a method can follow",
    "gives its attention": "its attention gives an argument which methods do not know",
    "gives positions to": "a rotary module gives positions to another number of states",
    "its tokens see ahead": "its images, or its tokens, see ahead",
    "it is not one stack of decoder layers": "it is not one stack of decoder layers",
    "it is an encoder-decoder": "it is an encoder-decoder",
    "padding between its tokens": "padding or a cache changes what its layers carry",
    "is padded on the left": "padding or a cache changes what its layers carry",
    "tokens come after a cache": "padding or a cache changes what its layers carry",
    "is padding alone up to a pass of one token": "padding or a cache changes what its layers carry",
}
"""By a part of a message what the page says of it."""


def reasons() -> list[str]:
    """What is raised or returned as a reason by what examines a model, without what is put in."""
    texts = []
    for name in ("engine/structure.py", "engine/state.py", "support.py"):
        tree = ast.parse((ROOT / "mesa" / name).read_text(encoding="utf-8"))
        for call in ast.walk(tree):
            names = {"_refusal", "Refused"}
            if isinstance(call, ast.Call) and getattr(call.func, "attr", getattr(call.func, "id", "")) in names:
                text = "".join(
                    str(part.value) for part in ast.walk(call) if isinstance(part, ast.Constant) and call.args
                )
                texts.append(text)
    return texts


@pytest.mark.parametrize("part", EXPLAINED)
def test_the_page_has_a_row_for_a_reason(part):
    assert EXPLAINED[part] in PAGE


def test_every_reason_of_the_examination_is_in_the_list():
    OF_METHODS = (
        "out of range",
        "cannot be attached",
        "is not a method",
        "cannot be chosen",
        "trained length",
        "is not supported: ",
        "has no attention, so no heads",
        "differ in their number of heads",
    )
    unknown = [text for text in reasons() if text and not any(part in text for part in (*EXPLAINED, *OF_METHODS))]
    assert unknown == []
