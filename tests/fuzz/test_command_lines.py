"""Some of the wrong command lines; `make test-fuzz` tries 2,000."""

import command_lines
import pytest
import worlds

PART = 25


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    return worlds.build(tmp_path_factory.mktemp("world"))


@pytest.fixture(scope="module")
def lines(world):
    return command_lines.all_lines(world)


@pytest.mark.filterwarnings("default")  # of libraries, about what is damaged
@pytest.mark.quick_cases(3)
@pytest.mark.parametrize("part", range(6))
def test_wrong_command_lines_end_in_one_line_that_names_what_is_wrong(lines, part):
    failed = command_lines.failures(lines[part * PART : (part + 1) * PART])
    assert not failed, "\n".join(failed)


def test_there_are_lines_enough_and_every_option_has_wrong_values(lines):
    assert len(lines) >= 2000
    for command, actions in command_lines.commands().items():
        for action in actions:
            assert action.nargs == 0 or isinstance(command_lines.wrong_values(command, action), list)


@pytest.mark.parametrize(
    "command",
    ["eval", "methods explain", pytest.param("probe", marks=pytest.mark.slow)],
)
def test_what_is_right_is_not_called_wrong(world, command):
    words = (*command.split(), *command_lines.BASES[command].format(**world).split())
    assert command_lines.complaint(command_lines.Line(words, ())) == "was accepted (0)"
