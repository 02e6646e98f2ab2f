"""Shared by all tests: property tests have no deadline, since a busy machine is no failure."""

import os

import pytest
from hypothesis import settings

if "PYTEST_XDIST_WORKER" in os.environ:  # else every worker starts a thread a core
    os.environ.setdefault("OMP_NUM_THREADS", "1")
settings.register_profile("project", deadline=None)
settings.load_profile("project")


@pytest.fixture(scope="module")
def undrawn():
    """Reports of runs are written without their folder of figures and their charts, which take most of the time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("probe.report.embedded", lambda _: "")
        patch.setattr("probe.report.write_figures", lambda *_: None)
        yield


@pytest.fixture(scope="module")
def unpainted():
    """Reports of runs are written with empty files for pictures, which matplotlib takes seconds for."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("probe.report.rendered", lambda *_: b"")
        yield
