"""`mesa-lens readout` from its plan to its report: passes by workers, then probes; and the summary of both.

A pass leaves the states of a text's last tokens, (layer, token, dim), as readout/states/METHOD-LENGTH-TEXT.npy.
"""

import io
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from mesa.decoder import check_layers, layers_of, removed
from mesa.engine.bridge import hooked
from mesa.engine.plug import applied
from mesa.errors import Failed, Refused
from mesa.methods import Method
from mesa.models import bytes_a_number
from mesa.outside import with_last_logits
from mesa.progress import Bar
from probe.capture.capture import capture, capture_states
from probe.capture.memory import peak_bytes, scores_bytes
from probe.capture.spec import CaptureSpec
from probe.commands.readout.page import headline, write_readout
from probe.commands.readout.plan import (
    FEW_TYPES,
    LENS,
    NUMBERS,
    STATES,
    Bootstrap,
    Labels,
    Probe,
    ReadoutKey,
    ReadoutPlan,
    TextScores,
    control_labels,
    fit_probe,
    plan,
    state_keys,
)
from probe.commands.readout.result import (
    PASSKEY_DIGIT,
    READOUT,
    TABLES,
    AnswerRead,
    DistanceRead,
    LensRead,
    Probed,
    ProbeRead,
    Readout,
)
from probe.eval_tasks.score import logits_bytes, nll, retrieval_hits
from probe.experiment.estimate import Estimate, estimated
from probe.experiment.journal import Journal, JournalRows
from probe.experiment.pool import LOCAL, MeasureTask, Runner, Task, is_over
from probe.experiment.run import CommandResult, Experiment, PlanWorker, opened, run_tasks, say_left_out, summary_of
from probe.figures.section import as_text
from probe.files import JsonObject, write
from probe.statistics import half_width, student, wilson
from probe.store.result_file import Interval, or_nan
from probe.thresholds.state_distance import MIN_DOCUMENTS, StateReference, compared

# Lens readouts (nostalgebraist 2020): a model's own final norm and unembedding on the states of any layer

Lens = Callable[[Tensor, int], Tensor]
"""From states (token, dim) of a layer, which is the second argument, to logits (token, vocabulary)."""
QUANTITIES = {
    "loss": "nats/token",
    "rank": "place of the next token, from 1",
    "probability": "of the next token",
    "entropy": "nats",
    "kl": "nats, of the last layer's distribution from this one",
}
"""What is read at each token, with its unit."""


class LogitLens:
    """What the model computes after its last layer, of other states in place of that layer's output.

    The model itself does it, in a pass of no more tokens than the states are: norm, projection, scale and soft cap are
    those that it has. No method is to be attached.
    """

    def __init__(self, model: Any) -> None:
        self.model = model

    @torch.no_grad()
    def __call__(self, states: Tensor, layer: int = -1) -> Tensor:
        """Logits (token, vocabulary) of states (token, dim). Raises Refused where they are not of the model's width."""
        ids = torch.arange(len(states), device=self.model.device)[None] % self.model.config.get_text_config().vocab_size

        def replace(module: Any, args: Any, output: Any) -> Any:
            former = output[0] if isinstance(output, tuple) else output
            if former.shape != (1, *states.shape):
                raise Refused(
                    f"the last layer of this {self.model.config.model_type} model gives {tuple(former.shape)}, which a "
                    f"lens cannot put states {tuple(states.shape)} in place of"
                )
            new = states[None].to(former)
            return (new, *output[1:]) if isinstance(output, tuple) else new

        with removed([layers_of(self.model)[-1].register_forward_hook(replace)]):
            return self.model(ids, use_cache=False, **with_last_logits(self.model, len(states))).logits[0]


