"""The dashboard in a real browser: every page, widgets, deep links, downloads, a quiet console, screenshots."""

import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from itertools import pairwise
from pathlib import Path

import anatomized
import located
import pytest
import results
from predicted import prediction
from synthetic import METHODS, edit, evaluation, hidden_states, many, write_run

from probe.commands.probe.report import write_report
from probe.files import write_result

pytestmark = pytest.mark.browser
SHOTS = Path(os.environ.get("SCREENSHOTS", "runs/screenshots"))
M = 256
PAGES = "overview mechanism anatomy tokens predict thresholds heatmaps compare results methods own-model theory".split()
TITLES = {"compare": "Compare runs", "own-model": "Run your model", "mechanism": "Where inside?"}
REGION = "methods=mesa&layers=1&layers=1&dims=4&dims=9&positions=choose&zoom=250&zoom=299"
REGION_NAME = "second-repeated-heatmap-resid_post-minus-origin-mesa-layers1-dims4-9-positions250-299"
ACCESS = (Path(__file__).parent / "access.js").read_text()
PROBED = ("/_stcore/health", "/_stcore/host-config")  # Streamlit asks for these below a page's address too: 404


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    """The address of a dashboard over a store as large as the demo's, smaller ones, and one of 17 methods."""
    root = tmp_path_factory.mktemp("runs")
    write_run(root / "many", many(hidden_states(M, 5, 2, 8, ("repeated",))), many(evaluation(M, 5)), trained_length=M)
    located.write(root / "many", model="tiny", trained=M)
    prompts = ("repeated", "text-0", "text-1")
    for name, windows, layers, dims in (("second", 4, 2, 64), ("demo", 8, 4, 256)):
        hidden = hidden_states(M, windows, layers, dims, prompts if name == "demo" else prompts[:1])
        write_run(root / name, hidden, evaluation(M, windows), trained_length=M)
        if name == "demo":
            located.write(root / name, model="tiny", trained=M)
            anatomized.write(root / name, trained=M)
            write_result(
                root / name / "anatomy" / "tokens.json", anatomized.tokens() | {"model": "tiny", "trained_length": M}
            )
            (root / name / "predict").mkdir()
            write_result(
                root / name / "predict" / "prediction.json", prediction() | {"model": "tiny", "trained_length": M}
            )
        with pytest.MonkeyPatch.context() as patch:  # the dashboard shows neither, and they take a minute
            patch.setattr("probe.figures.section.html_embed", lambda _: "")
            patch.setattr("probe.commands.probe.report.write_figures", lambda *_: None)
            write_report(root / name)
        if name == "second":
            shutil.copytree(root / name, root / "third")
            edit(root / "third", lambda attributes: attributes.update(model="another"))
    claim = {"name": "3.1", "verdict": "holds", "whose": "the paper's", "statement": "it holds", "ok": True}
    claim |= {"margin": 1.0, "error": 0.0}
    write_result(root / "theory.json", {"claims": [claim]})
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    results.write_evaluation(root / "results" / "eval")
    command = [sys.executable, "-m", "mesa_lens", "app", "--no-browser", "--store", str(root)]
    command += ["--port", str(port)]
    server = subprocess.Popen(command, start_new_session=True)
    try:
        _wait_until_up(f"http://127.0.0.1:{port}/_stcore/health")
        yield f"http://127.0.0.1:{port}"
    finally:
        os.killpg(server.pid, 15)
        server.wait(20)


def _wait_until_up(url):
    for _ in range(120):
        try:
            if urllib.request.urlopen(url, timeout=1).status == 200:
                return
        except OSError:
            time.sleep(0.5)
    raise TimeoutError(f"{url} did not answer within a minute")


@pytest.fixture
def visit(browser, address):
    """Opens a page of the dashboard in a new window; at the end, nothing may have gone wrong in any console."""
    complaints, contexts = [], []

    def open_page(path, width=1280, theme="light"):
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=theme)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(120_000)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("console", lambda message: _record(message, complaints))
        page.goto(f"{address}/{path}")
        settle(page)
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert complaints == []


def _record(message, complaints):
    if message.type == "error" and not message.location["url"].endswith(PROBED):
        complaints.append(f"{message.text} {message.location['url']}")


def settle(page):
    """Waits until the page is drawn: its title, no run in progress, its charts."""
    page.wait_for_selector("h1")
    page.wait_for_function(
        """() => document.querySelector('[data-testid=stApp]').dataset.testScriptState === 'notRunning'
        && !document.querySelector('[data-stale=true], [data-testid=stSkeleton]')
        && (charts => !charts.length || charts.some(chart => chart.querySelector('.main-svg')))(
            [...document.querySelectorAll('[data-testid=stPlotlyChart]')])"""
    )


def shoot(page, name):
    """Saves the whole page."""
    SHOTS.mkdir(parents=True, exist_ok=True)
    width = page.viewport_size["width"]
    tall = page.evaluate("document.querySelector('[data-testid=stMain]').scrollHeight")
    page.set_viewport_size({"width": width, "height": min(max(tall, 900), 6000)})
    page.wait_for_timeout(500)
    page.screenshot(path=SHOTS / f"{name}.png")


