"""The pages of commands and of Python, as Markdown: `python docs/site/reference.py` writes docs/ from docs/site/pages/.

In a page there, `::: mesa.load` becomes that name's text, `<!-- commands -->` every command, `<!-- options: NAME -->`
the options of a dataclass, and `<!-- fields: NAME -->` the fields of one, with their types and what they are.
"""

import argparse
import ast
import dataclasses
import inspect
import itertools
import re
import textwrap
from importlib import import_module
from pathlib import Path

from mesa.methods import Method
from mesa_lens.cli import parser
from probe.options import options

HERE = Path(__file__).parent
_MARK = re.compile(
    r"^(?:::: ([\w.]+)\n(?:    options: \{members: \[(.*)\]\}\n)?|<!-- (commands|options|fields)(?:: ([\w.]+))? -->\n)",
    re.M,
)
_SECTION = re.compile(r"^(Args|Returns|Raises|Examples|Yields|Attributes):\n((?:[ \t]+.*\n|\n)+)", re.M)
_DEFAULT = re.compile(r" \(default: (.*)\)$", re.DOTALL)
_SHOWN = 4096  # M, at which defaults are shown
_SAID = {  # fields that mean the same in every result, where it says nothing else of them
    "model": "The model's name; in `Loaded` the model itself.",
    "tokenizer": "Its tokenizer.",
    "name": "As it was asked for.",
    "revision": "Commit on the hub, or a digest of the files.",
    "quantization": "Of weights that were quantized; None: they were not.",
    "method": "The method's name.",
    "methods": "What was found, by method.",
    "length": "Tokens; None: none, up to the longest.",
    "lengths": "Tokens, rising.",
    "measured_lengths": "Tokens, rising.",
    "captured_length": "Tokens of the prompts whose hidden states are stored.",
    "pretended": "The M that methods were made for, tokens.",
    "trained_length": "M, tokens.",
    "reference": "The method that others are compared with.",
    "hook": "The hook whose hidden states are read.",
    "word": "The word that the repeated prompt repeats.",
    "low": "Lower end: of the 95% interval; of a failure, tokens from which it may fail.",
    "high": "Upper end: of the 95% interval; of a failure, tokens from which it clearly fails.",
    "ends": "Lower and upper end of the 95% interval.",
    "value": "The estimate.",
    "rank": "From 1; None: nothing was measured.",
    "rows": "One a check, or a method.",
    "result": "'passed', 'failed', 'not run' or 'note'.",
    "difference": "Largest difference measured; of scores, to the reference.",
    "allowed": "Largest difference that passes.",
    "mistake": "Difference that the nearest mistake would make.",
    "check": "What was tested.",
    "detail": "What was compared, or why it was not.",
    "created": "When it was written, UTC.",
    "versions": "Releases of the packages that computed it, by name.",
    "version": "The number of this format.",
    "queries": "Half-open range of query indices.",
    "keys": "Half-open range of key indices.",
    "query_position": "Position of the query at index t.",
    "key_position": "Position of the key at index i.",
    "nearest": "Least t - i, tokens.",
    "farthest": "Greatest t - i, tokens; None: no limit.",
    "holds": "Which pairs belong to it; None: all of the ranges.",
    "period": "Tokens after which `holds` repeats; 0: it does not.",
    "evaluated_by": "Rules that decided: NLL, passkey.",
    "at_chance": "Scores at chance inside M, which decide nothing.",
    "failure_rule": "What counts as failure, in words.",
    "sentences": "What fails, what fixes it, where inside, how sure.",
    "cells": "The table's rows of texts; of an evaluation one cell a task, metric, method and length.",
    "stated_window": "What the lengths say of the stated M.",
    "method_configs": "Parameters by method.",
    "task": "The task's name.",
    "metric": "The score's name.",
    "mean": "Mean over samples.",
    "texts": "How many texts were scored.",
    "refusal": "Why nothing is predicted; empty: it is.",
    "config": "The method's name and parameters.",
    "tasks_left": "How many tasks are not done yet.",
    "excess": "Nats/token over a method that hides far tokens.",
    "nll": "The loss, nats/token.",
    "passkey": "Share of passkeys found.",
    "tail_nll": "Nats/token, of the last M/4 tokens.",
    "measured": "The measured failure, or points.",
    "drift": "Where hidden states leave their range inside M.",
    "share": "Share of the excess loss that is recovered.",
    "items": "How many prompts.",
    "heads": "The smallest set of heads that was found; each is (layer, head).",
    "is_reference": "Whether it is the method that others are compared with.",
    "predicted": "What `mesa-lens predict` computed, where it did.",
    "model_revision": "Commit on the hub, or a digest of the files.",
    "verdict": "The answer, as below.",
    "is_enough": "Whether it recovers what was asked for.",
    "measure": "Whose share it is: loss or passkeys.",
    "longest": "The longest length, tokens, or the scores there.",
    "failures": "One a method.",
    "passkey_difference": "Share of passkeys found, minus the reference's.",
    "misfit": "How far the curve is from the measured points.",
    "excess_ends": "Lower and upper end of its 95% interval.",
    "seed": "Of the texts and passkeys.",
    "executor": "'fused' or 'dense'.",
    "unit": "The score's unit.",
    "sampled": "Whether the interval is over prompts, too.",
    "level_length": "Tokens at which the level was measured.",
    "best": "Dims whose thresholds say most.",
    "pass_length": "Tokens of one forward pass.",
}


