"""The dashboard's pages, opened without a browser."""

from functools import cache

from streamlit.components.v2 import manifest_scanner
from streamlit.testing.v1 import AppTest

PATIENCE = 120  # seconds, on a busy machine
manifest_scanner.scan_component_manifests = cache(manifest_scanner.scan_component_manifests)  # of all that is installed


def unopened(page: str = "overview") -> AppTest:
    """A page that is yet to be run."""
    return AppTest.from_string(f"from mesa_lens.dashboard.main import main\nmain({page!r})", default_timeout=PATIENCE)
