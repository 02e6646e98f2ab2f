"""Heads read as the theorems' head is, and held: what is run, journaled and summarized."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from typing import Any

import numpy as np
import torch
import xarray as xr
from torch import Tensor
from tqdm import tqdm

from mesa.engine.bridge import bridge as bridge_to
from mesa.fingerprints import identity, ids_fingerprint
from mesa.methods import Method, Origin, make
from mesa.models import bytes_a_number, check_placement, config_of, load, tokenizer_of
from mesa.support import check_config, check_method, trained_length
from probe.capture.memory import check_memory, peak_bytes
from probe.commands.locate.interventions import Edit, Item, run as one_pass
from probe.commands.locate.run import PairedLosses
from probe.eval_tasks import sources
from probe.eval_tasks.base import PromptSpec
from probe.eval_tasks.retrieval import repeated_word, word_ids
from probe.eval_tasks.score import heldout_ids
from probe.eval_tasks.tasks import TAIL, tail_tokens
from probe.options import head_name
from probe.statistics import student
from probe.thresholds.search import CrossingRule, check_positions, search
from research.script import Cell, Journal
from research.trained_counterpart.first_key import first_key
from research.trained_counterpart.reading import TINY, chosen_queries, read_heads, shortest

COUNTERPARTS, NEAREST, EVERY = "found", "nearest", "every"
SETS = (COUNTERPARTS, NEAREST, EVERY)
"""Sets of heads that are held: those that play the part, those that follow the position best, and all of the model."""
CROSSED = ("attn_out", "resid_post")
"""Hooks whose dims' crossings are counted."""
BLOCKS = 8
"""Blocks of a text's scored tokens, which are resampled."""
Head = tuple[int, int]
"""(layer, head)."""
_KNOWN = 8  # the last M/8 queries inside the window give the held value
_DENSE = 6  # copies of a layer's weights (head, query, key) that are held at once


@dataclass(frozen=True)
class Counterpart:
    """What is run: heads are found on the even items of the longest length, and held on the odd ones of each.

    items: texts by length, in tokens. method: the one that mends, for shares of the gap.
    """

    model: str
    load: Mapping[str, Any]
    config: Any
    origin: Method
    method: Method
    items: dict[int, list[Item]]
    settings: Mapping[str, Any]
    nearest: int
    draws: int
    word: str
    find_only: bool = False

    @property
    def trained_length(self) -> int:
        """M, in tokens."""
        return self.origin.trained_length

    @property
    def longest(self) -> int:
        """The longest length, on which heads are found."""
        return max(self.items)

    @property
    def numbers(self) -> range:
        """The numbers of the items."""
        return range(len(self.items[self.longest]))

    @property
    def cells(self) -> list[Cell]:
        """What is journaled, in the order in which it is run."""
        collected: list[Cell] = [("find", number) for number in self.numbers[::2]]
        held: list[Cell] = [("hold", length, number) for length in sorted(self.items) for number in self.numbers[1::2]]
        return collected if self.find_only else [*collected, *held, ("crossed", self.longest)]


