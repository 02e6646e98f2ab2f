"""`mesa-lens readout` from the command line to its files: random weights, resumed, own labels, and what it refuses."""

import json
from types import SimpleNamespace

import matrix
import numpy as np
import pytest
import tiny
from commands import main
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from mesa.errors import Refused
from mesa.models import tokenizer_of
from probe.commands.readout import ReadoutRequest
from probe.commands.readout.page import answers
from probe.commands.readout.plan import Labels, ReadoutKey, _check_apart, _check_known, open_strings, plan, read_labels
from probe.commands.readout.result import READOUT
from probe.commands.readout.run import Prober, _Summary, distances_of, states_path
from probe.files import checksum
from probe.run_folder import CHECKSUM
from probe.thresholds.state_distance import StateReference, compared

M, LENGTH, TOKENS = 160, 320, 40


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A tiny model's folder with a few texts in it."""
    model = tiny.folder(tmp_path_factory.mktemp("model"), trained=M)
    rng = np.random.default_rng(0)
    words = ["a text", "of a few", "words,", "to make", "a", "tokenizer", "from", '"in quotes"', "\n"]
    for number in range(4):
        (model / f"text-{number}.txt").write_text(" ".join(rng.choice(words, 900)))
    (model / "texts.jsonl").write_text(
        "\n".join(json.dumps({"text": (model / f"text-{number}.txt").read_text()}) for number in range(4))
    )
    return model


def run(folder, out, *options):
    some = ("--methods", "origin,rerope", "--lengths", str(LENGTH), "--samples", "8", "--tokens", str(TOKENS))
    some += ("--layers", "1")  # and the last, for the lens
    text = () if "--labels" in options else ("--text", str(folder / "texts.jsonl"))
    return main(["readout", "--model", str(folder), "--out", str(out), *some, *text, *options])


@pytest.fixture(scope="module")
def whole(folder, tmp_path_factory):
    out = tmp_path_factory.mktemp("whole")
    assert run(folder, out, "--probe", "previous-1,position") == 0
    return out


def test_nothing_is_claimed_of_random_weights(whole):
    summary = READOUT.read(whole)
    assert (summary.training, summary.test, summary.lengths, summary.layers) == (4, 4, [M, LENGTH], [1, 2])
    assert len(summary.probes) == 2 * 2 * 2 * 2  # probes, methods, lengths, layers
    assert len(summary.lens) == 2 * 2 * 2
    assert not summary.is_trained
    assert not any(row.is_read or row.is_moved or row.is_lost or row.is_returned for row in summary.probes)
    (first, *_) = answers(summary)
    assert first == "previous-1: nothing is claimed; the model's own loss at M is not below that of token frequencies."
    assert "nothing is claimed" in (whole / "readout" / "report.html").read_text()


def test_distances_are_those_of_the_states_that_are_kept(whole):
    summary = READOUT.read(whole)

    def states(length, texts):
        return [np.load(whole / "readout" / "states" / f"rerope-{length}-{text}.npy")[0] for text in texts]

    origin = [np.load(whole / "readout" / "states" / f"origin-{M}-{text}.npy")[0] for text in range(4)]
    fitted = StateReference.fit(np.stack(origin))
    near, far = (fitted.distances(np.stack(states(length, range(4, 8)))).mean() for length in (M, LENGTH))
    (row,) = [row for row in summary.distances if (row.method, row.layer) == ("rerope", 1)]
    assert (row.n, row.length) == (4, LENGTH)
    assert [row.inside, row.distance, row.ratio.mean] == pytest.approx([near, far, far / near])
    assert not any(answer.startswith("States") for answer in answers(summary))  # random weights: no claim
    assert (whole / "readout" / "distances.csv").is_file()


