"""Which model the run in a folder is of: later commands take it from there, refuse another and show no other's."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from mesa.errors import NotFound, Occupied, Refused
from mesa.methods import make
from mesa.settings import wanted_names
from probe.files import SEAL, JsonObject, checksum, difference, seal_of
from probe.layout import STORES, layouts

MODEL = ("weights", "config", "tokenizer")
"""Fingerprints of a model, in a store's attributes and in a journal's settings."""
CHECKSUM = "crc32"
"""The key of a checksum in a line of a journal; in the first line of older ones it says only that others have one."""
SHIPPED_TEXT = "shipped held-out text"
"""What a store's attributes name where no text was given."""
RUN = "run"
"""The key of a result's file under which it says of which run it is, see `run_of`."""
_IDENTITY = ("model", "trained_length", "revision", "seed")
_TAKEN = ("model", "trained_length", "revision", "dtype", "seed")
_REMEDY = "use --overwrite or another --out, or leave the option out"


def run_settings(folder: Path, but: Sequence[str] = ()) -> JsonObject:
    """What the folder's run records of model, M, revision, dtype and seed; empty where there is no run.

    That is what its store says, else its first journal. but: files and folders that are about to be written anew.
    """
    files = [folder / name / "zarr.json" for name in STORES]
    files += [path for layout in layouts().values() for path in layout.journal_paths(folder)]
    for file in files:
        if file.relative_to(folder).parts[0] not in but and (settings := recorded(file)):
            return settings
    return {}


def recorded(file: Path) -> JsonObject:
    """What a store's attributes or a journal's first line say of a run; empty for a file of none, or an unreadable one.

    Raises Refused where they are not what was written.
    """
    try:
        if file.suffix == ".json":
            content = json.loads(file.read_text(encoding="utf-8"))["attributes"]
            whole = not content.get(SEAL) or content[SEAL] == seal_of(file.parent)
        else:
            with file.open(encoding="utf-8") as lines:
                header = json.loads(lines.readline())
            content, whole = header["settings"], is_whole(header)
        if not isinstance(content["model"], str):
            return {}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return {}
    if not whole:
        raise Refused(f"{file} is damaged: what it says of the run is not what was written; name another --out")
    return content


def is_whole(header: JsonObject) -> bool:
    """Whether a journal's first line is what was written."""
    written = {key: value for key, value in header.items() if key != CHECKSUM}
    return header.get(CHECKSUM) is True or header.get(CHECKSUM) == checksum(written)


def taken(
    folder: Path, values: JsonObject, given: Sequence[str], default_methods: str, but: Sequence[str] = ()
) -> JsonObject:
    """The options that the run in the folder has and that are not given, by key; `trust_remote_code` is never taken.

    values: all options by key. given: keys of those that were typed. Raises Refused for a run whose model needs its
    own code, unless that is allowed anew, and NotFound for one whose model's folder has gone.
    """
    there = run_settings(folder, but)
    if not there:
        return {}
    model = there["model"]
    options = {key: there[key] for key in _TAKEN if key not in given and there.get(key) is not None}
    if there.get("dtype") is None and there.get("device", "cpu") != "cpu" and "source_dtype" in there:
        options |= {} if "dtype" in given else {"dtype": there["source_dtype"]}
    if "model" in options and there.get("trust_remote_code") is True and not values.get("trust_remote_code"):
        raise Refused(
            f"{folder} is a run of {model}, which runs its own code; this is never taken from a run: give "
            "--trust-remote-code again"
        )
    if "model" in options and model.startswith((".", "/", "~")) and not Path(model).exists():
        raise NotFound(f"{folder} is a run of model {model}, which is not there; give its place by --model")
    if not values.get("set"):
        names = wanted_names(values.get("methods") or default_methods)
        options["set"] = [text for name in names for text in _changed(name, there)]
    return options


def _changed(name: str, there: JsonObject) -> Iterator[str]:
    """The parameters of a method that a run changed, as texts of --set."""
    config = _methods(there).get(name, {})
    try:
        default = make(name, int(there["trained_length"])).describe()
    except (ValueError, TypeError, KeyError):
        return
    for key, value in config.items():
        if key in default and value != default[key] and isinstance(value, int | float | str):
            yield f"{name}.{key}={value}"


def _methods(settings: JsonObject) -> dict[str, JsonObject]:
    """The configs of a store's methods, by name."""
    try:
        return dict(json.loads(settings.get("method_configs", "{}")))
    except (ValueError, TypeError):
        return {}


