"""The command's parsers, one and all."""

import argparse

from mesa_lens.cli import main as command


def parsers(top):
    """Every parser of the command, by what is typed before its options."""
    found = {top.prog: top}
    for action in top._actions:
        if isinstance(action, argparse._SubParsersAction):
            for each in action.choices.values():
                found |= parsers(each)
    return found


def overridden(words):
    """The words of a command line without the options, and their values, that stand again further on."""
    found = [str(word) for word in words]
    for option in {word for word in found if word.startswith("--") and word != "--set"}:
        while found.count(option) > 1:
            begin = found.index(option)
            end = next((at for at in range(begin + 1, len(found)) if found[at].startswith("--")), len(found))
            del found[begin:end]
    return found


def main(words):
    """`mesa-lens`, where the last of an option counts: a test varies a line that others share."""
    return command(overridden(words))
