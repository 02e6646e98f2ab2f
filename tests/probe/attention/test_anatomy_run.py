"""`mesa-lens anatomy` from the command line to its files, resumed, on another runner, and what it refuses."""

import json

import numpy as np
import pytest
import tiny
from commands import main
from elsewhere import Elsewhere

from mesa.models import tokenizer_of
from probe.attention import moments
from probe.attention.request import AnatomyRequest, estimate, plan
from probe.attention.results import intervals, retrieval_heads
from probe.attention.run import anatomy, buckets
from probe.status import has_results, status_of
from probe.tasks import sources
from probe.tasks.score import heldout_ids

M, LENGTH, TEXTS = 160, 320, 6
METHODS = ("origin", "rerope")
LOAD = {"revision": None, "dtype": None, "device": "cpu", "device_map": None, "trust_remote_code": False}
"""As the command has them."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return model_folder(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def weightless(tmp_path_factory):
    model = model_folder(tmp_path_factory.mktemp("weightless"))
    (model / "model.safetensors").write_bytes(b"")
    return model


def model_folder(path):
    """A tiny model's folder with a text in it, so that little is to be tokenized."""
    model = tiny.folder(path, trained=M)
    drawn = np.random.default_rng(0).choice(["a text", "of a few", "words,", "to make", "a", "tokenizer", "from"], 1500)
    (model / "text.txt").write_text(" ".join(drawn))
    return model


def run(folder, out, *options):
    some = ("--methods", ",".join(METHODS), "--lengths", f"{M},{LENGTH}", "--samples", "2", "--texts", str(TEXTS))
    text = ("--text", str(folder / "text.txt"))
    return main(["anatomy", "--model", str(folder), "--out", str(out), *some, *text, *options])


def summary_of(out):
    return json.loads((out / "anatomy" / "summary.json").read_text())


@pytest.fixture(scope="module")
def whole(folder, tmp_path_factory):
    out = tmp_path_factory.mktemp("whole")
    assert run(folder, out) == 0
    return out