@pytest.mark.parametrize(("documents", "n"), [([4, 4, 4, 5, 6, 7], 4), ([4, 4, 4, 5, 5, 6], 6)])
def test_of_four_documents_each_counts_once_in_distances(tmp_path, documents, n):
    rng, texts = np.random.default_rng(0), 12
    plan = SimpleNamespace(
        windows=range(texts), training=6, last_documents=[*range(6), *documents], layers=[0], reference="origin",
        ordered=["origin"], trained_length=M, lengths=[M, LENGTH],
    )  # fmt: skip
    for text in range(texts):
        for length, scale in ((M, 1), (LENGTH, [0.5, 0.9][text < 9])):
            np.save(tmp_path / f"origin-{length}-{text}.npy", scale * rng.normal(size=(1, 30, 8)))
    (row,) = distances_of(plan, tmp_path)
    near, far = (np.stack([np.load(tmp_path / f"origin-{length}-{text}.npy")[0] for text in range(texts)])
                 for length in (M, LENGTH))  # fmt: skip
    fitted = StateReference.fit(near[:6])
    expected = compared(*(fitted.distances(each[6:]).mean(1) for each in (near, far)), documents if n == 4 else None)
    assert [row.n, *row.ratio] == pytest.approx([n, expected.ratio, expected.low, expected.high])


def test_scores_are_those_of_scikit_learn_on_the_states_that_are_kept(folder, whole):
    planned = plan(ReadoutRequest(
        model=str(folder), methods="origin,rerope", lengths=(LENGTH,), samples=8, tokens=TOKENS,
        text=str(folder / "texts.jsonl"),
    ))  # fmt: skip
    labels = planned.labels["previous-1"]
    ids = np.stack([window[-TOKENS - 1 : -1] for window in planned.windows])
    common = np.argsort(-np.bincount(ids[:4].ravel()))[:20]
    assert np.array_equal(labels.known, np.isin(ids, common))

    def states(method, length):
        paths = [whole / "readout" / "states" / f"{method}-{length}-{text}.npy" for text in range(8)]
        return np.stack([np.load(path)[0] for path in paths])

    rows = {row.length: row for row in READOUT.read(whole).probes
            if (row.probe, row.method, row.layer) == ("previous-1", "rerope", 1)}  # fmt: skip
    known = labels.known

    def fitted(length):
        pipeline = make_pipeline(StandardScaler(), LogisticRegression(C=rows[length].strength, max_iter=1000))
        return pipeline.fit(states("rerope", length)[:4][known[:4]], ids[:4][known[:4]])

    at = {length: (states("rerope", length)[4:][known[4:]], ids[4:][known[4:]]) for length in (M, LENGTH)}
    assert rows[M].inside.mean == pytest.approx(fitted(M).score(*at[M]))
    assert rows[LENGTH].inside == rows[M].inside
    assert rows[LENGTH].transfer.mean == pytest.approx(fitted(M).score(*at[LENGTH]))
    assert rows[LENGTH].refit.mean == pytest.approx(fitted(LENGTH).score(*at[LENGTH]))
    here = rows[LENGTH]
    inside, transfer, refit = (max(x.mean, here.chance) for x in (here.inside, here.transfer, here.refit))
    assert [here.lost.mean, here.moved.mean] == pytest.approx([inside - refit, refit - transfer])


def test_the_last_tokens_are_the_same_at_every_length_and_no_text_is_in_both_halves(folder):
    planned = plan(ReadoutRequest(model=str(folder), lengths=(LENGTH,), samples=8, text=str(folder / "texts.jsonl")))
    for text in range(8):
        short, long = (planned.prompt(text, length) for length in (M, LENGTH))
        assert (len(short), len(long)) == (M, LENGTH)
        assert np.array_equal(short[-planned.tokens :], long[-planned.tokens :])
    assert len({*planned.last_documents[:4]}) == 2
    assert not {*planned.last_documents[:4]} & {*planned.last_documents[4:]}
    train, test = ({window.tobytes() for window in part} for part in (planned.windows[:4], planned.windows[4:]))
    assert not train & test


