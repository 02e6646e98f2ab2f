"""What tests of several folders measure."""

import pytest
import spaced
import tiny

from probe.request import EvalRequest


@pytest.fixture(scope="session")
def eval_request(tmp_path_factory):
    """An evaluation of a tiny model (M = 160) on a text of its own."""
    folder = tmp_path_factory.mktemp("evaluated")
    text = folder / "text.txt"
    text.write_text(" ".join(f"Sentence {number} says {number**2}." for number in range(200)))
    model = tiny.folder(folder / "model")
    return EvalRequest(model=str(model), methods="origin,mesa", lengths=(96, 200), samples=2, text=str(text))


@pytest.fixture(scope="module", params=["byte-level", "sentencepiece"])
def tokenizer(request):
    """Of two kinds: byte-level, and SentencePiece's, which puts a space first."""
    return spaced.tokenizer() if request.param == "sentencepiece" else tiny.byte_level()
