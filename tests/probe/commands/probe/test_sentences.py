"""Sentences of random results, read back: each number and claim in them is one of the table's."""

import re
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import xarray as xr

from probe.commands import Findings
from probe.commands.probe.verdict import MAX_NAMED, listed, verdict, what_fixes
from probe.thresholds.analysis import level_of, scored
from probe.thresholds.drift import DriftRule
from probe.thresholds.failure import NLL, PASSKEY, measured_failure
from probe.thresholds.onset import DriftOnset
from probe.thresholds.result import DriftResult, Evidence, MethodResult, NotEvaluated, PromptDrift
from probe.thresholds.search import CrossingRule

M, LENGTHS = 256, [128, 256, 512, 768, 1024]
NAMES = ["origin", "rerope", "mesa", "yarn", "dca", "pi", "stair", "lampe"]


def random_scores(rng):
    """Scores of some methods, each failing from a random length on, by a random measure, with random noise."""
    methods = NAMES[: rng.integers(2, len(NAMES) + 1)]
    windows, samples = int(rng.choice([1, 2, 4, 20])), int(rng.choice([1, 3, 12, 20]))
    shape = len(methods), len(LENGTHS)
    level = 8.3 if rng.random() < 0.15 else 2.5
    nll = level + rng.normal(0, 0.3, windows) + rng.normal(0, rng.choice([0.02, 0.3]), (*shape, windows))
    hits = rng.random((*shape, samples)) < (0.2 if rng.random() < 0.2 else 0.97)
    for row in range(len(methods)):
        nll[row, 2:] += rng.choice([-0.3, 0, 0, 0.1, 0.3])
        first, second = np.maximum(rng.integers(1, len(LENGTHS) + 2, 2), 1 if row else 2)  # M is stated rightly
        nll[row, first:] += rng.choice([0.5, 1.5])
        hits[row, second:] &= rng.random((len(LENGTHS[second:]), samples)) < rng.choice([0, 0.3])
    dims = "method", "length"
    return xr.Dataset(
        {"tail_nll": ((*dims, "window"), nll), "passkey": ((*dims, "sample"), hits.astype(float))},
        {"method": methods, "length": LENGTHS},
        {"vocabulary": 4096},
    )


def call_without_drift(method):
    return DriftOnset(
        method, None, None, None, None, {}, before=None, untrusted={}, false_positive_rate=None, false_positives=0,
        tried=0, any_false_positive_rate=None, evaluated=768, beyond=768, until=M + 768, captured=M + 768, reason="",
    )  # fmt: skip


def random_summary(seed):
    rng = np.random.default_rng(seed)
    scores = random_scores(rng)
    measured = measured_failure(scores, M)
    methods = scores["method"].values.tolist()
    calls = [call_without_drift(name) for name in methods]
    entry = [
        MethodResult(
            name, NotEvaluated(name, ""), NotEvaluated(name, ""), {}, *scored(scores, measured, name, "origin")
        )
        for name in methods
    ]
    summary = Evidence(
        model="tiny", model_revision=None, trained_length=M, captured_length=4 * M, hook="resid_post",
        prompt="repeated", word="hello", reference="origin", rule=CrossingRule.scaled(M),
        onset_by="drift", pass_length=4 * M, follows_length=[], searched=0, qualified={},
        drift=DriftResult(DriftRule.scaled(M), {"repeated": PromptDrift(calls, [])}),
        best=[], methods=entry, control="none", failure_rule=measured.rule, evaluated_by=list(measured.evaluated_by),
        at_chance=list(measured.chance), level=level_of(scores, measured), stated_window=measured.stated,
        measured_lengths=LENGTHS, method_configs={}, versions={}, created=None,
    )  # fmt: skip
    return summary, scores


@pytest.fixture(scope="module", params=range(3))
def results(request):
    """Batches of verdicts: by row, by heading, and what they are of."""
    batch = []
    for seed in range(12 * request.param, 12 * request.param + 12):
        summary, scores = random_summary(seed)
        drawn = verdict(summary, Findings({}, {}, []))
        texts = {item.heading: item.text for item in drawn.sentences}
        batch.append(SimpleNamespace(texts=texts, verdict=drawn, summary=summary, scores=scores))
    return batch


def named(text, rows):
    """Whether the text names the very rows, or counts them where they are many."""
    if len(rows) > MAX_NAMED:
        return text.startswith(f"{len(rows)} methods")
    return set(re.findall(r"[a-z]+", text)) & set(NAMES) == {row.method for row in rows}


