"""What `mesa-lens anatomy` measured, as sections of a page."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from probe.commands.anatomy.figures import STATISTICS, head_map
from probe.commands.anatomy.result import Anatomy
from probe.commands.anatomy.sentences import anatomy_findings
from probe.figures.export import safe_name
from probe.figures.figure_data import at_length
from probe.figures.section import Section, provenance
from probe.store.results import ranged
from probe.tables import Table

_COLUMNS = {
    "mean distance (tokens)": ("mean_distance", 0),
    "beyond M": ("mass_beyond", 2),
    "on token 0": ("sink", 2),
    "entropy (nats)": ("entropy", 2),
}
_MADE = {
    "Attention": "Exact weights of sampled queries: those inside M stand in its second half, those beyond M up to the "
    "end.",
    "Retrieval score": "Share of the passkey's tokens at which the key that a head attends to most holds the token to "
    "be emitted, or follows it; the better of both. Such a head is lost where its score falls below half of that "
    "inside M and the intervals are apart; a method recovers it where its score is half or more and above the "
    "reference's.",
}


def title(summary: Anatomy) -> str:
    """The page's heading."""
    return f"{summary.model}: attention statistics beyond M = {summary.trained_length} tokens"


def sections(summary: Anatomy) -> list[Section]:
    """The whole report: findings, means over heads, every method's maps by length, how each number is made."""
    places = [place(summary, length, list(summary.methods)) for length in summary.lengths]
    definitions = Section("How each number is made", parts=[Section(name, [text]) for name, text in _MADE.items()])
    return [*headline(summary), *(part for part in places if part.parts), definitions, provenance(summary)]


def headline(summary: Anatomy) -> list[Section]:
    """What was found in sentences, and the means over all heads."""
    return [Section("", anatomy_findings(summary)), *all_heads(summary, summary.lengths)]


def all_heads(summary: Anatomy, lengths: Sequence[int]) -> list[Section]:
    """Means over all heads, a row a method, length and span of queries; nothing where none were measured."""
    rows = tuple(
        (
            row.method,
            str(row.length),
            row.span,
            str(row.n),
            *(ranged(*getattr(row, column), digits=digits) for column, digits in _COLUMNS.values()),
        )
        for row in summary.all_heads
        if row.length in lengths
    )
    text = "means over heads with 95% intervals over prompts, by where the query stands"
    table = Table(text, ("method", "length", "queries", "prompts", *_COLUMNS), rows)
    return [Section("All heads", tables=[table])] if rows else []


def place(summary: Anatomy, length: int, methods: Iterable[str]) -> Section:
    """One length: the maps of each method, folded, a part a statistic."""
    by_method = {method: _maps(summary, method, length) for method in methods}
    parts = [Section(method, parts=maps, folded=True) for method, maps in by_method.items() if maps]
    return Section(at_length(summary.model, summary.trained_length, length), parts=parts)


def _maps(summary: Anatomy, method: str, length: int) -> list[Section]:
    maps = {name: head_map(summary, name, method, length) for name in STATISTICS}
    return [
        Section(STATISTICS[name].label, figures={f"anatomy-{name}-{safe_name(method)}-{length}": figure})
        for name, figure in maps.items()
        if figure is not None
    ]
