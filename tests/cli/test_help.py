"""Every help begins with an example that runs; every estimate tells the time."""

import re
import shlex

import pytest
import tiny
from commands import parsers

from mesa_lens.cli import main, parser

PARSERS = parsers(parser())


@pytest.mark.parametrize("name", PARSERS)
def test_help_begins_with_one_example_that_the_parser_takes(name, capsys):
    with pytest.raises(SystemExit):
        main([*name.split()[1:], "--help"])
    first, blank, *rest = capsys.readouterr().out.splitlines()
    assert (first[:9], blank) == ("example: ", "")
    assert not any(line.startswith("example:") for line in rest)
    command, *arguments = shlex.split(first.removeprefix("example: "))
    assert command == "mesa-lens"
    args = parser().parse_args(arguments)
    assert callable(args.run)
    if len(name.split()) > 1:
        assert arguments[: len(name.split()) - 1] == name.split()[1:]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return str(tiny.folder(tmp_path_factory.mktemp("model")))


ESTIMATES = {
    "probe": "--length 400 --texts 0 --samples 0",
    "eval": "--task nll --methods origin,rerope --lengths 160,320 --samples 2",
    "locate": "--lengths 320 --samples 1 --try weave",
    "anatomy": "--lengths 160,320 --samples 1 --parts lens",
    "estimate-window": "--longest 256 --samples 2",
}


@pytest.mark.parametrize("command", ESTIMATES)
def test_every_estimate_tells_the_time(command, model, tmp_path, capsys):
    out = [] if command == "estimate-window" else ["--out", str(tmp_path)]
    assert main([command, "--model", model, *ESTIMATES[command].split(), "--estimate", *out]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert re.fullmatch(
        r"time: (less than 10 s|about [\d.]+ (to [\d.]+ )?(s|min|h)) for the passes, if this machine stays as busy as "
        r"it is now \(\d+ threads?; .*\)",
        last,
    )


def test_a_command_that_can_estimate_is_among_those_tested():
    can = {name.split()[-1] for name, each in PARSERS.items() if "--estimate" in each._option_string_actions}
    assert can == {*ESTIMATES, "paper"}


@pytest.mark.slow
def test_the_papers_estimate_tells_the_time(capsys):
    assert main(["paper", "--sections", "probe", "--estimate"]) == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("time: ")
