"""Where texts come from: the shipped held-out text, a file, a folder, or a dataset of the hub."""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import Any

from mesa.errors import NotFound, Refused
from probe.files import JsonObject

HELDOUT_FILES = tuple(
    f"{name}.py" for name in "argparse configparser difflib fractions heapq mailbox statistics textwrap".split()
)
"""Files of Python's standard library that the shipped models have not seen, shipped beside their checkpoints."""
_SUFFIXES = (".txt", ".md", ".json", ".jsonl")


def heldout() -> list[str]:
    """The texts that the shipped models were not trained on: modules of Python's standard library.

    Returns:
        One string for each text, in the order of their names.

    Examples:
        >>> len(probe.heldout())
        8
    """
    folder = resources.files("mesa") / "shipped" / "heldout"
    return [(folder / f"{name}.txt").read_text(encoding="utf-8") for name in HELDOUT_FILES]


def texts(source: str | None) -> list[str]:
    """Texts of `source`: None for the shipped held-out text, a .txt or .jsonl file, a dataset folder or hub name.

    Of datasets the column `text` of the split 'test' (or the first there is) is taken. Raises FileNotFoundError for
    what is neither here nor on the hub, Refused for an empty source or a missing column.
    """
    if source is None:
        return heldout()
    path = Path(source)
    if path.is_file() and path.suffix.lower() != ".jsonl":
        documents = [plain_text(path)]
    else:
        documents = [_field(row, "text", source, number) for number, row in _rows(source)]
    documents = [text for text in documents if text.strip()]
    if not documents:
        raise Refused(f"{source} holds no text; give a file or dataset that does")
    return documents


def plain_text(path: Path) -> str:
    """A file's text; Refused, naming it, for bytes that are not UTF-8."""
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise Refused(f"{path} is not UTF-8 text (byte {error.start}); convert it") from error
    if "\0" in text:
        raise Refused(f"{path} is not text: it has a byte 0")
    return text


def _rows(source: str) -> Iterator[tuple[int, JsonObject]]:
    """Rows by number: of a file, the line's."""
    path = Path(source)
    if path.is_file():
        for number, line in enumerate(plain_text(path).split("\n"), 1):
            if line.strip():
                try:
                    row = json.loads(line)
                except (ValueError, RecursionError) as error:  # of many brackets
                    raise Refused(f"{source}, line {number} is not JSON: {line[:40]!r}") from error
                if not isinstance(row, dict):
                    raise Refused(f"{source}, line {number} is not an object with fields: {line[:40]!r}")
                yield number, row
        return
    looks_local = source.startswith((".", "/", "~")) or source.count("/") > 1 or path.suffix in _SUFFIXES
    if looks_local and not path.is_dir():
        raise NotFound(f"{source} is not a file or folder")
    yield from enumerate(_dataset(source), 1)


def _dataset(source: str) -> Any:
    from datasets import load_dataset, logging  # transformer-lens brings it

    verbosity = logging.get_verbosity()
    logging.set_verbosity(logging.CRITICAL)  # what it says is in its error too
    try:
        splits = load_dataset(source)
    except Exception as error:  # its many kinds of 'not there'
        reason = str(error.__cause__ or error).partition("\n")[0]
        raise NotFound(f"{source} is not a file, folder, or dataset that can be loaded: {reason}") from error
    finally:
        logging.set_verbosity(verbosity)
    return splits["test"] if "test" in splits else next(iter(splits.values()))


def _field(row: JsonObject, name: str, source: str, number: int) -> str:
    if name not in row:
        raise Refused(f"{source}, row {number} has no field {name!r}; it has {', '.join(map(str, row))}")
    if not isinstance(row[name], str):
        raise Refused(f"{source}, row {number}: {name!r} is {json.dumps(row[name], default=str)[:40]}, not a string")
    return row[name]
