"""The command's parsers, one and all."""

import argparse


def parsers(top):
    """Every parser of the command, by what is typed before its options."""
    found = {top.prog: top}
    for action in top._actions:
        if isinstance(action, argparse._SubParsersAction):
            for each in action.choices.values():
                found |= parsers(each)
    return found
