"""`mesa-lens verify`: the paper's theorems as constructed transformers, checked numerically (see docs/theory.md)."""

import json
import shutil
import sys
import tempfile
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from mesa.errors import Occupied, Refused
from mesa.progress import Bar
from mesa_lens.arguments import JsonOptions, ThreadOptions
from probe.files import is_ours, write, write_result
from probe.options import InputPath, Integer, Number, Seed, Text, option, options


@dataclass(frozen=True)
class ClaimOptions:
    """What is checked, and with what."""

    claim: Text | None = option(None, "check this claim only, with those named NAME-...", metavar="NAME")
    M: Integer | None = option(None, "the window, in tokens", unset="each claim's own grid")
    N: Integer | None = option(None, "the remap's window, in tokens", unset="each claim's own grid")
    E: Integer | None = option(None, "the stair's width, in tokens", unset="each claim's own grid")
    H: Number = option(0.5, "the threshold")
    dtype: Literal["float32", "float64"] = option("float64", "precision of the constructions")
    seed: Seed = option(0, "random seed of the weights that a proof leaves open")
    quick: bool = option(False, "shorter inputs")
    full: bool = option(False, "also the longest inputs, as for the numbers in research/theorems/results.md")
    html: InputPath | None = option(
        None, "write the report there too (.html is added), and the claims next to it (.json)", metavar="PATH"
    )


_SETTINGS = ("M", "N", "E", "H", "dtype", "seed", "quick", "full")
HELP = "check the paper's theorems on models built from the proofs"
EXAMPLE = "mesa-lens verify --claim 3.3 --M 64 --N 4"


def run(request: ClaimOptions, printing: JsonOptions, cpu: ThreadOptions) -> int:
    """Checks the claims and prints them; returns 1 where one fails that must hold."""
    from probe.experiment.pool import computing
    from theory.claim import PAPER, summary
    from theory.claims import VerifyOptions, selected

    if request.quick and request.full:
        raise Refused("--quick and --full ask for the shortest and the longest inputs; take one of the two")
    path = _checked(request.html)
    settings = VerifyOptions(
        request.M, request.N, request.E, request.H, request.dtype, request.seed, request.quick, request.full
    )
    if path is not None:
        try:
            settings.triples()
        except Refused as error:
            raise Refused(f"--html draws the remap and Stair PE: {error}, or leave --html out") from error
    checks = selected(request.claim)
    _check_read(request, checks)
    unsuited = settings.unsuited(checks)
    checks = {name: check for name, check in checks.items() if name not in unsuited}
    if not checks or request.claim in unsuited:
        raise Refused(next(iter(unsuited.values())))
    with computing(cpu.threads):
        bar = Bar(checks.values(), unit=" claims", file=sys.stderr, delay=2, leave=False)
        claims = sorted((check(settings) for check in bar), key=lambda claim: claim.whose != PAPER)
        for name, reason in unsuited.items():
            sys.stderr.write(f"[not checked] {name}: {reason}\n")
        sentences = summary((claim.name, claim.verdict, claim.whose) for claim in claims)
        result = {"summary": sentences, "claims": [claim.as_dict() for claim in claims]}
        lines = [*(claim.line() for claim in claims), sentences]
        as_text = "".join(f"{_wrapped(line)}\n" for line in lines)
        sys.stdout.write(json.dumps(result, indent=2) + "\n" if printing.json else as_text)
        if path is not None:
            from theory.report import render

            write(path, render(claims, settings).encode())
            write_result(path.with_suffix(".json"), result)
            sys.stderr.write(f"report: {path}, its claims: {path.with_suffix('.json')}\n")
    return 0 if all(claim.ok for claim in claims) else 1


def _check_read(request: ClaimOptions, checks: Mapping[str, Any]) -> None:
    """Raises Refused, naming the claims that read it, for an option that neither the checks nor the report read."""
    from theory.claims import CLAIMS
    from theory.claims.settings import read_by

    known = [item for item in options(ClaimOptions) if item.key in _SETTINGS]
    changed = [item for item in known if item.of(request) != item.default]
    if not changed or request.claim is None:
        return
    used = set[str]().union(*(read_by(check.measure) for check in checks.values()))
    if request.html is not None:
        from theory.report import curves

        used |= read_by(curves)
    for item in changed:
        if item.key not in used:
            readers = [name for name, check in CLAIMS.items() if item.key in read_by(check.measure)]
            flag = item.flag if item.is_flag else f"{item.flag} {item.of(request)}"
            raise Refused(f"{flag} has no effect on --claim {request.claim}; it has on {', '.join(readers)}")


def _checked(path: Path | None) -> Path | None:
    """The report's file; Refused where it cannot be written."""
    if path is None:
        return None
    if path.name in ("", ".."):
        raise Refused(f"--html {path} is a folder; name a file in it")
    path = path if path.suffix == ".html" else path.with_name(path.name + ".html")
    if not path.parent.is_dir():
        raise Refused(f"--html {path}: there is no directory {path.parent}; make it first")
    if path.is_dir() or path.with_suffix(".json").is_dir():
        raise Refused(f"--html {path}: it, or the .json next to it, is a folder; name a file")
    for file in (path, path.with_suffix(".json")):
        if file.exists() and not is_ours(file):
            raise Occupied(f"--html {path}: {file} is not a file that this command wrote; name another, or remove it")
    try:
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        raise Refused(f"--html {path}: {path.parent} cannot be written to ({error.strerror}); name another") from error
    return path


def _wrapped(line: str) -> str:
    """A claim in lines of the terminal's width; in one line for a file."""
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else sys.maxsize
    return textwrap.fill(line, width, subsequent_indent="    ", break_on_hyphens=False)
