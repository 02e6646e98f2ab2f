"""A summary as its file has it, changed here and there, and what the verdict makes of it."""

from pathlib import Path

from probe.commands.probe import verdict as of_typed
from probe.commands.probe.result import SUMMARY
from probe.store.result_file import as_json


def typed(content):
    """The summary of a file with this content."""
    return SUMMARY.parse(content, Path("summary.json"))


def verdict(content, where=None, prediction=None):
    """The verdict as summary.json has it."""
    return as_json(of_typed.verdict(typed(content), where, prediction))


def ranked(content):
    """The ranked rows as summary.json has them."""
    return [as_json(row) for row in of_typed.ranked(typed(content), None)]