def counts(result):
    """The prompts that judge, as sentences have them."""
    sizes, evaluated = result.scores.sizes, result.summary.evaluated_by
    prompts = {"text": (NLL, "window"), "passkey": (PASSKEY, "sample")}
    return {name: sizes[dim] for name, (rule, dim) in prompts.items() if rule in evaluated}


def said_counts(text):
    return {name: int(count) for count, name in re.findall(r"(\d+) (text|passkey)s?\b", text)}


UNJUDGED = re.compile(
    r" ?(?:Passkey accuracy (?:is at chance|is not evaluated): (\d+) of (\d+) \[\d+%, \d+%\] found at "
    r"(\d+) tokens[^.]*\."
    r"|Tail NLL is at chance, .*? at (\d+) tokens \((\d+) texts?\), and is not evaluated\.)"
)


def judging(text):
    """The text without the sentence on what judges nothing."""
    return UNJUDGED.sub("", text)


def test_what_judges_nothing_is_said_with_its_counts(results):
    for result in results:
        reference = next(row for row in result.verdict.rows if row.is_reference)
        said = UNJUDGED.search(result.texts["What fails"])
        left = {NLL, PASSKEY} - {*result.summary.evaluated_by}
        assert bool(said) == bool(result.summary.evaluated_by and left)
        if said is None:
            continue
        level, scores = result.summary.level, result.scores
        if PASSKEY in left:
            at = scores["passkey"].sel({"method": "origin", "length": level.length})
            assert [*map(int, said.groups()[:3])] == [int(at.sum()), at.size, level.length]
            hits = scores["passkey"].sel({"method": "origin"}).mean("sample")
            shown = result.summary.methods[0].scores
            more = [length for length in shown if length != level.length and hits.sel(length=length) >= 0.5]
            assert f"though half or more at {listed(more)}." in said[0] if more else "though" not in said[0]
            assert ("is at chance" in said[0]) == (PASSKEY in reference.measured.chance)
        else:
            assert [*map(int, said.groups()[3:])] == [level.length, scores.sizes["window"]]


def ends(row):
    return row.measured.after, row.measured.high


def test_no_sentence_is_long(results):
    for result in results:
        for text in result.texts.values():
            assert max(len(sentence.split()) for sentence in re.split(r"(?<=\.)\s", text)) <= 30


def test_what_fails_has_the_references_interval_and_its_prompts(results):
    for result in results:
        reference = next(row for row in result.verdict.rows if row.is_reference)
        text, measured = judging(result.texts["What fails"]), reference.measured
        if not measured.evaluated_by:
            assert text.startswith("Cannot tell")
            assert "Use " not in " ".join(result.texts.values())
            continue
        begins = re.match(r"Failure begins (?:between (\d+) and|by) (\d+) tokens", text)
        may = re.search(r"may fail (?:after (\d+) tokens|at any length)", text)
        if measured.length is None:
            assert said_counts(text) == counts(result)
            assert (begins, may) == (None, None)
            assert text.startswith("No failure")
            assert ("not ruled out" in text) == (measured.after is not None)
            continue
        of_rule = {"text": measured.by_nll, "passkey": measured.by_passkey}
        every = {name: count for name, count in counts(result).items() if of_rule[name] is not None}
        assert said_counts(text) == (every if begins and every else counts(result))
        for length, rule in (
            (measured.by_nll, "its tail NLL is over"),
            (measured.by_passkey, "it finds fewer than half"),
        ):
            said = re.search(rf"from (\d+) tokens on, [^.]*?(?:0\.5[^.]*)?{rule}", text)
            assert (said and int(said[1])) == length
        if measured.high is None:
            assert int(may[1] or 0) == measured.after
            assert not begins
            continue
        assert tuple(int(end or 0) for end in begins.groups()) == ends(reference)
        assert measured.after < measured.length <= measured.high
        times = re.search(r"\((?:([\d.]+) to )?([\d.]+)x M", text)
        if result.summary.stated_window.is_doubtful:
            assert not times
            continue
        low, high = (float(end or 0) for end in times.groups())
        assert (low, high) == pytest.approx((measured.after / M, measured.high / M), rel=0.05)