def test_a_run_that_lacks_states_reads_them_again_and_adds_probes(folder, whole, capsys):
    before = READOUT.read(whole)
    (lost := whole / "readout" / "states" / f"origin-{M}-3.npy").unlink()
    assert run(folder, whole, "--probe", "previous-1,position,open-string") == 0
    assert lost.is_file()
    after = READOUT.read(whole)
    assert [row for row in after.probes if row.probe != "open-string"] == before.probes
    assert {row.probe for row in after.probes} == {"previous-1", "position", "open-string"}
    capsys.readouterr()
    assert main(["export", "readout", str(whole), "--format", "csv", "--out", str(whole / "files")]) == 0
    assert {"lens.csv", "probes.csv"} <= {path.name for path in (whole / "files").iterdir()}


def test_what_a_report_leaves_out_of_its_folder_is_said(folder, tmp_path, capsys):
    assert run(folder, tmp_path, "--probe", "open-line") == 0
    assert "left out of this report" not in capsys.readouterr().err
    assert run(folder, tmp_path, "--probe", "position", "--methods", "origin") == 0
    said = [line for line in capsys.readouterr().err.splitlines() if "left out of this report" in line]
    assert said == [
        f"{tmp_path} also holds rerope, left out of this report; --methods origin,rerope shows all",
        f"{tmp_path} also holds open-line, left out of this report; --probe position,open-line shows all",
    ]


def test_probes_of_another_reference_are_scored_again(folder, tmp_path):
    both = ("--methods", "origin,rerope")
    for options in (("--methods", "rerope"), both):
        assert run(folder, tmp_path / "added", "--probe", "position", *options) == 0
    assert run(folder, tmp_path / "once", "--probe", "position", *both) == 0
    added, once = (READOUT.read(tmp_path / name) for name in ("added", "once"))
    assert added.reference == "origin"
    assert repr(added.probes) == repr(once.probes)


def test_labels_of_the_users_are_read_by_token_and_by_character(folder, tmp_path):
    texts = [json.loads(line)["text"] for line in (folder / "texts.jsonl").read_text().splitlines()]
    rows = [
        {"text": text, "end": end + 4, "label": "late" if end > 1500 else "early"}
        for text in texts
        for end in range(0, len(text) - 10, 23)
    ]
    (file := tmp_path / "labels.jsonl").write_text("\n".join(map(json.dumps, rows)))
    assert run(folder, tmp_path / "out", "--labels", str(file), "--probe", "none") == 0
    summary = READOUT.read(tmp_path / "out")
    assert summary.probed["labels"].kind == "classes"
    assert {row.probe for row in summary.probes} == {"labels"}
    planned = plan(ReadoutRequest(model=str(folder), labels=file, samples=8, lengths=(LENGTH,), properties=("none",)))
    tokenizer, known = tiny.byte_level(), planned.labels["labels"].known
    at = int(np.flatnonzero(known[0])[0])
    token = tokenizer.decode(planned.last_ids[0][at])
    assert any(token and token in text[row["end"] - 6 : row["end"] + 6] for row in rows for text in [row["text"]])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--probe", "previous-99"], "--probe previous-99 is not known; known: previous-K (K from 0 to 32), position"),
        (["--probe", "labels"], "--probe labels needs a file of them; name it by --labels"),
        (["--probe", "passkey-digit"], "--probe passkey-digit reads passkey prompts, no texts; leave out --text"),
        (["--lengths", "80"], f"--lengths 80 is below M = {M}"),
        (["--tokens", "100"], "--tokens 100, and 1 before them, are more than half of the trained length 160"),
        (["--hook", "nonsense"], "unknown hook 'nonsense'"),
        (["--tokens", "1"], "--tokens 1: of the last token no next one is known"),
        (["--layers", "9"], "layer 9-9 is out of range"),
        (["--lengths", "50k"], "51200 are needed; give a longer text"),
    ],
)
def test_what_cannot_be_read_is_refused_in_one_line(folder, tmp_path, capsys, options, message):
    assert run(folder, tmp_path / "out", *options) == 2
    assert message in capsys.readouterr().err.splitlines()[-1]
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("tested", "message"),
    [(1.5, "all to test on are 1.5; R2 needs two values"), ("nan", "not a finite number"), ("inf", "not a finite")],
)
def test_numbers_to_test_on_that_have_no_r2_are_refused_before_the_passes(tested, message):
    known = np.ones((8, 10), bool)
    values = np.arange(80.0).reshape(8, 10)
    values[4:, 1:] = float(tested)
    values[4:, 0] = 1.5
    with pytest.raises(Refused, match=message):
        _check_known("labels", Labels("numbers", values, known), 4)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{"text": "a", "label": "x"}], "row 1 has text, label; it needs text, label, and token or end"),
        ([{"text": "a", "token": "b", "label": "x"}], "token 'b', end None are no integers"),
        ([{"text": "a", "token": 3.7, "label": "x"}], "token 3.7, end None are no integers"),
        ([{"text": ["a"], "token": 0, "label": "x"}], "text ['a'] is neither a text nor the number of one"),
        ([{"text": "9" * 5000, "token": 0, "label": "x"}], "text is a number of 5000 digits"),
        ([{"text": "a", "token": 0, "label": float("nan")}], "label nan is not finite; leave the row out"),
        ([{"text": "a few words", "token": 99, "label": "x"}], "text 0 has 3 tokens, none is 99"),
        ([{"text": "9", "token": 0, "label": "x"}], "text 9 is not there; there are 8, from 0"),
        ([{"text": -1, "token": 0, "label": "x"}], "text -1 is not there; there are 8, from 0"),
        ([{"text": None, "token": 0, "label": "x"}], "it needs text, label, and token or end"),
        ([{"text": "a few words", "end": 12, "label": "x"}], "text 0 has 11 characters, no label ends at 12"),
        (
            [{"text": "a", "token": 0, "label": each} for each in "xy"],
            "token 0 of text 0 has two labels; leave one out",
        ),
    ],
)
def test_labels_that_are_of_no_token_are_refused(folder, tmp_path, capsys, rows, message):
    (file := tmp_path / "labels.jsonl").write_text("\n".join(map(json.dumps, rows)))
    assert run(folder, tmp_path / "out", "--labels", str(file)) == 2
    assert message in capsys.readouterr().err.replace("line 1", "row 1").splitlines()[-1]


