"""`mesa-lens verify`: exit codes, one-line errors, JSON, the report and its curves."""

import json
import re
from dataclasses import replace

import numpy as np
import pytest

from mesa_lens.cli import main
from probe.files import read_result
from theory.claim import Measurement
from theory.claims import CLAIMS, VerifyOptions
from theory.figures import IDEAL, PE, STAIR, WEAVE, excess_figure
from theory.report import curves


def command(words: str) -> int:
    return main(["verify", *words.split()])


def test_lines_and_exit_code(capsys):
    assert command("--claim 3.3-eq48") == 0
    line, total = capsys.readouterr().out.splitlines()
    assert line.startswith(
        "[holds with the stated correction] 3.3-eq48 (the paper's): For t - i < N the score is tau - ("
    )
    assert "as printed: t = 6, i = 3: score -1 + tau, printed -3 + tau" in line
    assert total == (
        "1 other statement of the paper's: 1 holds with the stated correction. Every verdict is the expected one."
    )


def test_json(capsys):
    assert command("--claim 3.1 --M 20 --json") == 0
    result = json.loads(capsys.readouterr().out)
    assert result["summary"].startswith(
        "The paper's theorems: 3.1 holds. 1 other statement of the paper's: 1 holds with"
    )
    claims = result["claims"]
    assert [claim["name"] for claim in claims] == ["3.1", "3.1-head-size", "3.1-reading"]
    assert [claim["whose"] for claim in claims] == ["the paper's", "the paper's", "ours"]
    assert claims[0]["parameters"]["M"] == 20
    assert claims[0]["margin"] == pytest.approx(1 / 21)


def test_a_broken_claim_is_exit_code_1(capsys, monkeypatch):
    broken = replace(CLAIMS["3.1"](VerifyOptions(quick=True)), reading=Measurement(-1.0))
    monkeypatch.setitem(CLAIMS, "3.1", lambda settings: broken)
    assert command("--claim 3.1") == 1
    assert "BROKEN: 3.1." in capsys.readouterr().out


def test_claims_that_sizes_do_not_suit_are_named_and_the_others_checked(capsys, monkeypatch):
    monkeypatch.setattr("theory.claims.CLAIMS", {name: CLAIMS[name] for name in ("3.3-range", "corollary")})
    assert command("--M 8 --N 7 --quick") == 0
    captured = capsys.readouterr()
    assert "[not checked] corollary: N=7 leaves Stair PE no room below M=8; take N <= 6\n" in captured.err
    line, total = captured.out.splitlines()
    assert "3.3-range" in line
    assert total == "1 of our own about them: 1 holds. Every verdict is the expected one."


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--M 8 --N 8", "N=8 is not below M=8; take N <= 7"),
        ("--H 1e300", "H=1e+300 leaves float64 no digits to tell o from H"),
        ("--M 709", "M=709 exceeds the 708 positions that the steps MLP recovers in float64; take M <= 708"),
        ("--N 707", "N=707 takes 709 positions, and the steps MLP recovers 708 in float64; take N <= 706"),
        ("--N 708 --claim 3.3-recovery", "N=708 takes 710 positions"),
        ("--N 85 --dtype float32", "the steps MLP recovers 86 in float32; take N <= 84"),
        ("--M 200000 --dtype float32", "M=200000 exceeds the 86 positions that the steps MLP recovers in float32"),
        ("--E 1000000000 --claim corollary", "E=1000000000 exceeds 100000; take E <= 100000"),
        ("--M 87 --dtype float32", "M=87 exceeds the 86 positions that the steps MLP recovers in float32"),
        ("--M 8 --N 7 --E 2 --claim corollary", "N=7 leaves Stair PE no room below M=8; take N <= 6"),
        ("--M 2 --claim 3.3", "M=2 is below 3: the remap has nothing to extend; take M >= 3"),
        ("--E 1", "E=1 is below 2: a stair of width 1 is the plain encoding"),
        ("--E 3 --claim 3.1", "--E 3 has no effect on --claim 3.1; it has on corollary"),
        ("--N 2 --claim 3.2-exact", "--N 2 has no effect on --claim 3.2-exact; it has on 3.3, "),
        ("--full --claim recovery", "--full has no effect on --claim recovery; it has on mesa-woven-paper"),
        ("--M 64 --claim 3.3-recovery", "--M 64 has no effect on --claim 3.3-recovery; it has on 3.1, "),
        ("--M 64 --claim 3.3-window", "--M 64 has no effect on --claim 3.3-window"),
        ("--quick --claim 3.1", "--quick has no effect on --claim 3.1; it has on recovery, "),
        ("--dtype float32 --claim recovery", "--dtype float32 has no effect on --claim recovery"),
        ("--seed 1 --claim 3.3-reach", "--seed 1 has no effect on --claim 3.3-reach"),
        ("--seed 1 --claim 3.2-exact", "--seed 1 has no effect on --claim 3.2-exact"),
        (
            "--M 8 --N 7 --html report",
            "--html draws the remap and Stair PE: N=7 leaves Stair PE no room below M=8; take",
        ),
        ("--M 2 --claim 3.1 --html report", "nothing to extend; take M >= 3, or leave --html out"),
        ("--html .", "--html . is a folder; name a file in it"),
        ("--claim 9", "unknown claim '9'; known: 3.1,"),
        ("--html /no/such/place/report", "there is no directory /no/such/place; make it first"),
    ],
)
def test_misuse_is_one_line_and_exit_code_2(words, message, capsys):
    assert command(words) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert re.fullmatch(r"mesa-lens: [^\n]+\n", captured.err)
    assert message in captured.err


