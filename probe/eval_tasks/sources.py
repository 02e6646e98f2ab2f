"""Where texts come from: the shipped held-out text, files, a folder of them, or a dataset of the hub.

What lies here is read as it is, file by file; no library chooses among files, splits them or guesses how they are
written. `datasets` is asked for names of the hub alone.
"""

import csv
import io
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from mesa.errors import NotFound, Refused
from probe.files import JsonObject

HELDOUT_FILES = tuple(
    f"{name}.py" for name in "argparse configparser difflib fractions heapq mailbox statistics textwrap".split()
)
"""Files of Python's standard library that the shipped models have not seen, shipped next to their checkpoints."""
COLUMN = "text"
"""The field of a row that holds its text."""
_JSON, _TABLES, _SEPARATORS = (
    (".json", ".jsonl", ".ndjson"),
    (".arrow", ".feather", ".parquet"),
    {".csv": ",", ".tsv": "\t"},
)
_DESCRIPTIONS = ("readme", "license", "dataset_info", "dataset_infos", "dataset_dict", "state")
"""What describes rows, next to them."""
_MARK = "\ufeff"  # Notepad, Excel and PowerShell put it first; to a model it is another text
_NAMED = 3  # files that a line names
_LONGEST_REASON = 300  # characters


@dataclass(frozen=True)
class TextSource:
    """The texts that a run was measured on.

    Examples:
        >>> print(TextSource("notes", {"a.txt": 1, "b.jsonl": 12, "c.txt": 0}, 5000))
        notes: 13 documents, 5,000 tokens (a.txt; b.jsonl, 12 documents; c.txt, empty)
    """

    source: str
    """As it was named."""
    documents: dict[str, int]
    """How many documents each file has, or the split of a dataset."""
    tokens: int
    """Of all documents, without special tokens."""

    def __str__(self) -> str:
        """One line."""
        names = [name if count == 1 else f"{name}, {_counted(count)}" for name, count in self.documents.items()]
        more = f"; and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
        total = _counted(sum(self.documents.values()))
        return f"{self.source}: {total}, {self.tokens:,} tokens ({'; '.join(names[:_NAMED])}{more})"


def _counted(documents: int) -> str:
    return f"{documents:,} document{'s' * (documents != 1)}" if documents else "empty"


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


def texts(source: str | os.PathLike[str] | None) -> list[str]:
    """The documents of `texts_by_name`, in order."""
    return [text for documents in texts_by_name(source).values() for text in documents]


def texts_by_name(source: str | os.PathLike[str] | None) -> dict[str, list[str]]:
    """The documents of `source`, by the file or the split that they are of; blank ones and byte-order marks are gone.

    source: None for the shipped held-out text; a file; a folder, of which every file is read, those of folders in it
    too, in the order of their names, hidden ones aside; else the name of a dataset on the hub. A file is one document,
    its line breaks as "\\n"; one of rows (.jsonl, .ndjson, .json) or a table (.parquet, .arrow, .feather, .csv, .tsv)
    has one in the field `text` of each row. Of a dataset the split 'test' is taken, or the first there is.

    Raises FileNotFoundError for what is neither here nor on the hub; Refused for an empty source, a missing field, what
    is not UTF-8, and a folder of both plain files and files of rows.
    """
    if source is None:
        return dict(zip(HELDOUT_FILES, ([text] for text in heldout()), strict=False))
    source = str(source)
    path = Path(source).expanduser()
    if path.is_dir():
        by_name = {_shown(file.relative_to(path)): list(_of_file(file)) for file in _files(path)}
    elif check_there(source):
        by_name = {_shown(Path(path.name)): list(_of_file(path))}
    else:
        by_name = _of_dataset(source)
    by_name = {name: [text for text in documents if text.strip()] for name, documents in by_name.items()}
    if not any(by_name.values()):
        raise Refused(f"{source} holds no text; give a file or dataset that does")
    return by_name


def check_there(source: str) -> bool:
    """Whether `source` is a file or folder here, else a name for the hub; FileNotFoundError for a path that is not."""
    path = Path(source).expanduser()
    looks_local = source.startswith((".", "/", "~")) or source.count("/") > 1
    if (looks_local or path.suffix.lower() in (".txt", ".md", *_JSON, *_TABLES, *_SEPARATORS)) and not path.exists():
        raise NotFound(f"{source} is not a file or folder")
    return path.exists()