def test_where_a_documents_labels_are_alike_documents_are_resampled(folder, tmp_path):
    texts = [json.loads(line)["text"] for line in (folder / "texts.jsonl").read_text().splitlines()]

    def planned(label, samples=16):
        rows = [{"text": text, "end": end, "label": label(number, end)}
                for number, text in enumerate(texts) for end in range(20, len(text), 23)]  # fmt: skip
        (file := tmp_path / "labels.jsonl").write_text("\n".join(map(json.dumps, rows)))
        labels = plan(
            ReadoutRequest(model=str(folder), labels=file, samples=samples, lengths=(LENGTH,), properties=("none",))
        )
        return labels.labels["labels"]

    assert planned(lambda number, end: "ab"[end % 2]).documents is None
    assert planned(lambda number, end: "abba"[number] if end % 11 else "b").documents is not None  # a few differ
    assert planned(lambda number, end: number * 100 + end % 11).documents is not None  # numbers
    constant = planned(lambda number, end: "abcd"[number], samples=2000)
    of = np.where(constant.known, constant.documents, -1)
    assert any(len({*row.tolist()} - {-1}) == 2 for row in of)  # a text that goes on into the next document
    assert (np.array([*"abcd"])[of] == constant.values)[constant.known].all()  # the label's document, not the text's
    row = ReadoutKey("probe", "origin", M, 0, "labels")
    rows = {row: {"sums": {"inside": [[4, 8], [4, 8]]}}}
    training = len(of) // 2
    summary = _Summary(
        SimpleNamespace(training=training, labels={"labels": constant}, layers=[0], lengths=[M], methods=[0]), rows
    )
    scores = summary._scores(row)["inside"]
    assert scores.together
    assert scores.texts.tolist() == sorted({*of[training:].ravel().tolist()} - {-1})