def read_lens(lens: Lens, states: Tensor, layers: Sequence[int], next_ids: Sequence[int]) -> Mapping[str, np.ndarray]:
    """`QUANTITIES` (layer, token) of states (layer, token, dim); the last layer comes last.

    next_ids: of each token the one after it.
    """
    right = torch.as_tensor(np.asarray(next_ids))[:, None]
    values = {name: np.empty((len(layers), len(right)), np.float64) for name in QUANTITIES}
    last: Tensor | None = None
    for row in reversed(range(len(layers))):
        logits = lens(states[row, : len(right)], layers[row]).float().cpu()
        if not logits.isfinite().all():
            raise Failed(f"the lens of layer {layers[row]} is not finite; try a wider --dtype (float32, float64)")
        logs = logits.log_softmax(-1)
        last = logs if last is None else last
        chosen = logs.gather(-1, right)
        read = {
            "loss": -chosen[:, 0],
            "rank": 1 + (logs > chosen).sum(-1),
            "probability": chosen[:, 0].exp(),
            "entropy": -(logs.exp() * logs).sum(-1),
            "kl": (last.exp() * (last - logs)).sum(-1),
        }
        for name, each in read.items():
            values[name][row] = each.numpy()
    return values


def lens_readout(
    bridge: Any,
    token_ids: Sequence[int],
    method: Method,
    *,
    tokens: int = 96,
    layers: Sequence[int] | None = None,
    lens: Lens | None = None,
    executor: str = "fused",
) -> xr.Dataset:
    """What a lens reads in each layer, of the last tokens of a prompt under a method.

    Args:
        bridge: What `mesa.bridge` or `mesa.engine.bridge.hooked` returns.
        token_ids: The prompt.
        method: The method.
        tokens: How many of the last tokens are read; of the very last no next token is known. Default 96.
        layers: Default: all.
        lens: A function from states (token, dim) and their layer to logits (token, vocabulary), such as a tuned lens.
            Default: the model's own norm and unembedding (`LogitLens`).
        executor: As in `mesa.applied`.

    Returns:
        A Dataset of `QUANTITIES` (layer, token); the token is its position.

    Raises:
        Refused: The prompt has no two tokens to read, or a layer is not there.

    Examples:
        >>> loaded = mesa.load()
        >>> bridge = mesa.bridge(loaded.model, loaded.tokenizer)
        >>> ids = loaded.tokenizer(probe.heldout()[0])["input_ids"][:256]
        >>> read = probe.lens_readout(bridge, ids, mesa.Origin(trained_length=256))
        >>> dict(read.sizes), bool((read["loss"].mean("token").diff("layer") < 0).all())
        ({'layer': 4, 'token': 95}, True)
    """
    length, count = len(token_ids), bridge.original_model.config.num_hidden_layers
    if not 2 <= tokens <= length:
        raise Refused(f"tokens={tokens} is not between 2 and the prompt's {length}")
    read = sorted({*(range(count) if layers is None else layers), count - 1})
    spec = CaptureSpec(layers=tuple((layer, layer + 1) for layer in read), positions=((length - tokens, length),))
    states = torch.from_numpy(capture_states(bridge, token_ids, method, spec, executor=executor)["resid_post"].values)
    values = read_lens(lens or LogitLens(bridge.original_model), states, read, token_ids[length - tokens + 1 :])
    return xr.Dataset(
        {name: (("layer", "token"), each, {"units": QUANTITIES[name]}) for name, each in values.items()},
        {"layer": read, "token": range(length - tokens, length - 1), "method": method.name},
        {"trained_length": method.trained_length},
    )


# A run: the worker, the probes, the summary

_NONE = Interval(*[float("nan")] * 3)


class ReadoutWorker(PlanWorker):
    """A plan and its model, as plain data."""

    def start(self, memory_bytes: int | None = None) -> MeasureTask:
        """Loads the model; a task gives its journal row, and states (layer, token, dim)."""
        loaded = self.source.loaded()
        check_layers(loaded.model)
        bridge = hooked(loaded.model, loaded.tokenizer)
        return partial(measure, replace(self.plan, config=loaded.model.config), bridge, LogitLens(loaded.model))


