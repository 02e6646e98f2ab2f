"""The dashboard's pages, opened without a browser."""

from functools import cache

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