def test_documents_are_held_out_where_the_penalty_is_chosen_and_scored_one_by_one(tmp_path):
    rng, texts, tokens = np.random.default_rng(0), 16, 6
    documents = np.repeat(np.arange(8), 2)[:, None].repeat(tokens, 1)
    documents[::2, -1] = documents[1::2, 0]
    documents[1::4, -1] += 1  # a text that ends in the next document
    labels = Labels("classes", np.array(list("ab"))[documents % 2], np.ones((texts, tokens), bool), "", documents)
    plan = SimpleNamespace(
        labels={"labels": labels}, layers=[0], training=8, reference="origin", trained_length=M, windows=range(texts),
        last_ids=rng.integers(0, 99, (texts, tokens)), request=SimpleNamespace(seed=0),
    )  # fmt: skip
    (tmp_path / "states").mkdir()
    for text in range(texts):
        np.save(tmp_path / "states" / f"origin-{M}-{text}.npy", rng.normal(size=(1, tokens, 4)))
    prober, key = Prober(plan, tmp_path / "states"), ReadoutKey("probe", "origin", M, 0, "labels")
    row = prober.scores(key)
    assert {probe.texts for probe in prober._at_trained_length("labels", "origin")} == {frozenset(range(4))}
    assert np.array(row["sums"]["inside"])[:, 1].tolist() == np.bincount(documents[8:].ravel())[4:].tolist()


def test_probes_whose_sums_are_by_text_are_scored_again_where_documents_count(folder, tmp_path, capsys):
    texts = [json.loads(line)["text"] for line in (folder / "texts.jsonl").read_text().splitlines()]
    rows = [{"text": text, "end": end, "label": "abba"[number]}
            for number, text in enumerate(texts) for end in range(20, len(text), 23)]  # fmt: skip
    (file := tmp_path / "labels.jsonl").write_text("\n".join(map(json.dumps, rows)))
    options = ("--labels", str(file), "--probe", "none", "--methods", "origin")
    assert run(folder, tmp_path / "out", *options) == 0
    (journal := tmp_path / "out" / "readout" / "journal.jsonl").write_text(_older(journal.read_text()))
    before = READOUT.read(tmp_path / "out")
    assert run(folder, tmp_path / "out", *options) == 0
    assert repr(READOUT.read(tmp_path / "out").probes) == repr(before.probes)
    assert '"by_document"' in journal.read_text()


def _older(journal):
    """As it was before, with a row of sums for each text."""
    lines = []
    for line in journal.splitlines():
        row = json.loads(line)
        row.pop(CHECKSUM)
        if row.pop("by_document", False):
            row["sums"] = {name: [[1.0, 4.0]] * 4 for name in row["sums"]}
        lines.append(json.dumps({**row, CHECKSUM: checksum(row)}) + "\n")
    return "".join(lines)


@pytest.mark.parametrize(
    ("written", "kind", "count"),
    [(["0", 0, 0.0, "1", 1.0], "classes", 2), (["0", 1, 1.0, 2], "numbers", 3), (["1", "1.0", "a"], "classes", 3)],
)
def test_a_number_is_one_label_however_it_is_written(folder, tmp_path, written, kind, count):
    texts = [json.loads(line)["text"] for line in (folder / "texts.jsonl").read_text().splitlines()]
    rows = [{"text": text, "end": end, "label": written[end % len(written)]}
            for text in texts for end in range(20, len(text), 23)]  # fmt: skip
    if kind == "classes" and "a" not in written:
        rows += [{**rows[0], "label": str(float(rows[0]["label"]))}]  # the same label once more
    (file := tmp_path / "labels.jsonl").write_text("\n".join(map(json.dumps, rows)))
    planned = plan(ReadoutRequest(model=str(folder), labels=file, samples=8, lengths=(LENGTH,), properties=("none",)))
    labels = planned.labels["labels"]
    assert (labels.kind, len(np.unique(labels.values[labels.known]))) == (kind, count)


def test_no_token_with_a_label_is_read_twice(folder, tmp_path):
    tokenizer = tokenizer_of(str(folder))
    texts = [json.loads(line)["text"] for line in (folder / "texts.jsonl").read_text().splitlines()]
    rows = [{"text": text, "token": token, "label": number * 10_000 + token}
            for number, text in enumerate(texts)
            for token in range(len(tokenizer(text, add_special_tokens=False).input_ids))]  # fmt: skip
    (file := tmp_path / "labels.jsonl").write_text("\n".join(map(json.dumps, rows)))
    planned = plan(ReadoutRequest(
        model=str(folder), labels=file, samples=2000, tokens=TOKENS - 3, lengths=(LENGTH,), properties=("none",)
    ))  # fmt: skip
    labels = planned.labels["labels"]
    assert not labels.known.all()
    assert sorted(labels.values[labels.known]) == sorted(row["label"] for row in rows)  # each once, none left out


