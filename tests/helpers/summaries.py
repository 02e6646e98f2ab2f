"""A summary as its file has it, changed here and there, and what the verdict makes of it."""

from pathlib import Path

from probe.commands import Findings
from probe.commands.locate import result as locate_result
from probe.commands.predict import result as prediction_result
from probe.commands.probe import verdict as of_typed
from probe.commands.probe.verdict import SUMMARY
from probe.store.result_file import as_json


def typed(content):
    """The summary of a file with this content."""
    return SUMMARY.parse(content, Path("summary.json"))


def verdict(content, where=None, prediction=None):
    """The verdict as summary.json has it."""
    evidence, heads, predicted, notes = typed(content), {}, {}, []
    for of, result_of in ((prediction_result, prediction), (locate_result, where)):
        findings = of.findings_of(result_of, of_typed.facts_of(evidence))
        heads, predicted, notes = heads | findings.heads, predicted | findings.predicted, notes + findings.notes
    return as_json(of_typed.verdict(evidence, Findings(heads, predicted, notes)))


def ranked(content):
    """The ranked rows as summary.json has them."""
    return [as_json(row) for row in of_typed.ranked(typed(content), Findings({}, {}, []))]
