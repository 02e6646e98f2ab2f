"""The verdict's sentences: what broke, where, what mended it, how sure that is."""

from __future__ import annotations

import math
from collections.abc import Sequence

from probe.commands.probe.result import Row
from probe.commands.probe.rows import Rows, beats, is_worse, reference_of, to_crop
from probe.commands.probe.tables import difference, difference_to_crop, position
from probe.store.results import percent
from probe.thresholds.drift_onset import ranges
from probe.thresholds.failure import NLL, PASSKEY, Failure
from probe.thresholds.result import DriftResult, Findings, Level, PromptDrift
from probe.thresholds.stated_window import times_of_m

NAMED = 4
"""More methods than these are counted."""
_PROMPTS = (("window", "text", "tail NLL"), ("sample", "passkey", "passkey"))
_AT_CHANCE = "Cannot tell: the model is at chance inside its window"


def broke(findings: Findings, rows: Rows) -> str:
    """Between which lengths the reference fails, or that it holds, is at chance or was not measured."""
    reference, trained = reference_of(rows), findings.trained_length
    name, measured = reference.method, reference.measured
    if measured is None:
        return f"Nothing was measured by length (--samples 0); {name} was trained on windows of M = {trained} tokens."
    if reference.held is None and findings.level:
        return f"{_AT_CHANCE} ({level(findings.level, name)})."
    prompts = counted(findings)
    if measured.length is None:
        dips = f", but for a dip at {listed(measured.dips)}" if measured.dips else ""
        none = "Nothing that can be judged" if measured.chance else "Nothing"
        return f"{none}: {_lasting([reference])}{dips} ({prompts}){_open(measured)}."
    judged = f"by {_reasons(measured)}, at every length measured{_alone(measured)}"
    if measured.high is None or measured.after is None:
        none = f"not at all up to {measured.longest}: {prompts} cannot tell"
        return f"{name} may fail after {measured.after} tokens, or {none}. Their means fail {judged}."
    times = times_of_m(findings.stated_window, measured.after, measured.high)
    one = "" if measured.sampled else ", no interval over prompts"
    return f"{name} fails in {_ends(measured)} tokens{times} ({prompts}{one}). It fails {judged}."


def where(findings: Findings, rows: Rows) -> str:
    """Where the reference's states first leave their in-window range, and which heads are enough to mend it."""
    reference = reference_of(rows)
    if reference.held is not None and reference.failure.length is None:
        return f"Nothing to locate: {_unfailing(reference)}."
    text = _drifts(findings, reference)
    sets = [(row.method, row.heads) for row in rows if row.heads and row.heads.is_enough and row.heads.is_clear]
    if not sets:
        return text
    method, heads = min(sets, key=lambda pair: len(pair[1].heads))
    count = f"{len(heads.heads)} head{'s' * (len(heads.heads) > 1)}"
    share = percent(heads.share, heads.low, heads.high)
    lost = f"the {'tail NLL' if heads.measure == 'nll' else heads.measure} lost at {heads.length} tokens"
    return f"{text} {method} in only {count} restores {share} of {lost} (n = {heads.items})."


def mended(findings: Findings, rows: Rows) -> str:
    """Which methods last longer than the reference, the best of them at the longest length, and crop beside them."""
    reference, others = reference_of(rows), [row for row in rows if not row.is_reference]
    name = reference.method
    if not others:
        return "No other method was run."
    if reference.measured is None:
        return "Nothing was measured by length."
    if reference.held is None:
        return f"{_AT_CHANCE}."
    if reference.failure.length is None:
        return f"Nothing to mend: {_unfailing(reference)}."
    better = [row for row in others if (row.held or 0) > reference.held]
    if not better:
        return f"No method lasts longer than {name} ({counted(findings)})."
    unsure = reference.failure.high is None
    whole = [row for row in better if row.failure.length is None]
    part = [row for row in better if row.failure.length is not None]
    sentences = [
        f"Cannot tell whether {name} fails, so whether there is anything to mend." if unsure else "",
        _whole(findings, whole, reference) if whole else "",
        f"{several(part)} last{verb(part)} longer than {name} and {_fails(part)}." if part else "",
        beside_crop(others, whole),
    ]
    return " ".join(filter(None, sentences))


def _unfailing(reference: Row) -> str:
    """That the reference does not fail, by what can be judged, and what its prompts leave open."""
    measured = reference.failure
    judged = ", by what can be judged" if measured.chance else ""
    return f"{reference.method} does not fail up to {measured.longest} tokens{judged}{_open(measured)}"


def _drifts(findings: Findings, reference: Row) -> str:
    call, name = reference.drift, reference.method
    if call is None:
        return f"Cannot tell: drift could not be judged ({findings.drift})."
    on = f"on {_prompt(findings)}"
    if call.reason:
        return f"Cannot tell: the states of {name} are not judged {on} ({call.reason})."
    if call.length is None:
        return f"No drift of {name} is seen {on}: {call.text}."
    before = "" if call.before is None else f"; the break begins before M, at {call.before}"
    prompts = findings.drift.prompts.items() if isinstance(findings.drift, DriftResult) else ()
    without = [prompt for prompt, drift in prompts if _is_none(drift, call.method)]
    others = f" (not called on {listed(without)})" if without else ""
    at = f"at position {position(call)}{others}{before}"
    leave = "leave" if call.high is not None else "may leave"
    return f"O{on[1:]}, the states of {name} {leave} their in-window range first in layer {call.layer}, {at}."


