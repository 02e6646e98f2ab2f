"""The package's page on an index: README with links that lead somewhere from there. All else: pyproject.toml."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from setuptools import setup
from setuptools.command.egg_info import egg_info

ROOT = Path(__file__).parent
_LINK = re.compile(r"(!?)\[([^\]]*)\]\((?!https?:|#)([^)\s]+)\)")


def page(text: str, address: str | None) -> str:
    """README for a package index, which has none of the repository's files.

    address: of the repository on a code host, `Source` in pyproject.toml's urls. Relative links become absolute. None:
    pictures are left out, and of links the text and the path stay.
    """

    def absolute(link: re.Match[str]) -> str:
        picture, words, path = link.groups()
        if address is None:
            return "" if picture else f"{words} (`{path}`)"
        return f"{picture}[{words}]({address.rstrip('/')}/{'raw' if picture else 'blob'}/HEAD/{path})"

    return _LINK.sub(absolute, text)


class PackagePage(egg_info):
    """Writes the metadata with that page."""

    def run(self) -> None:
        """As setuptools does."""
        urls = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["urls"]
        text = (ROOT / "README.md").read_text(encoding="utf-8")
        self.distribution.metadata.long_description = page(text, urls.get("Source"))
        super().run()


if __name__ == "__main__":
    setup(cmdclass={"egg_info": PackagePage})
