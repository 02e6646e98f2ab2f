"""Where a store lies: a folder, or a URL of an object store, which has as much of pathlib's ways as stores need."""

from __future__ import annotations

import importlib.util
import io
import json
import os
import platform
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cache
from pathlib import Path, PurePosixPath
from types import SimpleNamespace
from typing import Any, cast
from uuid import uuid4

from probe.store.seal import SEAL

POINTER = "store.url"
"""The file in a run's folder that names the store's URL, where that lies elsewhere, and the run that it is of."""
OWNER = "owner.json"
"""The object beside a store that names the run that it is of."""
_NATIVE = {"s3": "s3fs", "s3a": "s3fs", "gs": "gcsfs", "gcs": "gcsfs", "abfs": "adlfs", "abfss": "adlfs", "az": "adlfs"}
PROTOCOLS = (*_NATIVE, "memory")
"""Object stores, and the memory of this process."""
_ENDPOINTS = ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT")
_PATIENCE = {"max_retries": 2, "retry_timeout": timedelta(seconds=20)}


def place_of(path: str | os.PathLike[str]) -> Path:
    """The folder or, of a URL, what stands for it. Raises ValueError for a URL of a kind that holds no stores."""
    if isinstance(path, Remote):
        return cast(Path, path)
    return cast(Path, Remote(checked_url(path))) if isinstance(path, str) and "://" in path else Path(path)


def store_in(folder: Path, name: str) -> Path:
    """The store `name` of a run's folder, also where that is a URL or names one. Raises as `place_of`."""
    if isinstance(folder, Remote):
        return cast(Path, RemoteStore((folder / name).url))
    url, _ = _pointer(folder)
    return folder / name if url is None else cast(Path, RemoteStore((Remote(url) / name).url))


@contextmanager
def pointed(folder: Path, name: str, url: str | None) -> Iterator[None]:
    """The folder says that its store `name` is at `url`, and goes on saying so if one is begun there; None: it is here.

    Raises FileExistsError for a folder whose store is elsewhere, and for a URL that has another folder's; OSError for
    one that cannot be reached, and as `checked_url`.
    """
    if url is None:
        yield
        return
    here = [each for each in (folder / name, folder / f"{name}.partial") if each.exists()]
    said, run = _pointer(folder)
    if here or (said is not None and said != checked_url(url)):
        raise FileExistsError(f"{folder} has its store at {here[0] if here else said}; choose another --out")
    at, run = Remote(checked_url(url)), run or uuid4().hex
    store = RemoteStore((at / name).url)
    _check_owner(at, run)  # what cannot be reached is not kept as where the store is
    pointer = folder / POINTER
    pointer.write_text(f"{at}\n{run}\n", encoding="utf-8")
    try:
        owner = {"run": run, "folder": str(folder.resolve()), "host": platform.node()}
        (at / OWNER).write_bytes(json.dumps(owner).encode())
        _check_owner(at, run)  # another may have begun at the same time
    except OSError:
        if said is None:
            pointer.unlink()
        raise
    try:
        yield
    finally:
        with suppress(OSError):  # else nothing is known of it
            if not (store / "zarr.json").exists():
                (at / OWNER).unlink()
                pointer.unlink()


def _pointer(folder: Path) -> tuple[str | None, str | None]:
    """The URL that a folder names, and the run that it says it is; None for what it does not say.

    Raises ValueError, naming the file, as `checked_url`.
    """
    path = folder / POINTER
    try:
        said = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except (FileNotFoundError, NotADirectoryError):
        return None, None
    try:
        return checked_url(said[0].strip() if said else ""), said[1] if len(said) > 1 else None
    except ValueError as error:
        raise ValueError(f"{path} has to name the URL of this run's store in its first line: {error}") from error