def _prompt(findings: Findings) -> str:
    """What the headline prompt is: the paper's is one word, repeated."""
    word = f", '{findings.word}'" if findings.word else ""
    return f"one repeated word{word}" if findings.prompt == "repeated" else f"prompt {findings.prompt}"


def _is_none(drift: PromptDrift, method: str) -> bool:
    """Whether a method was judged on a prompt, and not called."""
    call = next(call for call in drift.methods if call.method == method)
    return call.length is None and not call.reason


def _whole(findings: Findings, rows: Rows, reference: Row) -> str:
    """Those that last up to the longest length, and the least tail NLL there."""
    open_ = [row for row in rows if row.failure.after is not None]
    doubt = f"; of {several(open_)} an earlier failure is not ruled out" if open_ else ""
    alone = "" if rows[0].failure.sampled else "; one prompt rules no failure out"
    text = f"{_lasting(rows)} ({counted(findings)}){doubt}{alone}"
    less = rows[0].nll.difference if rows[0].nll else None
    if less is None:
        return f"{text}."
    sharing = [row for row in rows if row.rank == rows[0].rank]
    unclear = f" (not clearly below {several(sharing[1:])})" if len(sharing) > 1 else ""
    lowest = f"{rows[0].method} has the lowest mean tail NLL{unclear}," if len(rows) > 1 else "its mean tail NLL is"
    return f"{text}; {lowest} {difference(less)} nats/token to {reference.method}."


def _fails(rows: Rows) -> str:
    """Where methods fail: one by one, or before the longest length where they are many."""
    if len(rows) > NAMED:
        return f"fail by {rows[0].failure.longest}"
    measured = [row.failure for row in rows]
    ends = [f"in {_ends(one)}" if one.high else f"after {one.after}, if at all" for one in measured]
    return f"fail{verb(rows)} {listed(ends)}"


def _lasting(rows: Rows) -> str:
    """That methods last up to the longest length; said to hold by tail NLL alone only where they beat crop."""
    measured, names = rows[0].failure, several(rows)
    longest = f"up to {measured.longest} tokens, the longest measured"
    fail = f"{names} {'does' if len(rows) == 1 else 'do'} not fail"
    if measured.chance:
        chance = "passkey accuracy" if measured.chance[0] == PASSKEY else NLL
        return f"{fail} by {measured.judged_by[0]} {longest} ({chance} cannot be judged)"
    if measured.judged_by == (NLL,) and not all(map(beats, rows)):
        return f"{fail} {longest}{_alone(measured)}"
    return f"{names} hold{verb(rows)} {longest}{_alone(measured)}"


def _open(measured: Failure) -> str:
    """Of a method that does not fail, after which length its prompts do not rule a failure out."""
    if measured.after is not None:
        return f"; a failure after {measured.after} is not ruled out"
    return "" if measured.sampled else "; one prompt rules no failure out"


def _ends(measured: Failure) -> str:
    return f"({measured.after}, {measured.high}]"


def _reasons(measured: Failure) -> str:
    """Which rule fails at every measured length from which on, of a method that does fail."""
    rules = [("tail NLL", measured.by_nll), ("passkey accuracy", measured.by_passkey)]
    known = [f"{name} from {length} on" for name, length in rules if length is not None]
    return " and by ".join(known) or "tail NLL at some lengths and passkey accuracy at the others"


def _alone(measured: Failure) -> str:
    """That one measure judges alone, the other being at chance or not clear."""
    return f", judged by {measured.judged_by[0]} alone" if len(measured.judged_by) == 1 else ""


def sure(findings: Findings, rows: Rows) -> str:
    """False alarms of drift, what a guess scores, and what was not judged."""
    reference = reference_of(rows).method
    unjudged = _unjudged(findings, rows)
    parts = [
        _false_alarms(rows),
        _by_chance(reference_of(rows)),
        f"chance: {level(findings.level, reference)}" if findings.level else "",
        f"not judged: {', '.join(unjudged)}" if unjudged else "everything was judged",
    ]
    return f"{'; '.join(filter(None, parts))}."


def _false_alarms(rows: Rows) -> str:
    """Of the (layer, window) pairs tried inside the window, those falsely called."""
    tried = [row for row in rows if row.drift is not None and row.drift.tried]
    if not tried:
        return "False alarms inside the window: unknown"
    alarms, pairs = (sum(getattr(row.drift, name) for row in tried) for name in ("alarms", "tried"))
    judged = " in the layers judged" if any(row.drift.untrusted for row in rows if row.drift) else ""
    of = f"{alarms} of {pairs} (layer, window) pairs, under {several(tried)}"
    return f"{'False' if alarms else 'No false'} alarms inside the window{judged} ({of})"