def pages():
    """Every page by its name, filled."""
    return {path.name: filled(path.read_text(encoding="utf-8")) for path in sorted((HERE / "pages").glob("*.md"))}


def filled(text):
    """A page with its marks replaced."""

    def replaced(mark):
        name, members, kind, of = mark.groups()
        if name:
            return described(name, members)
        return {"commands": commands, "options": options_of, "fields": fields_of}[kind](*filter(None, [of])) + "\n"

    return _MARK.sub(replaced, text)


def named(name):
    """What a dotted name stands for: of a package, or of a module in it."""
    package, _, last = name.rpartition(".")
    return getattr(import_module(package), last)


def described(name, members=None):
    """The section of a public name."""
    value = named(name)
    text = [f"### {name}\n"]
    if isinstance(value, type) and issubclass(value, Method) and value is not Method:
        text.append(_method(value))
    elif callable(value):
        text.append(_signature(value))
        text.append(_docstring(inspect.getdoc(value) or ""))
    else:
        package, _, last = name.rpartition(".")
        text.append(_docstring(_attribute_docs(import_module(f"{package}.methods")).get(last, "")))
    for member in (members or "").split(", ") if members else ():
        text += [f"#### {name}.{member}\n", _signature(getattr(value, member), member)]
        text.append(_docstring(inspect.getdoc(getattr(value, member)) or ""))
    return "\n".join(text)


def _method(cls):
    """A method: its formula, its source and its defaults at one M, from the class itself."""
    method = cls(trained_length=_SHOWN)
    about, args, rest = _parts(inspect.getdoc(cls))
    served = ", ".join(method.served_by) or "Python alone"
    rows = [line("parameter", f"default at M = {_SHOWN}", "what it is"), "|---|---|---|"]
    told = dict(args)
    for field in dataclasses.fields(cls):
        if field.name not in ("trained_length", "layers", "heads"):
            default, what = getattr(method, field.name), told.get(field.name, "as in `mesa.Method`")
            rows.append(line(f"`{field.name}`", "-" if default is None else f"{default}", what))
    facts = f"Name: `{cls.name}`. Formula: `{cls.formula}`. Source: {cls.source}. Served by: {served}."
    return "\n".join([about, facts, "", *rows, "", rest])


def _signature(value, name=""):
    """How something is called, without annotations, and what comes back."""
    try:
        signature = inspect.signature(value)
    except ValueError:
        return ""
    shown = [p.replace(annotation=inspect.Parameter.empty) for p in signature.parameters.values()]
    plain = str(signature.replace(parameters=shown, return_annotation=signature.empty))
    text = re.sub(r"<(\w+ [^<>]* at 0x\w+|factory)>", "...", plain)
    back = None if isinstance(value, type) else _annotations(value).get("return")
    back = f" -> {back}" if back else ""
    return f"```\n{name or value.__name__}{text.replace('(self, ', '(').replace('(self)', '()')}{back}\n```\n"


def _docstring(text):
    """A docstring of Google's form as Markdown."""
    about, args, rest = _parts(text)
    rows = [line("argument", "what it is"), "|---|---|", *(line(f"`{name}`", what) for name, what in args)]
    return "\n".join([about, *(["\n".join(rows) + "\n"] if args else []), rest])