@pytest.mark.parametrize(("width", "theme"), [(1440, "light"), (1440, "dark"), (390, "light"), (390, "dark")])
def test_every_page_is_drawn(visit, width, theme):
    page = visit("?run=demo", width, theme)
    for name in PAGES:
        if name != "overview":
            page.set_viewport_size({"width": width, "height": 900})
            page.goto(page.url.partition("?")[0].removesuffix(PAGES[PAGES.index(name) - 1]) + f"{name}?run=demo")
            settle(page)
        assert page.locator("h1").inner_text() == TITLES.get(name, name.capitalize())
        assert page.locator("[data-testid=stException]").count() == 0
        covered = 0 if name != "predict" else 1  # its first method gives no far key at these lengths, and says so
        assert page.locator("[data-testid=stAlert]").count() == covered
        too_wide = "document.querySelector('[data-testid=stMain]').scrollWidth > window.innerWidth"
        assert not page.evaluate(too_wide)
        page.evaluate("document.querySelectorAll('details:not([open]) > summary').forEach(fold => fold.click())")
        page.wait_for_timeout(500)
        assert page.evaluate(ACCESS) == []
        shoot(page, f"{name}-{theme}-{width}")


@pytest.mark.parametrize(
    ("run", "width", "methods"), [("demo", 1440, 4), ("demo", 390, 4), ("many", 1440, len(METHODS))]
)
def test_every_row_of_the_verdict_is_visible(visit, run, width, methods):
    page = visit(f"?run={run}", width)
    cells = page.locator(".verdict tbody tr:nth-child(1) td")
    assert cells.count() == page.locator(".verdict th").count() == 8
    boxes = [row.bounding_box() for row in page.locator(".verdict tbody tr").all()]
    assert len(boxes) == methods
    assert all(box["x"] >= 0 and box["x"] + box["width"] <= width for box in boxes)
    assert all(above["y"] + above["height"] <= below["y"] + 1 for above, below in pairwise(boxes))
    cut = "[...document.querySelectorAll('.verdict, .verdict *')].filter(e => e.scrollWidth > e.clientWidth + 1"
    assert page.evaluate(f"{cut} && e.clientWidth > 0).length") == 0


@pytest.mark.parametrize("path", PAGES)
def test_every_page_has_an_address_of_its_name(visit, path):
    page = visit(f"{path}?run=second")
    page.wait_for_timeout(500)
    assert page.locator("h1").inner_text() == TITLES.get(path, path.capitalize())
    assert page.get_by_role("dialog").count() == 0
    assert page.url.partition("?")[0].endswith(f"/{path}")


def until(page, part):
    """Waits until the address holds `part`."""
    page.wait_for_function("part => location.href.includes(part)", arg=part)


def follow(page, name):
    """Follows a link of the top bar, or of the menu at its end, into which Streamlit folds what does not fit."""
    link = page.locator("[data-testid=stTopNavLink]:not([inert] *)").filter(has_text=name)
    if not link.count():
        page.get_by_test_id("stTopNavSection").click()
        link = page.get_by_test_id("stTopNavDropdownLink").filter(has_text=name)
    link.click()


def test_a_page_is_one_entry_of_the_history(visit):
    page = visit("methods")
    lengths, addresses = [page.evaluate("history.length")], []
    for name in ("Theory", "Thresholds", "Heatmaps"):
        addresses.append(page.url)
        follow(page, name)
        page.wait_for_function("title => document.querySelector('h1')?.innerText === title", arg=name)
        until(page, f"/{name.lower()}?run=")
        settle(page)
        lengths.append(page.evaluate("history.length"))
    assert [after - before for before, after in pairwise(lengths)] == [1, 1, 1]
    for address in reversed(addresses):
        page.go_back()
        page.wait_for_function("address => location.href === address", arg=address)
        title = address.partition("?")[0].rpartition("/")[2].capitalize()
        page.wait_for_function("title => document.querySelector('h1')?.innerText === title", arg=title)
        settle(page)


def test_a_dragged_region_opens_from_its_address(visit):
    page = visit("heatmaps?run=second&methods=mesa&layers=1&layers=1")
    plot = page.locator(".js-plotly-plot .nsewdrag").first
    plot.scroll_into_view_if_needed()
    box = plot.bounding_box()
    page.mouse.move(box["x"] + 0.3 * box["width"], box["y"] + 0.3 * box["height"])
    page.mouse.down()
    page.mouse.move(box["x"] + 0.6 * box["width"], box["y"] + 0.6 * box["height"], steps=5)
    page.mouse.up()
    until(page, "zoom=")
    settle(page)
    fresh = visit(page.url.rpartition("/")[2])
    drawn = """() => [...document.querySelectorAll('.js-plotly-plot')].map(plot => plot.data.map(
        ({z, x, y, zmax}) => [z?.shape ?? z?.length, Array.from(x ?? []), Array.from(y ?? []), zmax]))"""
    assert fresh.url == page.url
    assert fresh.evaluate(drawn) == page.evaluate(drawn)


