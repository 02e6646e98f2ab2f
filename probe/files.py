"""Files that are there in full or not at all; and in what words the run in one differs from another."""

import hashlib
import json
import math
import os
import re
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from mesa.errors import Occupied, Refused

JsonObject = dict[str, Any]
"""A JSON object: a run's settings, a row of a journal, a result."""
CHECKSUM = "checksum"
"""The key of a result's checksum."""
SEAL = "complete"
"""The attribute that holds a store's seal; unfinished ones have False there."""
GENERATOR = '<meta name="generator" content="mesa-lens">'
"""What every page of ours has in its head."""
_HEAD = 1024  # bytes that hold it
_OURS = {
    ".json": lambda content: re.search(rb'"checksum": "[0-9a-f]{8}"\s*}\s*$', content) is not None,
    ".html": lambda content: GENERATOR.encode() in content[:_HEAD],
    ".csv": lambda content: content.startswith(b"task,method,length,"),
}
_MADE = {
    "documents": "the texts that prompts are drawn from",
    "inputs": "the texts and prompts, as token ids",
    "spec": "--hooks, --layers, --positions, --dims or --store-dtype",
}
_WORDS = {"longest": "longest length"}
_LONGEST_VALUE = 100  # characters


def write(path: Path, content: bytes) -> None:
    """Writes a complete file, in place of a former one, or not at all; an OSError names it."""
    unfinished = path.with_name(f".{path.name}.partial")
    try:
        try:
            unfinished.write_bytes(content)
            os.replace(unfinished, path)
        finally:
            unfinished.unlink(missing_ok=True)
    except OSError as error:
        if error.errno is None:
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error


def json_text(value: Any, indent: int | None = 1, **options: Any) -> str:
    """The value as strict JSON, which has no NaN and no infinity: null stands for them. options: of `json.dumps`."""
    return json.dumps(_finite(value), indent=indent, allow_nan=False, **options)


def write_json(path: Path, value: Any) -> None:
    """Writes `json_text` and a last line break, as `write` does."""
    write(path, (json_text(value) + "\n").encode())


def write_result(path: Path, value: JsonObject, indent: int | None = 1) -> None:
    """Writes `json_text` of a result with its checksum, which `read_result` compares."""
    plain = json.loads(json_text({name: inner for name, inner in value.items() if name != CHECKSUM}))
    write(path, (json_text({**plain, CHECKSUM: checksum(plain)}, indent) + "\n").encode())


def read_result(path: Path) -> JsonObject:
    """A result that `write_result` wrote, without its checksum.

    Raises Refused for a file that is not JSON, or not what was written, and OSError for one that cannot be read.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:  # of many brackets
        raise Refused(f"{path} is damaged (it is not JSON)") from error
    if not isinstance(value, dict):
        raise Refused(f"{path} is damaged (it is not an object)")
    if value.pop(CHECKSUM, None) != checksum(value):
        raise Refused(f"{path} is damaged (it is not what was written)")
    return value


def check_ours(folder: Path, patterns: Iterable[str]) -> None:
    """Raises FileExistsError, naming the file, where one in the folder has a name that we write to and is not ours.

    Pages, results and tables are known by their content, a picture by the page next to it.
    """
    for path in sorted(path for pattern in patterns for path in folder.glob(pattern)):
        known_by = path.with_suffix(".html") if path.suffix == ".png" else path
        if not is_ours(known_by):
            raise Occupied(
                f"{path} is not a file that a run wrote, and this one would replace it; name another --out, or use "
                "--overwrite"
            )


def is_ours(path: Path) -> bool:
    """Whether a page, a result or a table is one that a run wrote, by its content; any other file counts as one."""
    check = _OURS.get(path.suffix)
    return check is None or (path.is_file() and check(path.read_bytes()))


def checksum(value: Any) -> str:
    """Of a value as JSON."""
    return f"{zlib.crc32(json.dumps(value).encode()):08x}"


def seal_of(group: Path) -> str:
    """The sha256 of a group's attributes, but for the seal, and of the metadata of its arrays."""
    own = _metadata(group)
    own = {key: value for key, value in own.items() if key != "consolidated_metadata"}  # a copy, for others
    own["attributes"] = {name: value for name, value in own["attributes"].items() if name != SEAL}
    nodes = {path.parent.name: _metadata(path.parent) for path in sorted(group.glob("*/zarr.json"))}
    arrays = {name: node for name, node in nodes.items() if node["node_type"] == "array"}
    return f"sha256 {hashlib.sha256(json.dumps([own, arrays], sort_keys=True).encode()).hexdigest()}"


def _metadata(node: Path) -> JsonObject:
    return json.loads((node / "zarr.json").read_text(encoding="utf-8"))


def _finite(value: object) -> object:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {key: _finite(inner) for key, inner in value.items()}
    return [_finite(inner) for inner in value] if isinstance(value, list | tuple) else value


def difference(key: str, there: Any, now: Any) -> str:
    """A setting of which a run has another value: with both, where they can be read; a fingerprint in words."""
    values = [str(value) for value in (there, now)]
    if not any(value.startswith("sha256 ") or len(value) > _LONGEST_VALUE for value in values):
        return f"{_WORDS.get(key, key)} ({values[0]} there, {values[1]} now)"
    return f"{key} ({_MADE[key]})" if key in _MADE else key
