"""Download buttons: a page's figures and numbers as files, made when asked for."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Protocol

import streamlit as st

from probe.figures.export import safe_name

FORMS = ("png", "svg", "pdf", "csv")
"""What every figure can be had as."""
MIMES = {
    "png": "image/png",
    "svg": "image/svg+xml",
    "html": "text/html",
    "pdf": "application/pdf",
    "csv": "text/csv",
    "npz": "application/octet-stream",
    "zip": "application/zip",
}


class Exported(Protocol):
    """What can be had as files, such as `probe.figures.export.Export`."""

    def files(self, form: str) -> Iterator[tuple[str, bytes]]:
        """Names and contents of the files in format `form`."""
        ...


def named(*parts: object) -> str:
    """The name of a download, without suffix: run, prompt and view."""
    return "-".join(safe_name(str(part)) for part in parts)


def buttons(make: Callable[[], Exported], stem: str, forms: Sequence[str] = FORMS, several: Sequence[str] = ()) -> None:
    """A button a format; `several` are those with more than one file, which come as a zip."""
    with st.container(horizontal=True):
        for form in forms:
            suffix = "zip" if form in several else form
            st.download_button(
                form.upper(),
                partial(content, make, form, form in several),
                f"{stem}-{form}.zip" if form in several else f"{stem}.{form}",
                MIMES[suffix],
                key=f"{stem}.{form}",
                on_click="ignore",
                icon=":material/download:",
            )


def content(make: Callable[[], Exported], form: str, several: bool) -> bytes:
    """The one file of a format, or a zip of all."""
    files = list(make().files(form))
    if not several:
        return files[0][1]
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files:
            archive.writestr(name, data)
    return packed.getvalue()
