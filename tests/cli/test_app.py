"""The dashboard's pages on made-up stores: what they show, what a link reproduces, what a bad store leads to."""

import io
import json
import os
import re
import shutil
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import anatomized
import located
import pytest
from pages import shown_texts, unopened
from results import write_evaluation
from synthetic import edit, evaluation, hidden_states, write_run

from mesa.methods import make
from mesa.plan import distances
from mesa_lens.dashboard import drawings, state
from mesa_lens.dashboard.elements import FORMS, content, on_both_themes, plain, unchanged
from mesa_lens.dashboard.runs import entries
from mesa_lens.dashboard.views.theory import closed_forms, first_failures
from probe.figures.export import threshold_export
from probe.figures.interactive import draw
from probe.figures.thresholds import threshold_chart
from probe.report import write_report
from probe.store.results import LOCATED
from probe.thresholds.search import CrossingRule, search
from theory.bounds import first_failure

ROOT = Path(__file__).parents[2]
RUN_PAGES = "overview mechanism anatomy thresholds heatmaps compare".split()
PAGES = [*RUN_PAGES, *"results methods theory new".split()]
HOSTILE = "<script>alert(1)</script> **bold** :red[x] $y$"


@pytest.fixture(scope="module")
def root(tmp_path_factory, undrawn):
    root = tmp_path_factory.mktemp("root")
    for name, layers in (("first", 3), ("nested/second", 2)):
        write_run(root / name, hidden_states(layers=layers), evaluation(), model=HOSTILE)
    located.write(root / "first")
    anatomized.write(root / "first")
    write_evaluation(root / "evaluated")
    write_report(root / "first")
    claim = {"name": "3.1", "verdict": "holds", "statement": "it holds", "ok": True, "margin": 1.0, "error": 0.0}
    (root / "theory.json").write_text(json.dumps([claim, claim | {"name": "3.2", "verdict": "BROKEN", "ok": False}]))
    return root


@pytest.fixture
def opened(root, monkeypatch):
    return lambda page, **query: run(root, monkeypatch, page, **query)


def run(root, monkeypatch, page, **query):
    monkeypatch.setenv("MESA_LENS_RUNS", str(root))
    app = unopened(page)
    app.query_params.update(query)
    app.run()
    assert not app.exception
    return app


def verdict_of(app):
    return next(part.proto.body for part in app.get("html") if 'class="verdict"' in part.proto.body)


def figures(app):
    return [json.loads(chart.proto.spec) for chart in app.get("plotly_chart")]


def downloads(app):
    return [str(element.key) for element in app.get("download_button")]


@pytest.mark.parametrize("page", PAGES)
def test_every_page_opens_on_every_run(opened, page):
    for name in ("first", "nested/second"):
        app = opened(page, run=name)
        assert not app.error
        bare = page in ("methods", "new") or (page in ("mechanism", "anatomy") and name != "first")
        assert bare or len(figures(app)) + len(app.dataframe) > 0
        assert app.query_params["run"] in (name, [name])
        assert ("run" in [box.key for box in app.selectbox]) == (page in RUN_PAGES)


def test_the_overview_shows_the_verdict_the_curves_and_where_inside(root, opened):
    app = opened("overview", run="first")
    table = app.dataframe[0].value.set_index("method")
    assert "(64, 128]" in verdict_of(app)
    assert "origin fails in (64, 128] tokens" in verdict_of(app)
    assert 64 <= int(table.loc["origin", "predicted"].removesuffix(" (descriptive)")) <= 80  # it leaves at 1.1 M
    assert "Drift on prompt repeated, in tokens" in shown_texts(app)
    assert {"origin", "rerope", "dynamic-ntk", "mesa"} <= {trace["name"] for trace in figures(app)[0]["data"]}
    scores, drift, located = titles(app)  # in this order
    assert scores.startswith("Measured by length")
    assert drift.startswith("Drift of resid_post by layer and position, prompt repeated")
    assert located.startswith("rerope in one place only")
    assert "rerope in one layer alone restores: layer 2 82%" in shown_texts(app)
    assert any("first-repeated-drift-map.csv" in key for key in downloads(app))
    assert f"mesa-lens locate --out {root / 'nested/second'}" in shown_texts(opened("overview", run="nested/second"))


