"""--estimate in the folder of a run that has begun: the time of what is left, and how much is done."""

import json
import re

import pytest
from commands import main

COMMANDS = {
    "probe": "--methods origin,rerope --length 400 --texts 0 --samples 1 --lengths 160,320 --refine 0 --layers 0",
    "locate": "--methods rerope --lengths 320 --samples 2 --layers 0-1 --heads none --try patch",
    "eval": "--task nll --methods origin --lengths 160,200 --samples 1",
}


def estimated(words, capsys):
    """What is done of all passes, None where none is; and the line on time."""
    assert main([*words, "--estimate", "--json"]) == 0
    lines = json.loads(capsys.readouterr().out)["estimate"]
    done = [re.search(r"done in .*, or not needed: ([\d,]+) of ([\d,]+) passes", line) for line in lines]
    counts = [tuple(int(number.replace(",", "")) for number in match.groups()) for match in done if match]
    return (counts[0] if counts else None), lines[-1]


@pytest.mark.usefixtures("undrawn", "unpainted")
@pytest.mark.parametrize("command", ["probe", "locate", pytest.param("eval", marks=pytest.mark.slow)])
def test_the_estimate_is_of_what_is_left(command, model, tmp_path, capsys):
    words = [command, *COMMANDS[command].split(), "--model", model, "--out", tmp_path / "run"]
    done, time = estimated(words, capsys)
    assert done is None
    assert time.startswith("time: about")
    main(words)
    capsys.readouterr()
    done, time = estimated(words, capsys)
    assert done is not None
    assert time == "time: none, no pass is left"
    assert estimated([*words, "--overwrite"], capsys)[0] is None
    assert done[0] == done[1]
    journal = next((tmp_path / "run").rglob("*.jsonl"))
    lines = journal.read_text().splitlines(keepends=True)
    journal.write_text("".join(lines[:-1]))
    part, time = estimated(words, capsys)
    assert 0 < part[0] < part[1] == done[1]  # no gap of locate is evaluated without its last run
    assert time.startswith("time: about")


CHANGED = {
    "probe": ["--lengths", "160,240"],
    "locate": ["--samples", "3"],
    "eval": ["--samples", "2"],
}


@pytest.mark.usefixtures("undrawn", "unpainted")
@pytest.mark.parametrize(
    "command", ["probe", *(pytest.param(name, marks=pytest.mark.slow) for name in ("locate", "eval"))]
)
def test_the_estimate_refuses_the_folder_that_the_run_would(command, model, tmp_path, capsys):
    words = [command, *COMMANDS[command].split(), "--model", model, "--out", tmp_path / "run"]
    main(words)
    for changed in (CHANGED[command], ["--seed", "5"]):
        capsys.readouterr()
        assert main([*words, *changed]) == 2
        refusal = capsys.readouterr().err.splitlines()[-1]
        assert "--overwrite" in refusal
        assert main([*words, *changed, "--estimate"]) == 2
        assert capsys.readouterr().err.splitlines()[-1] == refusal
    assert main([*words, *changed, "--estimate", "--overwrite"]) == 0
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes.txt").write_text("mine")
    assert main([*words[:-1], tmp_path / "other", "--estimate"]) == 2