def measure(plan: ReadoutPlan, bridge: Any, lens: LogitLens, task: Task) -> tuple[JsonObject, np.ndarray]:
    """The row of one text: by layer means of what the lens reads, or the model's loss alone; and its states."""
    key = ReadoutKey(*task.key)  # type: ignore[arg-type]
    ids, method, executor = plan.prompt(key.number, key.length), plan.methods[key.method], plan.request.executor
    states = capture(bridge, ids.tolist(), method, plan.selection(key.length), executor=executor)[plan.request.hook]
    row = dict[str, Any]()
    if plan.passkeys:
        with applied(bridge.original_model, method, executor=executor):
            prompt = plan.passkeys[key.length][key.number]
            row["is_answered"] = retrieval_hits(bridge.original_model, bridge.tokenizer, [prompt])[0]
    if plan.request.hook == LENS:
        first = len(plan.layers) - 1 if plan.passkeys else 0  # of passkeys the last layer's loss is kept alone
        targets = ids[len(ids) - plan.tokens + 1 :].tolist()
        read = read_lens(lens, torch.from_numpy(states[first:]), plan.layers[first:], targets)
        means = {name: np.median(each, 1) if name == "rank" else each.mean(1) for name, each in read.items()}
        lens_row = {} if plan.passkeys else {"lens": {name: each.tolist() for name, each in means.items()}}
        return {**lens_row, "loss": float(means["loss"][-1])} | row, states
    with applied(bridge.original_model, method, executor=executor):
        return {"loss": float(nll(bridge.original_model, ids, plan.tokens - 1).mean())} | row, states


class ReadoutExperiment(Experiment):
    """The passes of a plan; probes follow from what they leave."""

    title, unit, remedy = "reading", "token", "shorten --lengths"
    worker_class, columns = ReadoutWorker, ReadoutKey
    folder, written = READOUT.command, (READOUT.path.name, "report.html", "states/*.npy", *(f"{x}.csv" for x in TABLES))
    needed = ("loss", "sums")

    def __init__(self, plan: ReadoutPlan) -> None:
        self.plan, self.states = plan, Path()

    def open_journal(self, out: Path, *, overwrite: bool = False) -> Journal:
        """As for Experiment, without the rows of texts whose states are not there, and of probes scored by other terms.

        Methods may be added, and the reference then changes. Rows of older journals do not tell theirs.
        """
        journal = super().open_journal(out, overwrite=overwrite)
        self.states = out / self.folder / "states"
        for key in [key for key in journal.rows if key[0] == STATES and not states_path(self.states, key).is_file()]:
            del journal.rows[key]
        for key in self.plan.probes:
            stored = journal.rows.get(key, {})
            if stored and any(stored.get(name) != value for name, value in scored_by(self.plan, key.name).items()):
                del journal.rows[key]
        return journal

    def tasks(self, rows: JournalRows) -> Sequence[Task]:
        """The passes that the journal lacks."""
        return [
            Task(STATES, key, self._bytes(key.length), weight=key.length, length=key.length)
            for key in self.plan.keys
            if key not in rows
        ]

    def remaining(self, rows: JournalRows) -> int:
        """Passes and probes that the journal lacks."""
        return sum(key not in rows for key in (*self.plan.keys, *self.plan.probes))

    def refusal(self, rows: JournalRows) -> str:
        """As for Experiment: probes may be left where no pass is."""
        return "probes are left" if self.remaining(rows) else ""

    def record(self, journal: Journal, task: Task, value: Any) -> None:
        """Stores a text's states, then its row."""
        row, states = value
        file = io.BytesIO()
        np.save(file, states)
        self.states.mkdir(parents=True, exist_ok=True)
        write(states_path(self.states, task.key), file.getvalue())
        journal.add(task.key, row)

    def _bytes(self, length: int) -> int:
        """Memory of a pass and of the lens' logits, in addition to the weights."""
        plan = self.plan
        number_bytes = bytes_a_number(plan.config, plan.request.load)
        logits = 3 * logits_bytes(plan.config.get_text_config().vocab_size, plan.tokens, number_bytes)
        kept = logits + 4 * plan.selection(length).values * len(plan.layers)
        kept += scores_bytes(plan.config, length, plan.request.executor)
        return peak_bytes(plan.config, length, number_bytes, kept)


def scored_by(plan: ReadoutPlan, name: str) -> JsonObject:
    """What the row of a probe tells in addition to its scores: the reference, and what changed with a release.

    That is whether sums are by document, and how the strength of a probe of numbers is chosen.
    """
    labels, terms = plan.labels[name], {"reference": plan.reference}
    by_document = {"by_document": True} if labels.documents is not None else {}
    return terms | by_document | ({"strength_by": "pooled errors"} if labels.kind == NUMBERS else {})


