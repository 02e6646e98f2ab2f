"""Workers as actors of Ray, each with the model loaded once; this process alone writes what they give."""

from __future__ import annotations

import os
import sys
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import psutil
from tqdm import tqdm

from probe.cells.cell import Cell, Outcome, Work
from probe.cells.rooms import Share
from probe.cells.turns import Turns
from probe.cells.watch import Watch
from probe.cells.worker import Place, Worker

TRIES = 3
"""How often a cell is begun whose workers die, and how often a worker is that dies as it loads."""
_AHEAD = 16  # cells a worker that may be under way or held back
_PART = 4  # of the free memory, what may be
_PATIENCE = 30.0  # seconds
_REASONS = {
    "the machine ran out of memory": ("low on memory", "OUT_OF_MEMORY", "OutOfMemory"),
    "its machine was lost": ("node has died", "node was terminated", "node failure", "NodeDied"),
    "it cannot be reached": ("ActorUnavailable", "is temporarily unavailable"),  # so is a machine's that was just lost
}
"""Why a worker is lost, by words of Ray's errors, of whatever kind these are."""


class Crew:
    """A pool of workers on Ray. rooms: by worker, the bytes beside the weights that it may take."""

    def __init__(self, ray: Any, work: Work, share: Share, rooms: Sequence[int], *, verbose: bool) -> None:
        self.ray, self.work, self.share, self.verbose = ray, ray.put(work), share, verbose
        self.most, self.room = _AHEAD * len(rooms), psutil.virtual_memory().available // _PART
        self.members = [Member(self, number, room) for number, room in enumerate(rooms, 1)]

    def wait(self) -> None:
        """Until a worker has loaded the model; raises what keeps it from that."""
        while not any(member.place for member in self.members):
            for member in self._ended(_write):
                member.end()

    def run(self, turns: Turns, watch: Watch) -> Iterator[tuple[Cell, Outcome]]:
        """Outcomes, as they come. A cell whose worker dies is begun again, `TRIES` times in all."""
        tries: Counter[Cell] = Counter()
        again: deque[Cell] = deque()
        while True:
            self._send(turns, again, watch)
            if not any(member.cell for member in self.members):
                cell = again.popleft() if again else turns.take()
                if cell is None:
                    return
                if not any(member.task and member.room >= cell.needs for member in self.members):
                    yield cell, Outcome(lost=self._too_large(cell))
                    continue
                again.appendleft(cell)  # somebody who loads may take it
            for member in self._ended(watch.tell):
                cell, outcome = member.end()
                if cell is None:
                    continue
                tries[cell] += 1
                if outcome.lost and tries[cell] < TRIES:
                    watch.tell(f"worker {member.number} is lost, {outcome.lost}; begun again: {cell.key}")
                    again.append(cell)
                else:
                    yield cell, outcome
                del outcome

    def drop(self, member: Member, reason: str) -> None:
        """Goes on without a worker; raises RuntimeError where it was the last."""
        self.members.remove(member)
        said = f"worker {member.number} died {TRIES} times as it loaded the model ({reason})"
        if not self.members:
            raise RuntimeError(f"{said}; no worker is left")
        _write(f"{said}; the other {len(self.members)} go on")

    def close(self) -> None:
        """Ends the workers."""
        for member in self.members:
            self.ray.kill(member.actor)

    def _send(self, turns: Turns, again: deque[Cell], watch: Watch) -> None:
        """Gives whoever is idle a cell that fits."""
        for member in self.members:
            if member.task is not None:
                continue
            cell = next((each for each in again if each.needs <= member.room), None)
            if cell is not None:
                again.remove(cell)
            else:
                cell = turns.take(member.room)
            if cell is not None:
                member.send(cell)
                watch.began(cell, member.number)

    def _ended(self, tell: Callable[[str], None]) -> list[Member]:
        """Those whose task has ended; none where nobody could be placed for a while, which is told."""
        at = {member.task: member for member in self.members if member.task is not None}
        done, _ = self.ray.wait(list(at), num_returns=1, timeout=_PATIENCE)
        if not done and not any(member.place for member in self.members):
            have = f"{self.share.cpus:g} CPUs, {self.share.gpus:g} GPUs"
            tell(f"no worker is ready yet: each takes {have} and loads the model; the cluster may be busy")
        return [at[task] for task in done]

    def _too_large(self, cell: Cell) -> str:
        most = max(member.room for member in self.members)
        return f"it needs about {cell.needs / 2**30:.1f} GiB, the roomiest worker has {most / 2**30:.1f}"


class Member:
    """A worker's place in a crew: the actor at present, and the task that it is at; no task: idle."""

    def __init__(self, crew: Crew, number: int, room: int) -> None:
        self.number, self.room = number, room
        self._crew, self._given, self._deaths = crew, room, 0
        self.cell: Cell | None = None
        self.start()

    def start(self) -> None:
        """A fresh actor, which begins to load."""
        crew, share = self._crew, self._crew.share
        actor = crew.ray.remote(Worker).options(
            num_cpus=share.cpus, num_gpus=share.gpus, memory=self._given + share.weights
        )
        self.place: Place | None = None
        self.actor: Any = actor.remote()
        self.task: Any = self.actor.begin.remote(crew.work, self._given, int(share.cpus), os.getcwd())

    def send(self, cell: Cell) -> None:
        """Begins a cell."""
        self.cell, self.task = cell, self.actor.run.remote(cell)

    def end(self) -> tuple[Cell | None, Outcome]:
        """The cell that has ended, and what came of it; None where the model was loaded. A dead actor is replaced.

        Raises the error that the loading ended with, RuntimeError where all workers die at it, or cannot hand back.
        """
        cell, task, self.cell, self.task = self.cell, self.task, None, None
        errors = self._crew.ray.exceptions
        try:
            outcome = self._crew.ray.get(task)
        except errors.RayTaskError as error:
            raise RuntimeError(f"worker {self.number}: {_last_line(error)}") from error
        except errors.RayError as error:
            return cell, self._replaced(error, cell is None)
        if cell is None:
            self._placed(outcome)
        return cell, outcome

    def _placed(self, outcome: Outcome) -> None:
        if outcome.error:
            raise outcome.error
        place: Place = outcome.value
        self.place, self.room, self._deaths = place, place.room, 0
        if self._crew.verbose:
            _write(
                f"worker {self.number}: process {place.pid} on {place.host}, {self._crew.share.cpus:g} thread(s), "
                f"{place.room / 2**30:.1f} GiB beside the weights"
            )

    def _replaced(self, error: Exception, was_loading: bool) -> Outcome:
        self._deaths += was_loading
        self._crew.ray.kill(self.actor)
        if self._deaths < TRIES:
            self.start()
        else:
            self._crew.drop(self, _last_line(error))
        return Outcome(lost=_reason(error))


def _reason(error: Exception) -> str:
    said = f"{type(error).__name__}: {error}"
    found = (reason for reason, words in _REASONS.items() if any(each in said for each in words))
    return next(found, "its process died")


def _last_line(error: Exception) -> str:
    return str(error).strip().splitlines()[-1].strip()


def _write(text: str) -> None:
    tqdm.write(text, file=sys.stderr)
