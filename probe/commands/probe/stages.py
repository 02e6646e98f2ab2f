"""A probe in the time that there is: what is measured next follows from what is stored, the most telling first.

Every step asks for a number of prompts of some cells (task, method, length). A cell's row in the journal grows; no row
is measured twice. What is next depends on the rows alone, so a run that was ended at any time goes on from them.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import xarray as xr

from mesa.support import is_rotary
from probe.commands.probe.plan import TASKS, FailureByLength, scored_distances
from probe.eval_tasks.base import EvalKey
from probe.eval_tasks.tasks import PASSKEY, TAIL, tail_tokens
from probe.evaluation import EvalPlan, check_scores, eval_key, eval_tasks, scores_of, unfit_length
from probe.experiment.journal import Journal, JournalRows
from probe.experiment.pool import Task
from probe.experiment.run import Experiment
from probe.files import JsonObject
from probe.statistics import confidence_of, looks_of
from probe.thresholds.failure import MIN_ACCURACY, NATS_ABOVE, NLL, PASSKEY as BY_PASSKEY, decided, measured_failure
from probe.thresholds.scored_states import REFERENCE_TEXTS

BY_POSITION = "nll-position"
"""The task that tells where to look: the loss by position in one pass."""
FEW = 2
"""Texts at each length of the first search."""
_TASK_TOKENS = 2**14  # of one task at most, but for one prompt: a run ends between tasks
_COARSE, _FINE = 4, 16
"""A bracket is narrowed to M / 4 first, at last to M / 16."""


class Step(NamedTuple):
    """What is asked for next: by cell the number of prompts, and the stage that it belongs to."""

    stage: str
    cells: Mapping[EvalKey, int]


STAGES = (
    "where to look: Origin's loss by position",
    "Origin's failure, few texts",
    "the methods at M and where Origin fails",
    "more texts where the interval leaves failure open",
    "the methods at the longest length",
    "passkeys",
    "narrower brackets, more prompts",
)
POSITION, SEARCH, METHODS, TEXTS, LONGEST, PASSKEYS, NARROWER = STAGES


def candidates(lengths: Sequence[int], trained: int, is_stated: bool) -> list[int]:
    """The lengths that may be measured, from M to the longest: those that are stated, else every M/16 tokens."""
    if is_stated:
        return sorted(length for length in lengths if length >= trained)
    step = max(1, trained // _FINE)
    return [*range(trained, max(lengths), step), max(lengths)]


def in_order(count: int) -> list[int]:
    """The numbers below `count`, the first ones far apart: van der Corput's order.

    >>> in_order(8)
    [0, 4, 2, 6, 1, 5, 3, 7]
    """
    bits = max(1, (count - 1).bit_length())
    return sorted(range(count), key=lambda number: int(f"{number:0{bits}b}"[::-1], 2))


class Stages(FailureByLength):
    """The steps of a run with --minutes.

    reference: the method that the others are compared with. lengths: those that may be measured, ascending, M among
    them. texts: how many runs of text there are; as many passkeys are measured. has_passkey: whether there are passkey
    prompts of a length. command: what the run was asked, as recorded. stage: `tasks` are those of the stages up to this
    one. fits: whether a task is begun.
    """

    shorter = "give --overwrite and shorter --lengths"  # without it the longest length stays

    def __init__(
        self,
        plan: EvalPlan,
        reference: str,
        lengths: Sequence[int],
        texts: int,
        not_compared: Sequence[str] = (),
        has_passkey: Callable[[int], bool] = lambda length: True,
    ) -> None:
        super().__init__(plan, 0, not_compared)
        self.command: dict[str, list[str]] | None = None
        self.reference, self.lengths, self.texts, self.has_passkey = reference, lengths, texts, has_passkey
        self.trained, self.longest = plan.setting.trained_length, max(lengths)
        self.looks, self._cache = looks_of(texts), dict[Any, tuple[str, ...]]()
        self._plans = dict[int, dict[str, str]]()
        self.stage = STAGES[-1]
        self.fits: Callable[[Task], bool] = lambda task: True
        self._begun = set[Task]()

    @property
    def settings(self) -> JsonObject:
        """As for Experiment; a run in stages and another one do not go on from each other's rows."""
        return {**super().settings, "stages": 1}

    @property
    def request(self) -> dict[str, list[str]] | None:
        """As for Experiment: until the first report there is no store that has it."""
        return self.command

    def open_journal(self, out: Path, *, overwrite: bool = False) -> Journal:
        """As for Experiment, and Refused for scores that are not those of their task."""
        journal = Experiment.open_journal(self, out, overwrite=overwrite)
        check_scores(journal, self.plan, equal=False)
        return journal

    def share(self, journal: Journal) -> None:
        """Gives every cell's scores to methods that do the same: there may be new ones, or a run ended between two."""
        for task, name, length in [*journal.rows]:
            if name in self.plan.methods:
                self._share(journal, EvalKey(str(task), str(name), int(length)))

    def is_needed(self, task: Task) -> bool:
        """Whether it still fits, or was begun: what is measured is kept, however late it is."""
        if task not in self._begun and self.fits(task):
            self._begun.add(task)
        return task in self._begun

    def skipped(self, task: Task) -> None:
        """Nothing: the next run begins it."""

    def record(self, journal: Journal, task: Task, value: Any) -> None:
        """Adds its scores to those of the row, and to those of methods that do the same there."""
        former = journal.rows.get(task.key, {})
        if value is not None and former:
            peaks = [row["peak_mib"] for row in (former, value) if row["peak_mib"] is not None]
            value = {"peak_mib": max(peaks, default=None), "scores": [*former["scores"], *_new(former, value)]}
        super().record(journal, task, value)
        self._share(journal, eval_key(task))

    def _share(self, journal: Journal, done: EvalKey) -> None:
        """Gives what a cell holds to the cells of methods that do the same there."""
        for name in self.plan.methods:
            key = done._replace(method=name)
            if key != done and self._measured_as(key) == self._measured_as(done):
                former, row = journal.rows.get(key, {"scores": []}), journal.rows[done]
                if scores := _new(former, row):
                    journal.add(key, {"peak_mib": row["peak_mib"], "scores": [*former["scores"], *scores]})

    def _measured_as(self, key: EvalKey) -> EvalKey:
        """The cell of the first method that does the same there: tail NLL, where plans, layers and heads are equal."""
        if key.task != TAIL.name:
            return key
        if key.length not in self._plans:
            does = {name: (of.layers, of.heads, of.plan(key.length)) for name, of in self.plan.methods.items()}
            first = {name: next(other for other in does if does[other] == of) for name, of in does.items()}
            self._plans[key.length] = first
        return key._replace(method=self._plans[key.length][key.method])

    # What is next

    def tasks(self, rows: JournalRows) -> Sequence[Task]:
        """Those of the first step that is not done, up to `stage`; prompts that many methods share first."""
        step = self.step(rows)
        if step is None or STAGES.index(step.stage) > STAGES.index(self.stage):
            return []
        missing = dict[EvalKey, list[int]]()
        for key, count in step.cells.items():
            left, same = self._missing(rows, key, count), self._measured_as(key)
            key = same if not set(left) & {*self._values(rows, same)} else key
            missing[key] = [*dict.fromkeys([*missing.get(key, []), *left])]
        tasks = [at for key, samples in missing.items() for at in enumerate(self._tasks_of(key, samples))]
        return [task for _, task in sorted(tasks, key=lambda pair: pair[0])]

    def _tasks_of(self, key: EvalKey, samples: Sequence[int]) -> list[Task]:
        size = max(1, _TASK_TOKENS // key.length)
        parts = [tuple(samples[first : first + size]) for first in range(0, len(samples), size)]
        full = eval_tasks(self.plan, [key])[0]
        return [
            Task(full.kind, key, full.memory_bytes, full.best_bytes, 0, part, key.length * len(part), key.length)
            for part in parts
        ]

    def _missing(self, rows: JournalRows, key: EvalKey, count: int) -> list[int]:
        there = self._values(rows, key)
        return [sample for sample in self._order(key.task)[:count] if sample not in there]

    def step(self, rows: JournalRows) -> Step | None:
        """The first step of which something is missing; None: all is measured and decided."""
        for step in self._steps(rows):
            if any(self._missing(rows, key, count) for key, count in step.cells.items()):
                return step
        return None

    def _steps(self, rows: JournalRows) -> Iterator[Step]:
        """All steps as far as they follow from the rows; each is asked for once those before it are done."""
        reference, names = self.reference, [*self.plan.methods]
        trained, longest, few = self.trained, self.longest, min(FEW, self.texts)
        first, second = self.looks[0], self.looks[min(1, len(self.looks) - 1)]
        yield Step(POSITION, {EvalKey(BY_POSITION, reference, longest): 1})
        inside = self._nll([reference], [*self._inside, trained], few)
        yield Step(SEARCH, inside)
        while length := self._next(rows):
            yield Step(SEARCH, self._nll([reference], [length], few))
        ends = [length for length in self._ends(rows) if length is not None]
        yield Step(SEARCH, self._nll([reference], [*self._inside, trained, *ends], first))
        for length in (self._beyond(rows), trained):
            yield Step(METHODS, self._nll(names, [length], first))
        for name in names:
            yield from self._decide(rows, TEXTS, name, second)
        yield Step(LONGEST, self._nll(names, [longest], first))
        for name in names:
            yield from self._decide(rows, LONGEST, name, second)
        if self.has_passkey(trained) and self.has_passkey(longest):
            yield Step(PASSKEYS, self._passkeys([reference], [trained], second))
            if BY_PASSKEY in self._evaluated_by(rows):
                yield Step(PASSKEYS, self._passkeys(names, [longest], second))
                for name in names:
                    yield from self._passkeys_at_end(rows, PASSKEYS, name, second)
        for width, most in ((_COARSE, second), (_COARSE, self.texts), (_FINE, self.texts)):
            for name in names:
                yield from self._narrow(rows, name, width, most)

    @property
    def _level(self) -> EvalKey:
        """The cell of the level that failure is measured against."""
        return EvalKey(TAIL.name, self.reference, self.trained)

    @property
    def _inside(self) -> list[int]:
        """A length within M that tells whether the model fails inside it already."""
        half = 2 * tail_tokens(self.trained)
        return [half] if half < self.trained else []

    def _nll(self, methods: Sequence[str], lengths: Sequence[int], count: int) -> dict[EvalKey, int]:
        return {EvalKey(TAIL.name, name, length): count for length in dict.fromkeys(lengths) for name in methods}

    def _passkeys(self, methods: Sequence[str], lengths: Sequence[int], count: int) -> dict[EvalKey, int]:
        fitting = [length for length in dict.fromkeys(lengths) if self.has_passkey(length)]
        return {EvalKey(PASSKEY.name, name, length): count for length in fitting for name in methods}

    def _next(self, rows: JournalRows) -> int | None:
        """The next length of the search for the reference's failure, on average over few texts; None: found, or none.

        The first is where its loss by position rises, where it does, else the longest; then the bracket is halved.
        """
        if NLL not in self._evaluated_by(rows):
            return None
        before, after = self._ends(rows)
        if after is None:
            beyond = [length for length in self._few(rows) if length > self.trained]
            near = self.longest - self.trained <= self.trained // _COARSE
            rises = None if beyond or near else self._rises(rows)
            return (rises or self.longest) if self.longest not in beyond else None
        return self._between(before, after, _COARSE)

    def _beyond(self, rows: JournalRows) -> int:
        """Where methods are compared first: where the reference fails, by position clearly; else at the longest."""
        _, fails = self._ends(rows)
        return max(fails, self._rises(rows) or 0) if fails else self.longest

    def _between(self, before: int | None, after: int | None, width: int) -> int | None:
        """The length nearest to the middle that may be measured, where both are more than M / `width` apart."""
        if before is None or after is None or after - before <= max(1, self.trained // width):
            return None
        between = [length for length in self.lengths if before < length < after]
        nearest = sorted(between, key=lambda length: abs(length - (before + after) / 2))
        unread = not self.has_passkey(self.trained)
        return next((length for length in nearest if unread or self.has_passkey(length)), None)

    def _decide(self, rows: JournalRows, stage: str, name: str, most: int) -> Iterator[Step]:
        """More prompts, look by look up to `most`, at the first and the last length at which failure is open."""
        while cells := self._open(rows, name, most):
            yield Step(stage, cells)

    def _passkeys_at_end(self, rows: JournalRows, stage: str, name: str, count: int) -> Iterator[Step]:
        """Passkeys at the last length at which a method that fails at a longer one works by all that is measured."""
        while True:
            after = self._bracket(rows, name)[0]
            cells = self._passkeys([name], [after], count) if after != self.longest else {}
            if not any(self._missing(rows, key, least) for key, least in cells.items()):
                return
            yield Step(stage, cells)

    def _narrow(self, rows: JournalRows, name: str, width: int, most: int) -> Iterator[Step]:
        """Halves what lies between the lengths at which a method clearly works, is open, and clearly fails."""
        while self._evaluated_by(rows):
            if cells := self._open(rows, name, most):
                yield Step(NARROWER, cells)
                continue
            if BY_PASSKEY in self._evaluated_by(rows):
                yield from self._passkeys_at_end(rows, NARROWER, name, self.looks[min(1, len(self.looks) - 1)])
            after, high, open_ = self._bracket(rows, name)
            if after == self.longest:
                return
            gaps = [(after, open_[0]), (open_[-1], high)] if open_ else [(after, high)]
            lengths = [length for start, end in gaps if (length := self._between(start, end, width))]
            if self._open(rows, name, most):
                continue
            if not lengths:
                return
            level = self._nll([self.reference], [self.trained], self.looks[0])
            yield Step(NARROWER, level | self._nll([name], lengths, self.looks[0]))

    def _open(self, rows: JournalRows, name: str, most: int) -> dict[EvalKey, int]:
        """The next look, up to `most` prompts, of the first and the last length at which a method's failure is open."""
        _, _, open_ = self._bracket(rows, name)
        cells: dict[EvalKey, int] = {}
        for length in {*open_[:1], *open_[-1:]}:
            nll, hits = self._above(rows, name, length), self._hits(rows, name, length)
            is_open = NLL in self._evaluated_by(rows) and self._by_nll(rows, name, length) == 0
            if is_open and (look := self._look(len(nll), most)):
                level, cell = (EvalKey(TAIL.name, *at) for at in ((self.reference, self.trained), (name, length)))
                cells |= {level: max(look, cells.get(level, 0)), cell: look}
            if hits and self._by_passkeys(rows, name, length) == 0 and (look := self._look(len(hits), most)):
                cells[EvalKey(PASSKEY.name, name, length)] = look
        return cells

    def _look(self, count: int, most: int) -> int:
        """The look after `count` prompts, up to `most`; 0 for none."""
        return next((look for look in self.looks if count < look <= most), 0)

    def _bracket(self, rows: JournalRows, name: str) -> tuple[int, int | None, list[int]]:
        """The longest length at which a method clearly works, the first from which on it clearly fails, and between.

        Between: the lengths at which that is open. Where passkeys are not measured, tail NLL tells alone.
        """
        lengths = [length for length in self._measured(rows, name) if length > self.trained]
        decisions = {length: self._tells(rows, name, length) for length in lengths}
        after = max((length for length in lengths if decisions[length] < 0), default=self.trained)
        beyond = [length for length in lengths if length > after]
        high = next((length for at, length in enumerate(beyond) if all(decisions[of] > 0 for of in beyond[at:])), None)
        return after, high, [length for length in beyond if high is None or length < high]

    def _tells(self, rows: JournalRows, name: str, length: int) -> int:
        """1: it clearly fails, -1: it clearly works, by all that is measured; 0: open."""
        nll = self._by_nll(rows, name, length) if NLL in self._evaluated_by(rows) else -1
        passkeys = self._by_passkeys(rows, name, length)
        return 1 if 1 in (nll, passkeys) else max(nll, passkeys)

    def _by_passkeys(self, rows: JournalRows, name: str, length: int) -> int:
        """As `_tells`, by passkeys alone; -1 where they are not evaluated, or not measured next to tail NLL."""
        hits, evaluated = self._hits(rows, name, length), self._evaluated_by(rows)
        if BY_PASSKEY not in evaluated:
            return -1
        if not hits:
            return -1 if NLL in evaluated else 0
        low, high = confidence_of({"looks": self.looks}).wilson(sum(hits), len(hits))
        return int(high < MIN_ACCURACY) - int(low >= MIN_ACCURACY)

    def _hits(self, rows: JournalRows, name: str, length: int) -> list[float]:
        hits = [*self._looked(rows, EvalKey(PASSKEY.name, name, length)).values()]
        return hits if len(hits) >= self.looks[0] else []  # a look that was cut short is made again

    def _rises(self, rows: JournalRows) -> int | None:
        """The first length that may be measured from which on the loss by position lies above the level; or None."""
        _, end = self._rising(rows) or (0, math.inf)
        return next((length for length in self.lengths if length >= end), None)

    def _rising(self, rows: JournalRows) -> tuple[int, int] | None:
        """Begin and end of the first bucket of positions beyond M from which on most lie above the level; or None."""
        ends, losses = self.by_position(rows)
        if not ends.size:
            return None
        inside = losses[(ends <= self.trained) & (ends > self.trained // 2)]
        level = float(inside.mean()) if inside.size else float(losses[0])
        above = losses > level + NATS_ABOVE
        beyond = ends[(ends > self.trained) & above]
        lasting = [end for end in beyond if above[ends >= end].mean() > 0.5]
        if not lasting:
            return None
        return max([self.trained, *ends[ends < min(lasting)]]), min(lasting)

    def by_position(self, rows: JournalRows) -> tuple[np.ndarray, np.ndarray]:
        """Ends of buckets of positions, and the loss in each, in one pass; both empty where it was not made."""
        row = rows.get(EvalKey(BY_POSITION, self.reference, self.longest))
        scores = sorted((score.length, score.value) for score in scores_of(row)) if row else []
        return np.array([end for end, _ in scores], int), np.array([value for _, value in scores], float)

    def position_text(self, rows: JournalRows) -> str:
        """Where the loss rises by position, in words; empty where it was not measured."""
        if not self.by_position(rows)[0].size:
            return ""
        rising, high = self._rising(rows), f"more than {NATS_ABOVE} nats/token above that inside M"
        where = f"from about position {rising[0]} on it is mostly {high}" if rising else f"it never stays {high}"
        return f"Loss of {self.reference} by position, in one pass over {self.longest} tokens: {where}"

    # What the rows tell

    def _order(self, task: str) -> list[int]:
        return in_order(self.texts) if task == TAIL.name else list(range(self.texts))

    def _values(self, rows: JournalRows, key: EvalKey) -> dict[int, float]:
        """Scores by sample."""
        return {score.sample: score.value for score in scores_of(rows[key])} if key in rows else {}

    def _looked(self, rows: JournalRows, key: EvalKey) -> dict[int, float]:
        """The scores of the last look that is complete; before the first one all."""
        values, order = self._values(rows, key), self._order(key.task)
        count = next((at for at, sample in enumerate(order) if sample not in values), len(order))
        count = max((look for look in self.looks if look <= count), default=count)
        return {sample: values[sample] for sample in order[:count]}

    def _above(self, rows: JournalRows, name: str, length: int) -> np.ndarray:
        """Tail NLL less the level's on the same texts."""
        at, level = (
            self._looked(rows, EvalKey(TAIL.name, *cell)) for cell in ((name, length), (self.reference, self.trained))
        )
        return np.array([at[sample] - level[sample] for sample in at if sample in level])

    def _by_nll(self, rows: JournalRows, name: str, length: int) -> int:
        """Whether it fails by tail NLL: see `decided`."""
        return int(decided(self._above(rows, name, length), confidence_of({"looks": self.looks})))

    def _measured(self, rows: JournalRows, name: str, least: int | None = None) -> list[int]:
        """The lengths at which a method has a first look, or `least` texts."""
        keys = (EvalKey(TAIL.name, name, int(key[2])) for key in rows if key[:2] == (TAIL.name, name))
        return sorted(key.length for key in keys if len(self._looked(rows, key)) >= (least or self.looks[0]))

    def _few(self, rows: JournalRows) -> list[int]:
        """The lengths at which the reference has a few texts."""
        return self._measured(rows, self.reference, min(FEW, self.texts))

    def _evaluated_by(self, rows: JournalRows) -> tuple[str, ...]:
        """Of the reference's scores up to M."""
        if not self.is_telling(rows):
            return ()
        kept = {key: row for key, row in rows.items() if key[1] == self.reference and int(key[2]) <= self.trained}
        state = tuple((key, len(row["scores"])) for key, row in kept.items())
        if state not in self._cache:
            scores = self.scores(kept, [self.reference])
            self._cache[state] = measured_failure(scores, self.trained, self.reference).evaluated_by
        return self._cache[state]

    def _ends(self, rows: JournalRows) -> tuple[int | None, int | None]:
        """The last length before those at which the reference fails on average, and the first of these; None: none."""
        lengths = self._few(rows) if NLL in self._evaluated_by(rows) else []
        fails = [self._above(rows, self.reference, length).mean() > NATS_ABOVE for length in lengths]
        first = next((at for at in range(len(fails)) if all(fails[at:])), None)
        if first is None:
            return (lengths[-1] if lengths else None), None
        return (lengths[first - 1] if first else None), lengths[first]

    def scores(self, rows: JournalRows, methods: Sequence[str] = ()) -> xr.Dataset:
        """As `failure_scores`, of unequal numbers of prompts; NaN where none is measured, or the look not complete.

        Without passkeys until each method has them at its longest length: a method that lacks them would rank above
        one that fails by them.
        """
        names = [*(methods or self.plan.methods)]
        keys = [EvalKey(str(key[0]), str(key[1]), int(key[2])) for key in rows if key[0] in TASKS and key[1] in names]
        least = self.looks[0] if len(self._looked(rows, self._level)) >= self.looks[0] else 1  # fewer only show the way
        keys = [key for key in keys if len(self._looked(rows, key)) >= least]
        lengths = sorted({key.length for key in keys if key.task == TAIL.name})
        setting = self.plan.setting
        farthest = dict(sorted((key.method, key.length) for key in keys if key.task == TAIL.name))
        by_passkey = [EvalKey(PASSKEY.name, *at) for at in farthest.items() if at[1] > self.trained]
        inside = EvalKey(PASSKEY.name, self.reference, self.trained)
        has_passkeys = {inside, *by_passkey} <= {*keys}
        if inside in keys and not has_passkeys:  # longer ones are not measured where those at M fail
            has_passkeys = BY_PASSKEY not in self._evaluated_by(rows)
        counts = {TAIL.name: self.texts} | ({PASSKEY.name: self.texts} if has_passkeys else {})
        arrays = {task: np.full((len(names), len(lengths), count), np.nan) for task, count in counts.items()}
        for key in (key for key in keys if key.task in counts and key.length in lengths):
            row = arrays[key.task][names.index(key.method), lengths.index(key.length)]
            for sample, value in self._looked(rows, key).items():
                row[sample] = value
        attrs = [("tail NLL", "nats/token"), ("passkey found", "1")]
        dims = (("tail_nll", "window"), ("passkey", "sample"))
        variables = {
            name: (("method", "length", repeats), array, {"long_name": title, "units": units})
            for (name, repeats), array, (title, units) in zip(dims, arrays.values(), attrs, strict=False)
        }
        read = {
            key: [score for score in rows[key]["scores"] if score["sample"] in self._looked(rows, key)] for key in keys
        }
        variables |= scored_distances(
            setting, {key: {"scores": scores} for key, scores in read.items()}, names, lengths, self.texts
        )
        about = {
            "tail": tail_tokens(setting.trained_length),
            "seed": setting.seed,
            "trained_length": setting.trained_length,
            "vocabulary": self.plan.config.vocab_size,
            "rotary": is_rotary(self.plan.config.model_type),
            "looks": [*self.looks],
            "by_position": self.position_text(rows),
        }
        return xr.Dataset(variables, {"method": names, "length": lengths}, about)

    def is_telling(self, rows: JournalRows) -> bool:
        """Whether there is something to report: the level at M."""
        return self._level in rows

    def nominal(self) -> list[Task]:
        """The tasks up to the stage of passkeys, as if Origin failed half-way and three lengths found it."""
        names, first = [*self.plan.methods], self.looks[0]
        middle = min(self.lengths, key=lambda length: abs(length - (self.trained + self.longest) // 2))
        cells = {EvalKey(BY_POSITION, self.reference, self.longest): 1}
        cells |= self._nll([self.reference], self._inside, first)
        cells |= self._nll(names, [self.trained, self.longest], first)
        if self.longest - self.trained > self.trained // _COARSE:
            cells |= self._nll(names, [middle], first) | self._nll([self.reference], [middle], 2 * FEW)
        cells = {self._measured_as(key): count for key, count in cells.items()}
        tasks = [task for key, count in cells.items() for task in self._tasks_of(key, self._order(key.task)[:count])]
        return [*tasks, *self._tasks_of(self._level, self._order(TAIL.name)[:REFERENCE_TEXTS])]  # in-window states


def _new(former: JsonObject, row: JsonObject) -> list[JsonObject]:
    """The scores of a row whose samples a former one lacks."""
    there = {score["sample"] for score in former["scores"]}
    return [score for score in row["scores"] if score["sample"] not in there]


def passkey_check(tokenizer: Any, plan: EvalPlan) -> Callable[[int], bool]:
    """Whether there are passkey prompts of a length."""

    @cache
    def has(length: int) -> bool:
        return not unfit_length([PASSKEY], tokenizer, length, plan.setting)

    return has
