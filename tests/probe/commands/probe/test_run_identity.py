"""A run's folder is of one model, M, revision, dtype and seed: every later command takes them, and refuses others."""

import json
import shutil

import pytest
import tiny
import zarr
from commands import main

from probe.files import SEAL, seal_of
from probe.run_folder import RunFolder

PROBE = "probe --methods origin,rerope --length 400 --texts 0 --samples 0 --layers 0 --dims 0-3 --seed 3".split()
COMMANDS = {
    "locate": "--methods rerope --lengths 400 --samples 1 --layers 0 --heads none --try patch --ways only".split(),
    "anatomy": "--methods origin --lengths 200 --samples 1 --layers 0 --parts heads".split(),
    "predict": "--methods origin,rerope --lengths 200,320 --samples 2".split(),
    "eval": "--task nll --methods origin --lengths 200 --samples 1".split(),
    "probe": PROBE[1:-2],
}


@pytest.fixture(scope="module")
def place(tmp_path_factory, undrawn):
    """A folder with a model and a run of it, with a window of its own, M stated and a seed."""
    folder = tmp_path_factory.mktemp("identity")
    tiny.folder(folder / "tiny")
    words = ["--set", "rerope.window=40", "--trained-length", "120", "--dtype", "float64"]
    assert main([*PROBE, *words, "--model", folder / "tiny", "--out", folder / "run"]) == 0
    return folder


@pytest.fixture
def run(place, tmp_path):
    shutil.copytree(place / "run", tmp_path / "run")
    return tmp_path / "run"


def files(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and "lock" not in path.name}


def write_attributes(store, **attributes):
    group = zarr.open_group(store, mode="r+", use_consolidated=False)
    group.attrs.update(attributes)
    group.attrs[SEAL] = seal_of(store)


@pytest.mark.parametrize("command", [command for command in COMMANDS if command != "eval"])
def test_a_later_command_takes_the_model_from_the_folder(command, run, place, capsys):
    assert main([command, *COMMANDS[command], "--out", run]) == 0, capsys.readouterr().err
    journals = list(run.rglob("*.jsonl"))
    assert journals or command == "probe"
    for journal in journals:
        settings = json.loads(journal.read_text().partition("\n")[0])["settings"]
        taken = [settings[key] for key in ("model", "trained_length", "dtype", "seed")]
        assert taken == [str(place / "tiny"), 120, "float64", 3]
        assert '"window": 40' in journal.read_text() or command == "anatomy"


def test_an_evaluation_and_a_probe_are_kept_apart(run, place, tmp_path, capsys):
    """Both write summary.json and report.html: neither replaces the other's, also with --overwrite."""
    words, evaluated = ["eval", *COMMANDS["eval"], "--model", place / "tiny"], tmp_path / "evaluated"
    assert main([*words, "--out", evaluated]) == 0
    given = ["--trained-length", "120", "--dtype", "float64", "--seed", "3"]
    for folder, line in ((run, [*words, *given]), (evaluated, [*PROBE[:-2], "--model", place / "tiny"])):
        before = files(folder)
        for overwrite in ((), ("--overwrite",)):
            assert main([*line, *overwrite, "--out", folder]) == 2
            assert f"--out {folder} holds another command's run" in capsys.readouterr().err
        assert files(folder) == before


@pytest.mark.parametrize(
    ("command", "name"),
    [("probe", "summary.json"), ("probe", "report.html"), ("probe", "figures/curves.png")]
    + [("eval", name) for name in ("samples.csv", "summary.json", "report.html", "nll.png", "nll.html")]
    + [("locate", "locate/summary.json"), ("predict", "predict/prediction.html")],
)
def test_a_strangers_file_in_a_runs_folder_is_refused_by_name(command, name, place, tmp_path, capsys):
    """The folder is a run's by the journal of another command; the file is no command's."""
    folder, file = tmp_path / "run", tmp_path / "run" / name
    settings = {"model": str(place / "tiny"), "trained_length": 120, "dtype": "float64", "seed": 3}
    (folder / "anatomy").mkdir(parents=True)
    (folder / "anatomy" / "journal.jsonl").write_text(json.dumps({"settings": settings, "crc32": True}) + "\n")
    file.parent.mkdir(exist_ok=True)
    file.write_text(mine := '{"title": "mine"}\n')
    words = [command, *(PROBE[1:-2] if command == "probe" else COMMANDS[command]), "--out", folder]
    assert main(words) == 2
    assert f"{file} is not a file that a run wrote" in capsys.readouterr().err
    assert (file.read_text(), len(files(folder))) == (mine, 2)
    if name == "samples.csv":
        assert main([*words, "--overwrite"]) == 0
        assert main(words) == 0  # its own are its own


