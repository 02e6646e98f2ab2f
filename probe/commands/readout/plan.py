"""What is read, checked before any weights are loaded: the texts in two halves, and the labels of their last tokens."""

import math
import re
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.special import ndtr, stdtrit

from mesa.decoder import check_layers
from mesa.errors import Refused
from mesa.fingerprints import ids_fingerprint
from mesa.methods import Method
from mesa.models import model_class, tokenizer_of
from mesa.support import attending_layers
from probe.capture.memory import check_prompts
from probe.capture.spec import HOOKS, OF_LAYERS, CaptureSpec, Selection
from probe.commands.readout import ReadoutRequest
from probe.commands.readout.result import PASSKEY_DIGIT
from probe.eval_tasks.retrieval import PASSKEY_QUESTION, Prompt, encode, first_ids, passkey
from probe.eval_tasks.score import documents_of, window_places
from probe.eval_tasks.sources import TextSource, rows, texts_by_name
from probe.eval_tasks.tasks import tail_prompts
from probe.eval_tasks.token_texts import token_texts
from probe.evaluation import PROMPTS
from probe.experiment.run import MethodsPlan, settings_of
from probe.files import JsonObject, checksum
from probe.options import parse_ranges
from probe.request import say
from probe.store.result_file import Interval

LENS, STATES, PROBE = "resid_post", "states", "probe"
LABELS, POSITION, OPEN_LINE, OPEN_STRING = "labels", "position", "open-line", "open-string"
CLASSES, NUMBERS = "classes", "numbers"
_PREVIOUS = re.compile("previous-([0-9]{1,2})")
_BYTE = re.compile("<0x[0-9A-F]{2}>")  # of a character, in `token_texts`; the text of its last token is all of it
_FARTHEST = 32  # tokens before, of `previous-K`
_DEFAULT_TOKENS = 96
_FEW = 2  # distinct numbers that are still classes: 0 and 1


class ReadoutKey(NamedTuple):
    """What a row of the journal is of: the states of a text, or a probe's scores in a layer; length in tokens.

    number: the text, or the layer. name: what is probed, empty for states.
    """

    part: str
    method: str
    length: int
    number: int
    name: str


@dataclass(frozen=True)
class Labels:
    """Of every text's last tokens (text, token): values, which of them there are, and the choice in words.

    kind: `classes` or `numbers`. documents: of each token its document's number, where labels differ between documents
    more than within; tokens of one text may be of several.
    """

    kind: str
    values: np.ndarray
    known: np.ndarray
    note: str = ""
    documents: np.ndarray | None = None

    @property
    def groups(self) -> np.ndarray:
        """Of each token what its label is held out and resampled with: its document where these differ, or its text."""
        texts = np.broadcast_to(np.arange(len(self.known))[:, None], self.known.shape)
        return texts if self.documents is None else self.documents


Piece = tuple[int, int, int]
"""A document's number, and the half-open range of its tokens."""


@dataclass(frozen=True)
class Half:
    """The texts to train on, or to test on: pieces of documents as one stream, and where in it each window ends.

    copies: windows that were left out, since they would count as several texts.
    """

    documents: Sequence[np.ndarray]
    pieces: list[Piece]
    ends: list[int]
    copies: int = 0

    def of_tokens(self, by_document: Sequence[np.ndarray]) -> np.ndarray:
        """Values of the documents' tokens, in the order of the stream."""
        return np.concatenate([by_document[number][start:stop] for number, start, stop in self.pieces])

    def last(self, by_document: Sequence[np.ndarray], count: int) -> np.ndarray:
        """Values of the last tokens of each window, (text, token); before the first piece come the last ones."""
        stream = self.of_tokens(by_document)
        return np.stack([stream.take(range(end - count, end), mode="wrap") for end in self.ends])

    def repeated(self, count: int) -> np.ndarray:
        """Which of the last tokens of each window, (text, token), are read in the window before it too."""
        shared = count - np.diff(self.ends, prepend=self.ends[0] - count)
        return np.arange(count) < shared[:, None]


@dataclass(frozen=True)
class ReadoutPlan(MethodsPlan):
    """A checked request. windows: each text's tokens at the longest length, those to train on first, `training` many.

    labels: by what is probed. documents, user_labels: fingerprints of the texts, and of the user's labels.
    copies: of windows, left out. passkeys: by length, where passkey prompts are read, not texts. last_documents: of
    each window the document of its last token.
    """

    request: ReadoutRequest
    config: Any
    methods: dict[str, Method]
    lengths: list[int]
    tokens: int
    layers: list[int]
    windows: list[np.ndarray]
    training: int
    first: list[int]
    labels: dict[str, Labels]
    documents: str
    text_source: TextSource
    user_labels: str = ""
    copies: int = 0
    passkeys: Mapping[int, Sequence[Prompt]] = field(default_factory=dict)
    last_documents: Sequence[int] = ()

    @property
    def ordered(self) -> list[str]:
        """The methods, the reference first."""
        return sorted(self.methods, key=lambda name: name != self.reference)

    @property
    def keys(self) -> list[ReadoutKey]:
        """The states that are read, short prompts first."""
        return [key for length in self.lengths for name in self.methods for key in state_keys(self, name, length)]

    @property
    def probes(self) -> list[ReadoutKey]:
        """The probes' scores: by what is probed, layer, method (the reference first) and length, in this order."""
        return [
            ReadoutKey(PROBE, method, length, layer, name)
            for name in self.labels
            for layer in self.layers
            for method in self.ordered
            for length in self.lengths
        ]

    @property
    def settings(self) -> JsonObject:
        """Everything that a row depends on in addition to its key and its method, as JSON."""
        more = {"labels": self.user_labels, "copies": self.copies}  # as before where there are none
        more = {key: value for key, value in more.items() if value}
        return settings_of(self, self.lengths[-1], prompts=PROMPTS) | {"documents": self.documents} | more

    def prompt(self, text: int, length: int) -> np.ndarray:
        """Token ids of a text at a length: its last tokens, after the tokenizer's first."""
        if self.passkeys:
            return np.array(self.passkeys[length][text].ids)
        return tail_prompts([self.windows[text]], self.first, length)[0]

    @property
    def last_ids(self) -> np.ndarray:
        """Ids (text, token) of the tokens that are read."""
        return np.stack([window[-self.tokens :] for window in self.windows])

    def selection(self, length: int) -> Selection:
        """What is captured of a pass over `length` tokens."""
        layers = tuple((layer, layer + 1) for layer in self.layers)
        return CaptureSpec((self.request.hook,), layers, ((length - self.tokens, length),)).resolve(self.config, length)