def check_of_run(folder: Path, settings: JsonObject, methods: JsonObject, dtypes: Any, but: Sequence[str] = ()) -> None:
    """Raises FileExistsError, naming both values, where the run there is of another model, M, revision, dtype or seed.

    Another text is told on stderr: what is measured on it stands beside what was measured on the run's.
    settings: of the new plan. methods: its methods; those that the run has too must have the same parameters. dtypes:
    gives the dtype of a model with such options.
    """
    there = run_settings(folder, but)
    if not there:
        return
    if problem := differing(there, settings):
        raise Occupied(f"{folder} is a run of {problem}; {_REMEDY}")
    then, now = there.get("source_dtype") or dtypes(there), dtypes(settings)
    if then != now:
        raise Occupied(f"{folder} is a run of another {difference('dtype', then, now)}; {_REMEDY}")
    texts = [str(of.get("text") or SHIPPED_TEXT) for of in (there, settings)]
    if texts[0] != texts[1]:
        sys.stderr.write(f"{folder} is a run on another {difference('text', *texts)}\n")
    for name, config in _methods(there).items():
        mine = json.loads(json.dumps(methods[name].describe())) if name in methods else {}
        for key in sorted(config.keys() & mine.keys()):
            if config[key] != mine[key]:
                raise Occupied(f"{folder} holds {name} of another {difference(key, config[key], mine[key])}; {_REMEDY}")


def differing(there: JsonObject, now: JsonObject) -> str:
    """In which of model, M, revision and seed the settings differ, in words; empty for none.

    A model is known by its fingerprints, so that a folder may be moved; where there are none, by its name.
    """
    then, name = there["model"], now["model"]
    models, differ = f"model {then}, not {name}", then != name
    for key in (key for key in MODEL if key in there and key in now):
        if there[key] != now[key]:
            marks = " and ".join(str(value).removeprefix("sha256 ")[:12] for value in (there[key], now[key]))
            same = f"model {name} with other {key} ({marks}): it changed since"
            return f"{models} ({key} {marks})" if differ else same
    if differ and not same_model(there, now):
        return models
    for key in ("trained_length", "revision", "seed"):
        if there.get(key) != now.get(key):
            return f"another {difference(key, there.get(key), now.get(key))}"
    return ""


def same_model(there: JsonObject, now: JsonObject) -> bool:
    """Whether both settings have the sums of the same files of a model, wherever these lie."""
    return all(str(there.get(key)).startswith("sha256 ") and there.get(key) == now.get(key) for key in MODEL)


def journal_of(file: Path, folder: Path, command: str) -> Path:
    """The journal that a result's file of a command was computed from: of the same name, else the command's first."""
    journals = layouts()[command].journal_paths(folder)
    return next((path for path in journals if path.stem == file.stem), journals[0])


def run_of(journal: Path) -> JsonObject:
    """What a result's file says of the run that it is of: as its journal's settings have it."""
    there = recorded(journal)
    return {key: there[key] for key in (*_IDENTITY, *MODEL) if there.get(key) is not None}


def not_of_run(file: Path, content: JsonObject, folder: Path, command: str) -> str:
    """Why a result's file is not of the run in the folder; empty where it is.

    The run is what the store says, and the file's own journal. Where there is a store, the file or its journal must
    have the fingerprints that the store has; a file of an earlier version has none.
    """
    journal = journal_of(file, folder, command)
    store, there = recorded(folder / STORES[0] / "zarr.json"), recorded(journal)
    own = content.get(RUN) or {key: content[key] for key in _IDENTITY if key in content}
    problem = differing(there, store) if store and there else ""
    remedy = " --overwrite" if problem else ""
    problem = problem or next(filter(None, (_differs(own, run) for run in (there, store) if run)), "")
    if not problem and store.keys() & MODEL and not {*own, *there} & {*MODEL}:
        problem = f"a model that nothing tells from another ({journal.name} is not next to it)"
    again = f"`mesa-lens {command} --out {folder}{remedy}` measures it again"
    return f"{file} is left out: it is of {problem}; {again}" if problem else ""


def _differs(own: JsonObject, run: JsonObject) -> str:
    """As `differing`, in what a result's file says of its run."""
    keys = {key for key in run if key in own or key in MODEL}
    return differing(own, {key: run[key] for key in keys}) if "model" in own else ""