def test_every_part_is_in_the_summary(whole):
    result = summary_of(whole)
    spans = {(row["length"], row["span"]) for row in result["heads"]}
    assert spans == {(M, "inside M"), (LENGTH, "inside M"), (LENGTH, "beyond M")}
    assert len(result["heads"]) == len(result["frequencies"]) == 2 * 3 * 3 * 4  # methods, spans, layers, heads
    assert len(result["retrieval"]) == 2 * 2 * 3 * 4
    for row in result["heads"]:
        masses = {part: row[f"mass_{part}"][0] for part in ("first", "near", "window", "beyond")}
        assert sum(masses.values()) == pytest.approx(1, abs=1e-5)
        assert (masses["beyond"] > 0) == (row["span"] == "beyond M")
        assert row["sink"][1] <= row["sink"][0] <= row["sink"][2]
    for row in result["retrieval"]:
        assert row["best"] == row[f"offset_{row['best_offset']}"]
        assert row["best"][0] == max(row["offset_0"][0], row["offset_1"][0])
    firsts = {(row["method"], row["length"]): row["first_unmet"] for row in result["unmet"]}
    assert firsts["origin", LENGTH] == M
    assert firsts["origin", M] is firsts["rerope", LENGTH] is None
    ends = [(row["begin"], row["end"]) for row in result["lens"][:3]]
    assert ends == [(1, M // 2), (M // 2, M), (1, M // 2)]
    assert (result["tasks_left"], result["texts_left"]) == (0, 0)


def test_the_vectors_are_judged_and_drawn(whole):
    result = summary_of(whole)["vectors"]
    assert result["texts"] == dict.fromkeys(METHODS, TEXTS)
    assert (result["length"], result["stride"]) == (LENGTH, M // 8)
    assert [(row["method"], row["layer"]) for row in result["layers"]] == [(m, n) for m in METHODS for n in range(3)]
    for row in result["layers"]:
        assert (row["slope"] is None) == (row["slope_reason"] is not None)
        assert row["slope"] is None  # six texts are far too few
        assert "below 0.8; read more --texts" in row["slope_reason"] or "resemble none inside" in row["slope_reason"]
    assert "<h2>Positional vectors</h2>" in (whole / "anatomy" / "report.html").read_text()
    assert len((whole / "anatomy" / "vectors.csv").read_text().splitlines()) == 1 + len(result["layers"])
    with np.load(whole / "anatomy" / "vectors.npz") as arrays:
        assert arrays["method"].tolist() == list(METHODS)
        assert arrays["score"].shape == (2, 3, 3, LENGTH)
        assert arrays["score"].dtype == arrays["cosine"].dtype == np.float32
        assert np.isfinite(arrays["cosine"]).all()
        assert arrays["drift_level"].shape[:2] == (2, 3)


@pytest.mark.slow
def test_other_runners_write_the_same_bytes_and_resume_what_was_lost(folder, whole, tmp_path):
    request = AnatomyRequest(
        model=str(folder), methods=",".join(METHODS), lengths=(M, LENGTH), samples=2, texts=TEXTS,
        text=str(folder / "text.txt"), load=LOAD,
    )  # fmt: skip
    planned = plan(request)
    lost = (("vectors", "origin", LENGTH, 2), ("lens", "rerope", M, 1))
    journal, failed = anatomy(planned, tmp_path, runner=Elsewhere(seed=1, lost=lost))
    texts = [("vectors", "origin", LENGTH, number) for number in range(2, TEXTS)]  # sums are made in their order
    assert [task.key for task in failed] == [("lens", "rerope", M, 1), *texts]
    assert len(journal.rows) == 2 * 2 * 2 * 4 - 1
    assert [part.failed for part in status_of(tmp_path).parts] == [1, 1]
    assert anatomy(planned, tmp_path, runner=Elsewhere(seed=2))[1] == []
    one, other = (sorted((out / "anatomy" / "journal.jsonl").read_bytes().splitlines()) for out in (whole, tmp_path))
    assert one == other
    for name in METHODS:
        one, other = ((out / "anatomy" / f"moments-{name}-{LENGTH}.npz").read_bytes() for out in (whole, tmp_path))
        assert one == other


@pytest.mark.slow
def test_interrupted_and_resumed_equals_one_run(folder, whole, tmp_path, capsys):
    """Twice inside the prompts, once inside the texts."""
    for _ in range(2):
        assert run(folder, tmp_path, "--minutes", "0.00001") == 0
        assert "texts are left; the same command continues" in capsys.readouterr().err
    assert summary_of(tmp_path)["tasks_left"] == 2 * 2 * 2 * 4 - 2
    assert run(folder, tmp_path, "--parts", "heads,retrieval,frequencies,lens") == 0
    assert run(folder, tmp_path, "--minutes", "0.00001") == 0
    assert summary_of(tmp_path)["texts_left"] == 2 * TEXTS - 1
    assert run(folder, tmp_path, "--texts", "4") == 0
    capsys.readouterr()
    assert run(folder, tmp_path, "--json") == 0
    assert json.loads(capsys.readouterr().out) == summary_of(whole) == summary_of(tmp_path)
    for name in METHODS:
        one, other = (moments.load(out / "anatomy" / f"moments-{name}-{LENGTH}.npz") for out in (whole, tmp_path))
        assert one.drop_attrs().identical(other.drop_attrs())
    assert run(folder, tmp_path, "--parts", "lens") == 0
    assert {**summary_of(tmp_path), "parts": summary_of(whole)["parts"]} == summary_of(whole)


def test_moments_alone_are_resumed_checked_and_removed(folder, tmp_path):
    some = ("--methods", "origin", "--samples", "1", "--texts", "4")
    assert run(folder, tmp_path, *some, "--parts", "vectors", "--minutes", "0.00001") == 0
    assert has_results(tmp_path)
    assert run(folder, tmp_path, *some, "--parts", "vectors", "--seed", "1") == 2
    assert run(folder, tmp_path, *some, "--parts", "vectors") == 0
    assert summary_of(tmp_path)["vectors"] is not None
    stored = list((tmp_path / "anatomy").glob("moments-*"))
    assert stored
    for file in stored:
        file.rename(file.with_suffix(".gone"))
    assert run(folder, tmp_path, *some, "--parts", "retrieval", "--seed", "1") == 0
    assert summary_of(tmp_path)["vectors"] is None  # those in the summary were of another seed
    for file in stored:
        file.with_suffix(".gone").rename(file)
    assert run(folder, tmp_path, *some, "--parts", "retrieval", "--overwrite", "--minutes", "0.00001") == 0
    assert not list((tmp_path / "anatomy").glob("moments-*"))
    assert not (tmp_path / "anatomy" / "vectors.csv").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--seed", "1"), "a run with another seed (0 there, 1 now); use"),
        (("--samples", "3"), "a run with another samples"),
        (("--layers", "0-1"), "a run with another layers"),
        (("--lengths", "160,400"), "a run with another longest length ("),
        (("--set", "rerope.window=9"), "holds rerope with other parameters"),
    ],
)
def test_other_settings_are_refused(folder, whole, capsys, options, message):
    before = (whole / "anatomy" / "journal.jsonl").read_text()
    assert run(folder, whole, *options) == 2
    assert message in capsys.readouterr().err
    assert (whole / "anatomy" / "journal.jsonl").read_text() == before


def planned(folder, **options):
    return plan(
        AnatomyRequest(**{"model": str(folder), "lengths": (M, LENGTH), "samples": 2, "texts": TEXTS} | options)
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"layers": "0-3"}, "layer 0-3 is out of range"),
        ({"lengths": (160,)}, "--lengths 160 is not beyond the trained length 160"),
        ({"lengths": (165,)}, "a crossing takes 10 consecutive positions beyond 160"),
        ({"texts": 9999}, "give a longer text, fewer texts"),
        ({"methods": "reropes"}, "unknown method 'reropes'"),
    ],
)
def test_bad_requests_are_refused_before_any_weights(weightless, options, message):
    with pytest.raises(ValueError, match=message):
        planned(weightless, text=str(weightless / "text.txt"), **options)