def test_which_methods_are_advised_and_which_fail_later(results):
    for result in results:
        rows, text = result.verdict.rows, result.texts["What fixes it"]
        reference, others = (next(r for r in rows if r.is_reference), [r for r in rows if not r.is_reference])
        if reference.measured.length is None or not reference.measured.evaluated_by:
            assert text.startswith(("Nothing to fix", "Cannot tell"))
            continue
        lasting = [row for row in others if row.measured.length is None]
        passing = reference.longest_passing
        later = [row for row in others if row.measured.length is not None and row.longest_passing > passing]
        doubt = "Cannot tell whether there is anything to fix: the unmodified model may not fail. "
        may = reference.measured.high is None and reference.measured.sampled
        assert text.startswith(doubt) == bool(may and (lasting or later))
        text = text.removeprefix(doubt)
        first = re.match(r"(?:Use (.+?): .*? fails? up to|(.+?) (?:does not|do not) fail) .*?\(.*?\)\. ?", text)
        assert bool(first) == bool(lasting)
        if first:
            use = (first[1] or first[2]).removeprefix("any of ").replace(" or ", " and ")
            assert named(use, lasting)
            assert said_counts(first[0]) == counts(result)
            lowest = re.search(r"(\w+) has the lowest mean", text)
            if lowest:
                nll = result.scores["tail_nll"].isel(length=-1).mean("window")
                assert lowest[1] == min((r.method for r in lasting), key=lambda n: float(nll.sel({"method": n})))
            if first[1] and counts(result).keys() == {"text"}:
                assert all(row.nll.truncation.high < 0 for row in lasting)
            assert not (first[1] and may)
        sentence = re.search(r"(?:^|\. )([^.]+?) fails? later than the unmodified model, ([^.]+)\.", text)
        assert bool(sentence) == bool(later)
        if sentence:
            assert named(sentence[1], later)
            if len(later) <= MAX_NAMED:
                said = re.findall(r"(?:between (\d+) and|by) (\d+)\b(?!(?: tokens)?, if ever)", sentence[2])
                intervals = [tuple(int(end or 0) for end in item) for item in said]
                assert intervals == [ends(row) for row in later if row.measured.high]
        if not lasting and not later:
            assert text.startswith("No method fixes it: none fails later than the unmodified model (")
            assert said_counts(text) == counts(result)


def test_methods_measured_to_shorter_lengths_are_not_said_to_last_as_long(results):
    shortened = 0
    for result in results:
        rows = result.verdict.rows
        lasting = [row for row in rows if not row.is_reference and row.measured.length is None]
        reference = next(row for row in rows if row.is_reference)
        if len(lasting) < 2 or reference.measured.length is None or not reference.measured.evaluated_by:
            continue
        length = LENGTHS[-2]
        if (reference.longest_passing or 0) >= length:
            continue
        measured = replace(lasting[0].measured, longest=length)
        rows = [replace(row, measured=measured) if row is lasting[0] else row for row in rows]
        text = what_fixes(result.summary, rows)
        name = lasting[0].method
        assert f"Not failing either, but measured only to shorter lengths: {name} to {length} tokens." in text
        assert not re.search(rf"\b{name}\b", text.partition("Not failing either")[0].partition(" later than ")[0])
        shortened += 1
    assert shortened


def test_truncation_is_compared_as_the_table_has_it(results):
    for result in results:
        rows, text = result.verdict.rows, result.texts["What fixes it"]
        others = [row for row in rows if not row.is_reference]
        better = [row for row in others if row.nll.truncation.high < 0]
        lasting = [row for row in others if row.measured.length is None]
        worse = [row for row in lasting if row.nll.truncation.low > 0]
        if " truncation" not in text or "One text" in text:
            continue
        beats = re.search(rf"By tail NLL \({result.scores.sizes['window']} texts?\), (.+?) beats? truncation", text)
        assert ("clearly beat" in text) == (not better) == (beats is None)
        if better:
            assert named(beats[1], better)
        behind = re.search(r"(?:^|\. )((?:(?!\. ).)+) (?:is|are) worse than truncation\.", text)
        assert bool(behind) == bool(worse)
        if behind:
            assert named(behind[1], worse)
        for name, *numbers in re.findall(r"(\w+) \(([+-][\d.]+) \[([+-][\d.]+), ([+-][\d.]+)\] nats/token\)", text):
            less = next(row for row in rows if row.method == name).nll.truncation
            assert [*map(float, numbers)] == pytest.approx([less.mean, less.low, less.high], abs=0.006)
