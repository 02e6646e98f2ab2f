"""Every help begins with an example that runs; every estimate tells the time."""

import argparse
import shlex

import pytest

from mesa_lens.cli import main, parser


def parsers(top):
    """Every parser of the command, by what is typed before its options."""
    found = {top.prog: top}
    for action in top._actions:
        if isinstance(action, argparse._SubParsersAction):
            for each in action.choices.values():
                found |= parsers(each)
    return found


PARSERS = parsers(parser())


@pytest.mark.parametrize("name", PARSERS)
def test_help_begins_with_one_example_that_the_parser_takes(name, capsys):
    with pytest.raises(SystemExit):
        main([*name.split()[1:], "--help"])
    first, blank, *rest = capsys.readouterr().out.splitlines()
    assert (first[:9], blank) == ("example: ", "")
    assert not any(line.startswith("example:") for line in rest)
    command, *arguments = shlex.split(first.removeprefix("example: "))
    assert command == "mesa-lens"
    args = parser().parse_args(arguments)
    assert callable(args.run)
    if len(name.split()) > 1:
        assert arguments[: len(name.split()) - 1] == name.split()[1:]