def _by_chance(reference: Row) -> str:
    """In how many models without a break the reference's drift would be as clear; empty where none is detected."""
    chance = reference.drift.chance if reference.drift else None
    if chance is None:
        return ""
    share = "fewer than 1 in 10,000" if chance < 1e-4 else f"at most {chance:.2%} of"
    return f"by chance alone {reference.method}'s drift would be detected in {share} models"


def level(level: Level, reference: str) -> str:
    """What a guess scores, and the reference inside the window."""
    prompts = level.prompts
    guess = "an unknown tail NLL" if level.guess is None else f"a tail NLL of {level.guess:z.2f}"
    texts = f"{prompts['window']} text{'s' * (prompts['window'] > 1)}"
    hits = "" if level.passkeys is None else f" and finds {level.passkeys} of {prompts['sample']} passkeys"
    scores = f"{reference} scores {level.tail_nll:z.2f} ({texts}){hits} at {level.length} tokens"
    return f"a guess scores {guess}; {scores}"


def _unjudged(findings: Findings, rows: Rows) -> list[str]:
    """What failure is not judged by, and whose drift is not judged, with the reasons."""
    level, left = findings.level, []
    if not level:
        left.append("failure by length (not measured)")
    elif NLL in findings.at_chance:
        left.append(f"{NLL} (at chance inside M)")
    if level and level.passkeys is not None and PASSKEY not in findings.judged_by:
        left.append(f"{PASSKEY} ({level.passkeys} of {level.prompts['sample']} found inside M)")
    if isinstance(findings.drift, str):
        return [*left, "drift"]
    reasons: dict[str, list[Row]] = {}
    for row in rows:
        if row.drift and row.drift.reason:
            reasons.setdefault(row.drift.reason, []).append(row)
    left += [f"drift of {several(unjudged)} ({reason})" for reason, unjudged in reasons.items()]
    layers = {row.method: row.drift.untrusted for row in rows if row.drift and not row.drift.reason}
    layers = {method: numbers for method, numbers in layers.items() if numbers}
    if len(layers) > NAMED:
        return [*left, f"drift of {len(layers)} methods in single layers (false alarms)"]
    for method, numbers in layers.items():
        left.append(f"drift of {method} in layer{'s' * (len(numbers) > 1)} {ranges(numbers)} (false alarms)")
    return left


def beside_crop(rows: Rows, lasting: Rows | None = None) -> str:
    """Which methods beat crop by tail NLL, and which of the `lasting` (None: of all) are worse, as a sentence.

    Empty where none was compared.
    """
    compared = [row for row in rows if to_crop(row) is not None]
    if not compared:
        return ""
    if all(math.isnan(less.high) for row in compared if (less := to_crop(row))):
        return "One text cannot tell a method from `crop`."
    better = [row for row in compared if beats(row)]
    worse = [row for row in (rows if lasting is None else lasting) if is_worse(row)]
    text = f"{_named(better)} beat{verb(better)} `crop` by tail NLL" if better else ""
    if not text:
        one = f"{compared[0].method} does not clearly beat"
        text = f"{one if len(compared) == 1 else 'No method clearly beats'} `crop` by tail NLL"
    return f"{text}; {_named(worse)} {'is' if len(worse) == 1 else 'are'} worse than `crop`." if worse else f"{text}."


def about_crop(findings: Findings, rows: Rows) -> list[str]:
    """What crop is, where methods are compared with it."""
    if findings.level is None or not any(to_crop(row) for row in rows):
        return []
    reference, length = reference_of(rows).method, findings.level.length
    return [
        f"Crop: {reference} on the last {length} tokens alone, the first one of the tokenizer's own kept: its score at "
        "that length, of the same texts. A tail NLL no better than that shows no use of what stands before them."
    ]


def _named(rows: Rows) -> str:
    """The methods with their differences, counted where they are many."""
    if len(rows) > NAMED:
        return f"{len(rows)} methods"
    return listed([f"{row.method} ({difference_to_crop(row)} nats/token)" for row in rows])


def several(rows: Rows) -> str:
    """The methods, counted where they are many."""
    return f"{len(rows)} methods" if len(rows) > NAMED else listed([row.method for row in rows])


def counted(findings: Findings) -> str:
    """How many prompts each length was measured with, of what judges: '20 texts and 20 passkeys'."""
    return _prompts(findings, findings.judged_by)


def measured_on(findings: Findings) -> str:
    """How many prompts each length was measured with, whatever judges; empty where nothing was measured."""
    return _prompts(findings, [rule for _, _, rule in _PROMPTS]) if findings.level else ""


def _prompts(findings: Findings, rules: Sequence[str]) -> str:
    prompts = findings.level.prompts if findings.level else {}
    known = [(prompts[key], name) for key, name, rule in _PROMPTS if key in prompts and rule in rules]
    return listed([f"{count} {name}{'s' * (count > 1)}" for count, name in known])


def verb(rows: Rows) -> str:
    """The verb's ending."""
    return "s" if len(rows) == 1 else ""


def listed(names: Sequence[object]) -> str:
    """Names as text, such as 'a, b and c'."""
    *most, last = map(str, names)
    return f"{', '.join(most)} and {last}" if most else last