def states_path(folder: Path, key: Sequence[Any]) -> Path:
    """The file of a text's states."""
    _, method, length, text, _ = key
    return folder / f"{method}-{length}-{text}.npy"


def layer_of(folder: Path, keys: Sequence[ReadoutKey], row: int) -> np.ndarray:
    """A layer's states (text, token, dim) of several texts."""
    return np.stack([np.load(states_path(folder, key), mmap_mode="r")[row] for key in keys])


class Prober:
    """Fits and scores the probes of a plan; holds the states of one layer, and the probes trained at M in it."""

    def __init__(self, plan: ReadoutPlan, states: Path) -> None:
        self.plan, self.states = plan, states
        self._layer = -1
        self._loaded: dict[tuple[str, int], np.ndarray] = {}
        self._fitted: dict[tuple[str, str], tuple[Probe, Probe]] = {}

    def scores(self, key: ReadoutKey) -> JsonObject:
        """A row: the strength, and by name the sums of test texts that scores are computed of, see `TextScores`."""
        plan, labels = self.plan, self.plan.labels[key.name]
        if key.number != self._layer:
            self._layer, self._loaded, self._fitted = key.number, {}, {}
        trained, control = self._at_trained_length(key.name, key.method)
        reference, _ = self._at_trained_length(key.name, plan.reference)
        test = self._part(labels, key.method, key.length, test=True)
        scores = {"by_reference": reference.score(*test)}
        if key.length == plan.trained_length:
            here = trained
            scores |= {"inside": trained.score(*test), "chance": self._chance(labels, test)}
        else:
            here, control = self._fit(key.name, key.method, key.length)
            scores |= {"transfer": trained.score(*test), "refit": here.score(*test)}
        scores["control"] = control.score(*self._part(self._control(key.name), key.method, key.length, test=True))
        sums = {name: each.sums.tolist() for name, each in scores.items()}
        return {**scored_by(plan, key.name), "strength": here.strength, "sums": sums}

    def _at_trained_length(self, name: str, method: str) -> tuple[Probe, Probe]:
        if (name, method) not in self._fitted:
            self._fitted[name, method] = self._fit(name, method, self.plan.trained_length)
        return self._fitted[name, method]

    def _fit(self, name: str, method: str, length: int) -> tuple[Probe, Probe]:
        """A probe of the training texts, and one of the same strength of the control's labels."""
        labels = self.plan.labels[name]
        fitted = fit_probe(*self._part(labels, method, length), kind=labels.kind)
        control = self._part(self._control(name), method, length)
        if len(np.unique(control[1])) < 2:  # all drew the same label
            return fitted, fitted
        return fitted, fit_probe(*control, kind=labels.kind, strength=fitted.strength)

    def _control(self, name: str) -> Labels:
        """Random labels by token type. Of few types any probe learns such labels, so there they are drawn by text."""
        labels, types = self.plan.labels[name], self.plan.last_ids
        if self._has_few_types(labels):
            types = labels.groups
        values = np.array(labels.values)
        values[labels.known] = control_labels(values[labels.known], types[labels.known], self.plan.request.seed)
        return replace(labels, values=values)

    def _has_few_types(self, labels: Labels) -> bool:
        _, counts = np.unique(self.plan.last_ids[labels.known], return_counts=True)
        shares = counts / counts.sum()
        return bool(np.exp(-(shares * np.log(shares)).sum()) < FEW_TYPES)

    def _part(self, labels: Labels, method: str, length: int, *, test: bool = False) -> tuple[np.ndarray, ...]:
        """States, labels and texts (or documents) of the tokens with labels, to train on or to test on."""
        half = slice(self.plan.training, None) if test else slice(self.plan.training)
        if (method, length) not in self._loaded:
            row = self.plan.layers.index(self._layer)
            self._loaded[method, length] = layer_of(self.states, state_keys(self.plan, method, length), row)
        known = labels.known[half]
        return self._loaded[method, length][half][known], labels.values[half][known], labels.groups[half][known]

    def _chance(self, labels: Labels, test: tuple[np.ndarray, ...]) -> TextScores:
        """The score of the training texts' most frequent label, or of their mean; where types are few, of each type."""
        half, known = self.plan.training, labels.known
        types = self.plan.last_ids if self._has_few_types(labels) else np.zeros_like(self.plan.last_ids)
        training, values = types[:half][known[:half]], labels.values[:half][known[:half]]
        guess = _Frequent({kind: _typical(values[training == kind]) for kind in np.unique(training).tolist()},
                          _typical(values))  # fmt: skip
        mean = float(values.mean()) if labels.kind == NUMBERS else 0.0
        return Probe(guess, labels.kind, None, frozenset(), mean).score(types[half:][known[half:]][:, None], *test[1:])


