"""Shared by all tests: property tests have no deadline, since a busy machine is no failure."""

import os

from hypothesis import settings

if "PYTEST_XDIST_WORKER" in os.environ:  # else every worker starts a thread a core
    os.environ.setdefault("OMP_NUM_THREADS", "1")
settings.register_profile("project", deadline=None)
settings.load_profile("project")
