"""Shared by all tests: property tests have no deadline, since a busy machine is no failure."""

from hypothesis import settings

settings.register_profile("project", deadline=None)
settings.load_profile("project")