def _typical(values: np.ndarray) -> Any:
    """The most frequent class, or the mean number."""
    return float(values.mean()) if values.dtype.kind == "f" else Counter(values.tolist()).most_common(1)[0][0]


@dataclass(frozen=True)
class _Frequent:
    """Predicts a value for each token type, another for types that it does not know."""

    by_type: Mapping[int, Any]
    other: Any

    def predict(self, types: np.ndarray) -> np.ndarray:
        return np.array([self.by_type.get(int(kind), self.other) for kind in types[:, 0]])


def fit_all(plan: ReadoutPlan, states: Path, journal: Journal, until: float | None) -> None:
    """Journals the scores of all probes that it lacks, none begun after the deadline `until`."""
    left = [key for key in plan.probes if key not in journal.rows]
    prober = Prober(plan, states)
    for key in Bar(left, desc="probing", unit="probe", disable=not left):
        if is_over(until):
            break
        journal.add(key, prober.scores(key))


def distances_of(plan: ReadoutPlan, states: Path) -> list[DistanceRead]:
    """How far the states of test texts lie from the reference's in-window distribution on training texts, by layer.

    Texts of a document count once, where there are four documents or more.
    """
    read, training, texts = list[DistanceRead](), slice(plan.training), slice(plan.training, None)
    of_texts = plan.last_documents[texts]
    documents = of_texts if len({*of_texts}) >= MIN_DOCUMENTS else range(len(of_texts))

    def read_layer(method: str, length: int, half: slice, row: int) -> np.ndarray:
        return layer_of(states, state_keys(plan, method, length)[half], row)

    for row, layer in enumerate(Bar(plan.layers, desc="measuring distances", unit="layer")):
        fitted = StateReference.fit(read_layer(plan.reference, plan.trained_length, training, row))
        for method in plan.ordered:
            near = fitted.distances(read_layer(method, plan.trained_length, texts, row)).mean(1)
            for length in plan.lengths[1:]:
                of = compared(near, fitted.distances(read_layer(method, length, texts, row)).mean(1), documents)
                ratio = Interval(of.ratio, of.low, of.high)
                read.append(
                    DistanceRead(
                        method=method, length=length, layer=layer, n=len({*documents}), distance=of.distance,
                        inside=of.inside, ratio=ratio, direction=of.direction,
                    )
                )  # fmt: skip
    return read


def summarize(plan: ReadoutPlan, journal: Journal) -> Readout:
    """The summary of the journal's rows of a plan."""
    return _Summary(plan, journal.rows).summary()


