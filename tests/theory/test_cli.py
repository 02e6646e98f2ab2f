"""The command: exit codes, one-line errors, JSON, the report, the plots' data."""

import argparse
import json
import re
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from theory.claim import NOTHING, Reading
from theory.claims import CLAIMS, Settings, rotary_reach
from theory.cli import add_arguments, run, write_report
from theory.curves import Example, curves, head_output_by_dimension, recovery_errors
from theory.figures import (
    IDEAL,
    PE,
    SERIES,
    STAIR,
    WEAVE,
    attention_figure,
    crossing_plot,
    dimension_figure,
    excess_figure,
    position_figure,
    position_plot,
    recovery_plot,
)


def command(*words: str) -> int:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return run(parser.parse_args(words))


def test_lines_and_exit_code(capsys):
    assert command("--claim", "3.3-eq48") == 0
    line, total = capsys.readouterr().out.splitlines()
    assert line.startswith(
        "[fails as printed] 3.3-eq48: For t - i < N the score is tau - (t - i) | Theorem 3.3, eq. 48"
    )
    assert "counterexample: t = 6, i = 3: score -1 + tau, printed -3 + tau" in line
    assert total == "1 claim checked: 1 fails as printed; every verdict is the expected one."


def test_json(capsys):
    assert command("--claim", "3.1", "--M", "20", "--json") == 0
    claims = json.loads(capsys.readouterr().out)
    assert [claim["name"] for claim in claims] == ["3.1", "3.1-head-size", "3.1-reading"]
    assert claims[0]["parameters"]["M"] == 20
    assert claims[0]["margin"] == pytest.approx(1 / 21)


def test_a_broken_claim_is_exit_code_1(capsys, monkeypatch):
    broken = replace(CLAIMS["3.1"](Settings(quick=True)), reading=Reading(-1.0))
    monkeypatch.setitem(CLAIMS, "3.1", lambda settings: broken)
    assert command("--claim", "3.1") == 1
    assert ", 1 BROKEN (3.1)." in capsys.readouterr().out


def test_claims_that_sizes_do_not_suit_are_named_and_the_others_checked(capsys, monkeypatch):
    monkeypatch.setattr("theory.claims.CLAIMS", {name: CLAIMS[name] for name in ("3.3-range", "corollary")})
    assert command("--M", "8", "--N", "7", "--quick") == 0
    captured = capsys.readouterr()
    *bar, note = captured.err.splitlines()  # a busy machine shows how far it is
    assert note == "[not checked] corollary: N=7 leaves Stair PE no room below M=8; take N <= 6"
    assert all("claims]" in line or not line.strip() for line in bar)
    line, total = captured.out.splitlines()
    assert "3.3-range" in line
    assert total == "1 claim checked: 1 holds with the stated correction; every verdict is the expected one."


def test_full_and_quick_reach_the_claims(monkeypatch, capsys):
    reached, sound = [], CLAIMS["3.3-eq48"]
    recording = {"3.3-eq48": lambda settings: (reached.append((settings.full, settings.quick)), sound(settings))[1]}
    monkeypatch.setattr("theory.claims.CLAIMS", recording)
    for words in ([], ["--full"], ["--quick"]):
        assert command(*words) == 0
    assert reached == [(False, False), (True, False), (False, True)]
    with pytest.raises(SystemExit, match="2"):
        command("--full", "--quick")
    assert "not allowed with argument --full" in capsys.readouterr().err


def test_in_full_the_longest_inputs_are_built(monkeypatch):
    """Real matrices of a window of 4096, and Dynamic-NTK followed to 250 tokens; 1024 and 125 otherwise."""
    built, followed = [], []

    def measured(model, method, length):
        built.append(length)
        return np.ones(length), np.ones(length)

    monkeypatch.setattr("theory.claims.rotary.measured", measured)
    monkeypatch.setattr("theory.claims.rotary.llama", lambda *args: None)
    monkeypatch.setattr(rotary_reach, "_ntk_failure", lambda *args: (followed.append(args[3]), (None, NOTHING))[1])
    for full in (False, True):
        for name in ("rotary-4096", "rotary-ntk"):
            CLAIMS[name](Settings(full=full))
    assert built == [1024 + 64, 4096 + 64]
    assert sorted(set(followed)) == [125, 250]


