"""The dashboard's pages, opened without a browser."""

from functools import cache
from html.parser import HTMLParser

import pandas as pd
from streamlit.components.v2 import manifest_scanner
from streamlit.testing.v1 import AppTest

PATIENCE = 120  # seconds, on a busy machine
manifest_scanner.scan_component_manifests = cache(manifest_scanner.scan_component_manifests)  # of all that is installed


def unopened(page: str = "overview") -> AppTest:
    """A page that is yet to be run."""
    return AppTest.from_string(f"from mesa_lens.dashboard.main import main\nmain({page!r})", default_timeout=PATIENCE)


def drawn(page: str, **query) -> AppTest:
    """A page that was run with a link's values, without an exception."""
    app = unopened(page)
    app.query_params.update(query)
    app.run()
    assert not app.exception
    return app


def shown_texts(app: AppTest) -> str:
    """What a page says, its Markdown unescaped."""
    kinds = (app.markdown, app.error, app.warning, app.info, app.caption, app.header, app.subheader, app.code)
    return "\n".join(element.value for kind in kinds for element in kind).replace("\\", "")


class _Cells(HTMLParser):
    """The texts of every table of a page's HTML, row by row."""

    def __init__(self) -> None:
        super().__init__()
        self.tables: list[list[list[str]]] = []
        self.inside = False

    def handle_starttag(self, tag, attrs):
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("th", "td"):
            self.tables[-1][-1].append("")
            self.inside = True

    def handle_endtag(self, tag):
        self.inside &= tag not in ("th", "td")

    def handle_data(self, data):
        if self.inside:
            self.tables[-1][-1][-1] += data


def tables(app: AppTest) -> list[pd.DataFrame]:
    """The HTML tables of a page, without that of the verdict."""
    cells = _Cells()
    cells.feed("".join(part.proto.body for part in app.get("html") if 'class="scroll"' in part.proto.body))
    return [pd.DataFrame(rows, columns=head) for head, *rows in cells.tables]
