"""Texts are read as they lie there: by file, in order of names, whatever a library would make of them."""

import json
import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet
import pytest

from mesa.errors import Refused
from mesa.models import tokenizer_of
from mesa_lens.cli import main
from probe.commands.anatomy import AnatomyRequest
from probe.commands.anatomy.run import plan as anatomy_plan
from probe.commands.locate import LocateRequest
from probe.commands.locate.result import LOCATED
from probe.commands.locate.run import plan as locate_plan
from probe.commands.predict import PredictRequest
from probe.commands.predict.run import plan as predict_plan
from probe.commands.probe import ProbeRequest
from probe.commands.probe.plan import plan as probe_plan
from probe.commands.probe.run import prepare
from probe.eval_tasks import sources
from probe.eval_tasks.score import documents_of
from probe.evaluation import plan_evaluation as eval_plan
from probe.figures.section import provenance
from probe.request import EvalRequest

ROOT = Path(__file__).resolve().parents[3]

ONE = "import os\n\n\n    print('é')  # NA\n" * 3


def lines(path, *rows, start=""):
    path.write_text(start + "".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    return str(path)


def arrow(path, rows, new=pa.ipc.new_stream):
    table = pa.table({"text": rows})
    with pa.OSFile(str(path), "wb") as file, new(file, table.schema) as writer:
        writer.write_table(table)


def test_a_folder_holds_the_same_texts_as_its_files(tmp_path):
    """`datasets` makes a document of each line, and takes "test" in a file's name for the split to read."""
    folder = tmp_path / "here"
    (folder / "part" / "deep").mkdir(parents=True)
    written = {"b.txt": "two", "test_a.TXT": ONE, "latest": "three\n", "part/c.py": "four", "part/deep/d.md": "five"}
    for name, text in written.items():
        (folder / name).write_text(text)
    for name in (".hidden", "empty.txt"):
        (folder / name).write_text("of no use" if name[0] == "." else "")
    os.symlink(folder / "b.txt", folder / "z.txt")
    read = sources.texts_by_name(str(folder))
    assert list(read) == ["b.txt", "empty.txt", "latest", "part/c.py", "part/deep/d.md", "test_a.TXT", "z.txt"]
    assert read == {**{name: [text] for name, text in written.items()}, "empty.txt": [], "z.txt": ["two"]}
    for name, text in written.items():
        assert sources.texts(folder / name) == [text]


@pytest.mark.parametrize("suffix", [".jsonl", ".NDJSON", ".json", ".csv", ".tsv", ".parquet", ".arrow", ".feather"])
def test_rows_give_the_same_texts_in_every_form(tmp_path, suffix):
    """Also what a reader of tables takes for a number, or for a missing cell."""
    rows, folder = [ONE, "5", "NA", 'a "quoted", cell\tand more', "long " * 40_000], tmp_path / "rows"
    folder.mkdir()
    (folder / "README.md").write_text("what these are")
    for name in ("train", "test"):
        path = folder / f"{name}{suffix}"
        if suffix == ".json":
            path.write_text("\ufeff" + json.dumps([{"text": text, "id": 1} for text in rows], indent=1))
        elif suffix in (".csv", ".tsv"):
            cells = [text.replace('"', '""') for text in rows]
            separator = "\t" if suffix == ".tsv" else ","
            path.write_text(f"\ufefftext{separator}id\n" + "".join(f'"{cell}"{separator}1\n' for cell in cells))
        elif suffix == ".parquet":
            pyarrow.parquet.write_table(pa.table({"id": [1] * len(rows), "text": rows}), path)
        elif suffix in (".arrow", ".feather"):
            arrow(path, rows, pa.ipc.new_stream if suffix == ".arrow" else pa.ipc.new_file)
        else:
            lines(path, {"text": rows[0]}, {"text": " "}, *({"text": text} for text in rows[1:]), start="\ufeff")
        assert sources.texts(str(path)) == rows
    assert {name: len(texts) for name, texts in sources.texts_by_name(str(folder)).items()} == {
        f"test{suffix}": len(rows), f"train{suffix}": len(rows)
    }  # fmt: skip


def test_a_byte_order_mark_is_no_text(tmp_path):
    (tmp_path / "a.txt").write_text("\ufeff" + ONE, encoding="utf-8")
    lines(tmp_path / "b.jsonl", {"text": "\ufeff" + ONE})
    arrow(tmp_path / "c.arrow", ["\ufeff" + ONE])
    for name in ("a.txt", "b.jsonl", "c.arrow"):
        assert sources.texts(tmp_path / name) == [ONE]


def test_json_is_read_as_rows_whichever_way_it_is_written(tmp_path):
    for value in ([{"text": "one"}, {"text": "two"}], {"text": "one"}):
        (tmp_path / "a.json").write_text(json.dumps(value, indent=2))
        assert sources.texts(tmp_path / "a.json") == (["one", "two"] if isinstance(value, list) else ["one"])
    lines(tmp_path / "a.json", {"text": "one"}, {"text": "two"})
    assert sources.texts(tmp_path / "a.json") == ["one", "two"]


def test_what_the_texts_are_is_known_and_said(tmp_path, capsys):
    lines(tmp_path / "a.jsonl", {"text": "one two"}, {"text": "import os"})
    tokenizer = tokenizer_of("default")
    ids, about = documents_of(tokenizer, str(tmp_path))
    assert about == sources.TextSource(str(tmp_path), {"a.jsonl": 2}, sum(map(len, ids)))
    documents_of(tokenizer, str(tmp_path))
    said = f"text: {tmp_path}: 2 documents, {about.tokens} tokens (a.jsonl, 2 documents)\n"
    assert capsys.readouterr().err == said  # once
    _, shipped = documents_of(tokenizer, None)
    assert str(shipped).startswith("shipped held-out text: 8 documents, ")
    assert str(shipped).endswith(" (argparse.py; configparser.py; difflib.py; and 5 more)")
    assert capsys.readouterr().err == ""


def test_a_name_in_other_bytes_can_be_shown(tmp_path):
    path = os.path.join(os.fsencode(tmp_path), b"caf\xe9.txt")
    with open(path, "w") as file:
        file.write("one")
    assert sources.texts_by_name(tmp_path) == {"caf\\xe9.txt": ["one"]}


BAD = {
    "broken.jsonl": ('{"text": "one"}\n\n{"text": "two\n', r"broken\.jsonl, line 3 is not JSON"),
    "list.jsonl": ("[1]\n", r"list\.jsonl, line 1 is not an object with fields"),
    "wrong.jsonl": ('{"title": "x", "body": "y"}', r"wrong\.jsonl, row 1 has no field 'text'; it has title, body"),
    "null.jsonl": ('{"text": "one"}\n\n{"text": null}\n', r"null\.jsonl, row 3: 'text' is null, not a string"),
    "five.jsonl": ('{"text": 5}', r"five\.jsonl, row 1: 'text' is 5, not a string"),
    "half.jsonl": ('{"text": "one"}\n{"text": "an \\ud83d"}', r"half\.jsonl, row 2: 'text' holds .* at character 3"),
    "half.json": ('[{"text": "\\udc00"}]', r"half\.json, row 1: 'text' holds '\\udc00' at character 0"),
    "numbers.json": ("[1, 2]", r"numbers\.json, row 1 is not an object"),
    "settings.json": ('{"a": {"text": "x"}}', r"settings\.json, row 1 has no field 'text'; it has a"),
    "prose.json": ("not JSON at all", r"prose\.json, line 1 is not JSON"),
    "more.csv": ("id,text\n1,Hello, world\n", r"more\.csv, row 1 has more cells than the head"),
    "short.csv": ("id,text\n1\n", r"short\.csv, row 1: 'text' is null, not a string"),
    "open.csv": ('text\n"never closed\n', r"open\.csv cannot be read as a table"),
    "other.csv": ("body\nx\n", r"other\.csv, row 1 has no field 'text'; it has body"),
    "no.parquet": ("not a table", r"no\.parquet cannot be read as a table"),
    "no.arrow": ("not a table", r"no\.arrow cannot be read as a table"),
    "zero.txt": ("a\0b", r"zero\.txt is not text: it has a byte 0"),
    "blank.md": (" \n", r"blank\.md holds no text"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_file_is_named_with_its_place(tmp_path, name):
    content, message = BAD[name]
    folder = tmp_path / "here"
    folder.mkdir()
    (folder / name).write_text(content)
    for source in (folder / name, folder):
        with pytest.raises(Refused, match=message if name != "blank.md" else "holds no text"):
            sources.texts(str(source))


@pytest.mark.parametrize("encoding", ["utf-16", "utf-32", "latin-1"])
def test_other_encodings_are_refused(tmp_path, encoding):
    (tmp_path / "a.txt").write_bytes("import é".encode(encoding))
    with pytest.raises(Refused, match=r"a\.txt is not"):
        sources.texts(tmp_path)


def test_a_folder_that_cannot_be_read_in_full_is_refused(tmp_path):
    """A file left out makes another text."""
    (tmp_path / "a.txt").write_text("one")
    other = tmp_path.parent / f"{tmp_path.name}-other"
    other.mkdir()
    for target, message in ((other, r"linked is no file: a link to a folder"), ("nowhere", "linked is no file")):
        (tmp_path / "linked").symlink_to(target)
        with pytest.raises(Refused, match=message):
            sources.texts(tmp_path)
        (tmp_path / "linked").unlink()
    os.mkfifo(tmp_path / "pipe")
    for source in (tmp_path, tmp_path / "pipe"):
        with pytest.raises(Refused, match="pipe is no file"):
            sources.texts(source)
    (tmp_path / "pipe").unlink()
    lines(tmp_path / "b.jsonl", {"text": "two"})
    with pytest.raises(Refused, match=r"holds plain files \(a\.txt\) and files of rows \(b\.jsonl\); name one file"):
        sources.texts(tmp_path)


def test_a_missing_path_is_not_looked_for_on_the_hub_and_other_names_are_datasets(monkeypatch):
    names, splits = [], {"train": [{"text": "one"}], "validation": [{"text": "two"}]}
    monkeypatch.setattr("datasets.load_dataset", lambda name: names.append(name) or splits)
    for source in ("./notes", "notes.md", "~/notes", "notes.PARQUET"):
        with pytest.raises(FileNotFoundError, match="is not a file or folder"):
            sources.texts(source)
    assert names == []
    for source in ("wikitext", "someone/set-2.1"):
        read = sources.texts_by_name(source)
        assert read == {"split train of train, validation; column text": ["one"]}
    splits["test"] = [{"text": "\ufeffthree"}]
    assert sources.texts_by_name("x") == {"split test of train, validation, test; column text": ["three"]}
    assert names == ["wikitext", "someone/set-2.1", "x"]


def test_a_dataset_that_is_not_there_says_why(monkeypatch):
    def missing(name):
        raise ValueError("Config name is missing.\nPlease pick one among the available configs: ['a', 'b']")

    monkeypatch.setattr("datasets.load_dataset", missing)
    with pytest.raises(FileNotFoundError, match=r"Config name is missing\. Please pick one among .* \['a', 'b'\]"):
        sources.texts("wikitext")


def test_every_command_reads_a_folder_as_its_files(tmp_path, capsys):
    """The same tokens as of the file, whose lines `datasets` would take for documents."""
    folder = tmp_path / "texts"
    folder.mkdir()
    (folder / "test_a.txt").write_text(sources.heldout()[0])
    (folder / "b.txt").write_text(sources.heldout()[1])
    named = {"text": str(folder), "samples": 2}
    plans = {
        "eval": eval_plan(EvalRequest(tasks=("nll",), methods="origin", lengths=(256,), **named)),
        "locate": locate_plan(LocateRequest(lengths=(320,), **named)),
        "anatomy": anatomy_plan(AnatomyRequest(parts=("heads",), **named)),
        "predict": predict_plan(PredictRequest(lengths=(512,), **named)),
    }
    _, _, of_probe = prepare(probe_plan(ProbeRequest(length=512, **named)))
    expected, (ids, _) = {"b.txt": 1, "test_a.txt": 1}, documents_of(tokenizer_of("default"), str(folder))
    abouts = [*(plan.text_source for plan in plans.values()), of_probe]
    assert [(about.documents, about.tokens) for about in abouts] == [(expected, sum(map(len, ids)))] * 5
    assert (
        main(["check", "--estimate-window", "--longest", "128", "--samples", "2", "--text", str(folder), "--json"]) == 0
    )
    assert json.loads(capsys.readouterr().out)["text_source"]["documents"] == expected


def test_a_summary_of_before_says_that_its_text_is_not_recorded():
    summary = LOCATED.read(ROOT / "mesa_lens" / "examples" / "smollm2-16k")
    assert summary.text_source is None
    assert provenance(summary).tables[0].rows[:2] == (("model_revision", "not recorded"), ("text", "not recorded"))