class _Summary:
    def __init__(self, plan: ReadoutPlan, rows: JournalRows) -> None:
        self.plan, self.rows = plan, rows
        self._tests = max(1, len(plan.layers) * len(plan.lengths) * len(plan.methods))

    def summary(self) -> Readout:
        """All of it."""
        plan = self.plan
        return Readout(
            **summary_of(plan),
            reference=plan.reference,
            hook=plan.request.hook,
            lengths=list(plan.lengths),
            layers=list(plan.layers),
            tokens=plan.tokens,
            training=plan.training,
            test=len(plan.windows) - plan.training,
            loss=student_interval(self._losses),
            frequencies=float(self._frequencies.mean()),
            is_trained=self._is_trained,
            tasks_left=sum(key not in self.rows for key in (*plan.keys, *plan.probes)),
            probed={name: Probed(x.kind, len(np.unique(x.values[x.known])), x.note) for name, x in plan.labels.items()},
            lens=self._lens(),
            probes=[row for key in plan.probes if (row := self._probe(key))],
            answers=[row for key in plan.probes if key.name == PASSKEY_DIGIT and (row := self._answers(key))],
        )

    def _of_texts(self, method: str, length: int) -> list[JsonObject]:
        """The rows of the texts; empty unless all are there."""
        keys = state_keys(self.plan, method, length)
        return [self.rows[key] for key in keys] if all(key in self.rows for key in keys) else []

    @cached_property
    def _losses(self) -> np.ndarray:
        """By text, of the reference at M."""
        return np.array([row["loss"] for row in self._of_texts(self.plan.reference, self.plan.trained_length)])

    @cached_property
    def _frequencies(self) -> np.ndarray:
        """By text, the loss of its read tokens by how often tokens are in the training texts, each once more."""
        plan = self.plan
        size = plan.config.get_text_config().vocab_size
        counts = np.bincount(np.concatenate(plan.windows[: plan.training]), minlength=size) + 1.0
        return -np.log(counts / counts.sum())[plan.last_ids[:, 1:]].mean(1)

    @cached_property
    def _is_trained(self) -> bool:
        if len(self._losses) < 2:
            return False
        gain = self._frequencies - self._losses
        return bool(gain.mean() > half_width(gain))

    def _lens(self) -> list[LensRead]:
        read = []
        for method in self.plan.ordered:
            at_trained = _stacked(self._of_texts(method, self.plan.trained_length))
            for length in self.plan.lengths:
                values = _stacked(self._of_texts(method, length))
                for row, layer in enumerate(self.plan.layers if values and at_trained else ()):
                    excess = values["loss"][:, row] - at_trained["loss"][:, row]
                    read.append(
                        LensRead(
                            method=method,
                            length=length,
                            layer=layer,
                            n=len(excess),
                            loss=student_interval(values["loss"][:, row]),
                            excess=student_interval(excess),
                            is_above=_above(excess, self._tests),
                            **{name: float(values[name][:, row].mean()) for name in QUANTITIES if name != "loss"},
                        )
                    )
        return read

    def _scores(self, key: ReadoutKey) -> dict[str, TextScores]:
        labels, half = self.plan.labels[key.name], slice(self.plan.training, None)
        texts, together = np.unique(labels.groups[half][labels.known[half]]), labels.documents is not None
        sums = self.rows[key]["sums"]
        return {name: TextScores(labels.kind, texts, np.array(each), together) for name, each in sums.items()}

    def _probe(self, key: ReadoutKey) -> ProbeRead | None:
        at_trained, like = key._replace(length=self.plan.trained_length), key._replace(method=self.plan.reference)
        if not {key, at_trained, like} <= self.rows.keys():
            return None
        here, there, of_reference = (self._scores(each) for each in (key, at_trained, like))
        beyond = key.length > self.plan.trained_length
        inside, transfer, refit = there["inside"], here.get("transfer"), here.get("refit")
        draws, tests = Bootstrap(len(inside.texts), self.plan.request.seed), self._tests
        interval = draws.interval
        is_read = self._is_trained and all(
            draws.is_clear(inside, there[other], tests) for other in ("control", "chance")
        )
        if inside.kind == "numbers":  # far outliers make both of these worse than any guess
            is_read = is_read and interval(inside).low > 0
        is_reference = key.method == self.plan.reference
        back = here["by_reference"], of_reference["by_reference"]
        chance = there["chance"]  # what reads less than it, or than 0, reads nothing, however much less

        def floored(scores: TextScores | None) -> TextScores:
            return replace(scores or inside, least=chance)

        moved, lost = (floored(refit), floored(transfer)), (floored(inside), floored(refit))
        returned = floored(back[0]), floored(back[1])
        return ProbeRead(
            probe=key.name,
            method=key.method,
            length=key.length,
            layer=key.number,
            n=len(inside.texts),
            tokens=int(inside.sums[:, 1].sum()),
            strength=self.rows[key]["strength"],
            chance=chance.value,
            inside=interval(inside),
            transfer=interval(transfer or inside),
            refit=interval(refit or inside),
            by_reference=interval(back[0]),
            control=interval(there["control"]),
            control_refit=interval(here["control"]),
            selectivity=interval(inside, there["control"]),
            moved=interval(*moved) if beyond else _NONE,
            lost=interval(*lost) if beyond else _NONE,
            returned=_NONE if is_reference else interval(*returned),
            is_read=is_read,
            is_moved=bool(refit and is_read and draws.is_clear(*moved, tests)
                          and all(draws.is_clear(refit, each, tests) for each in (here["control"], floored(chance)))),
            is_lost=bool(beyond and is_read and draws.is_clear(*lost, tests)),
            is_returned=bool(beyond and not is_reference and is_read and draws.is_clear(*returned, tests)
                             and draws.is_clear(back[0], floored(chance), tests)),
        )  # fmt: skip

    def _answers(self, key: ReadoutKey) -> AnswerRead | None:
        texts = self._of_texts(key.method, key.length)
        if key not in self.rows or not texts:
            return None
        answered = np.array([row["is_answered"] for row in texts[self.plan.training :]])
        sums = {name: np.array(each)[:, 0] for name, each in self.rows[key]["sums"].items()}
        count, inside = int(answered.sum()), sums.get("inside")

        def share(name: str) -> Interval:
            hits = sums.get(name, inside)[~answered]  # pyright: ignore[reportOptionalSubscript]
            return _share(int(hits.sum()), len(hits))

        return AnswerRead(
            method=key.method, length=key.length, layer=key.number, n=len(answered),
            answered=_share(count, len(answered)), wrong=len(answered) - count, transfer=share("transfer"),
            refit=share("refit"),
        )  # fmt: skip


