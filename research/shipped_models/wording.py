"""The texts of what the default model is asked beside the prompts of `probe.tasks.retrieval`: lookup and tracking."""

from __future__ import annotations

import string

import numpy as np

PAIRS_HEADER = "Extract the value corresponding to the specified key in the JSON object below.\n\nJSON data:\n{\n"
PAIRS_PAIR = ' "{name}": "{key}",\n'
PAIRS_QUESTION = '}}\n\nKey: "{name}"\nCorresponding value:'
PAIRS_ANSWER = ' "{key}"'
"""Key-value retrieval in JSON, as in "Lost in the Middle" (Liu et al. 2023)."""

LOOKUPS = (
    ('\n"{name}": "{key}",', '\n"{name}": "', '{key}"'),
    (' "{name}": "{key}",\n', '\nKey: "{name}"\nCorresponding value:', ' "{key}"'),
    ("\n{name} = {key}", "\n{name} =", " {key}"),
    ("\n{name}: {key}", "\n{name}:", " {key}"),
    (" The {name} is {key}.", " The {name} is", " {key}."),
)
"""Statement, question and answer of the plainest lookups."""

TRACK_HEADER = "Memorize and track the chain(s) of variable assignment hidden in the following text.\n\n"
TRACK_FIRST = "\nVAR {name} = {key}"
TRACK_NEXT = "\nVAR {name} = VAR {before}"
TRACK_QUESTION = (
    "\nQuestion: Find all variables that are assigned the value {key} in the text above. Answer: According to the "
    "chain(s) of variable assignment in the text above, {count} variables are assgined the value {key}, they are:"
)
TRACK_SHORT = "\nVariables that are assigned the value {key}:"
"""RULER's variable tracking, its spelling included; TRACK_SHORT is seen in training only."""

PROMPTS = (PAIRS_HEADER, PAIRS_QUESTION, TRACK_HEADER, TRACK_NEXT, TRACK_QUESTION)
"""The texts whose words the tokenizer is to know."""


def random_letters(rng: np.random.Generator, count: int = 5) -> str:
    """A variable's name as RULER draws it, e.g. 'XKQPA'."""
    return "".join(rng.choice(list(string.ascii_uppercase), count))
