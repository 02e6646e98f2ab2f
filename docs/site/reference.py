"""mkdocs hook: tables of options, from the dataclasses and parsers that make the flags.

On a page `<!-- commands -->` becomes every command, `<!-- options: probe.ProbeRequest -->` that dataclass's fields.
"""

import argparse
import re
from importlib import import_module

from mesa_lens.cli import parser
from probe.options import options

_MARK = re.compile(r"<!-- (commands|options: (\w+)\.(\w+)) -->")
_DEFAULT = re.compile(r" \(default: (.*)\)$", re.DOTALL)


def on_page_markdown(markdown, page, config, files):
    """The page's text with its marks replaced."""
    return _MARK.sub(lambda mark: fields(mark[2], mark[3]) if mark[2] else commands(), markdown)


def commands():
    """A section a command: what it does, an example, its options by group."""
    return "\n\n".join(section(command) for command in with_options(parser()))


def with_options(top):
    """A parser and those of its commands, each that has something to give."""
    inner = [action for action in top._actions if isinstance(action, argparse._SubParsersAction)]
    given = [action for action in top._actions if action not in inner and "--help" not in action.option_strings]
    commands = [command for action in inner for command in action.choices.values()]
    return [top] * bool(given) + [leaf for command in commands for leaf in with_options(command)]


def section(command):
    """The heading, the text and the table of one command."""
    about = (command.description or "").removeprefix(f"`{command.prog}`: ")
    rows = [
        row(action, "" if group.title in ("options", "positional arguments") else group.title)
        for group in command._action_groups
        for action in group._group_actions
        if "--help" not in action.option_strings and not isinstance(action, argparse._SubParsersAction)
    ]
    head = "| option | default | what it is | group |\n|---|---|---|---|"
    example = (command.epilog or "").removeprefix("example: ")
    return "\n\n".join(
        [f"## {command.prog}", about[:1].upper() + about[1:], f"    {example}", "\n".join([head, *rows])]
    )


def row(action, group):
    """One option: its flag, with what stands for a value where that is not its name, its default, its help."""
    flag, value = action.option_strings[-1] if action.option_strings else "", action.metavar or action.dest
    stated = value if not flag else "" if action.nargs == 0 or value == flag[2:].upper() else f" {value}"
    text = (action.help or "").replace("%%", "%")
    default = _DEFAULT.search(text)
    unset = default[1] if default else "off" if action.default is False else ""
    return line(f"`{flag}{stated}`", unset, _DEFAULT.sub("", text), group)


def line(*cells):
    """A row of a table."""
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def fields(package, name):
    """The fields of a dataclass of options, by the names that Python has for them."""
    rows = [
        line(f"`{'.'.join(item.path)}`", f"`{item.flag}`", item.default_text, item.help)
        for item in options(getattr(import_module(package), name))
    ]
    return "\n".join(["| field | option | default | what it is |", "|---|---|---|---|", *rows])