def test_pages_open_with_what_the_report_stored(root, monkeypatch, tmp_path):
    shutil.copytree(root / "first", tmp_path / "run")
    pages = ("overview", "thresholds", "heatmaps")
    shown = {page: figures(run(root, monkeypatch, page, run="first")) for page in pages}

    def again(*args, **options):
        raise ValueError("it is computed again")

    for place in ("analysis.search", "analysis.find_drift", "analysis.negative_control", "search._score"):
        monkeypatch.setattr(f"probe.thresholds.{place}", again)
    for page, drawn in shown.items():
        app = run(tmp_path, monkeypatch, page)
        assert not app.error
        assert len(figures(app)) == len(drawn) > 0
    shutil.rmtree(tmp_path / "run" / "derived")
    shutil.copytree(tmp_path / "run", tmp_path / "bare")
    assert "computed again" in run(tmp_path, monkeypatch, "thresholds", run="bare").error[0].value


@pytest.mark.slow
def test_what_a_page_computes_is_stored(root, monkeypatch, tmp_path):
    shutil.copytree(root / "first", tmp_path / "run")
    stored = tmp_path / "run" / "derived"
    names = {path.name for path in stored.iterdir()} | {"resid_post-repeated-thresholds.npz"}  # of the reference alone
    shutil.rmtree(stored)
    for page in ("overview", "thresholds", "heatmaps", "compare"):
        run(tmp_path, monkeypatch, page)
    app = run(tmp_path, monkeypatch, "heatmaps")
    app.button[0].click().run()
    assert {path.name for path in stored.iterdir()} <= names
    assert "resid_post-drift.npz" in {path.name for path in stored.iterdir()}


def test_a_summary_of_another_store_is_not_used(root, monkeypatch, tmp_path):
    shutil.copytree(root / "first", tmp_path / "run")
    path = tmp_path / "run" / "summary.json"
    summary = json.loads(path.read_text())
    summary["verdict"]["cells"][0][2] = "999"
    for of, shown in ((summary["store"], True), ("another's", False)):
        path.write_text(json.dumps(summary | {"store": of}))
        app = run(tmp_path, monkeypatch, "overview")
        assert ("999" in verdict_of(app)) == shown


def titles(app):
    """Figures' titles, which stand above them in bold."""
    bold = [element.value.replace("\\", "") for element in app.markdown if element.value.startswith("**")]
    return [text[2:-2] for text in bold if text.endswith("**")]


def test_what_is_located_after_the_report_is_in_the_verdict(tmp_path, monkeypatch, undrawn):
    write_run(tmp_path / "run", hidden_states(layers=2), evaluation())
    write_report(tmp_path / "run")
    assert "not located" in verdict_of(run(tmp_path, monkeypatch, "overview"))
    located.write(tmp_path / "run")
    later = (tmp_path / "run" / "summary.json").stat().st_mtime + 1
    os.utime(tmp_path / "run" / LOCATED, (later, later))
    assert "not located" not in verdict_of(run(tmp_path, monkeypatch, "overview"))


def test_where_inside_follows_its_selectors(opened):
    app = opened("mechanism", run="first")
    assert ["One layer at a time" in titles(app)[0], len(titles(app))] == [True, 3]
    app.selectbox(key="locate_method").set_value("mesa")
    app.selectbox(key="locate_length").set_value(512)
    app.selectbox(key="locate_measure").set_value("passkey").run()
    assert all("512 tokens (2 x the trained length), passkey answer" in title for title in titles(app))
    assert "mesa in one layer alone restores: layer 2 70%" in shown_texts(app)
    for kind, title in (("smallest set", "Heads added"), ("clamps", "held in")):
        app.segmented_control(key="locate_figures").set_value(kind).run()
        assert not app.exception
        assert title in titles(app)[0]
    app.selectbox(key="locate_method").set_value("dynamic-ntk").run()
    assert "is not significant" in shown_texts(app)
    assert not [title for title in titles(app) if "held in" in title]