def _parts(text):
    """What comes first, the arguments, and the other sections as Markdown."""
    text += "\n"
    sections = {match[1]: textwrap.dedent(match[2]).strip("\n") for match in _SECTION.finditer(text)}
    about = _SECTION.sub("", text).strip() + "\n"
    args = _items(sections.get("Args", ""))
    rest = []
    for name in ("Returns", "Yields", "Raises"):
        if name in sections:
            body = sections[name]
            joined = re.sub(r"\n(?!\n|- )\s*", " ", body)  # a list stays one
            rest.append(f"**{name}:** {joined if name != 'Raises' else _raised(body)}\n")
    if "Examples" in sections:
        rest.append(f"```pycon\n{sections['Examples']}\n```\n")
    return about, args, "\n".join(rest)


def _items(text):
    """(name, what) of lines `name: what`, which go on where they are indented."""
    joined = re.sub(r"\n\s+", " ", text)
    return [tuple(part.strip() for part in item.split(":", 1)) for item in joined.splitlines() if ":" in item]


def _raised(text):
    return " ".join(f"`{name}`: {what}" for name, what in _items(text)) or " ".join(text.split())


def fields_of(name):
    """The fields of a result, with types and what is said of each."""
    cls = named(name)
    rows = [line("field", "type", "what it is"), "|---|---|---|"]
    told, kinds = {}, {}
    for base in reversed(cls.__mro__):
        if base.__module__.partition(".")[0] in ("mesa", "probe", "theory"):
            kinds |= _annotations(base)
            told |= _attribute_docs(base) | dict(_parts(inspect.getdoc(base) or "")[1])
    own = dataclasses.fields(cls) if dataclasses.is_dataclass(cls) else ()
    each = [field.name for field in own] or list(inspect.get_annotations(cls))
    about = _parts(inspect.getdoc(cls) or "")[0]
    rows += [
        line(f"`{key}`", f"`{kinds[key]}`", told.get(key) or _in_prose(about, key) or _SAID.get(key, ""))
        for key in each
        if not key.startswith("_")
    ]
    return "\n".join([f"### {cls.__name__}\n", about, *rows]) + "\n"


def _in_prose(about, key):
    """What a docstring says of a field as `key: ...`, up to the next such; empty: nothing."""
    of = rf"(?:^|\.\s+)(?:\w+, )?{key}(?:, \w+)?: (.*?)(?=\.\s+\w+(?:, \w+)?: |\.?\s*\Z|\n\n)"
    match = re.search(of, about, re.MULTILINE | re.DOTALL)
    text = " ".join(match[1].split()) if match else ""
    return text and f"{text[0].upper()}{text[1:]}."


def _annotations(of):
    """Annotations as the code has them: of a class by field, of a function what it returns."""
    node = ast.parse(textwrap.dedent(inspect.getsource(of))).body[0]
    if isinstance(node, ast.ClassDef):
        return {item.target.id: ast.unparse(item.annotation) for item in node.body if isinstance(item, ast.AnnAssign)}
    return {"return": ast.unparse(node.returns)} if node.returns else {}


def _attribute_docs(of):
    """The strings after the fields of a class, or the names of a module."""
    body = ast.parse(textwrap.dedent(inspect.getsource(of))).body
    body = body[0].body if isinstance(of, type) else body
    told = {}
    for before, after in itertools.pairwise(body):
        if isinstance(before, ast.AnnAssign | ast.Assign) and isinstance(after, ast.Expr):
            target = before.target if isinstance(before, ast.AnnAssign) else before.targets[0]
            if isinstance(after.value, ast.Constant) and isinstance(after.value.value, str):
                told[target.id] = (
                    inspect.cleandoc(after.value.value)
                    if not isinstance(of, type)
                    else " ".join(after.value.value.split())
                )
    return told


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


def options_of(name):
    """The fields of a dataclass of options, by the names that Python has for them."""
    rows = [
        line(f"`{'.'.join(item.path)}`", f"`{item.flag}`", item.default_text, item.help)
        for item in options(named(name))
    ]
    return "\n".join(["| field | option | default | what it is |", "|---|---|---|---|", *rows])


if __name__ == "__main__":
    for name, text in pages().items():
        (HERE.parent / name).write_text(text, encoding="utf-8")