def state_keys(plan: ReadoutPlan, method: str, length: int) -> list[ReadoutKey]:
    """The states of every text, those to train on first."""
    return [ReadoutKey(STATES, method, length, text, "") for text in range(len(plan.windows))]


def plan(request: ReadoutRequest) -> ReadoutPlan:
    """Checks the request, and builds every prompt and label. Raises Refused or FileNotFoundError, naming the value."""
    names = [] if request.properties == ("none",) else list(dict.fromkeys(request.properties))
    names += [LABELS] if request.labels is not None and LABELS not in names else []
    for name in names:
        check_property(name, request)
    config, trained = request.checked_model()
    methods = request.checked_methods(config, trained)
    lengths = sorted({trained, *(request.lengths or (2 * trained, 4 * trained))})
    if lengths[0] < trained:
        raise Refused(f"--lengths {lengths[0]} is below M = {trained}, where probes are trained; give more")
    tokenizer = tokenizer_of(request.model, **request.source)
    of_passkeys = PASSKEY_DIGIT in names
    default = len(encode(tokenizer, PASSKEY_QUESTION)) if of_passkeys else min(_DEFAULT_TOKENS, max(2, trained // 4))
    tokens = request.tokens or default
    if tokens < 2:
        raise Refused("--tokens 1: of the last token no next one is known; read 2 or more")
    before = max([int(match[1]) for name in names if (match := _PREVIOUS.fullmatch(name))], default=0)
    if tokens + before > trained // 2:
        raise Refused(
            f"--tokens {tokens}, and {before} before them, are more than half of the trained length {trained}; "
            "take fewer"
        )
    layers = _layers(request, config)
    check_prompts(lengths[-1], request.samples)
    if of_passkeys and request.samples < 2 * LEAST:
        raise Refused(f"--samples {request.samples}: half train a probe, which needs {LEAST}; give {2 * LEAST} or more")
    if of_passkeys:
        passkeys = {length: _passkeys(request, tokenizer, length) for length in lengths}
        windows = [np.array(prompt.ids) for prompt in passkeys[lengths[-1]]]
        digits = _digits(passkeys[trained], tokens)
        training = len(windows) // 2
        _check_known(PASSKEY_DIGIT, digits, training)
        source = TextSource("passkey prompts", {"prompts": len(windows)}, sum(map(len, windows)))
        return ReadoutPlan(
            request, config, methods, lengths, tokens, layers, windows, training, [], {PASSKEY_DIGIT: digits},
            ids_fingerprint(windows), source, passkeys=passkeys,
        )  # fmt: skip
    documents, text_source, own = _documents(request, tokenizer)
    halves = [
        _half(documents, pieces, lengths[-1], request.samples // 2, tokens, own) for pieces in split_halves(documents)
    ]
    windows = [window for half in halves for window in half.last(documents, lengths[-1])]
    first = list(map(int, first_ids(tokenizer)))
    labels = {name: labels_of(name, request, tokenizer, halves, tokens, own) for name in names}
    if own is not None:  # the last window that ends on such labels ends with its half, and may share tokens
        repeated = np.concatenate([half.repeated(tokens) for half in halves])
        labels = {name: replace(each, known=each.known & ~repeated) for name, each in labels.items()}
    if copies := sum(half.copies for half in halves):
        say(f"{copies} runs of the texts are copies of others, and are left out")
    numbers = [np.full(len(ids), number) for number, ids in enumerate(documents)]
    last_documents = np.concatenate([half.last(numbers, 1)[:, 0] for half in halves]).tolist()
    training = len(halves[0].ends)
    for name, each in labels.items():
        _check_known(name, each, training)
    _check_apart(windows, training, tokens)
    user_labels = "" if own is None else checksum([each.tolist() for each in own])
    return ReadoutPlan(
        request, config, methods, lengths, tokens, layers, windows, training, first, labels,
        ids_fingerprint(documents), text_source, user_labels, copies, last_documents=last_documents,
    )  # fmt: skip


def check_property(name: str, request: ReadoutRequest) -> None:
    """Raises Refused for what is not probed, and for labels without a file."""
    match = _PREVIOUS.fullmatch(name)
    if name == LABELS and request.labels is None:
        raise Refused("--probe labels needs a file of them; name it by --labels")
    if name == PASSKEY_DIGIT and (
        len(request.properties) > 1 or request.text is not None or request.labels is not None
    ):
        raise Refused(
            f"--probe {PASSKEY_DIGIT} reads passkey prompts, no texts; leave out --text, --labels and other properties"
        )
    others = (POSITION, OPEN_LINE, OPEN_STRING, PASSKEY_DIGIT, LABELS)
    if not (match and int(match[1]) <= _FARTHEST) and name not in others:
        known = f"previous-K (K from 0 to {_FARTHEST}), {', '.join(others)}, none"
        raise Refused(f"--probe {name} is not known; known: {known}")


def _passkeys(request: ReadoutRequest, tokenizer: Any, length: int) -> list[Prompt]:
    """Passkey prompts: of each the key, and its depth in the filler, are the same at every length."""
    return [
        passkey(tokenizer, length, np.random.default_rng([request.seed, text]))
        for text in range(2 * (request.samples // 2))
    ]


def _digits(prompts: Sequence[Prompt], tokens: int) -> Labels:
    """The first digit of each prompt's key, a label of its last token, after which the model is to say it."""
    values, known = np.full((len(prompts), tokens), "0"), np.zeros((len(prompts), tokens), bool)
    values[:, -1], known[:, -1] = [prompt.answer[0] for prompt in prompts], True
    return Labels(CLASSES, values, known, "first digits of keys, read at the end of the question")


def _layers(request: ReadoutRequest, config: Any) -> list[int]:
    """The layers that are read: those with the hook, and for the lens the last. Refused for one that is not there."""
    hook, chosen = request.hook, parse_ranges(request.layers, "--layers")
    if hasattr(config.get_text_config(), "altup_num_inputs"):
        raise Refused(f"layers of this {config.model_type} model pass on several streams, which no lens or probe reads")
    model, trusted = None, bool(request.load.get("trust_remote_code"))
    with torch.device("meta"), suppress(ValueError):  # without weights; what AutoModel does not know, loading refuses
        model = model_class().from_config(config, trust_remote_code=trusted)
    if model is not None:
        check_layers(model)
    if hook in HOOKS and hook not in OF_LAYERS:
        from mesa.engine.bridge import check_adapted  # with transformer-lens, which plans and probes do without

        check_adapted(config, f"--hook {hook}", f"take {' or '.join(OF_LAYERS)}")
    if hook in HOOKS and ".attn." in HOOKS[hook].path and chosen is None:
        return list(attending_layers(config))
    layers = CaptureSpec((hook,), chosen).resolve(config, 1).layers
    return sorted({*layers, *([config.num_hidden_layers - 1] if hook == LENS else [])})


def _documents(
    request: ReadoutRequest, tokenizer: Any
) -> tuple[Sequence[np.ndarray], TextSource, list[np.ndarray] | None]:
    """The documents' token ids, what they are, and by document the user's labels of their tokens, "" where none is."""
    if request.labels is None:
        return *documents_of(tokenizer, request.text), None
    labelled = read_labels(request.labels)
    texts = [row.text for row in labelled]
    if all(isinstance(text, int) for text in texts):
        documents, source = documents_of(tokenizer, request.text)
        by_name = texts_by_name(request.text)
        written = [text for group in by_name.values() for text in group]
    elif any(isinstance(text, int) for text in texts) or request.text is not None:
        raise Refused(
            f"{request.labels} holds texts itself; write all rows' text so, and leave --text out, or number those of "
            "--text from 0"
        )
    else:
        written = [str(text) for text in dict.fromkeys(texts)]
        documents = [np.array(tokenizer(text, add_special_tokens=False).input_ids, np.int64) for text in written]
        source = TextSource(str(request.labels), {request.labels.name: len(written)}, sum(map(len, documents)))
    numbers = {text: number for number, text in enumerate(written)}
    own, starts = [np.full(len(ids), "", object) for ids in documents], dict[int, np.ndarray]()
    for row in labelled:
        number = row.text if isinstance(row.text, int) else numbers[row.text]
        if not 0 <= number < len(documents):
            raise Refused(f"{request.labels}: text {number} is not there; there are {len(documents)}, from 0")
        token = row.token
        if token is None:
            if number not in starts:
                starts[number] = _starts(tokenizer, written[number], documents[number])
            if not 0 < row.end <= len(written[number]):
                size = len(written[number])
                raise Refused(f"{request.labels}: text {number} has {size} characters, no label ends at {row.end}")
            token = int(np.searchsorted(starts[number], row.end)) - 1  # the last that begins before the end
        if not 0 <= token < len(documents[number]):
            raise Refused(f"{request.labels}: text {number} has {len(documents[number])} tokens, none is {token}")
        if own[number][token] not in ("", row.label) and len({*_classes([own[number][token], row.label])}) > 1:
            raise Refused(f"{request.labels}: token {token} of text {number} has two labels; leave one out")
        own[number][token] = row.label
    return documents, source, own


_LABEL_FILES = (".csv", ".tsv", ".jsonl", ".ndjson", ".json")
_DIGITS = 18
"""Of a text's number at most: Python reads no integer of thousands."""


class LabelRow(NamedTuple):
    """A row of the user's labels. text: itself, or its number. token: its number; else `end`, in characters."""

    text: str | int
    token: int | None
    end: int
    label: str


def read_labels(path: Path) -> list[LabelRow]:
    """The rows of a csv, tsv or jsonl file: `text`, `token` or `end`, and `label`. Raises Refused, naming the row."""
    labelled = []
    if not path.is_file():
        raise Refused(f"--labels {path} is not a file")
    if path.suffix.lower() not in _LABEL_FILES:
        raise Refused(f"--labels {path} is no csv, tsv or jsonl file; write it as one")
    for number, row in rows(path):
        where = f"{path}, row {number}"
        if row.get("text") in (None, "") or row.get("label") in (None, "") or not {"token", "end"} & row.keys():
            raise Refused(f"{where} has {', '.join(map(str, row))}; it needs text, label, and token or end")
        place = {key: row.get(key) for key in ("token", "end")}
        if all(value in (None, "") for value in place.values()):
            raise Refused(f"{where} names no token and no end")
        try:
            at = {key: None if value in (None, "") else _integer(value) for key, value in place.items()}
        except (TypeError, ValueError, OverflowError):
            raise Refused(f"{where}: token {place['token']!r}, end {place['end']!r} are no integers") from None
        if isinstance(row["text"], bool) or not isinstance(row["text"], str | int):
            raise Refused(f"{where}: text {str(row['text'])[:40]} is neither a text nor the number of one")
        if isinstance(row["label"], float) and not math.isfinite(row["label"]):
            raise Refused(f"{where}: label {row['label']} is not finite; leave the row out")
        text = row["text"]
        if re.fullmatch("-?[0-9]+", str(text)):
            if len(str(text)) > _DIGITS:
                raise Refused(f"{where}: text is a number of {len(str(text))} digits; there are not as many texts")
            text = int(text)
        labelled.append(LabelRow(text, at["token"], at["end"] or 0, str(row["label"])))
    if not labelled:
        raise Refused(f"{path} holds no labels")
    return labelled


def _integer(value: Any) -> int:
    """A number in a file that is an integer, also as pandas writes a column with gaps: 5.0; else ValueError."""
    number = float(value)
    if isinstance(value, bool) or not number.is_integer():
        raise ValueError(value)
    return int(number)


def _starts(tokenizer: Any, text: str, ids: np.ndarray) -> np.ndarray:
    """At which character of a document each token begins; tokens of one character begin at the same."""
    sizes = [len(_BYTE.sub("", text)) for text in token_texts(tokenizer, ids.tolist())]
    if tokenizer.is_fast and sum(sizes) != len(text):  # it normalises text, or does not know a word
        read = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
        if read.input_ids == ids.tolist():
            return np.maximum.accumulate(np.array([start for start, _ in read.offset_mapping], int))
    return np.concatenate([[0], np.cumsum(sizes[:-1])])


def split_halves(documents: Sequence[np.ndarray]) -> tuple[list[Piece], list[Piece]]:
    """The documents to train on and to test on, of about as many tokens; of a single one its first and second half."""
    if len(documents) == 1:
        middle, stop = len(documents[0]) // 2, len(documents[0])
        return [(0, 0, middle)], [(0, middle, stop)]
    halves: tuple[list[Piece], list[Piece]] = ([], [])
    for number in sorted(range(len(documents)), key=lambda number: (-len(documents[number]), number)):
        sizes = [sum(stop for _, _, stop in half) for half in halves]
        halves[sizes[1] < sizes[0]].append((number, 0, len(documents[number])))
    return sorted(halves[0]), sorted(halves[1])


def _half(
    documents: Sequence[np.ndarray],
    pieces: list[Piece],
    longest: int,
    count: int,
    tokens: int,
    own: list[np.ndarray] | None,
) -> Half:
    """The windows of one half: spread evenly, see `text_windows`; with the user's labels, those that end on some."""
    parts = [documents[number][start:stop] for number, start, stop in pieces]
    if own is None:
        used, places = window_places(parts, longest, count, tokens)
        offsets = np.cumsum([0, *map(len, parts)]) if len(used) == len(parts) else [0]
        half = Half(documents, pieces, [int(offsets[part]) + start + longest for part, start in places])
        first = np.unique(half.last(documents, max(tokens, _COPIED)), axis=0, return_index=True)[1]
        if len(first) < 2 <= len(half.ends):
            raise Refused(f"the {len(half.ends)} runs of half of the texts are copies of one; give other texts")
        return replace(half, ends=[half.ends[at] for at in sorted(first)], copies=len(half.ends) - len(first))
    half = Half(documents, pieces, [])
    labelled = np.flatnonzero(half.of_tokens(own) != "")
    size, ends = sum(map(len, parts)), list[int]()
    if size < longest:
        raise Refused(f"half of the texts with labels have {size} tokens, {longest} are needed; give more texts")
    for at in labelled.tolist():
        if not ends or at >= ends[-1]:
            ends.append(at + tokens)
    ends = [min(end, size) for end in ends]
    if len(ends) < 2:
        raise Refused(f"half of the texts have labels within {tokens} tokens alone; give labels in more texts")
    chosen = np.linspace(0, len(ends) - 1, min(count, len(ends))).round().astype(int)
    return Half(documents, pieces, [ends[at] for at in chosen])


def labels_of(
    name: str,
    request: ReadoutRequest,
    tokenizer: Any,
    halves: Sequence[Half],
    tokens: int,
    own: list[np.ndarray] | None,
) -> Labels:
    """The labels of what is probed."""
    documents = halves[0].documents
    if match := _PREVIOUS.fullmatch(name):
        before = int(match[1])
        ids = np.concatenate([half.last(documents, tokens + before)[:, :tokens] for half in halves])
        training = len(halves[0].ends)
        counts = Counter(ids[:training].ravel().tolist()).most_common(request.classes)
        known = np.isin(ids, [token for token, _ in counts])
        share = known[training:].mean()
        note = f"the {len(counts)} most frequent tokens of the training texts, {share:.0%} of those in test texts"
        return Labels(CLASSES, ids, known, note)
    if name == POSITION:
        known = np.ones((sum(len(half.ends) for half in halves), tokens), bool)
        return Labels(NUMBERS, np.broadcast_to(np.arange(tokens, dtype=float), known.shape), known, "in tokens")
    if name == LABELS and own is not None:
        values = np.concatenate([half.last(own, tokens) for half in halves])
        known = values != ""
        classes = _classes(values[known].tolist())
        values[known] = classes
        of = [np.full(len(ids), number) for number, ids in enumerate(documents)]
        numbered = np.concatenate([half.last(of, tokens) for half in halves])
        are_numbers = len({*classes}) > _FEW and isinstance(classes[0], float)  # then all are
        same = numbered if _share_within(values[known], numbered[known], are_numbers) < 0.5 else None
        if are_numbers:
            return Labels(NUMBERS, np.where(known, values, "nan").astype(float), known, documents=same)
        return Labels(CLASSES, values.astype(str), known, documents=same)
    is_open = open_lines if name == OPEN_LINE else open_strings
    used = {number for half in halves for number, _, _ in half.pieces}
    by_document = [
        is_open(token_texts(tokenizer, ids.tolist())) if number in used else np.zeros(len(ids), bool)
        for number, ids in enumerate(documents)
    ]
    values = np.concatenate([half.last(by_document, tokens) for half in halves])
    return Labels(CLASSES, values.astype(int), np.ones(values.shape, bool), "1: open after the token")


def _share_within(labels: np.ndarray, documents: np.ndarray, are_numbers: bool) -> float:
    """The share of the labels' variance that is within documents; of classes, of the chance that two differ."""
    columns = labels.astype(float)[:, None] if are_numbers else labels[:, None] == np.unique(labels)
    means = {each: columns[documents == each].mean(0) for each in np.unique(documents)}
    within = columns - np.stack([means[each] for each in documents])
    return float((within**2).sum() / max(((columns - columns.mean(0)) ** 2).sum(), 1e-30))


def _classes(labels: list[str]) -> list[Any]:
    """The labels, as numbers if all are: of these one may be written in several ways."""
    try:
        return [float(label) for label in labels]
    except ValueError:
        return labels


def open_lines(tokens: Sequence[str]) -> np.ndarray:
    """After each token, whether its line has more than blanks so far.

    Examples:
        >>> open_lines(["a", "\\n", "  ", "b\\n"]).tolist()
        [True, False, False, False]
    """
    line, opened = "", []
    for text in tokens:
        line = (line + text).rpartition("\n")[2]
        opened.append(bool(line.strip()))
    return np.array(opened, bool)


def open_strings(tokens: Sequence[str]) -> np.ndarray:
    """After each token, whether a string of its text is open: between quotes, as in Python.

    An apostrophe after a letter opens none, nor does what follows a `#`; a string of one quote ends with its line.

    Examples:
        >>> open_strings(["x = ", "'a", "b' ", "# it's", "\\n", '"a', "\\n"]).tolist()
        [False, True, False, False, False, True, False]
    """
    text = "".join(tokens)
    ends, opened = np.cumsum([len(token) for token in tokens]), np.zeros(len(text) + 1, bool)
    quote, comment, at = "", False, 0
    while at < len(text):
        letter, step = text[at], 1
        if quote:
            if letter == "\\":
                step = 2
            elif text.startswith(quote, at):
                step, quote = len(quote), ""
            elif letter == "\n" and len(quote) == 1:
                quote = ""
        elif letter == "\n":
            comment = False
        elif letter == "#":
            comment = True
        elif letter in "'\"" and not comment and not (letter == "'" and _in_word(text, at)):
            quote = letter * 3 if text.startswith(letter * 3, at) else letter
            step = len(quote)
        opened[at + 1 : at + step + 1] = bool(quote)
        at += step
    return opened[ends]


def _in_word(text: str, at: int) -> bool:
    """Whether a quote follows a word that is no prefix of a string."""
    start = at
    while start and (text[start - 1].isalnum() or text[start - 1] == "_"):
        start -= 1
    word = text[start:at].lower()
    return bool(word) and not (len(word) < 3 and set(word) <= set("rbfut"))


def _check_known(name: str, labels: Labels, training: int) -> None:
    """Refused for labels that no probe can be trained on, or tested on."""
    known = labels.known[:training]
    groups = labels.groups
    of = "text" if labels.documents is None else "document"
    check_labels(labels.values[:training][known], groups[:training][known], labels.kind, f"--probe {name}", of)
    if len(np.unique(groups[training:][labels.known[training:]])) < 2:
        raise Refused(f"--probe {name}: fewer than two {of}s to test on have labels; give more texts or labels")
    tested = labels.values[training:][labels.known[training:]]
    if labels.kind == NUMBERS:
        check_finite(tested, f"--probe {name}")
        if len(values := np.unique(tested)) < 2:
            raise Refused(f"--probe {name}: all to test on are {values[0]!s}; R2 needs two values, give more labels")


_COPIED = 32


def _check_apart(windows: Sequence[np.ndarray], training: int, tokens: int) -> None:
    """Refused where half of the tokens that are read of a test text are, in a row, read of a training text.

    Where that is fewer than `_COPIED`, which two texts share by chance, `_COPIED` in a row of the last 2 `_COPIED`.
    """
    size = max(tokens // 2, min(_COPIED, len(windows[0])))

    def runs(chosen: Sequence[np.ndarray]) -> set[bytes]:
        return {part.tobytes() for each in chosen for part in np.lib.stride_tricks.sliding_window_view(each, size)}

    last = [np.ascontiguousarray(window[-max(tokens, 2 * size) :]) for window in windows]
    if runs(last[:training]) & runs(last[training:]):
        raise Refused("texts to train on and to test on overlap: a passage is in both; give texts without copies")


# Linear probes on states from anywhere: trained, scored on other texts, and compared, with intervals over texts
# scikit-learn's estimators in a pipeline with a scaler

STRENGTHS = {"classes": (1e-4, 1e-3, 1e-2, 1e-1, 1.0), "numbers": (1e4, 1e3, 1e2, 1e1, 1.0)}
"""C of LogisticRegression and alpha of Ridge that are tried, from the strongest penalty to the weakest."""
FOLDS, RESAMPLES = 3, 1000
_ITERATIONS = 1000
_ROUNDING = 1e-12
"""Of the labels' squared size: a spread below it is an error of rounding."""
LEAST = 20
"""Labels to train on."""
FEW_TYPES = 20
"""Token types with labels, by their entropy, below which a control by type says nothing: a probe learns any of them."""


@dataclass(frozen=True)
class TextScores:
    """A probe's score on held-out texts: the sums that it is computed of, one row a text, so that texts are resampled.

    kind: `classes` (accuracy) or `numbers` (R2, the share of the variance that is explained). texts: their names.
    together: whether the labels of a text are right or wrong together. least: no score is below this one, nor below 0.
    """

    kind: str
    texts: np.ndarray
    sums: np.ndarray
    """(text, 2): hits and labels; or (text, 4): squared errors, labels, their sum and their squares' sum.

    Labels in these sums are less one number, the same for all texts: that of a large mean leaves no digits.
    """
    together: bool = False
    least: "TextScores | None" = None

    @property
    def value(self) -> float:
        """Of all texts."""
        return float(self._values(np.ones((1, len(self.texts))))[0])

    def resampled(self, weights: np.ndarray) -> np.ndarray:
        """The score of each resample; weights (resample, text): how often a text is in it."""
        return self._values(weights)

    def _values(self, weights: np.ndarray) -> np.ndarray:
        values = self._unbounded(weights)
        return values if self.least is None else np.maximum(values, np.maximum(self.least._values(weights), 0))

    def _unbounded(self, weights: np.ndarray) -> np.ndarray:
        sums = weights @ self.sums
        if self.kind == "classes":
            return sums[:, 0] / sums[:, 1]
        errors, count, total, squares = sums.T
        spread = squares - total**2 / count
        spread[spread <= _ROUNDING * squares] = np.nan  # of equal labels, which have no R2
        return 1 - errors / spread


@dataclass(frozen=True)
class Probe:
    """A trained probe. estimator: scikit-learn's. strength: the C or alpha chosen, None for the user's own estimator.

    kind: `classes` or `numbers`. texts: those trained on. mean: of the numbers trained on.
    """

    estimator: Any
    kind: str
    strength: float | None
    texts: frozenset[Any] = field(repr=False)
    mean: float = field(default=0.0, repr=False)

    def score(self, states: Any, labels: Any, groups: Any) -> TextScores:
        """Scores by text on other texts, as `fit_probe` takes them.

        Raises Refused for texts that were trained on, and for what is not like that trained on: width, types.
        """
        states, labels, groups = flat(states, labels, groups)
        if not len(labels):
            raise Refused("no tokens to score a probe on; give states with labels")
        if states.shape[1] != (width := getattr(self.estimator, "n_features_in_", states.shape[1])):
            raise Refused(f"states are {states.shape[1]} wide, the probe was trained on {width}; read the same layer")
        _check_same_type("groups", groups, np.array([*self.texts] or groups))
        if common := self.texts & {*groups.tolist()}:
            raise Refused(f"text {next(iter(common))!r} was trained on; score a probe on other texts")
        labels = _of_kind(labels, self.kind)
        if self.kind == "numbers":
            check_finite(labels)
        guessed = self.estimator.predict(states)
        _check_same_type("labels", labels, np.asarray(guessed))
        texts, at = np.unique(groups, return_inverse=True)
        if self.kind == "classes":
            columns = [guessed == labels, np.ones(len(labels))]
        else:
            centered = labels - self.mean
            columns = [(guessed - labels) ** 2, np.ones(len(labels)), centered, centered**2]
        sums = np.stack([np.bincount(at, column, len(texts)) for column in columns], 1)
        return TextScores(self.kind, texts, sums)


def fit_probe(
    states: Any, labels: Any, groups: Any, *, estimator: Any = None, strength: float | None = None, kind: str = ""
) -> Probe:
    """A linear probe of `labels` in `states`, its strength chosen by cross-validation that holds out full texts.

    Names are told apart by LogisticRegression, numbers by Ridge, after a StandardScaler.

    Args:
        states: (token, dim), or with more axes before dim, such as (text, token, dim): of a store, a TransformerLens
            cache, or any array.
        labels: Of each token: texts, booleans or integers are classes, floats are numbers.
        groups: The text that each token is of; of fewer axes than `labels`, repeated along those that lack.
        estimator: Your own scikit-learn estimator, which is fitted as it is.
        strength: C of LogisticRegression or alpha of Ridge. Default: chosen among `STRENGTHS`.
        kind: `classes` or `numbers`. Default: by the labels' type.

    Returns:
        A `Probe`; its `score` is of other texts.

    Raises:
        Refused: Fewer than 20 labels, one class, one text, states that are not finite, or labels not of the kind.

    Examples:
        >>> states = np.random.default_rng(0).normal(size=(8, 50, 6))  # text, token, dim
        >>> labels = np.where(states[..., 2] > 0, "up", "down")
        >>> texts = np.arange(8)
        >>> trained = probe.fit_probe(states[:4], labels[:4], texts[:4])
        >>> round(trained.score(states[4:], labels[4:], texts[4:]).value, 1)
        1.0
    """
    states, labels, groups = flat(states, labels, groups)
    kind = kind or ("numbers" if labels.dtype.kind == "f" else "classes")
    if kind not in STRENGTHS:
        raise Refused(f"kind={kind!r} is not known; known: {', '.join(STRENGTHS)}")
    labels = _of_kind(labels, kind)
    check_labels(labels, groups, kind)
    texts, mean = frozenset(groups.tolist()), float(labels.mean()) if kind == "numbers" else 0.0
    if estimator is not None:
        from sklearn.base import clone

        own: Any = clone(estimator)
        return Probe(own.fit(states, labels), kind, None, texts, mean)
    with warnings.catch_warnings():  # integers are classes here, however many
        warnings.filterwarnings("ignore", "The number of unique classes is greater than")
        strength = chosen_strength(states, labels, groups, kind) if strength is None else strength
        return Probe(linear(kind, strength).fit(states, labels), kind, strength, texts, mean)


def linear(kind: str, strength: float) -> Any:
    """The estimator of a probe, not fitted."""
    from sklearn.linear_model import LogisticRegression, Ridge
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    model = LogisticRegression(C=strength, max_iter=_ITERATIONS) if kind == "classes" else Ridge(alpha=strength)
    return make_pipeline(StandardScaler(), model)


def chosen_strength(states: np.ndarray, labels: np.ndarray, groups: np.ndarray, kind: str) -> float:
    """The strength with the best mean accuracy over folds that hold out full texts, or the least squared error there.

    The stronger penalty of equals. R2 of a fold is not defined where its labels are equal, so errors are pooled.
    """
    from sklearn.model_selection import GroupKFold, cross_val_predict, cross_val_score

    folds = list(GroupKFold(min(FOLDS, len(np.unique(groups)))).split(states, labels, groups))
    if kind == "classes":  # a fold of one class teaches nothing
        folds = [fold for fold in folds if len(np.unique(labels[fold[0]])) > 1]
    if not folds:
        return STRENGTHS[kind][1]

    def score(strength: float) -> float:
        if kind == "classes":
            return cross_val_score(linear(kind, strength), states, labels, cv=folds).mean()
        return -((cross_val_predict(linear(kind, strength), states, labels, cv=folds) - labels) ** 2).mean()

    return max(STRENGTHS[kind], key=score)


def flat(states: Any, labels: Any, groups: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """States (token, dim), labels (token,) and groups (token,), as arrays; Refused where their shapes do not fit."""
    states, labels, groups = (_array(values) for values in (states, labels, groups))
    if states.ndim < 2 or states.shape[:-1] != labels.shape:
        raise Refused(
            f"states {states.shape} have no label for each token: labels are {labels.shape}, and should be "
            f"{states.shape[:-1]}"
        )
    if groups.shape != labels.shape[: groups.ndim] or not groups.ndim:
        raise Refused(f"groups {groups.shape} do not name the text of each label {labels.shape}")
    groups = np.broadcast_to(groups.reshape(groups.shape + (1,) * (labels.ndim - groups.ndim)), labels.shape)
    if not np.isfinite(states).all():
        raise Refused("states are not finite; take a wider dtype")
    return states.reshape(-1, states.shape[-1]), labels.ravel(), groups.ravel()


def _array(values: Any) -> np.ndarray:
    """An array of numpy's, of a tensor too, in float32 where its dtype is unknown to numpy."""
    if hasattr(values, "detach"):
        values = values.detach().cpu()
        values = values.float() if values.is_floating_point() else values
    array = np.asarray(values)
    if array.dtype.kind != "O":
        return array
    if any(map(_is_missing, array.ravel().tolist())):
        raise Refused("None or NaN is among the labels or groups; leave these tokens out")
    return array.astype(str)


def _is_missing(value: Any) -> bool:
    """None, NaN, which alone is not itself, or pandas' NA, which is neither."""
    try:
        return value is None or bool(value != value)
    except TypeError:
        return True


def _of_kind(labels: np.ndarray, kind: str) -> np.ndarray:
    """The labels as a probe of this kind takes them. Refused for names as numbers, and for fractions as classes."""
    if kind == "numbers":
        try:
            return labels.astype(float)
        except ValueError as error:
            raise Refused(f"labels of kind numbers are no numbers: {error}; take kind='classes'") from None
    if labels.dtype.kind == "f" and not (np.isfinite(labels) & (labels == np.floor(labels))).all():
        raise Refused("labels of kind classes are no integers; take kind='numbers', or give names")
    return labels


def _check_same_type(what: str, values: np.ndarray, trained: np.ndarray) -> None:
    """Refused for texts where numbers were trained on, or the reverse, which are never equal."""
    types = ["text" if each.dtype.kind in "USO" else "numbers" for each in (values, trained)]
    if types[0] != types[1]:
        raise Refused(f"{what} are {types[0]}, those that the probe was trained on {types[1]}; give the same type")


def check_labels(labels: np.ndarray, groups: np.ndarray, kind: str, what: str = "labels", of: str = "text") -> None:
    """Refused for too few labels, one class or value, or one group. of: what a group is."""
    if len(labels) < LEAST:
        raise Refused(f"{what}: {len(labels)} to train on are fewer than {LEAST}; give more texts or labels")
    if kind == "numbers":
        check_finite(labels, what)
    if len(values := np.unique(labels)) < 2:
        raise Refused(f"{what}: all to train on are {values[0]!s}; a probe needs two classes or values")
    if len(np.unique(groups)) < 2:
        raise Refused(f"{what}: all to train on are of one {of}; a probe needs two, of which one is held out")


def check_finite(labels: np.ndarray, what: str = "labels") -> None:
    """Refused for numbers that are not finite."""
    if not np.isfinite(labels).all():
        raise Refused(f"{what}: a label is not a finite number; leave it out")


def control_labels(labels: Any, types: Any, seed: int = 0) -> np.ndarray:
    """Random labels by token type, the control task of Hewitt and Liang (2019, arXiv 1909.03368).

    Args:
        labels: Those of the task; each type has one of them, drawn as often as it is there.
        types: The type of each token, such as its id; the shape of `labels`.
        seed: Of the drawing.

    Returns:
        An array like `labels`. The same type has the same label in any call with the same labels' values and seed.

    Examples:
        >>> probe.control_labels(["noun", "verb", "noun", "verb"], [7, 9, 7, 9]).tolist()
        ['verb', 'noun', 'verb', 'noun']
    """
    labels, types = _array(labels), _array(types)
    if labels.shape != types.shape:
        raise Refused(f"types {types.shape} are not one for each label {labels.shape}; give the type of each token")
    drawn = {}
    known = labels.ravel()
    for kind in np.unique(types).tolist():
        rng = np.random.default_rng([seed, *str(kind).encode()])
        drawn[kind] = known[rng.integers(len(known))]
    return np.array([drawn[kind] for kind in types.ravel().tolist()]).reshape(labels.shape)


class Bootstrap:
    """Resamples of held-out texts, the same for all scores of these texts, so that differences are paired."""

    def __init__(self, texts: int, seed: int = 0) -> None:
        rng = np.random.default_rng([seed, texts])
        self.texts = texts
        self.weights = rng.multinomial(texts, np.full(texts, 1 / texts), RESAMPLES).astype(float)

    def interval(self, scores: TextScores, minus: TextScores | None = None) -> Interval:
        """The score, or its difference to another on the same texts, with its 95% interval.

        Percentiles are taken further out, as of few texts the bootstrap is too narrow (Hesterberg 2015, arXiv
        1411.5279): it missed a true difference in 15% of draws with 6 texts, 10% with 12, 6% with 32.
        """
        value, values = scores.value, scores.resampled(self.weights)
        if minus is not None:
            if not np.array_equal(scores.texts, minus.texts):
                raise Refused("scores of different texts are not paired")
            value, values = value - minus.value, values - minus.resampled(self.weights)
        finite = values[np.isfinite(values)]  # R2 is not where all labels of a resample are the same
        if self.texts < 2 or not len(finite):
            return Interval(value, math.nan, math.nan)
        out = float(ndtr(math.sqrt(self.texts / (self.texts - 1)) * stdtrit(self.texts - 1, 0.025)))
        low, high = np.quantile(finite, [out, 1 - out])
        return Interval(value, float(low), float(high))

    def is_clear(self, scores: TextScores, minus: TextScores, tests: int) -> bool:
        """Whether the difference is above 0 beyond chance, in one of `tests` tests (Bonferroni; Student's t)."""
        if self.texts < 3:
            return False
        difference = scores.resampled(self.weights) - minus.resampled(self.weights)
        finite = difference[np.isfinite(difference)]
        error = math.sqrt(self.texts / (self.texts - 1)) * float(finite.std()) if len(finite) else math.nan
        if scores.kind == "classes":  # of few labels all may be right by luck: no error is below one label's
            error = max(error, 1 / (self.texts if scores.together else float(scores.sums[:, 1].sum())))
        return scores.value - minus.value > stdtrit(self.texts - 1, 1 - 0.025 / tests) * error