@pytest.mark.parametrize("H", ["-1", "0", "-100"])
def test_thresholds_of_any_sign_hold(H, capsys):
    assert command("--claim", "3.2", "--M", "12", "--H", H) == 0
    assert command("--claim", "3.1", "--M", "12", "--H", H) == 0
    assert "BROKEN" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--M 8 --N 8", "N=8 is not below M=8; take N <= 7"),
        ("--H inf", "H=inf is not finite; take a finite threshold"),
        ("--H 1e300", "H=1e+300 leaves float64 no digits to tell o from H"),
        ("--M 709", "M=709 exceeds the 708 positions that the steps MLP recovers in float64; take M <= 708 or"),
        ("--M 87 --dtype float32", "M=87 exceeds the 86 positions that the steps MLP recovers in float32"),
        ("--M 5000 --recovery log", "M=5000 exceeds the 4096 positions that the log MLP recovers"),
        ("--M 8 --N 7 --E 2 --claim corollary", "N=7 leaves Stair PE no room below M=8; take N <= 6"),
        ("--M 2 --claim 3.3", "M=2 is below 3: the weave has nothing to extend; take M >= 3"),
        ("--seed -1", "seed=-1 is not within 0 and 4294967295"),
        ("--E 1", "E=1 is below 2: a stair of width 1 is the plain encoding"),
        ("--claim 9", "unknown claim '9'; known: 3.1,"),
        ("--html /no/such/place/report", "there is no directory /no/such/place; make it first"),
        ("table --N 12 --M 64 --quick", "every T* exceeds the 1600 tokens that are run; take a smaller N or M"),
    ],
)
def test_misuse_is_one_line_and_exit_code_2(words, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert command(*words.split()) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert re.fullmatch(r"error: [^\n]+\n", captured.err)
    assert message in captured.err


def test_the_module_reports_unknown_options_in_one_line():
    done = subprocess.run([sys.executable, "-m", "theory", "--M", "many"], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (2, "error: argument --M: invalid int value: 'many'\n")


def test_report_opens_offline(tmp_path, capsys):
    assert command("--claim", "3.3-eq48", "--M", "8", "--N", "2", "--html", str(tmp_path / "report")) == 0
    html = (tmp_path / "report.html").read_text()
    assert not re.search(r"<(script|link|img)[^>]+(src|href)=", html)
    assert html.count("plotly-graph-div") >= 4
    assert "M = 8, N = 2, E = 2" in html
    assert "<p>1 claim checked: 1 fails as printed; every verdict is the expected one." in html


def test_the_claims_table_is_readable_on_a_phone(tmp_path):
    """Below 760 pixels a claim's cells stand below each other, labelled; numbers may wrap at any width."""
    write_report([CLAIMS["alibi-constant"](Settings(quick=True))], Settings(M=8, N=2, quick=True), tmp_path / "a.html")
    style, _, body = (tmp_path / "a.html").read_text().partition("</style>")
    narrow = style.partition("@media (max-width: 760px)")[2]
    assert re.search(r"table, tbody, tr, td \{ display: block; \}", narrow)
    assert "nowrap" not in style
    assert "anywhere" not in style
    table = body[: body.index("</table>")]
    heads = re.findall(r"<th>(.*?)</th>", table)
    assert re.findall('data-label="(.*?)"', table) == heads[2:]
    assert sum(map(int, re.findall(r"width: (\d+)%; \}", style))) <= 85  # the rest is the third column's


@pytest.mark.parametrize("sizes", [(16, 3), (30, 11)])
def test_figures_say_where_their_curves_stop(sizes):
    """At M = 30, N = 11 the weave's T* is 1.6 million tokens, of which 2000 are built."""
    data = curves(Example(*sizes, E=2, settings=Settings(quick=True)))
    stops = data.T_weave > data.t[-1]
    assert stops == (sizes == (30, 11))
    for draw in (excess_figure, position_figure, attention_figure):
        texts = " ".join(note.text for note in draw(data).layout.annotations).replace("<br>", " ")
        assert ("Curves stop at t = 2,000" in texts) == stops
        assert ("T* of the weave, 1.6068e+06, lie beyond" in texts) == stops
    titles = [crossing_plot(data).axes[0].get_title(), position_plot(data).get_suptitle()]
    assert all(("Curves stop at t = 2,000" in text) == stops for text in titles)


def test_table_is_written_and_cases_left_out_are_counted(tmp_path, capsys):
    assert command("table", "--N", "4", "--M", "64", "--E", "2", "--quick", "--out", str(tmp_path / "new")) == 0
    assert {file.name for file in (tmp_path / "new").iterdir()} == {"theory_table.csv", "theory_table.png"}
    out, err = capsys.readouterr()
    assert out.splitlines()[0].endswith("theory_table.csv")
    assert err.splitlines()[-1] == "1 of 2 cases are left out: their T* exceeds the 1600 tokens that are run"


@pytest.fixture(scope="module")
def data():
    return curves(Example(M=8, N=2, E=2, settings=Settings(quick=True)))


def test_curves_cross_where_the_closed_forms_say(data):
    t = data.t.values

    def first_failing(name: str) -> int:
        excess = data.excess.sel(construction=name).values
        return int(t[(t > 8) & (excess <= 0)][0])

    assert {name: first_failing(name) for name in (PE, IDEAL, STAIR)} == {PE: 9, IDEAL: 43, STAIR: 16}
    assert (data.excess.sel(construction=WEAVE) >= data.excess.sel(construction=IDEAL) - 1e-12).all()
    assert (data.T_weave, data.T_stair) == pytest.approx((42.8978, 14.8731), abs=1e-4)


def test_figures_show_the_data(data):
    figure = excess_figure(data)
    np.testing.assert_array_equal(
        {line.name: line.y for line in figure.data}[STAIR], data.excess.sel(construction=STAIR)
    )
    assert [shape.x0 for shape in figure.layout.shapes if shape.x0 == shape.x1] == [8, data.T_stair, data.T_weave]
    (panel,) = crossing_plot(data).axes
    assert panel.get_ylabel() == "$o_t - H$ (above 4: not drawn)"


def test_only_the_third_dimension_turns_at_M():
    output = head_output_by_dimension(Example(M=32))
    excess = output - output.sel(t=32)
    turns = (excess.sel(t=slice(8, 31)) > 0).all("t") & (excess.sel(t=slice(33, None)) < 0).all("t")
    assert output.dimension[turns].values.tolist() == [3]
    assert float(output.sel(dimension=3, t=32)) == pytest.approx(0.5)
    assert dimension_figure(output).data[0].z.shape == (12, 128)


def test_recovery_errors_show_where_each_mlp_ends():
    table = recovery_errors("float32", np.array([8, 60, 100]))
    exact = {str(mlp): (table.sel(mlp=mlp) <= 0.01).values.tolist() for mlp in table.mlp.values}
    assert exact == {
        "naive": [True, False, False],
        "interpolating": [True, True, False],
        "steps": [True, True, False],
        "log": [True, True, True],
    }
    (panel,) = recovery_plot([table]).axes
    assert [line.get_color() for line in panel.lines[:4]] == [look["color"] for look in SERIES[:4]]
    assert len({(line.get_linestyle(), line.get_marker()) for line in panel.lines[:4]}) == 4