def test_the_estimate_needs_no_weights(weightless):
    text = estimate(planned(weightless))
    passes = 4 * 4 * 2 * 2 + 4 * TEXTS
    assert f"{passes} passes, {4 * 4 * 2 * (M + LENGTH) + 4 * TEXTS * LENGTH:,} tokens" in text
    assert f"vectors {4 * TEXTS * LENGTH:,}" in text


def test_by_default_there_are_256_texts_or_as_many_as_fit(weightless):
    some = {"parts": ("vectors",), "lengths": (LENGTH,), "texts": None}
    assert len(planned(weightless, **some).sliding) == 256
    text = str(weightless / "text.txt")
    length = sum(map(len, heldout_ids(tokenizer_of(str(weightless)), sources.texts(text))))
    room = 2 * ((length // 2 - LENGTH + 1) // (M // 8) + 1)
    assert len(planned(weightless, **some, text=text).sliding) == room


def test_answers_are_predicted_within_the_length(weightless):
    """A prompt of M tokens would have all but the first of them predicted beyond M."""
    for length, prompts in planned(weightless, parts=("retrieval",)).passkeys.items():
        assert max(len(prompt.ids) + len(prompt.answer_ids) - 2 for prompt in prompts) == length - 1
        assert min(len(prompt.answer_ids) for prompt in prompts) > 1


def test_a_head_dies_and_is_revived_by_its_intervals():
    scores = {  # inside, beyond under origin, beyond under rerope
        0: ([0.9, 0.8, 1.0], [0.1, 0.0, 0.2], [0.8, 0.7, 0.9]),
        1: ([0.9, 0.8, 1.0], [0.1, 0.0, 0.2], [0.2, 0.1, 0.3]),
        2: ([0.9, 0.1, 1.0], [0.1, 0.0, 0.2], [0.8, 0.7, 0.9]),  # too uncertain
        3: ([0.9, 0.8, 1.0], [0.7, 0.6, 0.8], [0.9, 0.8, 1.0]),
        4: ([0.2, 0.2, 0.2], [0.0, 0.0, 0.0], [0.2, 0.2, 0.2]),  # does not retrieve
    }
    rows = []
    for head, values in scores.items():
        for (method, length), score in zip((("origin", M), ("origin", 640), ("rerope", 640)), values, strict=True):
            place = {"method": method, "length": length, "layer": 0, "head": head}
            rows.append({**place, "best": score, "best_offset": 1, "offset_0": [0.0, 0.0, 0.0], "offset_1": score})
    result = retrieval_heads(
        {"trained_length": M, "reference": "origin", "methods": {"origin": {}, "rerope": {}}, "retrieval": rows}
    )
    assert [(row["head"], row["dies"], row["keeps"], row["revived"]) for row in result] == [
        (0, True, False, ["rerope"]),
        (1, True, False, []),
        (2, False, False, []),
        (3, False, True, []),
    ]


def test_intervals_are_over_prompts():
    values = np.array([[0.0, 5.0], [1.0, 5.0], [2.0, 5.0]])
    (first, second) = intervals(values)
    assert first == [1.0, 0.0, 3.484138]  # 1 +- 4.303 / sqrt(3), Student's t, and no less than can be
    assert second == [5.0, 5.0, 5.0]
    assert intervals(values[:, :1] / 2, 1.0) == [[0.5, 0.0, 1.0]]
    assert intervals(values[:2] * 0, 1.0, counts=True) == [[0.0, 0.0, 0.65762]] * 2  # Wilson's of 0 of 2
    assert intervals(values[:2, 1:] / 5, 1.0, counts=True) == [[1.0, 0.34238, 1.0]]
    assert intervals(values[:2, 1:] / 15, 1.0, counts=True) == [[0.333333, 0.045255, 0.840618]]  # a tie is no certainty
    assert intervals(values[:1]) == [[0.0, None, None], [5.0, None, None]]


def test_buckets_end_at_the_window_and_its_doubles():
    assert buckets(1000, 256) == [128, 256, 512, 1000]
    assert buckets(256, 256) == [128, 256]
    assert buckets(100, 256) == [100]