@pytest.mark.parametrize("types", [[7], [7, 9], [*range(40), *[99] * 200]])
def test_labels_at_few_token_types_are_compared_with_chance_and_the_types(tmp_path, types):
    rng, texts = np.random.default_rng(0), 80
    ids = rng.choice(np.array(types), (texts, 4))
    known = np.zeros(ids.shape, bool)
    known[:, -1] = True
    in_states = np.where(rng.random(ids.shape) < 0.5, "a", "b")
    of_type = np.where(ids == 9, "a", "b") if len(types) == 2 else in_states
    labels = {"in": Labels("classes", in_states, known), "type": Labels("classes", of_type, known)}
    key = ReadoutKey("probe", "origin", M, 0, "in")
    plan = SimpleNamespace(
        labels=labels, layers=[0], windows=ids, last_ids=ids, training=40, reference="origin", trained_length=M,
        request=SimpleNamespace(seed=0),
    )  # fmt: skip
    (tmp_path / "states").mkdir()
    for text in range(texts):
        states = rng.normal(size=(1, 4, 8)).astype(np.float32)
        states[0, :, 0] += np.where(in_states[text] == "a", 6, -6)
        states[0, :, 1] = ids[text]
        np.save(states_path(tmp_path / "states", key._replace(part="states", number=text, name="")), states)

    def values(name):
        sums = Prober(plan, tmp_path / "states").scores(key._replace(name=name))["sums"]
        return {score: hits / count for score, (hits, count) in ((x, np.sum(y, 0)) for x, y in sums.items())}

    read = values("in")
    assert read["inside"] > 0.95
    assert max(read["control"], read["chance"]) < 0.75  # else nothing could ever be claimed of labels at one token type
    if len(types) == 2:
        assert values("type")["chance"] == 1  # the type alone tells such labels


def test_passkey_prompts_have_the_same_key_and_depth_at_every_length():
    request = ReadoutRequest(
        model="default", methods="origin,rerope", lengths=(512,), samples=44, properties=("passkey-digit",)
    )
    planned, prompts = plan(request), plan(request).passkeys
    labels, tokenizer = planned.labels["passkey-digit"], tokenizer_of("default")
    assert (planned.training, len(planned.windows), labels.known.sum()) == (22, 44, 44)
    for text, (short, long) in enumerate(zip(prompts[256], prompts[512], strict=True)):
        assert short.answer == long.answer
        assert labels.values[text, -1] == short.answer[0]
        assert short.answer in tokenizer.decode(planned.prompt(text, 512))
        assert [len(planned.prompt(text, length)) for length in (256, 512)] == [256, 512]
        assert short.ids[-planned.tokens :] == long.ids[-planned.tokens :]
    assert len({prompt.answer for prompt in prompts[256]}) == 44


@pytest.mark.parametrize(("error", "is_read"), [(40.0, True), (900.0, False)])
def test_numbers_are_read_where_r2_is_above_0(error, is_read):
    def sums(errors):  # 8 texts of 100 numbers with a mean of 0 and a variance of 1
        return [[errors, 100.0, 0.0, 100.0]] * 8

    plan = SimpleNamespace(
        training=8, layers=[0], lengths=[M], methods={"origin": None}, trained_length=M, reference="origin",
        labels={"x": Labels("numbers", np.zeros((16, 1)), np.ones((16, 1), bool))}, request=SimpleNamespace(seed=0),
    )  # fmt: skip
    key = ReadoutKey("probe", "origin", M, 0, "x")
    scores = {"inside": error, "by_reference": error, "control": 2000.0, "chance": 3000.0}
    summary = _Summary(plan, {key: {"strength": 1.0, "sums": {name: sums(each) for name, each in scores.items()}}})
    summary.__dict__["_is_trained"] = True
    assert summary._probe(key).is_read is is_read


