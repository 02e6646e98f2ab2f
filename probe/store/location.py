"""Where a store lies: a folder, or the URL of an object store, reached through fsspec."""

from __future__ import annotations

import importlib.util
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cache
from pathlib import Path, PurePosixPath
from types import SimpleNamespace
from typing import Any, cast

from mesa.errors import Occupied, Refused

SEAL = "complete"
"""The attribute that holds a store's seal; unfinished ones have False there."""
POINTER = "store.url"
"""The file in a run's folder that names the URL of its store."""
PROTOCOLS = ("s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "memory")
"""Object stores, and the memory of this process."""
_ENDPOINTS = ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT")
_RETRIES = {"max_retries": 2, "retry_timeout": timedelta(seconds=20)}


def as_path(path: str | os.PathLike[str]) -> Path:
    """The folder or, for a URL, its `Remote`. Raises Refused for a URL that cannot hold stores."""
    if isinstance(path, Remote):
        return cast(Path, path)
    return cast(Path, Remote(checked_url(path))) if isinstance(path, str) and "://" in path else Path(path)


def as_store(path: str | os.PathLike[str]) -> Path:
    """The path of a store, as `as_path`: at a URL it exists only once it is sealed."""
    path = as_path(path)
    return cast(Path, RemoteStore(path.url)) if isinstance(path, Remote) else path


def store_in(folder: Path, name: str) -> Path:
    """The store `name` of a run's folder, which may be a URL or name one. Raises as `as_path`."""
    if isinstance(folder, Remote):
        return as_store(folder / name)
    url = _pointer(folder)
    return folder / name if url is None else as_store(f"{url}/{name}")


@contextmanager
def url_recorded(folder: Path, name: str, url: str | None) -> Iterator[None]:
    """While open, the folder names `url` as the place of its store `name`; it still does after if a store is begun.

    None: the store is in the folder. Raises FileExistsError for a folder whose store is elsewhere, OSError for a URL
    that cannot be reached, and as `checked_url`.
    """
    if url is None:
        yield
        return
    url = checked_url(url)
    local = [path for path in (folder / name, folder / f"{name}.partial") if path.exists()]
    recorded = _pointer(folder)
    if local or recorded not in (None, url):
        raise Occupied(f"{folder} has its store at {local[0] if local else recorded}; choose another --out")
    root, pointer = Remote(url) / name / "zarr.json", folder / POINTER
    with suppress(FileNotFoundError):
        root.read_bytes()  # an unreachable URL is not recorded
    pointer.write_text(f"{url}\n", encoding="utf-8")
    try:
        yield
    finally:
        with suppress(OSError):
            if not root.exists():
                pointer.unlink()


def _pointer(folder: Path) -> str | None:
    """The URL that a folder records; None: none. Raises Refused, naming the file."""
    path = folder / POINTER
    try:
        url = path.read_text(encoding="utf-8", errors="replace").strip()
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        return checked_url(url)
    except Refused as error:
        raise Refused(f"{path} has to name the URL of this run's store: {error}") from error


@contextmanager
def connecting(url: str) -> Iterator[None]:
    """Turns whatever an object store's client raises into an OSError of one line; FileNotFoundError passes."""
    try:
        yield
    except FileNotFoundError:
        raise
    except Exception as error:
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        remedy = "mind address and credentials (AWS_ENDPOINT_URL, AWS_ACCESS_KEY_ID)"
        raise OSError(f"{url} cannot be reached ({reason}); {remedy}") from error


@dataclass(frozen=True, order=True)
class Remote:
    """An object, or all objects below a URL, with those of pathlib's methods that stores need.

    All raise OSError, naming the URL, where it cannot be reached.
    """

    url: str

    def __truediv__(self, name: str | PurePosixPath) -> Remote:
        """The URL of `name` below this one."""
        return Remote(f"{self.url}/{PurePosixPath(name).as_posix()}")

    def __str__(self) -> str:
        """The URL."""
        return self.url

    __fspath__ = __str__

    @property
    def name(self) -> str:
        """The last part of the URL."""
        return self.url.rpartition("/")[2]

    @property
    def parent(self) -> Remote:
        """The URL without its last part."""
        return Remote(self.url.rpartition("/")[0])

    def _call(self, method: str, *args: Any, **options: Any) -> Any:
        """What the file system's `method` returns for this key."""
        files = client(self.url)
        with connecting(self.url):
            return getattr(files, method)(files._strip_protocol(self.url), *args, **options)

    def exists(self) -> bool:
        """Whether there is such an object, or one below it."""
        return self._call("exists")

    is_file = exists

    def resolve(self) -> Remote:
        """Itself."""
        return self

    def read_bytes(self) -> bytes:
        """The object's content."""
        return self._call("cat_file")

    def read_text(self, encoding: str = "utf-8") -> str:
        """The object's content as text."""
        return self.read_bytes().decode(encoding)

    def write_bytes(self, content: bytes) -> None:
        """Writes the object, whole or not at all."""
        self._call("pipe_file", content)

    def unlink(self) -> None:
        """Removes the object."""
        self._call("rm")

    def stat(self) -> SimpleNamespace:
        """Size in bytes, and when it was last written."""
        info = self._call("info")
        when = next((info[key] for key in ("LastModified", "last_modified", "created", "mtime") if info.get(key)), 0)
        seconds = when.timestamp() if isinstance(when, datetime) else float(when)
        return SimpleNamespace(st_size=info["size"], st_mtime=seconds)

    def folders(self) -> list[Path]:
        """The prefixes just below."""
        names = [entry["name"] for entry in self._call("ls", detail=True) if entry["type"] == "directory"]
        return [cast(Path, self / name.rstrip("/").rpartition("/")[2]) for name in names]

    def sizes(self) -> dict[str, int]:
        """Bytes of all objects below, by what follows the URL."""
        client(self.url).invalidate_cache()
        prefix = client(self.url)._strip_protocol(self.url).rstrip("/")
        entries = self._call("find", detail=True)
        return {name[len(prefix) :].lstrip("/"): entry["size"] for name, entry in entries.items()}

    def glob(self, pattern: str) -> list[Remote]:
        """What matches the pattern `*/NAME`, one level below."""
        names = [name for name in self.sizes() if name.count("/") == 1 and PurePosixPath(name).match(pattern)]
        return [self / name for name in sorted(names)]

    def tails(self, names: Sequence[str], count: int) -> list[bytes]:
        """The last `count` bytes of objects below."""
        files, sizes = client(self.url), self.sizes()
        keys, ends = [files._strip_protocol(f"{self.url}/{name}") for name in names], [sizes[name] for name in names]
        with connecting(self.url):
            return files.cat_ranges(keys, [end - count for end in ends], ends, on_error="raise")

    def remove(self) -> None:
        """Removes all objects below the URL."""
        if self.sizes():
            self._call("rm", recursive=True)


@dataclass(frozen=True, order=True)
class RemoteStore(Remote):
    """A store at a URL. Object stores cannot rename: it is whole once sealed. begun: the same store before that."""

    begun: bool = False

    def exists(self) -> bool:
        """Whether there is a sealed store or, if `begun`, an unsealed one; a damaged one counts as sealed."""
        try:
            attributes = json.loads((self / "zarr.json").read_bytes())["attributes"]
            return isinstance(attributes.get(SEAL), str) != self.begun
        except FileNotFoundError:
            return False
        except (ValueError, KeyError, TypeError, AttributeError):
            return not self.begun


def client(url: str) -> Any:
    """The file system of a URL. Raises Refused where the package for it is missing."""
    return root_client("/".join(url.split("/")[:3]))


@cache
def root_client(root: str) -> Any:
    """The file system of all URLs with this protocol and bucket."""
    import fsspec.core

    _check_package(root)
    with connecting(root):
        return fsspec.core.url_to_fs(root, **options(root.partition("://")[0]))[0]


def options(protocol: str) -> dict[str, Any]:
    """Options of the protocol's file system: short retries."""
    if protocol == "memory":
        return {}
    import obstore.fsspec  # pyright: ignore[reportMissingImports]

    obstore.fsspec.register(protocol)
    plain = any(os.environ.get(name, "").startswith("http://") for name in _ENDPOINTS)
    timeouts = {"connect_timeout": "5s", "timeout": "60s", "allow_http": plain}
    return {"retry_config": _RETRIES, "client_options": timeouts}


def zarr_store(path: Path, *, read_only: bool = False) -> Any:
    """What zarr and xarray take for a store at this path."""
    if not isinstance(path, Remote):
        return path
    from zarr.storage import FsspecStore

    storage_options = options(path.url.partition("://")[0]) or None
    with connecting(path.url):
        return FsspecStore.from_url(path.url, storage_options=storage_options, read_only=read_only)


def checked_url(url: str) -> str:
    """The URL of an object store. Raises Refused for another, and where the package for it is missing."""
    protocol, _, rest = url.partition("://")
    if protocol not in PROTOCOLS or not rest.strip("/"):
        raise Refused(f"{url!r} is no URL of an object store; they begin with {', '.join(PROTOCOLS[:-1])}://")
    if ".." in rest.split("/"):
        raise Refused(f"{url!r} has a '..' in it; write it without")
    _check_package(url)
    return url.rstrip("/")


def _check_package(url: str) -> None:
    needed = ("fsspec",) if url.startswith("memory://") else ("fsspec", "obstore")
    if not all(map(importlib.util.find_spec, needed)):
        raise Refused(f"{url} needs a package for object stores; pip install 'mesa-lens[remote]'")