def test_anatomy_follows_its_selectors(opened):
    app = opened("anatomy", run="first")
    assert re.search(r"At 1024 tokens \(4 prompts; .*\): lost 1: 2\.3", shown_texts(app))
    assert ["Retrieval score" in titles(app)[0], len(titles(app))] == [True, 1]
    app.selectbox(key="anatomy_method").set_value("rerope")
    app.segmented_control(key="anatomy_figures").set_value("attention").run()
    app.selectbox(key="anatomy_statistic").set_value("entropy")
    app.selectbox(key="anatomy_length").set_value(256).run()
    assert "Entropy of attention" in titles(app)[0]
    assert "256 tokens (1 x the trained length)" in titles(app)[0]
    app.selectbox(key="anatomy_statistic").set_value("keys beyond M").run()
    assert "not measured here" in shown_texts(app)
    app.selectbox(key="anatomy_statistic").set_value("keys within N").run()
    assert "Attention to keys at most N tokens away" in titles(app)[0]
    app.segmented_control(key="anatomy_figures").set_value("all heads").run()
    app.selectbox(key="anatomy_length").set_value(1024).run()
    table = app.dataframe[0].value.set_index(["method", "queries"])
    assert table.loc[("origin", "beyond M"), "beyond M"] == "0.40 [0.36, 0.44]"
    assert not app.exception


def test_pages_of_the_inside_name_the_command_or_the_damage(root, monkeypatch, tmp_path, opened):
    assert "mesa-lens anatomy --out" in shown_texts(opened("anatomy", run="nested/second"))
    shutil.copytree(root / "first", tmp_path / "run")
    (tmp_path / "run" / "anatomy" / "summary.json").write_text("{")
    (tmp_path / "run" / "locate" / "summary.json").write_text("{")
    for page in ("anatomy", "mechanism"):
        assert "is damaged" in run(tmp_path, monkeypatch, page).error[0].value
    app = run(tmp_path, monkeypatch, "overview")
    assert [len(app.warning), len(app.error), len(figures(app))] == [2, 0, 2]


@pytest.mark.parametrize("name", ["locate/summary.json", "anatomy/summary.json"])
def test_what_links_out_of_the_root_is_not_read(root, tmp_path, name):
    shutil.copytree(root / "first", tmp_path / "inside" / "run")
    path = tmp_path / "inside" / "run" / name
    path.unlink()
    path.symlink_to(root / "first" / name)
    assert entries(tmp_path / "inside") == []


def test_thresholds_follow_the_rule_which_can_be_reset(opened):
    app = opened("thresholds", run="first")
    assert app.markdown[0].value.startswith("**16** of 96")  # of 20 drifting ones
    assert not app.warning
    app.number_input(key="minimum_score").set_value(1000.0).run()
    assert app.markdown[0].value.startswith("**0** of 96")
    assert "Least score (spreads) is 1000 (6)" in app.warning[0].value.replace("\\", "")
    app.button[0].click().run()
    assert [app.number_input(key="minimum_score").value, len(app.warning)] == [6, 0]
    app.number_input(key="M").set_value(130).run()  # Origin has left long ago: nothing crosses there
    assert app.markdown[0].value.startswith("**0** of 96")
    assert not app.exception


def test_the_ranking_gives_way_to_the_control_and_the_predictions(opened):
    app = opened("thresholds", run="first")
    app.segmented_control(key="below").set_value("negative control").run()
    places = app.dataframe[0].value.set_index("position")
    assert len(places) == 16
    assert (places["observable"] < places["at M"]).mean() > 0.7
    assert "as a share of the positions\\: origin 0%, rerope 0%" in app.markdown[-1].value
    app.segmented_control(key="below").set_value("predictions").run()
    predicted = app.dataframe[0].value.set_index("method")["predicted failure"]
    assert predicted["rerope"] == "none up to 320"