def plan(
    model: str = "default",
    load: Mapping[str, Any] | None = None,
    method: str = "rerope",
    trained: int | None = None,
    lengths: Sequence[int] | None = None,
    samples: int = 8,
    nearest: int = 4,
    draws: int = 10,
    word: str = "hello",
    text: str | None = None,
    seed: int = 0,
    *,
    find_only: bool = False,
) -> Counterpart:
    """The run, checked against the model's config. Raises ValueError or FileNotFoundError, naming the value.

    lengths: in tokens, None: 2 M and 4 M. samples: texts that heads are found on, and as many others to hold them on.
    """
    options = dict(load or {"device": "cpu"})
    check_placement(options)
    config = config_of(model)
    check_config(config)
    trained = trained or trained_length(config)
    mending = make(method, trained)
    check_method(config, mending)
    lengths = sorted({*(lengths or (2 * trained, 4 * trained))})
    if lengths[0] <= trained or lengths[-1] < shortest(trained):
        raise ValueError(f"--lengths must be beyond M={trained}, and one {shortest(trained)} or more")
    check_positions(range(lengths[-1]), trained, CrossingRule.scaled(trained))
    tokenizer = tokenizer_of(model)
    word_ids(tokenizer, word)
    documents = tuple(heldout_ids(tokenizer, sources.texts(text)))
    count = 2 * samples - 1 if find_only else 2 * samples
    room = sum(len(ids) // lengths[-1] for ids in documents) or sum(map(len, documents)) // lengths[-1]
    if room < count:
        raise ValueError(f"--samples needs {count} texts of {lengths[-1]} tokens that do not overlap, there are {room}")
    setting = PromptSpec(trained, tuple(lengths), count, seed, documents)
    last = tail_tokens(trained)
    items = {
        length: [Item(tuple(ids.tolist()), last) for ids in TAIL.prepare(tokenizer, length, setting, count)]
        for length in lengths
    }
    settings = {"model": model, "load": options, "trained_length": trained, "lengths": lengths, "samples": samples}
    settings |= {"method": mending.describe(), "nearest": nearest, "draws": draws, "word": word, "text": text}
    settings |= {"seed": seed, "find_only": find_only, "documents": ids_fingerprint(documents)}
    settings |= identity(model, config)
    origin = Origin(trained_length=trained)
    return Counterpart(model, options, config, origin, mending, items, settings, nearest, draws, word, find_only)


def run(plan: Counterpart, journal: Journal, over: Callable[[], bool]) -> None:
    """Journals every missing cell, until it is `over`. Raises MemoryError before any pass for what does not fit."""
    left = [cell for cell in plan.cells if cell not in journal.rows]
    if not left:
        return
    config, longest, number_bytes = plan.config, plan.longest, bytes_a_number(plan.config, plan.load)
    dense = _DENSE * config.num_attention_heads * longest**2 * number_bytes
    check_memory(peak_bytes(config, longest, number_bytes, dense), longest)
    loaded = load(plan.model, **plan.load)
    bridge = bridge_to(loaded.model, loaded.tokenizer)
    for cell in tqdm(left, desc="looking for counterparts", unit="cell"):
        if over():
            return
        with torch.no_grad():
            journal.add(cell, _row(plan, bridge, loaded.tokenizer, journal, cell))


def _row(plan: Counterpart, bridge: Any, tokenizer: Any, journal: Journal, cell: Cell) -> dict[str, Any]:
    kind, *numbers = cell
    if kind == "find":
        ids = plan.items[plan.longest][int(numbers[0])].ids
        collected = first_key(bridge, ids, plan.origin, chosen_queries(len(ids), plan.trained_length))
        return {name: _short(values) for name, values in collected.items()}
    sets = held_sets(plan, heads_of(plan, journal))
    if kind == "crossed":
        return {"crossing": _crossings(plan, bridge, tokenizer, sets)}
    length, number = map(int, numbers)
    return {"nll": _losses(plan, bridge, sets, plan.items[length][number])}


def _losses(plan: Counterpart, bridge: Any, sets: Mapping[str, list[Edit]], item: Item) -> dict[str, list[float]]:
    """Losses by block of one item as trained, under the method, and with each set held."""
    runs = {plan.origin.name: (plan.origin, []), plan.method.name: (plan.method, [])}
    runs |= {name: (plan.origin, edits) for name, edits in sets.items()}
    collected = {}
    for name, (method, edits) in runs.items():
        losses = one_pass(bridge, item, method, edits, executor="dense").losses.double().cpu().numpy()
        collected[name] = [float(part.mean()) for part in np.array_split(losses, min(BLOCKS, len(losses)))]
    return collected


def _crossings(
    plan: Counterpart, bridge: Any, tokenizer: Any, sets: Mapping[str, list[Edit]]
) -> dict[str, dict[str, int]]:
    """How many dims are threshold dims on a repeated word, and how many of these still cross with each set held."""
    ids, _ = repeated_word(tokenizer, plan.word, plan.longest)
    item, depth = Item(tuple(ids), 1), plan.config.num_hidden_layers
    keep = [(hook, layer) for hook in CROSSED for layer in range(depth)]
    states = {
        name: one_pass(bridge, item, plan.origin, edits, record=keep, executor="dense").activations
        for name, edits in {plan.origin.name: [], **sets}.items()
    }
    collected = {}
    for hook in CROSSED:
        values = [[kept[hook, layer].double().cpu().numpy() for layer in range(depth)] for kept in states.values()]
        coords = {"method": list(states), "layer": range(depth), "position": range(plan.longest)}
        hidden = xr.DataArray(np.array(values, np.float32), coords, (*coords, "dim"), hook)
        read = search(hidden, plan.trained_length, CrossingRule.scaled(plan.trained_length), plan.origin.name)
        crosses = read["crossing"].notnull() & read["threshold_dim"]
        collected[hook] = {name: int(crosses.sel({"method": name}).sum()) for name in states}
    return collected


def heads_of(plan: Counterpart, journal: Journal) -> list[dict[str, Any]]:
    """What is read of every head (see `read_heads`); empty while texts that they are found on are left."""
    rows = [journal.rows.get(cell) for cell in plan.cells if cell[0] == "find"]
    if not all(rows):
        return []
    values = (np.array([row[name] for row in rows if row]) for name in ("attention", "output", "apart"))
    attention, output, apart = values
    queries = chosen_queries(plan.longest, plan.trained_length)
    return read_heads(attention, output, apart, queries, plan.trained_length)


def chosen_sets(plan: Counterpart, heads: Sequence[Mapping[str, Any]]) -> dict[str, list[Head]]:
    """The sets that are held, by name; `found` may be empty."""
    best = sorted(heads, key=lambda row: -row["monotone"][0])[: plan.nearest]
    rows = {COUNTERPARTS: [row for row in heads if row["part"]], NEAREST: best, EVERY: heads}
    return {name: sorted((row["layer"], row["head"]) for row in rows[name]) for name in SETS}


def held_sets(plan: Counterpart, heads: Sequence[Mapping[str, Any]]) -> dict[str, list[Edit]]:
    """Edits by name: of each set that has heads, and of its random ones."""
    collected = {}
    for name, chosen in chosen_sets(plan, heads).items():
        if chosen:
            collected[name] = hold(chosen, plan.trained_length)
            for draw in range(plan.draws) if name != EVERY else ():
                if drawn := random_heads(chosen, plan.config.num_attention_heads, draw):
                    collected[f"{name} random {draw}"] = hold(drawn, plan.trained_length)
    return collected


def hold(heads: Sequence[Head], trained: int) -> list[Edit]:
    """Edits of the attention weights by which queries from M on give the first key what the last M/8 before M gave.

    The value is the mean of those queries, of the same head and text; the other keys share the rest as before.
    """
    by_layer: dict[int, list[int]] = {}
    for layer, head in heads:
        by_layer.setdefault(layer, []).append(head)
    return [
        Edit(("pattern", layer), partial(held, heads=of_layer, trained=trained)) for layer, of_layer in by_layer.items()
    ]


def held(pattern: Tensor, heads: Sequence[int], trained: int) -> Tensor:
    """Weights (head, query, key), those of `heads` for queries from `trained` on with the first key's held.

    A query that sees nothing but the first key stays as it is.
    """
    for head in heads:
        value = pattern[head, trained - max(1, trained // _KNOWN) : trained, 0].mean()
        beyond = pattern[head, trained:]
        rest = beyond[:, 1:].sum(1, keepdim=True)
        beyond[:, 1:] /= rest.where(rest > 0, 1)  # first: 1 / rest may be beyond what numbers hold
        beyond[:, 1:] *= 1 - value
        beyond[:, 0] = value.where(rest[:, 0] > 0, beyond[:, 0])
    return pattern


def random_heads(heads: Sequence[Head], count: int, draw: int) -> list[Head]:
    """As many other heads of the same layers, of `count` each, at random; fewer where a layer has no more. Seeded."""
    rng, collected = np.random.default_rng(draw), []
    for layer in sorted({layer for layer, _ in heads}):
        taken = [head for at, head in heads if at == layer]
        others = [head for head in range(count) if head not in taken]
        chosen = rng.choice(others, min(len(taken), len(others)), replace=False) if others else []
        collected += sorted((layer, int(head)) for head in chosen)
    return collected


def summarize(plan: Counterpart, journal: Journal) -> dict[str, Any]:
    """The summary of what the journal holds, ready for JSON.

    `heads`: as `read_heads` tells them; `curves`: D of those found and nearest, by position. `held`, by length and set:
    nats/token that holding it restores (`restored`), and that less its random sets' mean (`beyond_random`), each
    [mean, low, high] over the judged texts; the `random` sets' mean, least and largest; the `share` of the gap, where
    there is one. `crossed`, by hook: dims that cross on the repeated word as trained, with each set held, and with the
    `random` sets.
    """
    heads = heads_of(plan, journal)
    sets = chosen_sets(plan, heads) if heads else {}
    return {
        "model": plan.model,
        "trained_length": plan.trained_length,
        "seed": plan.settings["seed"],
        "versions": {package: version(package) for package in ("mesa-lens", "torch", "transformers")},
        "lengths": sorted(plan.items),
        "method": plan.method.describe(),
        "texts": {"found_on": len(plan.numbers[::2]), "judged": 0 if plan.find_only else len(plan.numbers[1::2])},
        "tasks_left": sum(cell not in journal.rows for cell in plan.cells),
        "heads": heads,
        "sets": sets,
        "curves": _curves(plan, journal, sorted({*sets[COUNTERPARTS], *sets[NEAREST]})) if heads else {},
        "held": [row for length in sorted(plan.items) for row in _held(plan, journal, length)],
        "crossed": _crossed(plan, journal),
    }


def _curves(plan: Counterpart, journal: Journal, heads: Sequence[Head]) -> dict[str, Any]:
    """D by position, its geometric mean over the texts that heads are found on, for some heads (by name)."""
    attention = np.array([row["attention"] for cell, row in journal.rows.items() if cell[0] == "find"])
    level = -np.log(np.maximum(attention, TINY)).mean(0)
    curves = {head_name(layer, head): np.exp(level[layer, head]).round(3).tolist() for layer, head in heads}
    return {"position": chosen_queries(plan.longest, plan.trained_length), "D": curves}


def _held(plan: Counterpart, journal: Journal, length: int) -> list[dict[str, Any]]:
    """A row a set, over the judged texts that are there."""
    rows = [journal.rows[cell]["nll"] for cell in plan.cells if cell[:2] == ("hold", length) and cell in journal.rows]
    if not rows:
        return []
    losses = {name: np.array([row[name] for row in rows]) for name in rows[0]}
    origin = losses[plan.origin.name]
    judge = PairedLosses(origin, losses[plan.method.name])
    gap, collected = judge.gap, []
    for name in (name for name in SETS if name in losses):
        gained = origin - losses[name]
        random = np.array([origin - values for other, values in losses.items() if other.startswith(f"{name} random ")])
        share = judge.share(losses[name]) if gap.significant else None
        entry: dict[str, Any] = {
            "length": length,
            "set": name,
            "texts": len(rows),
            "gap": [gap.size, gap.low, gap.high],
            "restored": _mean(gained),
            "share": None if share is None else [share.value, share.low, share.high],
        }
        if len(random):
            entry["beyond_random"] = _mean(gained - random.mean(0))
            entry["random"] = [float(f(random.mean((1, 2)))) for f in (np.mean, np.min, np.max)]
        collected.append({key: _without_nan(value) for key, value in entry.items()})
    return collected


def _crossed(plan: Counterpart, journal: Journal) -> dict[str, Any]:
    """By hook, how many dims cross."""
    row = journal.rows.get(("crossed", plan.longest), {"crossing": {}})
    collected = {}
    for hook, counts in row["crossing"].items():
        random = {
            name: [count for other, count in counts.items() if other.startswith(f"{name} random ")] for name in SETS
        }
        collected[hook] = {
            "as_trained": counts[plan.origin.name],
            **{name: counts[name] for name in SETS if name in counts},
            "random": {name: drawn for name, drawn in random.items() if drawn},
        }
    return collected


def _mean(values: np.ndarray) -> list[float | None]:
    """Mean over texts of values (text, block), with its interval."""
    return [float(values.mean(1).mean()), *student(values.mean(1).tolist())]


def _without_nan(value: Any) -> Any:
    if not isinstance(value, list):
        return value
    return [None if number is None or np.isnan(number) else number for number in value]


def _short(values: np.ndarray) -> list[Any]:
    """Nested lists of numbers with 9 significant digits."""
    return [float(f"{value:.9g}") for value in values] if values.ndim == 1 else [_short(row) for row in values]
