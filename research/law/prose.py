"""Writes English prose to a file: the paragraphs of the Python language reference that comes with the interpreter.

    python research/law/prose.py runs/prose.txt

A paragraph counts if it has 15 words or more, is evenly indented, begins with a capital and ends with a full stop; each
is taken once. The text is Python's own (`pydoc_data.topics`; PSF licence) and differs between versions of Python.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from pydoc_data.topics import topics
from textwrap import dedent

WORDS = 15
_SENTENCES = re.compile(r"[A-Z][^\n]*(\n\S[^\n]*)*\.", re.DOTALL)


def paragraphs() -> list[str]:
    """Those of all topics, in the topics' order."""
    blocks = (dedent(block).strip() for text in topics.values() for block in text.split("\n\n"))
    prose = (block for block in blocks if _SENTENCES.fullmatch(block) and len(block.split()) >= WORDS)
    return list(dict.fromkeys(" ".join(block.split()) for block in prose))


if __name__ == "__main__":
    Path(sys.argv[1]).write_text("\n\n".join(paragraphs()), encoding="utf-8")