def test_dims_that_are_typed_are_drawn(opened):
    app = opened("thresholds", run="first", pairs="1:3")
    assert "dim 3, layer 1," in titles(app)[0]
    assert any("first-repeated-thresholds-1-3.svg" in key for key in downloads(app))
    app.text_input(key="pairs").set_value("1:10, 2:20,7:1, abc, 01: 10").run()
    first, second = titles(app)
    assert "dim 10, layer 1" in first
    assert "dim 20, layer 2" in second
    assert len(app.warning) == 2
    assert "layers 0 to 2" in app.warning[0].value


def test_the_ranking_names_what_is_excluded_and_what_never_crosses(tmp_path, monkeypatch):
    hidden = hidden_states(layers=2, prompts=("repeated",))
    position, method = hidden["position"] >= 10, {"method": "dynamic-ntk"}
    hidden.loc[method] = hidden.sel(method).where(~position, hidden.sel({"method": "origin"}).isel(position=-1))
    write_run(tmp_path / "run", hidden)
    table = run(tmp_path, monkeypatch, "thresholds").dataframe[0].value
    assert {text.strip() for text in table["dynamic-ntk crosses at"]} == {"excluded"}
    assert "never" in {text.strip() for text in table["mesa crosses at"]} <= {"never", "excluded"}
    by_text = table["origin crosses at"].sort_values().map(int).tolist()
    assert by_text == sorted(by_text)


def test_the_run_stands_in_the_address_and_an_unknown_one_is_reported(opened):
    app = opened("overview")
    assert app.query_params["run"] == "nested/second"
    app.selectbox(key="run").set_value("first").run()
    assert app.query_params["run"] == "first"
    assert not app.warning
    app = opened("overview", run="gone")
    assert "There is no run gone" in app.warning[0].value
    assert app.query_params["run"] == "nested/second"


def test_an_unfinished_capture_takes_no_landing_page(root, monkeypatch, tmp_path):
    shutil.copytree(root / "first", tmp_path / "whole")
    shutil.copytree(root / "first", tmp_path / "fresh")
    (tmp_path / "fresh" / "store.zarr").rename(tmp_path / "fresh" / "store.zarr.partial")
    os.utime(tmp_path / "whole" / "store.zarr" / "zarr.json", (1, 1))  # older
    app = run(tmp_path, monkeypatch, "overview")
    assert app.selectbox(key="run").value == "whole"
    assert "fresh (unfinished)" in app.selectbox(key="run").options
    assert not app.error


@pytest.mark.parametrize(
    ("page", "query", "text"),
    [
        ("thresholds", {"pairs": "1:3", "prompt": "text-0"}, "prompt text-0"),
        ("thresholds", {"M": "100"}, "position 100"),
        ("heatmaps", {"minus": "rerope", "layers": ["0", "1"]}, "minus rerope"),
        ("theory", {"theory_M": "20", "N": "2"}, "M = 20"),
    ],
)
def test_a_link_reproduces_the_view(opened, page, query, text):
    app = opened(page, run="first", **query)
    assert text in shown_texts(app) + json.dumps(figures(app))
    for name, value in query.items():
        assert app.query_params[name] == (value[0] if len(value) == 1 and isinstance(value, list) else value)


def test_heatmaps_open_with_the_difference_where_drift_begins(opened):
    app = opened("heatmaps", run="first")
    assert app.selectbox(key="minus").value == "origin"
    at = app.slider(key="layers").value
    assert at in ((1, 1), (2, 2))  # the first layer never drifts
    assert [trace["type"] for trace in figures(app)[0]["data"]] == ["heatmap"] * 6  # three methods, two regions
    assert "resid_post minus origin" in titles(app)[0]
    assert any("first-repeated-heatmap-resid_post-minus-origin.csv" in key for key in downloads(app))
    app.button[0].click().run()  # the raw view is one click away
    assert [app.selectbox(key="minus").value, app.slider(key="layers").value] == ["nothing", (0, 2)]
    assert app.query_params["minus"] == "nothing"
    assert app.query_params["layers"] == ["0", "2"]
    assert "minus" not in titles(app)[0]
    app.button[0].click().run()
    assert [app.selectbox(key="minus").value, app.slider(key="layers").value] == ["origin", at]


