"""Shared by the tests of the command line."""

import pytest
import tiny


@pytest.fixture(scope="session")
def model(tmp_path_factory):
    """The path of a tiny model's folder."""
    return str(tiny.folder(tmp_path_factory.mktemp("tiny")))