def _read_beyond(kind, **scores):
    """A row beyond M under rerope, of scores that are the same in 8 texts of 100 labels."""

    def sums(score):
        return [[score * 100, 100.0] if kind == "classes" else [100 * (1 - score), 100.0, 0.0, 100.0]] * 8

    labels = Labels(kind, np.zeros((16, 1)), np.ones((16, 1), bool))
    plan = SimpleNamespace(
        training=8, layers=[0], lengths=[M, LENGTH], methods={"origin": None, "rerope": None}, trained_length=M,
        reference="origin", labels={"x": labels}, request=SimpleNamespace(seed=0),
    )  # fmt: skip
    at_trained = {name: sums(scores[name]) for name in ("inside", "chance")} | {"control": sums(scores["chance"])}
    beyond = {name: sums(scores[name]) for name in ("transfer", "refit", "control")}
    rows = {
        ReadoutKey("probe", method, length, 0, "x"): {
            "strength": 1.0,
            "sums": (at_trained if length == M else beyond)
            | {"by_reference": sums(scores["transfer"] - 9 * (method == "origin"))},
        }
        for method in plan.methods
        for length in plan.lengths
    }
    summary = _Summary(plan, rows)
    summary.__dict__["_is_trained"] = True
    return summary._probe(ReadoutKey("probe", "rerope", LENGTH, 0, "x"))


@pytest.mark.parametrize(
    ("kind", "chance", "inside", "transfer", "refit", "control"),
    [("numbers", -0.1, 0.6, -8.0, -0.2, -19.0), ("classes", 0.93, 0.98, 0.5, 0.9, 0.8)],
)
def test_what_a_new_probe_does_not_read_has_not_moved(kind, chance, inside, transfer, refit, control):
    row = _read_beyond(kind, chance=chance, inside=inside, transfer=transfer, refit=refit, control=control)
    assert (row.is_read, row.is_lost, row.is_moved, row.is_returned) == (True, True, False, False)
    assert [row.transfer.mean, row.refit.mean] == pytest.approx([transfer, refit])
    assert [row.lost.mean, row.lost.high] == pytest.approx([inside - max(chance, 0)] * 2)
    assert [row.moved.mean, row.moved.high, row.returned.mean] == pytest.approx([0, 0, 0])


def test_a_probe_that_reads_less_than_nothing_loses_no_more_than_nothing():
    row = _read_beyond("numbers", chance=-0.1, inside=0.6, transfer=-8.0, refit=0.4, control=0.0)
    assert (row.is_lost, row.is_moved) == (True, True)
    assert [row.lost.mean, row.moved.mean] == pytest.approx([0.2, 0.4])
    row = _read_beyond("classes", chance=0.2, inside=0.9, transfer=0.4, refit=0.7, control=0.3)
    assert [row.lost.mean, row.moved.mean] == pytest.approx([0.2, 0.3])
    assert row.is_moved


def test_passkeys_that_are_not_said_are_counted_apart():
    key = ReadoutKey("probe", "origin", 512, 1, "passkey-digit")
    plan = SimpleNamespace(training=2, windows=range(6), layers=[1], lengths=[M, 512], methods={"origin": None})
    rows = {ReadoutKey("states", "origin", 512, text, ""): {"is_answered": text % 2 == 0} for text in range(6)}
    rows[key] = {"sums": {"transfer": [[0, 1], [1, 1], [0, 1], [0, 1]], "refit": [[1, 1]] * 4}}
    read = _Summary(plan, rows)._answers(key)
    assert read is not None
    assert (read.n, read.wrong, read.answered.mean, read.transfer.mean, read.refit.mean) == (4, 2, 0.5, 0.5, 1)
    assert read.answered.low < 0.5 < read.answered.high


