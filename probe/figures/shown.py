"""Labelled data that shows itself: its main figure in a notebook, what it says in a terminal."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import plotly.graph_objects as go
import xarray as xr

from probe.figures.export import Export
from probe.figures.interactive import draw
from probe.figures.render import Drawn
from probe.figures.static import picture
from probe.files import write

PLOTLY = "application/vnd.plotly.v1+json"
"""The MIME type under which JupyterLab, VS Code and Colab take an interactive figure."""
_DPI = 110  # of the picture where a figure cannot be interactive


@dataclass(frozen=True, repr=False)
class Shown:
    """`data`, labelled (by name where there are several), what it says in `words`, and its `export`.

    `figure(name)` is a plotly figure, by default the main one, `save` writes figures and numbers. `names`: of the
    figures, the main one first.
    """

    data: xr.Dataset | xr.DataArray | Mapping[str, xr.Dataset]
    words: str
    export: Export
    main: str | None = None

    @property
    def names(self) -> list[str]:
        """The names of its figures, the main one first."""
        return sorted(self.export.figures, key=lambda name: name != self.main)

    def figure(self, name: str | None = None) -> go.Figure:
        """A figure by its name (default: the main one), interactive; ValueError for one that is not there."""
        return draw(self._drawn(name))

    def save(self, folder: str | os.PathLike[str], formats: str | Iterable[str] = "png") -> list[Path]:
        """Writes figures (html, png, svg, pdf) and numbers (npz, csv) into the folder; returns the files' paths."""
        forms = formats.split(",") if isinstance(formats, str) else formats
        contents = {Path(folder, name): data for form in forms for name, data in self.export.files(form.strip())}
        Path(folder).mkdir(parents=True, exist_ok=True)
        for path, content in contents.items():
            write(path, content)
        return list(contents)

    def __repr__(self) -> str:
        """What it says, and the names of its figures."""
        figures = f"\n\nfigures: {', '.join(self.names)}" if self.names else ""
        return self.words + figures

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, Any]:
        """The main figure, interactive and as a picture; the words alone where there is no figure."""
        if not self.names:
            return {"text/plain": repr(self)}
        drawn = self._drawn(None)
        interactive = json.loads(cast(str, draw(drawn).to_json()))
        return {"text/plain": repr(self), "image/png": picture(drawn, "png", _DPI), PLOTLY: interactive}

    def _drawn(self, name: str | None) -> Drawn:
        if not self.names:
            raise ValueError("there is no figure: nothing was found that could be drawn")
        name = self.names[0] if name is None else name
        if name not in self.export.figures:
            raise ValueError(f"figure {name!r} is not there; known: {', '.join(self.names)}")
        return cast(Drawn, self.export.figures[name])
