"""Every HTML page that is written, as wide as a phone and a desk: columns do not overlap, and all fits the page."""

import json
from pathlib import Path

import anatomized
import located
import pytest
import results
from synthetic import evaluation, hidden_states, write_run

from probe.commands.eval.page import write_curves
from probe.commands.probe.report import write_report
from theory.claim import Measurement
from theory.claims import Claim, ClaimVerdict, VerifyOptions
from theory.report import render

pytestmark = pytest.mark.browser
M = 256
PAGES = ("theory.html", "theory-far.html", "run/report.html", "run/locate/report.html", "run/anatomy/report.html")
PAGES += ("eval/passkey.html", "run/figures/heatmap-mesa.html")
SHARE = 0.5  # of a page's width that its text fills at least, on average
GEOMETRY = (Path(__file__).parent / "geometry.js").read_text()


@pytest.fixture(scope="module")
def site(tmp_path_factory, unpainted):
    """A folder with every page of `PAGES`."""
    root = tmp_path_factory.mktemp("site")
    claims = [claim(number) for number in range(40)]
    (root / "theory.html").write_text(render(claims, VerifyOptions(quick=True)))
    (root / "theory-far.html").write_text(render(claims, VerifyOptions(M=30, N=11, quick=True)))
    run = write_run(root / "run", hidden_states(M, 5, 4, 16), evaluation(M, 5), trained_length=M)
    located.write(run, trained=M)
    anatomized.write(run, trained=M)
    located.report(run)
    anatomized.report(run)
    write_report(run)
    (root / "eval").mkdir()
    write_curves(results.evaluation(), root / "eval")
    return root


def claim(number):
    """A claim of which every cell is long."""
    return Claim(
        name=f"3.{number}-closed-form",
        statement="The remap min(r, N) keeps o_t above H for M < t < T* = 2N + e^N (M - 2 S(N)), with 3.2's weights",
        citation="Theorem 3.2, proof ('we can always let the MLP layer recover the value of t'); range ours",
        parameters={"(M, N)": "{(4, 2), (8, 2), (5, 3), (8, 3), (12, 11)}", "H": 0.5, "dtype": "float64"},
        tested="measured first failures: " + ", ".join(f"N={n}, M={4 * n}: {133 * n}" for n in range(1, 12)),
        expected=list(ClaimVerdict)[number % 3],
        reading=Measurement(1.5e-8, 1e-15),
        unit="position, ln D; relative",
        correction="layer 2 reads the position in two coordinates",
    )


@pytest.mark.parametrize("width", [390, 1440])
@pytest.mark.parametrize("name", PAGES)
def test_pages_can_be_read(browser, site, name, width):
    context = browser.new_context(viewport={"width": width, "height": 900})
    page = context.new_page()
    page.set_default_timeout(120_000)
    page.goto((site / name).as_uri())
    page.wait_for_selector(".main-svg", state="attached")  # it may be in a part that is closed
    page.wait_for_timeout(500)
    seen = page.evaluate(GEOMETRY)
    context.close()
    assert seen["faults"] == []
    assert seen["overflow"] <= 0
    letters = SHARE * min(width, 1100) / 8  # a line: a letter is 8 pixels wide at most
    assert seen["height"] <= 24 * seen["letters"] / letters + 50 * seen["blocks"] + 1000, json.dumps(seen)