def _check_owner(at: Remote, run: str) -> None:
    """Raises FileExistsError where what lies at `at` is said to be another run's."""
    try:
        of = json.loads((at / OWNER).read_bytes())
        said = f"{of['folder']} on {of['host']}"
        if of["run"] == run:
            return
    except FileNotFoundError:
        return  # nobody's, or older than owners
    except (ValueError, KeyError, TypeError):
        said = "another run"
    raise FileExistsError(
        f"{at} is the store of {said}; choose another --store or, if that run is gone, remove {at / OWNER}"
    )


def as_store(place: Path) -> Path:
    """The place as one that a store lies at itself."""
    return cast(Path, RemoteStore(place.url)) if isinstance(place, Remote) else place


@contextmanager
def reaching(url: str) -> Iterator[None]:
    """Whatever a client of an object store raises becomes an OSError of one line; a missing object stays as it is."""
    try:
        yield
    except FileNotFoundError:
        raise
    except Exception as error:
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        said = f"{url} cannot be reached ({reason}); mind address and credentials (AWS_ENDPOINT_URL, AWS_ACCESS_KEY_ID)"
        raise OSError(said) from error


@dataclass(frozen=True, order=True)
class Remote:
    """An object, or all that begin with a URL. Raises OSError, naming the URL, where it cannot be reached."""

    url: str

    def __truediv__(self, name: str | PurePosixPath) -> Remote:
        """What is called `name` below it."""
        return Remote(f"{self.url}/{PurePosixPath(name).as_posix()}")

    def __str__(self) -> str:
        """The URL."""
        return self.url

    def __fspath__(self) -> str:
        """The URL, for what passes paths on."""
        return self.url

    @property
    def name(self) -> str:
        """The last part of the URL."""
        return self.url.rpartition("/")[2]

    @property
    def parent(self) -> Remote:
        """The URL without its last part."""
        return Remote(self.url.rpartition("/")[0])

    @property
    def _key(self) -> str:
        return client(self.url)._strip_protocol(self.url)

    def exists(self) -> bool:
        """Whether there is such an object, or one below it."""
        with reaching(self.url):
            return client(self.url).exists(self._key)

    is_file = is_dir = exists

    def is_symlink(self) -> bool:
        """Never."""
        return False

    def resolve(self) -> Remote:
        """Itself."""
        return self

    def read_bytes(self) -> bytes:
        """The object's content."""
        with reaching(self.url):
            return client(self.url).cat_file(self._key)

    def write_bytes(self, content: bytes) -> None:
        """Writes the object, whole or not at all."""
        with reaching(self.url):
            client(self.url).pipe_file(self._key, content)

    def unlink(self) -> None:
        """Removes the object."""
        with reaching(self.url):
            client(self.url).rm(self._key)

    def read_text(self, encoding: str = "utf-8") -> str:
        """The object's content as text."""
        return self.read_bytes().decode(encoding)

    def open(self, mode: str = "rb") -> io.BytesIO:
        """The object's content as a file that is in memory."""
        return io.BytesIO(self.read_bytes())

    def stat(self) -> SimpleNamespace:
        """Size, and when it was last written."""
        with reaching(self.url):
            found = client(self.url).info(self._key)
        when = next((found[key] for key in ("LastModified", "last_modified", "created", "mtime") if found.get(key)), 0)
        return SimpleNamespace(
            st_size=found["size"], st_mtime=when.timestamp() if isinstance(when, datetime) else float(when)
        )

    def glob(self, pattern: str) -> list[Remote]:
        """What lies one level below, under the pattern `*/NAME`."""
        suffix = f"/{pattern.rpartition('/')[2]}"
        keys = [key for key in self.sizes() if key.endswith(suffix) and key.count("/") == pattern.count("/")]
        return [self / key for key in sorted(keys)]

    def folders(self) -> list[Path]:
        """The prefixes just below."""
        with reaching(self.url):
            found = client(self.url).ls(self._key, detail=True)
        names = [each["name"].rstrip("/").rpartition("/")[2] for each in found if each["type"] == "directory"]
        return [cast(Path, self / name) for name in names]

    def sizes(self) -> dict[str, int]:
        """Bytes of all objects below, by what follows the URL."""
        fs, key = client(self.url), self._key.rstrip("/")
        with reaching(self.url):
            fs.invalidate_cache()
            found = fs.find(key, detail=True)
        return {name[len(key) :].lstrip("/"): each["size"] for name, each in found.items()}

    def ends(self, names: Sequence[str], sizes: Sequence[int], count: int) -> list[bytes]:
        """The last bytes of objects below."""
        paths = [(self / name)._key for name in names]
        with reaching(self.url):
            return client(self.url).cat_ranges(paths, [size - count for size in sizes], list(sizes), on_error="raise")

    def remove(self) -> None:
        """Removes all that begins with the URL."""
        if self.sizes():
            with reaching(self.url):
                client(self.url).rm(self._key, recursive=True)


