"""The main results of an anatomy run as sentences computed from its summary. No torch.

"Cannot tell" is an outcome of its own: intervals that leave a question open, and parts that were not measured, show no
absence.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from probe.commands.anatomy.result import Anatomy, HeadMeasured, Retrieval, RetrievalHead
from probe.store.result_file import having
from probe.store.results import ranged

RETRIEVES = 0.3
"""Least score inside M of a retrieval head."""
_NAMED = 6  # heads in a sentence, at most
_PREVIOUS = 0.5  # least share on the token before of a previous-token head


def anatomy_findings(summary: Anatomy) -> list[str]:
    """A paragraph for every part that was measured beyond M, and which parts were not."""
    paragraphs = [" ".join(part(summary)) for part in (_retrieval, _previous)]
    absent = ", ".join(name for name in ("heads", "retrieval") if not getattr(summary, name))
    paragraphs.append(f"Not measured: {absent} (--parts)." if absent else "")
    paragraphs.append(f"{summary.tasks_left} tasks are left to run." if summary.tasks_left else "")
    return [paragraph for paragraph in paragraphs if paragraph]


def _retrieval(summary: Anatomy) -> Iterator[str]:
    """Which heads stop retrieving beyond M, which methods recover them, and where neither can be told."""
    reference, trained = summary.reference, summary.trained_length
    measured = having(summary.retrieval, method=reference)
    lengths = sorted({row.length for row in measured})
    if not lengths or lengths[-1] <= trained:
        return
    if lengths[0] > trained:
        yield "Retrieval: cannot tell which heads are lost; no length up to M was measured."
        return
    inside = having(measured, length=max(length for length in lengths if length <= trained))
    heads = [row for row in inside if row.best.mean >= RETRIEVES]
    score = f"score {RETRIEVES} or more inside M under {reference} ({_prompts(inside)})"
    text = f"Retrieval: {len(heads)} of {_heads(inside)} {score}"
    if not heads:
        best = max(inside, key=lambda row: row.best.mean)
        yield f"{text}; highest: {best.name}, {ranged(*best.best)}."
        return
    after = sum(row.best_offset for row in heads)
    yield f"{text}{f', {after} of them on the token after the one emitted' if after else ''}."
    for length in dict.fromkeys(row.length for row in summary.retrieval_heads):
        rows = having(summary.retrieval_heads, length=length)
        yield _lost(rows, reference, _prompts(having(measured, length=length)))
        if lost := having(rows, lost=True):
            others = [name for name in summary.methods if name != reference and name in rows[0].beyond]
            recovered = "; ".join(_recovered(lost, name) for name in others)
            yield f"Of the lost heads, recovered: {recovered}." if others else ""


def _lost(rows: Sequence[RetrievalHead], reference: str, prompts: str) -> str:
    """How many of the retrieval heads are lost and kept at one length, and of how many that is open."""
    outcomes: dict[str, list[RetrievalHead]] = {"lost": [], "kept": [], "cannot tell": []}
    for row in sorted(rows, key=lambda row: -row.inside.mean):
        outcomes["lost" if row.lost else "kept" if row.kept else "cannot tell"].append(row)
    parts = []
    for outcome, members in outcomes.items():
        named = [f"{row.name} ({row.inside.mean:z.2f} to {row.beyond[reference].mean:z.2f})" for row in members]
        more = f" and {len(members) - _NAMED} more" if len(members) > _NAMED else ""
        parts += [f"{outcome} {len(members)}: {', '.join(named[:_NAMED])}{more}"] if members else []
    return f"At {rows[0].length} tokens ({prompts}; score inside to beyond M): {'; '.join(parts)}."


def _recovered(lost: Sequence[RetrievalHead], name: str) -> str:
    """How many lost heads retrieve again under a method, and of how many that is open."""
    others = [row for row in lost if name not in row.recovered_by]
    unclear = sum(not (name in row.beyond and row.beyond[name].high < row.inside.mean / 2) for row in others)
    return f"{len(lost) - len(others)} of {len(lost)} by {name}{f' (cannot tell: {unclear})' if unclear else ''}"


def _previous(summary: Anatomy) -> Iterator[str]:
    """The heads that attend to the token before inside M, and whether they still do beyond it, by length beyond M."""
    reference = summary.reference
    for length in (length for length in summary.lengths if length > summary.trained_length):
        inside = having(summary.heads, method=reference, length=length, span="inside M")
        if not inside:
            continue
        ranked = sorted(inside, key=lambda row: -row.previous.mean)
        heads = [row for row in ranked if row.previous.mean >= _PREVIOUS]
        parts = [_beyond(summary, row) for row in heads[:_NAMED]]
        parts += [f"and {len(heads) - _NAMED} more"] if len(heads) > _NAMED else []
        text = "; ".join(parts) or f"highest: {ranked[0].name}, {ranged(*ranked[0].previous)}"
        of = f"of {_heads(inside)} (attention on the token before at least {_PREVIOUS} inside M, {_prompts(inside)})"
        yield f"Previous-token heads under {reference} at {length} tokens: {len(heads)} {of}; {text}."


def _beyond(summary: Anatomy, row: HeadMeasured) -> str:
    beyond = having(summary.heads, layer=row.layer, head=row.head, length=row.length, span="beyond M")
    scores = ", ".join(f"{other.previous.mean:z.2f} {other.method}" for other in beyond)
    return f"{row.name} {row.previous.mean:z.2f}{f' (beyond M {scores})' if scores else ''}"


def _heads(rows: Sequence[HeadMeasured | Retrieval]) -> str:
    return "1 head" if len(rows) == 1 else f"{len(rows)} heads"


def _prompts(rows: Sequence[HeadMeasured | Retrieval]) -> str:
    """Over how many prompts the rows are means."""
    counts = sorted({row.n for row in rows})
    return f"{counts[0]} prompt{'s' * (counts[0] > 1)}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]} prompts"