def test_report_opens_offline(tmp_path, capsys):
    assert command(f"--claim 3.3-eq48 --M 8 --N 2 --html {tmp_path / 'report'}") == 0
    html = (tmp_path / "report.html").read_text()
    assert not re.search(r"<(script|link|img)[^>]+(src|href)=", html)
    assert html.count("plotly-graph-div") >= 3
    assert "M = 8, N = 2, E = 2" in html
    assert "<p>1 other statement of the paper&#39;s: 1 holds with the stated correction. Every verdict" in html
    assert [claim["name"] for claim in read_result(tmp_path / "report.json")["claims"]] == ["3.3-eq48"]


@pytest.mark.parametrize("name", ["report.html", "report.json"])
def test_a_strangers_file_is_not_replaced(name, tmp_path, capsys):
    (tmp_path / name).write_text('{"checksum": "mine"}')
    assert command(f"--claim 3.3-eq48 --html {tmp_path / 'report'}") == 2
    assert f"{tmp_path / name} is not a file that this command wrote; name another" in capsys.readouterr().err
    assert (tmp_path / name).read_text() == '{"checksum": "mine"}'


def test_curves_cross_where_the_closed_forms_say():
    data = curves(VerifyOptions(M=8, N=2, E=2, quick=True))
    excess = data.excess.where(data.t > 8, drop=True)
    fails = {name: int(data.t[8:][excess.sel(construction=name) <= 0][0]) for name in (PE, IDEAL, STAIR)}
    assert fails == {PE: 9, IDEAL: 43, STAIR: 16}
    assert (data.excess.sel(construction=WEAVE) >= data.excess.sel(construction=IDEAL) - 1e-12).all()
    assert (data.T_weave, data.T_stair) == pytest.approx((42.8978, 14.8731), abs=1e-4)
    figure = excess_figure(data)
    np.testing.assert_array_equal(
        {line.name: line.y for line in figure.data}[STAIR], data.excess.sel(construction=STAIR)
    )
    assert [shape.x0 for shape in figure.layout.shapes if shape.x0 == shape.x1] == [8, data.T_stair, data.T_weave]