@pytest.mark.slow
def test_the_passkeys_digit_is_read_where_the_model_says_it(tmp_path):
    options = [
        "--probe",
        "passkey-digit",
        "--methods",
        "origin",
        "--lengths",
        "512",
        "--samples",
        "120",
        "--layers",
        "3",
    ]
    assert main(["readout", *options, "--out", str(tmp_path)]) == 0
    summary = READOUT.read(tmp_path)
    assert {row.length for row in summary.answers} == {256, 512}
    at_trained = next(row for row in summary.answers if row.length == 256)
    assert at_trained.answered.mean > 0.5
    assert any(row.is_read for row in summary.probes)
    assert (tmp_path / "readout" / "answers.csv").is_file()


@pytest.mark.filterwarnings("ignore")
def test_layers_that_are_not_those_of_the_config_are_refused_before_the_weights(tmp_path):
    matrix.build("hrm_text", vocab_size=2048).config.save_pretrained(tmp_path)
    tokenizer_of("default").save_pretrained(tmp_path)
    with pytest.raises(Refused, match="modules of layers, its config states"):
        plan(ReadoutRequest(model=str(tmp_path), trained_length=64, lengths=(128,)))


def test_few_tokens_that_are_read_may_be_in_both_halves():
    windows = [np.arange(100), np.array([*range(200, 250), *range(60, 75), 9])]
    _check_apart(windows, 1, 16)  # 15 in a row are in both
    with pytest.raises(Refused, match="overlap"):
        _check_apart([windows[0], windows[0] + 20], 1, 16)


@pytest.mark.parametrize("name", ["labels.parquet", "labels.txt"])
def test_labels_in_a_file_of_another_kind_are_refused(tmp_path, name):
    (file := tmp_path / name).write_text("text,end,label\na,1,x\n")
    with pytest.raises(Refused, match="is no csv, tsv or jsonl file"):
        read_labels(file)


def test_integers_that_pandas_writes_as_floats_are_read(tmp_path):
    (file := tmp_path / "labels.csv").write_text("text,token,end,label\na b,,3.0,x\na b,0.0,,y\n")
    assert [row[1:3] for row in read_labels(file)] == [(None, 3), (0, 0)]


def test_labels_that_are_no_file_are_refused(tmp_path):
    with pytest.raises(Refused, match=f"--labels {tmp_path} is not a file"):
        read_labels(tmp_path)


@pytest.mark.parametrize("shift", [0, 30])
def test_copies_of_a_passage_in_both_halves_are_refused(folder, tmp_path, capsys, shift):
    text = (folder / "text-0.txt").read_text()
    texts = [json.dumps({"text": text}), json.dumps({"text": text[shift:]})]
    (file := tmp_path / "texts.jsonl").write_text("\n".join(texts))
    assert run(folder, tmp_path / "out", "--text", str(file)) == 2
    assert "texts to train on and to test on overlap" in capsys.readouterr().err


def test_copies_of_a_text_in_one_half_are_one_text(folder, tmp_path):
    longer, text = (folder / "text-0.txt").read_text() * 3, (folder / "text-1.txt").read_text()
    (file := tmp_path / "texts.jsonl").write_text(
        "\n".join(json.dumps({"text": each}) for each in (longer, text, text))
    )
    request = ReadoutRequest(
        model=str(folder), properties=("position",), text=str(file), lengths=(LENGTH,), samples=20, tokens=TOKENS
    )
    planned = plan(request)
    tested = planned.windows[planned.training :]
    assert len({window.tobytes() for window in tested}) == len(tested) < planned.training == 10
    assert planned.settings["copies"] == 10 - len(tested)  # a run that counted them is another
    file.write_text("\n".join(json.dumps({"text": each}) for each in (longer, text)))
    assert "copies" not in plan(request).settings


def test_strings_are_open_between_their_quotes():
    def marks(text):
        return "".join(".#"[bool(each)] for each in open_strings(list(text)))

    assert marks("a = 'b c' + d") == "....####....."
    assert marks("don't 'say'") == "......####."
    assert marks("f'x' # it's") == ".##........"
    assert marks('"""a "b" c"""d') == "#" * 10 + "." * 4
    assert marks("'a\nb'") == "##..#"
    assert marks(r"'a\'b'.") == "#####.."