def plain_text(path: Path) -> str:
    """A file's text, without a byte-order mark; Refused, naming it, for bytes that are not UTF-8."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise Refused(f"{path} is not UTF-8 text (byte {error.start}); convert it") from error
    if "\0" in text:
        raise Refused(f"{path} is not text: it has a byte 0")
    return text


def _files(folder: Path) -> list[Path]:
    """The files to read. Refused for one that cannot be, and for a folder of both kinds, plain text and rows."""

    def failed(error: OSError) -> None:
        raise error

    files = list[Path]()
    for parent, folders, names in os.walk(folder, onerror=failed):
        folders[:] = [name for name in folders if not name.startswith(".")]
        links = [name for name in folders if Path(parent, name).is_symlink()]  # which `os.walk` does not follow
        files += [Path(parent, name) for name in (*names, *links) if not name.startswith(".")]
    files.sort(key=lambda path: path.relative_to(folder).parts)
    of_rows = [path for path in files if _is_of_rows(path) and path.stem.lower() not in _DESCRIPTIONS]
    if of_rows:
        files = [path for path in files if path in of_rows or path.stem.lower() not in _DESCRIPTIONS]
        if others := [path for path in files if path not in of_rows]:
            raise Refused(
                f"{folder} holds plain files ({others[0].name}) and files of rows ({of_rows[0].name}); name one file, "
                "or a folder of one kind"
            )
    return files


def _is_of_rows(path: Path) -> bool:
    return path.suffix.lower() in (*_TABLES, *_SEPARATORS, *_JSON)


def _shown(path: Path) -> str:
    """A relative path in characters that every terminal and file takes."""
    return os.fsencode(path.as_posix()).decode("utf-8", "backslashreplace")


def _of_file(path: Path) -> Iterator[str]:
    """The documents of a file."""
    if not path.is_file():
        raise Refused(
            f"{path} is no file: a link to a folder or to nothing, or a device; name its target, or take it out"
        )
    if _is_of_rows(path):
        yield from (_field(row, f"{path}, row {number}") for number, row in rows(path))
    else:
        yield plain_text(path)


def rows(path: Path) -> Iterator[tuple[int, JsonObject]]:
    """The rows of a file by number, of JSON lines the line's. Every cell is what is written there: none is missing."""
    suffix = path.suffix.lower()
    if suffix in _TABLES:
        yield from enumerate(_table(path), 1)
    elif suffix in _SEPARATORS:
        yield from _separated(path, _SEPARATORS[suffix])
    else:
        yield from _json_rows(path, is_value=suffix == ".json")


def _table(path: Path) -> Iterator[JsonObject]:
    """Rows of a table of Arrow or Parquet."""
    import pyarrow as pa  # datasets brings it
    from pyarrow.parquet import ParquetFile

    try:
        if path.suffix.lower() == ".parquet":
            table = ParquetFile(path).read()
        else:
            content = path.read_bytes()
            opened = pa.ipc.open_file if content.startswith(b"ARROW1") else pa.ipc.open_stream  # as `datasets` saves it
            table = opened(content).read_all()
    except (pa.ArrowException, ValueError, OSError) as error:
        raise Refused(f"{path} cannot be read as a table: {in_short(error)}") from error
    if COLUMN not in table.column_names:
        raise Refused(f"{path} has no column {COLUMN!r}; it has {', '.join(table.column_names)}")
    yield from ({COLUMN: value} for value in table[COLUMN].to_pylist())


def _separated(path: Path, separator: str) -> Iterator[tuple[int, JsonObject]]:
    """Rows of a file of separated values under a head."""
    lines, limit = io.StringIO(plain_text(path)), csv.field_size_limit(2**31 - 1)  # a document is longer than 128 kB
    try:
        for number, row in enumerate(csv.DictReader(lines, delimiter=separator, strict=True), 1):
            if None in row:
                raise Refused(
                    f"{path}, row {number} has more cells than the head; quote the cells that hold {separator!r}"
                )
            yield number, row
    except csv.Error as error:
        raise Refused(f"{path} cannot be read as a table: {error}") from error
    finally:
        csv.field_size_limit(limit)


def _json_rows(path: Path, *, is_value: bool) -> Iterator[tuple[int, JsonObject]]:
    """Rows of a file of objects, one a line. is_value: it may be one object, or a list of them, as well."""
    text = plain_text(path)
    if is_value:
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):  # of objects one a line, and of what is not JSON
            pass
        else:
            for number, row in enumerate(value if isinstance(value, list) else [value], 1):
                yield number, _object(row, f"{path}, row {number}")
            return
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            try:
                row = json.loads(line)
            except (ValueError, RecursionError) as error:  # of many brackets
                raise Refused(f"{path}, line {number} is not JSON: {line[:40]!r}") from error
            yield number, _object(row, f"{path}, line {number}")


def _object(row: Any, where: str) -> JsonObject:
    if not isinstance(row, dict):
        raise Refused(f"{where} is not an object with fields: {json.dumps(row)[:40]}")
    return row


def _of_dataset(source: str) -> dict[str, list[str]]:
    """The documents of a dataset of the hub, by the split that they are of, which is said with those that are not."""
    from datasets import load_dataset, logging  # transformer-lens brings it

    verbosity = logging.get_verbosity()
    logging.set_verbosity(logging.CRITICAL)  # what it says is in its error too
    try:
        splits = load_dataset(source)
    except Exception as error:  # its many kinds of 'not there'
        reason = in_short(error.__cause__ or error)
        raise NotFound(f"{source} is not a file, folder, or dataset that can be loaded: {reason}") from error
    finally:
        logging.set_verbosity(verbosity)
    split = "test" if "test" in splits else next(iter(splits))
    name = f"split {split} of {', '.join(map(str, splits))}; column {COLUMN}"
    rows: Any = splits[split]
    return {name: [_field(row, f"{source}, row {number}") for number, row in enumerate(rows, 1)]}


def _field(row: JsonObject, where: str) -> str:
    """The text of a row. Refused, saying where, for one without, and for one that is no string of characters."""
    if COLUMN not in row:
        raise Refused(f"{where} has no field {COLUMN!r}; it has {', '.join(map(str, row))}")
    if not isinstance(text := row[COLUMN], str):
        raise Refused(f"{where}: {COLUMN!r} is {json.dumps(text, default=str)[:40]}, not a string")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        half = f"{text[error.start]!a} at character {error.start}"
        raise Refused(f"{where}: {COLUMN!r} holds {half}, one half of a surrogate pair; repair it") from error
    return text.removeprefix(_MARK)


def in_short(error: BaseException) -> str:
    """What an error says, in one line that is not too long."""
    return " ".join(str(error).split())[:_LONGEST_REASON] or type(error).__name__
