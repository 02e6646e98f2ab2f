"""The mutations as data: what in a file is changed into what, and which tests are to notice.

One TOML file a part of the code; in it a table for each mutated file, with the tests that are asked by default:

    ["theory/bounds.py"]
    asks = ["tests/theory/test_bounds.py"]
    mutants = [
      { what = 'old text, once in the file', by = 'new text' },
      { what = '...', by = '...', asks = ["tests/theory/test_claims.py::test_claim_comes_out_as_it_must[3.3]"] },
      { what = '...', by = '...', equivalent = "why no test can notice" },
    ]
"""

import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]


@dataclass(frozen=True)
class Mutant:
    """`what`, which stands once in `file`, is changed into `by`; `asks`: tests; `equivalent`: why none can notice."""

    part: str
    file: str
    what: str
    by: str
    asks: tuple[str, ...]
    equivalent: str = ""

    def __str__(self) -> str:
        old, new = (" ".join(text.split()) for text in (self.what, self.by))
        return f"{self.file}: {old}  ->  {new or '(nothing)'}"

    def applied(self, text: str) -> str:
        """The mutated text of the file; ValueError where `what` is stale: not in it once."""
        if (count := text.count(self.what)) != 1:
            raise ValueError(f"stale, found {count} times: {self}")
        return text.replace(self.what, self.by)


def mutants(folder: Path = HERE) -> Iterator[Mutant]:
    """All of them, part by part."""
    for path in sorted(folder.glob("*.toml")):
        for file, record in tomllib.loads(path.read_text()).items():
            for each in record["mutants"]:
                asks = tuple(each.get("asks", record["asks"]))
                yield Mutant(path.stem, file, each["what"], each["by"], asks, each.get("equivalent", ""))
