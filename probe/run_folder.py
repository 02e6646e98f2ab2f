"""The folder of a run: where each command writes in it, which model it is of, who writes to it now."""

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any, TypeVar

from mesa import plugins
from mesa.errors import NotFound, Occupied, Refused
from mesa.methods import make
from mesa.settings import requested_names
from probe.files import SEAL, JsonObject, checksum, difference, seal_of

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

# Where commands write


@dataclass(frozen=True)
class Layout:
    """folder: below the run's, "" for itself. journals: in it. results: what a finished command leaves next to them."""

    folder: str
    journals: tuple[str, ...]
    results: tuple[str, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """What the command has in the run's own folder, in addition to results and stores."""
        return (self.folder,) if self.folder else self.journals

    def journal_paths(self, run: Path) -> list[Path]:
        """Its journals in the folder of a run, there or not."""
        return [run / self.folder / name for name in self.journals]


STORES = ("store.zarr", "store.zarr.partial")
"""The store of a probe, complete and unfinished."""
REPORTED = ("summary.json", "report.html")
"""The files of a finished report, in addition to its figures."""
PROBE = Layout("", ("measured.jsonl",), REPORTED)
_ORDER = ("check", "probe", "predict", "locate", "anatomy", "readout", "eval")
T = TypeVar("T")


def in_order(commands: Mapping[str, T]) -> dict[str, T]:
    """Those that come with the package as help and reports have them, then others."""
    first = [name for name in _ORDER if name in commands]
    return {name: commands[name] for name in (*first, *(name for name in commands if name not in first))}


@cache
def layouts() -> dict[str, Layout]:
    """By command, of those that are installed."""
    rows = plugins.registered(plugins.COMMANDS, {})
    others = {name: layout for name, row in rows.items() if isinstance(layout := getattr(row, "layout", None), Layout)}
    return in_order({"probe": PROBE, **others})


@cache
def journals() -> frozenset[str]:
    """Names of all commands' journals."""
    return frozenset(name for layout in layouts().values() for name in layout.journals)


LOCK = ".mesa-lens.lock"
"""The file in a folder that is locked while a run writes there, and that says who does."""
_BEGIN = b'{"settings": '
"""How every journal begins."""
_LISTED = 3  # names of what else it holds

MODEL = ("weights", "config", "tokenizer")
"""Fingerprints of a model, in a store's attributes and in a journal's settings."""
CHECKSUM = "crc32"
"""The key of a checksum in a line of a journal; in the first line of older ones it says only that others have one."""
SHIPPED_TEXT = "shipped held-out text"
"""What a store's attributes name where no text was passed."""
RUN = "run"
"""The key of a result's file under which it says of which run it is, see `run_of`."""
_IDENTITY = ("model", "trained_length", "revision", "seed")
_TAKEN = ("model", "trained_length", "revision", "dtype", "seed")


class RunFolder:
    """What the folder of a run holds, each part read when first used and only once; reads files, writes none.

    replaced: files and folders in it that are about to be written again, and do not count.
    """

    def __init__(self, path: Path, replaced: Sequence[str] = ()) -> None:
        self.path, self.replaced = path, replaced

    @cached_property
    def settings(self) -> JsonObject:
        """What the run records of model, M, revision, dtype and seed; empty where there is no run.

        That is what its store says, else its first journal. Raises Refused where one is not what was written.
        """
        files = [self.path / name / "zarr.json" for name in STORES]
        files += [path for layout in layouts().values() for path in layout.journal_paths(self.path)]
        there = (recorded(file) for file in files if file.relative_to(self.path).parts[0] not in self.replaced)
        return next(filter(None, there), {})

    @cached_property
    def holds_run(self) -> bool:
        """Whether something there is a run's, by its content; or nothing is there but a journal just started."""
        stores = [self.path / name / "zarr.json" for name in (*STORES, "store.zarr.former")]
        if (self.path / "store.zarr.begun").exists() or any(map(recorded, (*stores, *self.journals))):
            return True
        return bool(self.journals) and all(map(_is_just_begun, self.path.rglob("[!.]*")))

    @property
    def journals(self) -> list[Path]:
        """All journals in the folder and one folder below."""
        return [*self.path.glob("*.jsonl"), *self.path.glob("*/*.jsonl")]

    def writer(self, path: Path) -> str:
        """The command that wrote a result here, by the journal or store next to it; empty where nothing tells."""
        for name, layout in layouts().items():
            next_to = (*layout.journals, *(STORES if name == "probe" else ()))
            results = [self.path / layout.folder / result for result in layout.results]
            if path in results and any((path.parent / there).exists() for there in next_to):
                return name
        return ""

    def journal_lines(self) -> dict[str, int]:
        """The number of lines of each journal now, by name."""
        paths = [path for path in self.journals if path.is_file()]
        return {path.relative_to(self.path).as_posix(): path.read_bytes().count(b"\n") for path in paths}

    # Who writes to it

    @cached_property
    def is_running(self) -> bool:
        """Whether a run writes to the folder now."""
        try:
            with (self.path / LOCK).open("rb") as file:
                if fcntl is None:  # where the lock's file goes with its process
                    return True
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:
            return False
        return False

    @cached_property
    def holder(self) -> JsonObject:
        """Who writes, or left when it died: `pid`, `host`, `command`, `since`, `journals`; empty for nobody."""
        try:
            holder = json.loads((self.path / LOCK).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return holder if isinstance(holder, dict) else {}

    @property
    def holder_text(self) -> str:
        """The holder in words."""
        if not self.holder:
            return "another process"
        return "process {} on {} since {} ({})".format(*map(self.holder.get, ("pid", "host", "since", "command")))

    # Which runs may write to it

    def check_run(self) -> None:
        """Raises FileExistsError for a folder with files, none of them a run's; hidden files do not count.

        A run is recognized by its store, or by a journal with our header, in the folder or one folder below.
        """
        try:
            names = sorted(path.name for path in self.path.iterdir() if not path.name.startswith("."))
            if not names or self.holds_run:
                return
        except OSError:  # missing, no folder, or unreadable: reported when it is written to
            return
        listed = ", ".join([*names[:_LISTED], *(["..."] if len(names) > _LISTED else [])])
        raise Occupied(f"--out {self.path} holds other things than a run ({listed}); name a new or empty folder")

    def check_apart(self, names: Sequence[str]) -> None:
        """Raises FileExistsError for one of these files of another command, whose results have our names."""
        if there := [name for name in names if (self.path / name).exists()]:
            raise Occupied(
                f"--out {self.path} holds another command's run ({there[0]}), whose summary and report would be "
                "replaced; name another --out"
            )

    def check(
        self,
        settings: JsonObject,
        methods: Mapping[str, Any],
        dtypes: Callable[[JsonObject], str],
        apart: Sequence[str] = (),
        own: Sequence[str] | None = None,
    ) -> None:
        """Raises FileExistsError where a new run may not write to the folder.

        It holds other things than a run, or a run of another model, M, revision, dtype or seed (both values are named),
        or one of the files `apart` of another command. Another text is told on stderr: what is measured on it stands
        next to what was measured on the run's. settings: of the new plan. methods: its methods; those that the run has
        too must have the same parameters. dtypes: returns the dtype of a model with such options. own: what --overwrite
        replaces, which is proposed where nothing else is of a run; None: all.
        """
        self.check_run()
        if self.settings:
            kept = any((self.path / name).exists() for name in apart)
            kept = kept or (own is not None and bool(RunFolder(self.path, own).settings))
            remedy = f"use {'' if kept else '--overwrite or '}another --out, or leave the option out"
            self._check_settings(self.settings, settings, methods, dtypes, remedy)
        self.check_apart(apart)

    def _check_settings(
        self, there: JsonObject, settings: JsonObject, methods: Mapping[str, Any], dtypes: Any, remedy: str
    ) -> None:
        if problem := differing(there, settings):
            raise Occupied(f"{self.path} is a run of {problem}; {remedy}")
        then, now = there.get("source_dtype") or dtypes(there), dtypes(settings)
        if then != now:
            raise Occupied(f"{self.path} is a run of another {difference('dtype', then, now)}; {remedy}")
        texts = [str(of.get("text") or SHIPPED_TEXT) for of in (there, settings)]
        if texts[0] != texts[1] and not same_text(there, settings):
            sys.stderr.write(f"{self.path} is a run on another {difference('text', *texts)}\n")
        for name, config in _methods(there).items():
            mine = json.loads(json.dumps(methods[name].describe())) if name in methods else {}
            for key, *values in changed_parameters(config, mine):
                raise Occupied(f"{self.path} holds {name} of another {difference(key, *values)}; {remedy}")

    def taken(self, values: JsonObject, passed: Sequence[str], default_methods: str) -> JsonObject:
        """The options that the run has and that were not passed, by key; `trust_remote_code` is never taken.

        values: all options by key. passed: keys of those that were typed. Raises Refused for a run whose model needs
        its own code, unless that is allowed again, and NotFound for one whose model's folder has gone.
        """
        there = self.settings
        if not there:
            return {}
        model = there["model"]
        options = {key: there[key] for key in _TAKEN if key not in passed and there.get(key) is not None}
        if there.get("dtype") is None and there.get("device", "cpu") != "cpu" and "source_dtype" in there:
            options |= {} if "dtype" in passed else {"dtype": there["source_dtype"]}
        if "model" in options and there.get("trust_remote_code") is True and not values.get("trust_remote_code"):
            raise Refused(
                f"{self.path} is a run of {model}, which runs its own code; this is never taken from a run: give "
                "--trust-remote-code again"
            )
        if "model" in options and model.startswith((".", "/", "~")) and not Path(model).exists():
            raise NotFound(f"{self.path} is a run of model {model}, which is not there; give its place by --model")
        if not values.get("set"):
            names = requested_names(values.get("methods") or default_methods)
            options["set"] = [text for name in names for text in _changed(name, there)]
        return options

    # Of which run its results are

    def journal_of(self, file: Path, command: str) -> Path:
        """The journal that a result's file of a command was computed from: of its name, else the command's first."""
        paths = layouts()[command].journal_paths(self.path)
        return next((path for path in paths if path.stem == file.stem), paths[0])

    def not_of_run(self, file: Path, content: JsonObject, command: str) -> str:
        """Why a result's file is not of the run; empty where it is.

        The run is what the store says, and the file's own journal. Where there is a store, the file or its journal must
        have the fingerprints that the store has; a file of an earlier version has none.
        """
        journal = self.journal_of(file, command)
        store, there = recorded(self.path / STORES[0] / "zarr.json"), recorded(journal)
        own = content.get(RUN) or {key: content[key] for key in _IDENTITY if key in content}
        problem = differing(there, store) if store and there else ""
        remedy = " --overwrite" if problem else ""
        problem = problem or next(filter(None, (_differs(own, run) for run in (there, store) if run)), "")
        if not problem and store.keys() & MODEL and not {*own, *there} & {*MODEL}:
            problem = f"a model that nothing tells from another ({journal.name} is not next to it)"
        again = f"`mesa-lens {command} --out {self.path}{remedy}` measures it again"
        return f"{file} is left out: it is of {problem}; {again}" if problem else ""


def recorded(file: Path) -> JsonObject:
    """What a store's attributes or a journal's first line say of a run; empty for a file of none, or an unreadable one.

    Raises Refused where they are not what was written.
    """
    try:
        if file.suffix == ".json":
            content = json.loads(file.read_text(encoding="utf-8"))["attributes"]
            is_sealed = not content.get(SEAL) or content[SEAL] == seal_of(file.parent)
        else:
            with file.open(encoding="utf-8") as lines:
                header = json.loads(lines.readline())
            content, is_sealed = header["settings"], is_complete(header)
        if not isinstance(content["model"], str):
            return {}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return {}
    if not is_sealed:
        raise Refused(f"{file} is damaged: what it says of the run is not what was written; name another --out")
    return content


def is_complete(header: JsonObject) -> bool:
    """Whether a journal's first line is what was written."""
    written = {key: value for key, value in header.items() if key != CHECKSUM}
    return header.get(CHECKSUM) is True or header.get(CHECKSUM) == checksum(written)


def run_of(journal: Path) -> JsonObject:
    """What a result's file says of the run that it is of: as its journal's settings have it."""
    there = recorded(journal)
    return {key: there[key] for key in (*_IDENTITY, *MODEL) if there.get(key) is not None}


def differing(there: JsonObject, now: JsonObject) -> str:
    """In which of model, M, revision and seed the settings differ, in words; empty for none.

    A model is recognized by its fingerprints, so that a folder may be moved; where there are none, by its name. Seeds
    are compared where both have one: runs of lm-eval's tasks have none.
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
        if there.get(key) != now.get(key) and (key != "seed" or ("seed" in there and "seed" in now)):
            return f"another {difference(key, there.get(key), now.get(key))}"
    return ""


def same_model(there: JsonObject, now: JsonObject) -> bool:
    """Whether both settings have the sums of the same files of a model, wherever these are."""
    return all(str(there.get(key)).startswith("sha256 ") and there.get(key) == now.get(key) for key in MODEL)


def same_text(there: JsonObject, now: JsonObject) -> bool:
    """Whether both settings have the fingerprint of the same documents, wherever these are."""
    return bool(now.get("documents")) and there.get("documents") == now["documents"]


def _differs(own: JsonObject, run: JsonObject) -> str:
    """As `differing`, in what a result's file says of its run."""
    keys = {key for key in run if key in own or key in MODEL}
    return differing(own, {key: run[key] for key in keys}) if "model" in own else ""


def _changed(name: str, there: JsonObject) -> Iterator[str]:
    """The parameters of a method that a run changed, as texts of --set."""
    config = _methods(there).get(name, {})
    default = {key: config[key] for key in ("name", "trained_length") if key in config}
    for key, value, _ in changed_parameters(config, default):
        yield f"{name}.{key}={value}"


def changed_parameters(one: JsonObject, other: JsonObject) -> list[tuple[str, Any, Any]]:
    """In which parameters two configs of a method differ, as far as both tell, with both values."""
    one, other = _filled(one), _filled(other)
    return [(key, one[key], other[key]) for key in sorted(one.keys() & other.keys()) if one[key] != other[key]]


def _filled(config: JsonObject) -> JsonObject:
    """A method's config with the defaults of what it leaves out, such as `heads`."""
    try:
        return json.loads(json.dumps(asdict(make(config["name"], config["trained_length"])))) | config
    except (ValueError, TypeError, KeyError):
        return config


def _methods(settings: JsonObject) -> dict[str, JsonObject]:
    """The configs of a store's methods, by name."""
    try:
        return dict(json.loads(settings.get("method_configs", "{}")))
    except (ValueError, TypeError):
        return {}


def _is_just_begun(path: Path) -> bool:
    """Whether it is a folder, or a journal that was cut short in its first line."""
    if path.is_dir() or path.name not in journals():
        return path.is_dir()
    with path.open("rb") as file:
        return _BEGIN.startswith(file.read(len(_BEGIN)))