def _share(hits: int, count: int) -> Interval:
    """A share with Wilson's interval; NaN of none."""
    return Interval(hits / count, *wilson(hits, count)) if count else _NONE


def student_interval(values: np.ndarray) -> Interval:
    """A mean over texts with Student's 95% interval, NaN for fewer than two."""
    mean = float(values.mean()) if len(values) else float("nan")
    return Interval(mean, *map(or_nan, student(values.tolist())))


def _above(differences: np.ndarray, tests: int) -> bool:
    """Whether paired differences are above 0 beyond chance, in one of `tests` tests (Bonferroni; Student's t)."""
    return len(differences) > 2 and bool(differences.mean() > half_width(differences, 1 - 0.05 / tests))


def _stacked(rows: Sequence[JsonObject]) -> dict[str, np.ndarray]:
    """What the lens read, (text, layer), by name; empty where it read nothing."""
    if not rows or "lens" not in rows[0]:
        return {}
    return {name: np.array([row["lens"][name] for row in rows]) for name in QUANTITIES}


__all__ = ["estimate", "plan", "run_and_report"]


def estimate(plan: ReadoutPlan, out: Path, *more: Any, overwrite: bool) -> Estimate:
    """What a plan takes."""
    text, passes = estimated(ReadoutExperiment, plan, out, *more, overwrite=overwrite)
    answers = "the passkeys' answers, which are not counted, and " if plan.passkeys else ""
    return f"{text}\nthen {answers}{len(plan.probes)} probes, seconds to a minute each", passes


def run_and_report(
    plan: ReadoutPlan, out: Path, *, overwrite: bool = False, until: float | None = None, runner: Runner = LOCAL
) -> CommandResult:
    """Measures what the folder `out` lacks of the plan, and writes its results and report, as `run` does."""
    experiment = ReadoutExperiment(plan)
    runner.check(plan.request.load)
    if runner.is_local:
        experiment.check_memory(out, overwrite=overwrite)
    with opened(experiment, out, overwrite=overwrite, runner=runner) as (journal, pool):
        failed = run_tasks(experiment, journal, pool, until=until)
        if all(key in journal.rows for key in plan.keys):
            fit_all(plan, experiment.states, journal, until)
    say_left_out(out, journal.rows, [*plan.keys, *plan.probes], {"method": "--methods", "name": "--probe"})
    summary = summarize(plan, journal)
    if all(key in journal.rows for key in plan.keys) and not plan.passkeys:  # one question is no distribution of text
        summary = replace(summary, distances=distances_of(plan, experiment.states))
    text = as_text(headline(summary))
    if journal.rows:
        READOUT.write(out, summary)
        text += f"\n\nwrote {write_readout(out, summary).parent}: report.html, summary.json, tables, states"
    return CommandResult(summary, text, len(failed), str(summary.tasks_left or ""))
