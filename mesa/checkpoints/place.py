"""Where a model lies that was asked for by name, and what is known of its weights' origin before they are loaded."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from mesa.checkpoints.fetched import CHECKPOINTS, fetched, provenance_of
from mesa.checkpoints.gguf_file import Header, read_header

DEFAULT = "default"
SHIPPED = (DEFAULT, "nope", "alibi")
"""The models in this package: a small Llama, one without positions, and an MPT."""


@dataclass(frozen=True)
class Place:
    """A folder or hub id, the GGUF file in it if it is one, and the weights' revision and quantization if known."""

    where: str
    file: Path | None = None
    header: Header | None = None
    revision: str | None = None
    quantization: str | None = None

    @property
    def arguments(self) -> dict[str, Any]:
        """What transformers' `from_pretrained` is told beside `where`."""
        return {"gguf_file": self.file.name} if self.file else {}


def shipped_folder(name: str = DEFAULT) -> Path:
    """Where a shipped checkpoint lies."""
    return Path(str(resources.files("mesa") / "shipped" / name))


def place_of(name: str) -> Place:
    """The place of a model: a shipped one, a fetched checkpoint, a GGUF file, a folder, or a hub id.

    Raises FileNotFoundError for what is not there, ValueError for a GGUF file that cannot be read rightly.
    """
    if name.lower().endswith(".gguf"):
        file = Path(name).expanduser()
        header = read_header(file)
        return Place(str(file.absolute().parent), file, header, quantization=header.quantization)
    place = str(shipped_folder(name)) if name in SHIPPED else str(fetched(name)) if name in CHECKPOINTS else name
    looks_local = place != name or place.startswith((".", "/", "~")) or place.count("/") > 1
    folder = Path(place).expanduser()
    if looks_local and not (folder / "config.json").is_file():
        raise FileNotFoundError(
            f"no model at {str(folder)!r} (no config.json there); give a folder, a .gguf file or a hub id"
        )
    origin = provenance_of(folder)
    revision = f"{origin['package']} {origin['version']}" if origin else None
    return Place(str(folder) if looks_local else place, revision=revision, quantization=origin.get("quantization"))