def test_zooming_reads_more_and_another_run_keeps_only_what_it_has(opened):
    app = opened("heatmaps", run="first", positions="choose")
    app.slider(key="zoom").set_value((60, 69)).run()
    app.slider(key="dims").set_value((0, 3)).run()
    assert "Every value is drawn" in shown_texts(app)
    assert figures(app)[0]["data"][0]["z"]["shape"] == "4, 10"
    app.slider(key="layers").set_value((2, 2)).run()
    app.selectbox(key="run").set_value("nested/second").run()
    assert [len(app.error), len(app.exception), len(figures(app))] == [0, 0, 1]


def test_downloads_hold_what_is_shown(root):
    entry = entries(root / "first")[0]
    run, rule = state.opened(entry), CrossingRule.scaled(64)
    hidden = state.states(run, "resid_post", "repeated")
    crossings = state.searched(entry, "resid_post", "repeated", 64, rule)
    one = content(lambda: threshold_export(hidden, crossings, [(1, 3)]), "svg", several=False)
    assert b"dim 3, layer 1" in one
    with zipfile.ZipFile(
        io.BytesIO(content(lambda: threshold_export(hidden, crossings, [(1, 3)]), "csv", True))
    ) as packed:
        table = packed.read("thresholds-resid_post-repeated.csv").decode().splitlines()
    crossing = float(crossings["crossing"].sel({"method": "origin", "layer": 1, "dim": 3}))
    row = next(dict(zip(table[0].split(","), line.split(","), strict=True)) for line in table[1:] if "origin" in line)
    assert float(row["crossing"]) == crossing


def test_methods_are_drawn_side_by_side(opened):
    app = opened("methods", a="stair", b="mesa")
    assert len(figures(app)) == 2
    assert {f"methods-stair-a-24-M-16.{form}" for form in FORMS} <= set(downloads(app))
    app.selectbox(key="a").set_value("origin").run()
    text = shown_texts(app)
    assert (
        "The largest relative position is 23, at or beyond M = 16; pairs at M or beyond, where the model was " in text
    )
    assert "never trained: 36; causal pairs masked: 0." in text  # 1 + ... + 8
    assert re.search(r"The largest relative position is \d+, inside M = 16; pairs at M or beyond.*: 0; ", text)
    app.number_input(key="b.mesa.window").set_value(16).run()
    assert "window=16" in app.warning[0].value.replace("\\", "")
    table = app.dataframe[0].value.set_index("method")
    assert table.loc["dynamic-ntk", "mpt"] == "no (1)"


def test_the_sizes_of_a_method_follow_m(opened):
    app = opened("methods", a="rerope")
    app.number_input(key="a.rerope.window").set_value(3).run()
    app.slider(key="window").set_value(128).run()
    fresh = opened("methods", a="rerope", window="128")
    assert app.number_input(key="a.rerope.window").value == fresh.number_input(key="a.rerope.window").value > 16
    assert app.number_input(key="b.mesa.window").value == fresh.number_input(key="b.mesa.window").value > 16
    linked = opened("methods", **{"a": "rerope", "window": "128", "a.rerope.window": "9"})
    assert linked.number_input(key="a.rerope.window").value == 9