@dataclass(frozen=True, order=True)
class RemoteStore(Remote):
    """A store at a URL, which is whole once it is sealed: no object store renames. begun: the same before that."""

    begun: bool = False

    def exists(self) -> bool:
        """Whether there is a store, sealed; or, of one that is begun, not sealed."""
        try:
            described = json.loads((self / "zarr.json").read_bytes())
            return isinstance(described["attributes"].get(SEAL), str) != self.begun
        except FileNotFoundError:
            return False
        except (ValueError, KeyError, TypeError, AttributeError):
            return not self.begun  # damaged, which is told when it is opened


def client(url: str) -> Any:
    """The file system of a URL. Raises ValueError where the package for it is missing."""
    return root_client("/".join(url.split("/")[:3]))


@cache
def root_client(root: str) -> Any:
    """The file system of all URLs that begin so: protocol and bucket."""
    fsspec = _fsspec(root)
    with reaching(root):
        return fsspec.core.url_to_fs(root, **options(root.partition("://")[0]))[0]


def options(protocol: str) -> dict[str, Any]:
    """How the protocol's file system is made: others remember no listings, ours gives up soon."""
    if protocol == "memory":
        return {}
    if importlib.util.find_spec(_NATIVE[protocol]):
        return {"use_listings_cache": False}  # zarr writes by a client of its own, and other machines do
    import obstore.fsspec  # pyright: ignore[reportMissingImports]

    obstore.fsspec.register(protocol)
    plain = any(os.environ.get(name, "").startswith("http://") for name in _ENDPOINTS)  # it was asked for
    timeouts = {"connect_timeout": "5s", "timeout": "60s", "allow_http": plain}
    return {"retry_config": _PATIENCE, "client_options": timeouts}


def zarr_place(place: Path, *, reads: bool = False) -> Any:
    """What zarr and xarray take for a store's place."""
    if not isinstance(place, Remote):
        return place
    from zarr.storage import FsspecStore

    with reaching(place.url):
        return FsspecStore.from_url(
            place.url, storage_options=options(place.url.partition("://")[0]) or None, read_only=reads
        )


def checked_url(url: str) -> str:
    """The URL of an object store. Raises ValueError for another, and where the package for it is missing."""
    protocol, _, rest = url.partition("://")
    if protocol not in PROTOCOLS or not rest.strip("/"):
        raise ValueError(f"{url!r} is no URL of an object store; they begin with {', '.join(PROTOCOLS[:-1])}://")
    if ".." in rest.split("/"):
        raise ValueError(f"{url!r} has a '..' in it; write it without")
    _fsspec(url)
    return url.rstrip("/")


def _fsspec(url: str) -> Any:
    """The package fsspec, with one that serves the URL."""
    protocol = url.partition("://")[0]
    served = protocol == "memory" or any(map(importlib.util.find_spec, (_NATIVE[protocol], "obstore")))
    if importlib.util.find_spec("fsspec") is None or not served:
        raise ValueError(f"{url} needs a package for object stores; pip install 'mesa-lens[remote]'")
    import fsspec.core

    return fsspec