@pytest.mark.quick_cases(9)
@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--model", "default"], "run is a run of model"),
        (["--trained-length", "130"], "trained_length (120 there, 130 now)"),
        (["--seed", "4"], "seed (3 there, 4 now)"),
        (["--dtype", "float32"], "dtype (float64 there, float32 now)"),
        (["--revision", "main"], "revision (None there, main now)"),
    ],
)
def test_another_model_is_refused_in_one_line_and_changes_nothing(command, words, says, run, capsys):
    before = files(run)
    assert main([command, *COMMANDS[command], *words, "--out", run]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()[-1:]
    assert says in line or "--revision" in line
    assert files(run) == before


@pytest.mark.parametrize(("command", "is_of_use"), [("predict", False), ("probe", True)])
def test_overwrite_is_proposed_where_it_replaces_what_differs(command, is_of_use, run, capsys):
    words = [command, *COMMANDS[command], "--seed", "4", "--out", run]
    assert main(words) == 2
    remedy = f"; use {'--overwrite or ' * is_of_use}another --out, or leave the option out\n"
    assert capsys.readouterr().err.endswith(remedy)
    assert main([*words, "--overwrite"]) == (0 if is_of_use else 2)
    assert is_of_use or capsys.readouterr().err.endswith(remedy)


def test_overwrite_is_proposed_for_a_record_of_the_command_where_there_is_no_other(place, tmp_path, capsys):
    words = ["predict", *COMMANDS["predict"], "--out", tmp_path]
    assert main([*words, "--model", place / "tiny"]) == 0
    assert main([*words, "--seed", "4"]) == 2
    assert "; use --overwrite or another --out, " in capsys.readouterr().err
    (tmp_path / "journal.jsonl").write_bytes((tmp_path / "predict" / "journal.jsonl").read_bytes())  # an evaluation's
    for command in ("predict", "probe"):
        assert main([command, *COMMANDS[command], "--seed", "4", "--out", tmp_path]) == 2
        assert "; use another --out, " in capsys.readouterr().err


def test_a_moved_model_is_the_same_a_changed_or_missing_one_is_not(run, place, tmp_path, capsys):
    shutil.copytree(place / "tiny", tmp_path / "moved")
    words = ["predict", *COMMANDS["predict"], "--out", run]
    assert main([*words, "--model", tmp_path / "moved"]) == 0
    assert main(words) == 0  # by the name that the run has
    weights = tmp_path / "moved" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\x01")
    assert main([*words, "--model", tmp_path / "moved"]) == 2
    assert "(weights " in capsys.readouterr().err
    shutil.rmtree(run / "predict")
    write_attributes(run / "store.zarr", model=str(tmp_path / "gone"))
    assert main(words) == 2
    assert f"{tmp_path / 'gone'}, which is not there; give its place by --model" in capsys.readouterr().err


def test_results_of_another_model_are_left_out_and_said_to_be(run, capsys):
    assert main(["predict", *COMMANDS["predict"], "--out", run]) == 0
    journal = run / "predict" / "journal.jsonl"
    head, _, rest = journal.read_text().partition("\n")
    header = json.loads(head)
    header |= {"settings": header["settings"] | {"weights": "sha256 0123", "model": "another"}, "crc32": True}
    journal.write_text(json.dumps(header) + "\n" + rest)
    capsys.readouterr()
    assert main(["report", run]) == 0
    said = capsys.readouterr().err
    assert f"{run / 'predict' / 'prediction.json'} is left out: it is of model another, not" in said


def test_another_text_than_the_runs_is_reported(run, capsys):
    there = RunFolder(run).settings
    for text, said in ((None, ""), ("mine.txt", "another text (shipped held-out text there, mine.txt now)")):
        RunFolder(run).check({**there, "text": text}, {}, lambda settings: "float64")
        assert said in (err := capsys.readouterr().err)
        assert bool(said) == bool(err)


def test_code_of_a_model_is_never_allowed_by_a_file(run):
    write_attributes(run / "store.zarr", trust_remote_code=True)
    assert "trust_remote_code" not in RunFolder(run).taken({"trust_remote_code": True}, (), "origin")
    with pytest.raises(ValueError, match="give --trust-remote-code again"):
        RunFolder(run).taken({"trust_remote_code": False}, (), "origin")


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("store.zarr/zarr.json", '"trained_length": 120', '"trained_length": 130'),
        ("predict/journal.jsonl", '"seed": 3', '"seed": 4'),
    ],
)
def test_of_a_run_nothing_is_taken_that_was_changed_by_hand(file, old, new, run, capsys):
    if file.startswith("predict"):
        assert main(["predict", *COMMANDS["predict"], "--out", run]) == 0
        shutil.rmtree(run / "store.zarr")
    content = (run / file).read_text()
    assert old in content
    (run / file).write_text(content.replace(old, new, 1))
    before = files(run)
    assert main(["predict", *COMMANDS["predict"], "--out", run]) == 2
    assert f"{run / file} is damaged: what it says of the run is not what was written" in capsys.readouterr().err
    assert files(run) == before


@pytest.mark.parametrize("content", ["", "{", "[" * 200_000, '{"attributes": 5}', '{"attributes": {"model": 5}}'])
def test_a_damaged_store_names_no_model(content, tmp_path):
    (tmp_path / "store.zarr").mkdir()
    (tmp_path / "store.zarr" / "zarr.json").write_text(content)
    assert RunFolder(tmp_path).settings == {}
