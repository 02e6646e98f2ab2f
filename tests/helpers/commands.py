"""The command's parsers, one and all."""

import argparse

from mesa_lens.cli import main as command


def parsers(top):
    """Every parser of the command, by what is typed before its options."""
    inner = {top.prog: top}
    for action in top._actions:
        if isinstance(action, argparse._SubParsersAction):
            for parser in action.choices.values():
                inner |= parsers(parser)
    return inner


def last_of_each(words):
    """The words of a command line without the options, and their values, that stand again further on."""
    kept = [str(word) for word in words]
    for option in {word for word in kept if word.startswith("--") and word not in ("--set", "--config")}:
        while kept.count(option) > 1:
            begin = kept.index(option)
            end = next((at for at in range(begin + 1, len(kept)) if kept[at].startswith("--")), len(kept))
            del kept[begin:end]
    return kept


def main(words):
    """`mesa-lens` with these words, where the last of an option counts: a test varies a line that others share."""
    return command(last_of_each(words))