def test_drawings_hold_what_the_pages_show():
    method = make("stair", 4, window=2, width=2)
    positions = distances(method.plan(6))
    matrix = drawings.matrix_drawing("a", method, positions, 4, [[0, "#deebf7"], [1, "#6baed6"]])
    for form, begins in {"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}.items():
        assert content(lambda: matrix, form, several=False).startswith(begins)
    rows = content(lambda: matrix, "csv", several=False).decode().splitlines()
    assert rows[0] == "query,key,relative_position"
    values = sorted(row.rpartition(",")[2] for row in rows[1:] if not row.endswith(","))
    assert values == sorted(f"{value:.1f}" for value in positions.ravel() if value >= 0)
    data = closed_forms(16, 0.5, 3, 3)
    curves = drawings.curves_drawing("c", data["position"].assign_attrs(data.attrs))
    assert content(lambda: curves, "png", several=False).startswith(b"\x89PNG")


def test_theory_shows_what_the_closed_forms_say(opened):
    data = closed_forms(16, 0.5, 3, 3)
    for construction, E in (("weave, ideal recovery", None), ("Stair", 3)):
        excess = data["excess"].sel(construction=construction)
        beyond = excess.where((excess["t"] > 16) & (excess <= 0), drop=True)
        assert int(beyond["t"][0]) == first_failure(16, 3, E)
    app = opened("theory", theory_M="64", N="8")
    assert "the weave first fails at t = 181,369;" in shown_texts(app)
    assert "2 claims checked: 1 holds, 1 BROKEN (3.2)." in shown_texts(app)
    app = opened("theory", theory_M="4")
    app.slider(key="N").set_value(8).run()
    assert "N=8 is not below M=4" in app.warning[0].value.replace("\\", "")


@pytest.mark.parametrize(("N", "tab", "name"), [
    (3, "Head output o_t", "output"), (11, "Recovered position", "position"), (11, "Attention on <bos>", "attention")
])  # fmt: skip
def test_theory_draws_the_threshold_says_where_curves_stop_and_has_files(opened, N, tab, name):
    app = opened("theory", H="1.5", N=str(N), theory_tab=tab)
    layout = figures(app)[0]["layout"]
    assert 1.5 in [shape["y0"] for shape in layout["shapes"]]
    notes = " ".join(note["text"] for note in layout["annotations"]).replace("<br>", " ")
    assert ("Curves stop at t = 4,000, the most that is computed" in notes) == (N == 11)
    if N == 3:
        assert layout["yaxis"]["title"]["text"] == "head output o_t (above 5.5: not drawn)"
    assert {f"theory-{name}-M16-N{N}-E3-H1.5.{form}" for form in FORMS} <= set(downloads(app))


def test_first_failures_beyond_float64s_precision_are_told_by_their_power_of_ten():
    assert first_failures(16, 3, 3).endswith("; Stair PE first fails at t = 92.")
    assert "the weave first fails beyond 10^12, at about 10^19.156;" in first_failures(64, 40, 2)


def test_two_runs_side_by_side(opened):
    app = opened("compare", run="first")
    curves, *dims = figures(app)
    drawn = [trace for trace in curves["data"] if trace["mode"] == "lines+markers"]
    assert {trace["name"] for trace in drawn} >= {f"origin, {name}" for name in ("first", "nested/second")}
    assert len(drawn) == 2 * 2 * 4  # runs, measures, methods
    assert len({(trace["line"]["color"], trace["line"]["dash"]) for trace in drawn}) == 2 * 4
    for axis in ("xaxis", "yaxis"):
        assert dims[0]["layout"][axis]["range"] == dims[1]["layout"][axis]["range"]
    shown = app.dataframe[0].value
    assert list(shown.columns) == [
        "method",
        *(f"{w}, {r}" for w in ("predicted", "measured") for r in ("first", "nested/second")),
    ]


@pytest.mark.slow
def test_all_settings_of_three_runs_are_compared(root, monkeypatch, tmp_path):
    for name in ("a", "b", "c"):
        shutil.copytree(root / "nested" / "second", tmp_path / name)
    changed = {"method_configs": '{"mesa": {"window": 9}}', "created": "2026-01-02", "lengths": "[32]"}
    edit(tmp_path / "b", lambda attrs: attrs.update(changed))
    app = run(tmp_path, monkeypatch, "compare", run="a", **{"with": ["b", "c"]})
    assert not app.error
    assert len(figures(app)) == 1 + 3
    settings = app.dataframe[1].value.set_index("setting")
    assert settings.loc["mesa: window"].tolist() == ["8", "9", "8"]
    assert list(settings.index) == ["mesa: window"]  # no dates, and measured lengths once


def test_names_from_stores_stay_text(opened):
    app = opened("overview", run="first")
    text = "\n".join(element.value for element in app.markdown)
    assert plain(HOSTILE) in text
    assert "<script>" not in text.replace("\\<", "")
    hidden = hidden_states(prompts=("<b>loud</b>", "text-0")).isel(prompt=0)
    chart = threshold_chart(hidden, search(hidden, 64, CrossingRule.scaled(64)), 1, 3)
    assert "&lt;b&gt;loud" in draw(chart).layout.title.text


def damaged(kind, root, target):
    shutil.copytree(root / "first", target)
    store = target / "store.zarr"
    if kind == "unfinished":
        store.rename(target / "store.zarr.partial")
    elif kind == "no metadata":
        (store / "zarr.json").unlink()
    elif kind == "garbage":
        (store / "zarr.json").write_text("{")
    elif kind == "missing region":
        next(path for path in sorted((store / "resid_post").rglob("*")) if path.is_file() and path.name == "0").unlink()
    elif kind == "wrong attributes":
        text = (store / "zarr.json").read_text()
        (store / "zarr.json").write_text(text.replace('"trained_length": 64', '"trained_length": "many"'))


@pytest.mark.parametrize(
    ("kind", "page"),
    [
        ("unfinished", "overview"),
        ("unfinished", "thresholds"),
        ("no metadata", "heatmaps"),
        ("garbage", "overview"),
        ("missing region", "thresholds"),
        ("wrong attributes", "heatmaps"),
    ],
)
def test_a_bad_store_is_explained(root, monkeypatch, tmp_path, kind, page):
    damaged(kind, root, tmp_path / "bad")
    app = run(tmp_path, monkeypatch, page)
    assert len(app.error) == 1
    assert not figures(app)
    remedies = {"unfinished": "reload this page when the capture is done", "no metadata": "give the folder"}
    assert remedies.get(kind, "capture it again") in app.error[0].value.replace("\\", "")


def test_a_damaged_run_is_not_preselected(root, monkeypatch, tmp_path):
    """Neither as the run that a page opens with, though it is the newest, nor as the one beside it."""
    for name in ("a", "b"):
        shutil.copytree(root / "first", tmp_path / name)
    damaged("missing region", root, tmp_path / "newest")
    later = time.time() + 60
    os.utime(tmp_path / "newest" / "store.zarr" / "zarr.json", (later, later))
    app = run(tmp_path, monkeypatch, "compare")
    assert not app.error
    assert {app.selectbox(key="run").value, *app.multiselect(key="with").value} == {"a", "b"}
    app.multiselect(key="with").set_value(["newest"]).run()
    assert not app.error
    assert "newest is left out:" in app.warning[0].value.replace("\\", "")


@pytest.mark.parametrize("page", PAGES)
def test_without_a_run_it_says_how_to_make_one(monkeypatch, tmp_path, page):
    app = run(tmp_path / "nothing", monkeypatch, page)
    assert not app.error
    assert ("make demo" in shown_texts(app)) == (page in RUN_PAGES)


def test_only_runs_under_the_root_are_listed(root, tmp_path, opened):
    inside = tmp_path / "inside"
    inside.mkdir()
    (inside / "link").symlink_to(root / "first")
    (inside / "real").mkdir()
    (inside / "real" / "store.zarr").symlink_to(root / "first" / "store.zarr")
    shutil.copytree(root / "first", inside / "run")
    (inside / "run" / "summary.json").unlink()
    (inside / "run" / "summary.json").symlink_to(root / "first" / "summary.json")
    assert entries(inside) == []
    assert [entry.name for entry in entries(root)] == ["nested/second", "first"]
    assert [entry.name for entry in entries(root / "first")] == ["first"]
    app = opened("overview", run="../../etc")
    assert app.selectbox(key="run").value == "nested/second"


def test_colours_read_on_light_and_dark():
    import plotly.graph_objects as go

    figure = go.Figure(go.Scatter(x=[1], y=[1], line={"color": "#000000"})).update_layout(font={"color": "#222222"})
    shown = on_both_themes(figure)
    assert shown.data[0].line.color == "#808080"
    assert shown.layout.font.color is None


@pytest.mark.slow
def test_the_dashboard_needs_no_torch(root):
    code = f"""
import os, sys
for name in ("torch", "transformers", "transformer_lens"): sys.modules[name] = None
os.environ["MESA_LENS_RUNS"] = {str(root)!r}
os.environ["MESA_LENS_ALLOW_RUNS"] = {json.dumps([str(root)])!r}
sys.path.insert(0, "tests/helpers")
from pages import AppTest, unopened
AppTest.from_file("app.py", default_timeout=60).run()
for page in {PAGES!r}:
    app = unopened(page).run()
    assert not app.exception and not app.error, (page, app.exception, app.error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr


def test_another_run_brings_its_default_rule(root, monkeypatch, tmp_path):
    for name, trained in (("a", 64), ("b", 32)):
        write_run(
            tmp_path / name, hidden_states(trained, windows=320 // trained), evaluation(trained), trained_length=trained
        )
    app = run(tmp_path, monkeypatch, "thresholds", run="a")
    app.number_input(key="smoothing").set_value(7).run()
    app.selectbox(key="run").set_value("b").run()
    fresh = run(tmp_path, monkeypatch, "thresholds", run="b")
    assert app.markdown[0].value == fresh.markdown[0].value
    assert "position 32" in app.markdown[0].value
    assert [widget.value for widget in app.number_input] == [widget.value for widget in fresh.number_input]
    linked = run(tmp_path, monkeypatch, "thresholds", run="b", M="40")
    assert "position 40" in linked.markdown[0].value


@pytest.mark.slow
def test_runs_with_one_layer_are_compared(monkeypatch, tmp_path):
    for name in ("a", "b"):
        write_run(tmp_path / name, hidden_states(layers=2).sel(layer=[1]), evaluation())
    app = run(tmp_path, monkeypatch, "compare")
    assert not app.error
    assert len(figures(app)) == 1 + 2


def with_gaps(folder):
    """A run with layers 0 and 2, dims 0-5 and 18-23, positions 16-127 and 256-319."""
    whole = hidden_states(layers=3)
    stored = {"layer": [0, 2], "dim": [*range(6), *range(18, 24)], "position": [*range(16, 128), *range(256, 320)]}
    write_run(folder, whole.sel(stored), evaluation())


def test_no_region_spans_a_gap_in_what_was_captured(monkeypatch, tmp_path):
    with_gaps(tmp_path / "gaps")
    for query, columns in (({"positions": "all"}, 2), ({"positions": "choose", "zoom": ["100", "300"]}, 2)):
        app = run(tmp_path, monkeypatch, "heatmaps", minus="nothing", layers=["0", "2"], **query)
        assert not app.error
        spans = [(trace["x"], trace["y"]) for trace in figures(app)[0]["data"]]
        assert len(spans) == 4 * columns * 2  # methods, regions, layers
    assert figures(app)[0]["layout"]["yaxis"]["type"] == "category"


@pytest.mark.parametrize(
    ("key", "span", "message"),
    [
        ("layers", (1, 1), "layers 1 to 1 were not captured; captured: 0, 2"),
        ("dims", (8, 12), "dims 8 to 12 were not captured; captured: 0-5, 18-23"),
    ],
)
def test_a_span_in_a_gap_says_what_was_captured(monkeypatch, tmp_path, key, span, message):
    with_gaps(tmp_path / "gaps")
    app = run(tmp_path, monkeypatch, "heatmaps")
    app.slider(key=key).set_value(span).run()
    assert plain(message) in app.error[0].value


def test_a_download_does_not_mix_two_captures(root, tmp_path):
    shutil.copytree(root / "first", tmp_path / "run")
    entry = entries(tmp_path)[0]
    make = unchanged(entry, lambda: "made")
    assert make() == "made"
    os.utime(tmp_path / "run" / "store.zarr" / "zarr.json", (1, 1))
    with pytest.raises(ValueError, match="run run was captured anew since this page was drawn; reload the page"):
        make()