def test_a_failures_mark_says_its_interval(visit):
    page = visit("?run=demo")
    chart = page.get_by_test_id("stPlotlyChart").first
    chart.scroll_into_view_if_needed()
    place = """() => {
        const marks = [...document.querySelectorAll('.scatterlayer .trace')];
        const mark = marks.find(trace => trace.__data__[0].trace.name === 'measured failure').querySelector('.point');
        const box = mark.getBoundingClientRect();
        return [box.x + box.width / 2, box.y + box.height / 2];
    }"""
    x, y = page.evaluate(place)
    for off in (0, 4, 6):
        page.mouse.move(x + off, y)
        page.wait_for_function("() => document.querySelector('.hoverlayer .hovertext')")
        assert "measured failure (256, 512]" in page.locator(".hoverlayer .hovertext").first.text_content()


def test_a_size_on_one_page_is_not_taken_on_another(visit):
    page = visit("methods")
    slider = page.get_by_role("slider").first
    slider.focus()
    slider.press("ArrowRight")
    until(page, "length=25")
    for name, text in (("Theory", "Plain positions fail at"), ("Thresholds", "at position 256 under origin")):
        follow(page, name)
        page.wait_for_function("text => document.body.innerText.includes(text)", arg=text)


@pytest.mark.parametrize(("width", "beside"), [(390, False), (1440, True)])
def test_panels_stand_beside_each_other_where_there_is_room(visit, width, beside):
    charts = visit("compare?run=demo&with=second", width).get_by_test_id("stPlotlyChart")
    first, second = (charts.nth(number).bounding_box() for number in range(2))
    assert (first["y"] == pytest.approx(second["y"], abs=30)) == beside
    assert all(box["x"] >= 0 and box["x"] + box["width"] <= width for box in (first, second))


@pytest.mark.parametrize("width", [390, 1440])
def test_one_position_shows_every_method_in_both_panels(visit, width):
    page = visit("thresholds?run=demo&pairs=3:7", width)
    panels = page.get_by_test_id("stPlotlyChart").first.locator(".nsewdrag")
    panels.first.scroll_into_view_if_needed()
    for number in range(2):
        box = panels.nth(number).bounding_box()
        for step in range(2):  # a mouse that moves
            page.mouse.move(box["x"] + 0.6 * box["width"] + step, box["y"] + 0.5 * box["height"])
        page.wait_for_function("() => document.querySelectorAll('.hoverlayer .legend .traces').length >= 8")
        text = page.locator(".hoverlayer").first.text_content()
        assert all(f"layer {layer}, dim 7, {name}: " in text for layer in (0, 3) for name in METHODS[-4:]), text
        page.mouse.move(0, 0)


def test_a_ticked_row_of_the_ranking_is_drawn(visit):
    page = visit("thresholds?run=demo")
    assert "pairs=" not in page.url
    ranking = page.get_by_test_id("stDataFrame")
    ranking.scroll_into_view_if_needed()
    for row in (2, 3):  # row 0 holds the names of the columns; each is 35 pixels high
        ranking.click(position={"x": 15, "y": 35 * row + 17})
    until(page, "pairs=")
    settle(page)
    page.wait_for_function("() => document.querySelectorAll('[data-testid=stPlotlyChart]').length === 2")


def test_the_chosen_run_outlives_pages_that_need_none(visit):
    page = visit("thresholds?run=second")
    for name, label in (("Methods", "Method a"), ("Theory", None), ("Thresholds", "Run")):
        follow(page, name)
        page.wait_for_function("title => document.querySelector('h1')?.innerText === title", arg=name)
        settle(page)
        assert page.get_by_test_id("stSelectbox").filter(has_text="Run").count() == (label == "Run")
    assert page.get_by_role("combobox").first.input_value() == "second"


def test_charts_have_a_text_for_screen_readers(visit):
    page = visit("?run=demo")
    labels = page.locator("[data-testid=stPlotlyChart]").evaluate_all("all => all.map(e => e.outerHTML)")
    assert "Measured failure, in tokens: origin: (256, 512]" in "".join(labels)


@pytest.mark.parametrize(
    ("path", "button", "name", "begin"),
    [
        ("thresholds?run=demo&pairs=3:7", "SVG", "demo-repeated-thresholds-3-7.svg", b"<?xml"),
        ("thresholds?run=demo&pairs=3:7", "CSV", "demo-repeated-thresholds-3-7-csv.zip", b"PK"),
        (f"heatmaps?run=second&{REGION}", "HTML", f"{REGION_NAME}.html", b"<!doctype html>"),
        (f"heatmaps?run=second&{REGION}", "PNG", f"{REGION_NAME}.png", b"\x89PNG"),
    ],
)
def test_figures_are_downloaded(visit, tmp_path, path, button, name, begin):
    page = visit(path)
    with page.expect_download() as waiting:
        page.get_by_role("button", name=button).first.click()
    assert waiting.value.suggested_filename == name
    waiting.value.save_as(tmp_path / name)
    assert (tmp_path / name).read_bytes().startswith(begin)
