"""The dashboard's pages on synthetic stores: what they show, what a link reproduces, what a bad store leads to."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import anatomized
import located
import numpy as np
import pytest
import readings
import xarray as xr
from markupsafe import escape
from pages import drawn, shown_texts, tables
from results import write_evaluation
from synthetic import edit, evaluation, hidden_states, of_run, write_run

from mesa_lens.dashboard import runs
from mesa_lens.dashboard.views import heatmaps, overview
from mesa_lens.dashboard.views.theory import closed_forms
from probe.commands.probe.report import write_report
from probe.experiment.lock import owned
from probe.files import write_result
from probe.run import open_run
from theory.bounds import first_failure

ROOT = Path(__file__).parents[2]
RUN_PAGES = "overview mechanism anatomy readouts thresholds heatmaps compare".split()
PAGES = [*RUN_PAGES, *"results methods own-model theory".split()]
HOSTILE = "<script>alert(1)</script> **bold** :red[x] $y$"


@pytest.fixture(scope="module")
def root(tmp_path_factory, undrawn):
    root = tmp_path_factory.mktemp("root")
    for name, layers in (("first", 3), ("nested/second", 2)):
        hidden = hidden_states(layers=layers)
        write_run(root / name, hidden, evaluation(), model=HOSTILE, request='{"seed": ["3"]}')
    located.write(root / "first")
    anatomized.write(root / "first")
    readings.write(root / "first")
    write_evaluation(root / "evaluated")
    write_report(root / "first")
    claim = {"name": "3.1", "verdict": "holds", "whose": "the paper's", "statement": "it holds", "ok": True}
    claim |= {"margin": 1.0, "error": 0.0}
    claims = [claim, claim | {"name": "3.2", "verdict": "BROKEN", "ok": False}]
    write_result(root / "theory.json", {"claims": claims})
    return root


@pytest.fixture
def opened(root, monkeypatch):
    return lambda page, **query: run(root, monkeypatch, page, **query)


def run(root, monkeypatch, page, **query):
    monkeypatch.setenv("MESA_LENS_RUNS", str(root))
    return drawn(page, **query)


def test_the_tokens_page_shows_a_captured_text_and_says_how_to_capture_one(opened, root):
    assert "mesa-lens anatomy --parts tokens --out" in shown_texts(opened("tokens", run="nested/second"))
    write_result(root / "first" / "anatomy" / "tokens.json", anatomized.tokens() | of_run(root / "first"))
    for query, sentence in (({}, "differs by 70%"), ({"tokens_method": "origin"}, "differs by 0%")):
        html = "".join(part.proto.body for part in opened("tokens", run="first", **query).get("html"))
        assert sentence in html
        assert ("1.33 under origin and 1.00 under mesa" in html) == (not query)


def figures(app):
    return [json.loads(chart.proto.spec) for chart in app.get("plotly_chart")]


def downloads(app):
    return " ".join(str(element.key) for element in app.get("download_button"))


def titles(app):
    """Figures' titles, which stand above them in bold."""
    bold = [element.value.replace("\\", "") for element in app.markdown if element.value.startswith("**")]
    return [text[2:-2] for text in bold if text.endswith("**")]


def test_the_overview_opens_with_the_answer_one_chart_and_the_way_on(opened):
    app = opened("overview", run="first")
    html = [part.proto.body for part in app.get("html")]
    (answer,) = (part for part in html if "1.2rem" in part)
    assert answer.index("Failure begins between 64 and 128 tokens") < answer.index("Use ") < answer.index("Model ")
    assert answer.count("font-size: 1.2rem") == 2
    assert any('class="verdict"' in part for part in html)
    table = tables(app)[0].set_index("method")
    assert 64 <= int(table.loc["origin", "drift onset"].removesuffix(" (descriptive)")) <= 80  # it leaves at 1.1 M
    assert {"origin", "rerope", "dynamic-ntk", "mesa"} <= {trace["name"] for trace in figures(app)[0]["data"]}
    scores, passkeys = titles(app)  # in this order
    assert scores.startswith("Loss of the same last tokens (lower is better), by prompt length")
    assert passkeys.startswith("Retrieval: passkeys found")
    links = [link.proto.page for link in app.get("page_link")]
    assert len(links) == 5
    assert links[-1].endswith("own-model")
    text = "\n".join(element.value for element in app.markdown)  # names from stores stay text
    assert str(escape(HOSTILE)) in answer
    assert "<script>" not in text.replace("\\<", "")


def test_the_command_for_a_model_of_ones_own_and_its_progress(root, monkeypatch, tmp_path):
    shutil.copytree(root / "first", tmp_path / "mine")
    app = run(tmp_path, monkeypatch, "own-model", model="a b/c; d", minutes="20")
    command = f"mesa-lens probe --model 'a b/c; d' --minutes 20 --out {tmp_path}/c--d-"
    assert [code.value.startswith(command) for code in app.code] == [True, True]
    assert app.code[1].value == f"{app.code[0].value} --estimate"
    assert "No run under" in shown_texts(app)
    with owned(tmp_path / "mine"):
        app = run(tmp_path, monkeypatch, "own-model", running="mine")
        assert app.code[0].value == (
            f"mesa-lens probe --model <hub id or local path> --minutes 10 --out {tmp_path}/mine"
        )
        assert f"{tmp_path}/mine: running" in app.code[2].value
        html = "".join(part.proto.body for part in app.get("html"))
        assert "Failure begins between 64 and 128 tokens" in html
        (tmp_path / "mine" / "summary.json").unlink()
        assert "Its first report" in shown_texts(run(tmp_path, monkeypatch, "own-model"))
    assert "No run under" in shown_texts(run(tmp_path, monkeypatch, "own-model", running="mine"))


def test_pages_open_with_what_the_report_stored(root, monkeypatch, tmp_path):
    shutil.copytree(root / "first", tmp_path / "run")

    def again(*args, **options):
        raise ValueError("it is computed again")

    for place in ("analysis.search", "analysis.find_drift", "onset.search_and_control", "search._score"):
        monkeypatch.setattr(f"probe.thresholds.{place}", again)
    for page in ("overview", "thresholds", "heatmaps"):
        app = run(tmp_path, monkeypatch, page)
        assert not app.error
        assert figures(app)
    shutil.rmtree(tmp_path / "run" / "derived")
    shutil.copytree(tmp_path / "run", tmp_path / "bare")
    assert "computed again" in run(tmp_path, monkeypatch, "thresholds", run="bare").error[0].value


def test_where_inside_follows_its_selectors(root, opened):
    app = opened("mechanism", run="first")
    assert ["One layer at a time" in titles(app)[0], len(titles(app))] == [True, 4]
    assert titles(app)[-1].startswith("Where hidden states (resid_post) leave their in-window range, prompt repeated")
    assert "Drift on prompt repeated, in tokens" in "".join(part.proto.body for part in app.get("html"))
    assert "first-repeated-drift-map.csv" in downloads(app)
    other = opened("mechanism", run="nested/second")
    assert f"mesa-lens locate --out {root / 'nested/second'}" in shown_texts(other)
    app.selectbox(key="locate_method").set_value("mesa")
    app.selectbox(key="locate_length").set_value(512)
    app.selectbox(key="locate_measure").set_value("passkey").run()
    assert all("512 tokens (2x the trained length), passkey answer" in title for title in titles(app)[:-1])
    assert "Loss recovered by mesa in one layer alone: layer 2 70%" in shown_texts(app)
    for kind, title in (("Smallest sets", "Heads added"), ("Clamps", "clamped in")):
        app.segmented_control(key="locate_figures").set_value(kind).run()
        assert title in titles(app)[0]
    app.selectbox(key="locate_method").set_value("dynamic-ntk").run()
    assert "is not significant" in shown_texts(app)
    assert not [title for title in titles(app) if "clamped in" in title]
    assert not app.exception


def test_of_a_window_that_is_stated_too_large_no_drift_is_displayed(tmp_path, monkeypatch):
    scores = evaluation()
    scores["tail_nll"][0, 1:] += 1.5  # from 64 on, which is the stated M
    write_run(tmp_path / "run", hidden_states(layers=1), scores)
    app = run(tmp_path, monkeypatch, "mechanism")
    assert "could not be evaluated: origin already fails inside the stated M = 64 tokens." in shown_texts(app)
    assert not figures(app)


def test_thresholds_end_with_how_far_states_on_text_lie(tmp_path, monkeypatch):
    scores = evaluation()
    ratio = np.random.default_rng(0).uniform(0.95, 1.05, (4, 6, 6, 1))
    ratio[0, 2:] *= 0.4  # Origin beyond M = 64
    scores["state_distance"] = ("method", "length", "window", "layer"), ratio
    write_run(tmp_path / "run", hidden_states(layers=1), scores.assign_coords(layer=[7]))
    app = run(tmp_path, monkeypatch, "thresholds")
    assert not app.exception
    assert "How far states at the end of texts lie" in titles(app)[-1]
    states = dict(zip(tables(app)[-1]["method"], tables(app)[-1]["states"], strict=True))
    assert states == {"origin": "collapse from 128 tokens on"} | dict.fromkeys(
        ("rerope", "dynamic-ntk", "mesa"), "level"
    )


def test_anatomy_follows_its_selectors(opened):
    app = opened("anatomy", run="first")
    assert re.search(r"At 1024 tokens \(4 prompts; .*\): lost 1: L2H3", shown_texts(app))
    assert ["Retrieval score" in titles(app)[0], len(titles(app))] == [True, 1]
    app.selectbox(key="anatomy_method").set_value("rerope").run()
    for statistic, text in (
        ("entropy", "Entropy of attention"),
        ("keys beyond M", "Attention to keys M or more tokens away"),
        ("keys within N", "Attention to keys at most N tokens away"),
    ):
        app.segmented_control(key="anatomy_figures").set_value(statistic).run()
        assert text in shown_texts(app)
    app.segmented_control(key="anatomy_figures").set_value("All heads").run()
    table = tables(app)[0].set_index(["method", "queries"])
    assert table.loc[("origin", "beyond M"), "beyond M"] == "0.40 [0.36, 0.44]"
    assert not app.exception


def test_readouts_open_with_the_answer_and_follow_their_selectors(opened):
    app = opened("readouts", run="first")
    assert "lost 0.20 [0.15, 0.25] and moved 0.20 [0.15, 0.25]" in shown_texts(app)
    assert "previous-1 (the token 1 before): lost or moved?" in titles(app)[0]
    app.selectbox(key="readout_method").set_value("rerope").run()
    for part, text in (
        ("Layers and lengths", "previous-1 (the token 1 before) under rerope"),
        ("Lens", "What the lens reads by layer"),
    ):
        app.segmented_control(key="readout_figures").set_value(part).run()
        assert text in titles(app)[0]
    app.segmented_control(key="readout_figures").set_value("All scores").run()
    assert [len(tables(app)), len(app.expander), len(app.exception)] == [1, 0, 0]
    assert "mesa-lens readout --out" in shown_texts(opened("readouts", run="nested/second"))


def test_a_map_without_a_chart_keeps_its_name(tmp_path, monkeypatch):
    write_run(tmp_path / "run", hidden_states(layers=2))
    readings.write(tmp_path / "run")
    path = tmp_path / "run" / "readout" / "summary.json"
    summary = json.loads(path.read_text())
    inside = {name: [row for row in summary[name] if row["length"] == readings.M] for name in ("lens", "probes")}
    write_result(path, summary | inside | {"lengths": [readings.M]})
    parts = run(tmp_path, monkeypatch, "readouts").segmented_control(key="readout_figures").options
    assert [parts[0], "Lost or moved" in parts] == ["Layers and lengths", False]


def test_commands_to_copy_are_quoted(root, monkeypatch, tmp_path):
    assert f"--out {tmp_path}/demo\n" in run(tmp_path, monkeypatch, "overview").code[0].value
    shutil.copytree(root / "nested" / "second", tmp_path / "a; rm -rf $HOME")
    assert (
        f"mesa-lens anatomy --out '{tmp_path}/a; rm -rf $HOME'" in run(tmp_path, monkeypatch, "anatomy").code[0].value
    )
    assert run(tmp_path, monkeypatch, "compare").code[0].value.endswith(f"--out {tmp_path}/second")
    (tmp_path / "a; rm -rf $HOME" / "anatomy").mkdir()
    (tmp_path / "a; rm -rf $HOME" / "anatomy" / "tokens.json").write_text("{")
    (error,) = run(tmp_path, monkeypatch, "tokens").error
    command = f"`mesa-lens anatomy --parts tokens --out '{tmp_path}/a; rm -rf $HOME'`"
    assert error.value.replace("\\", "").endswith(f"write it again: {command}")


def test_over_one_run_commands_write_next_to_it_and_open_the_folder_of_both(root, monkeypatch):
    place = root / "nested"
    for page, name in (("compare", "second"), ("results", "eval"), ("own-model", "mine")):
        texts = shown_texts(run(place / "second", monkeypatch, page))
        assert f"--out {place / name}\nmesa-lens app --store {place}  # " in texts
    assert "is displayed here" not in texts


def test_anatomy_opens_with_what_was_measured(root, monkeypatch, tmp_path):
    shutil.copytree(root / "first", tmp_path / "run")
    path = tmp_path / "run" / "anatomy" / "summary.json"
    summary = json.loads(path.read_text()) | {"retrieval": []}
    for heads, text in ((summary["heads"], "Attention to keys"), ([], None)):
        write_result(path, summary | {"heads": heads})
        app = run(tmp_path, monkeypatch, "anatomy")
        assert "not measured" not in shown_texts(app)
        assert not app.error
        assert (text in titles(app)[0]) if text else len(tables(app)) == 1
    write_result(path, summary | {"heads": [], "all_heads": []})
    assert "Nothing was measured of its heads." in shown_texts(run(tmp_path, monkeypatch, "anatomy"))
    inside = [row for row in summary["heads"] if row["length"] <= 256]  # no key is beyond M
    write_result(path, summary | {"heads": inside})
    assert "Attention to keys from N to M" in titles(run(tmp_path, monkeypatch, "anatomy"))[0]


def test_panels_are_figures_of_their_own_under_their_titles(opened):
    app = opened("thresholds", run="first", pairs="1:3")
    assert [len(figures(app)), len(titles(app))] == [1, 1]  # of one x axis: over which hovering shows all values
    notes = [note["text"] for note in figures(app)[0]["layout"]["annotations"][:2]]
    assert notes == ["layer 0, dim 3", "layer 1, dim 3"]
    app = opened("overview", run="first")
    assert [len(figures(app)), len(titles(app))] == [2, 2]


def test_pages_of_the_inside_name_the_command_or_the_damage(root, monkeypatch, tmp_path, opened):
    assert "mesa-lens anatomy --out" in shown_texts(opened("anatomy", run="nested/second"))
    shutil.copytree(root / "first", tmp_path / "run")
    (tmp_path / "run" / "anatomy" / "summary.json").write_text("{")
    (tmp_path / "run" / "locate" / "summary.json").write_text("{")
    for page in ("anatomy", "mechanism"):
        assert "is damaged" in run(tmp_path, monkeypatch, page).error[0].value
    app = run(tmp_path, monkeypatch, "overview")
    assert [len(app.warning), len(app.error), len(figures(app))] == [0, 0, 2]


def test_thresholds_follow_the_rule_the_ranking_and_what_is_typed(opened):
    app = opened("thresholds", run="first", pairs="1:3")
    assert app.markdown[0].value.startswith("**16** of 96")  # of 20 drifting ones
    assert "under origin, on prompt repeated;" in app.markdown[0].value
    counts = {prompt: opened("thresholds", run="first", prompt=prompt).markdown for prompt in ("repeated", "text-0")}
    assert {name: texts[1].value.replace("\\", "") for name, texts in counts.items()} == {
        "repeated": "On the other prompts: 0 on text-0.",
        "text-0": "On the other prompts: 16 on repeated.",
    }
    assert counts["text-0"][0].value.startswith("**0** of 96")
    assert not app.warning
    assert "dim 3, layer 1," in titles(app)[0]
    assert "first-repeated-thresholds-1-3.svg" in downloads(app)
    assert (
        sum("<img" in part.proto.body for part in app.get("html")) == 9
    )  # the clearest, small: each dim in its best layer
    small = next(button for button in app.button if "small-" in str(button.key))
    small.click().run()
    assert app.text_input(key="pairs").value == ":".join(small.key.split("-")[1:])
    assert "never" in {text.strip() for text in app.dataframe[0].value["mesa crosses at"]} <= {"never", "excluded"}
    rows, crossed = len(app.dataframe[0].value), {}
    for method in ("rerope", "mesa"):
        app.selectbox(key="crossed").set_value(f"origin crosses, {method} does not").run()
        crossed[method] = app.dataframe[0].value
        assert {text.strip() for text in crossed[method][f"{method} crosses at"]} <= {"never"}
        assert {"never", "excluded"}.isdisjoint(text.strip() for text in crossed[method]["origin crosses at"])
    assert 0 < len(crossed["mesa"]) <= rows
    app.selectbox(key="crossed").set_value("all").run()
    assert len(app.dataframe[0].value) == rows
    assert "origin fails" in json.dumps(figures(app))
    app.text_input(key="pairs").set_value("1:10, 2:20,7:1, abc, 01: 10").run()
    first, second = titles(app)
    assert "dim 10, layer 1" in first
    assert "dim 20, layer 2" in second
    assert [len(app.warning), "layers 0 to 2" in app.warning[0].value] == [2, True]
    app.text_input(key="pairs").set_value("").run()
    app.number_input(key="minimum_score").set_value(1000.0).run()
    assert app.markdown[0].value.startswith("**0** of 96")
    assert app.markdown[1].value.replace("\\", "") == "Not counted by this rule: text-0."
    assert "No dim shows a threshold under this rule. " in shown_texts(app)  # the best one is drawn all the same
    assert "no threshold dim" in titles(app)[0]
    assert len(app.dataframe[0].value) == 20
    assert "Least score (spreads) is 1000 (6)" in app.warning[0].value.replace("\\", "")
    app.number_input(key="minimum_score").set_value(6.0)
    app.number_input(key="M").set_value(130).run()  # Origin has left long ago: nothing crosses there
    assert app.markdown[0].value.startswith("**0** of 96")
    assert not app.exception


def test_the_run_stands_in_the_address_and_an_unknown_one_is_reported(opened):
    app = opened("overview")
    assert app.query_params["run"] == "nested/second"
    app.selectbox(key="run").set_value("first").run()
    assert (app.query_params["run"], len(app.warning)) == ("first", 0)
    app = opened("overview", run="../../etc")
    assert "run=../../etc (run=nested/second is displayed)" in app.warning[0].value.replace("\\", "")
    assert app.query_params["run"] == app.selectbox(key="run").value == "nested/second"


@pytest.mark.parametrize(
    ("page", "query", "text"),
    [
        ("thresholds", {"pairs": "1:3", "prompt": "text-0", "M": "100"}, "position 100"),
        ("heatmaps", {"minus": "rerope", "layers": ["0", "1"]}, "minus rerope"),
        ("theory", {"theory_M": "20", "N": "2"}, "M = 20"),
    ],
)
def test_a_link_reproduces_the_view(opened, page, query, text):
    app = opened(page, run="first", **query)
    assert text in shown_texts(app) + json.dumps(figures(app))
    for name, value in query.items():
        assert app.query_params[name] == (value[0] if len(value) == 1 and isinstance(value, list) else value)


def test_heatmaps_open_with_the_difference_where_drift_begins_and_narrow(opened):
    app = opened("heatmaps", run="first")
    assert app.selectbox(key="minus").value == "origin"
    assert app.slider(key="layers").value in ((1, 1), (2, 2))  # the first layer never drifts
    kinds = [trace["type"] for trace in figures(app)[0]["data"]]
    assert kinds == ["heatmap"] * 6 + ["scatter"] * 6  # three methods, two regions; points by which a box is chosen
    assert "resid_post minus origin" in titles(app)[0]
    layer, _ = app.slider(key="layers").value
    name = "first-repeated-heatmap-resid_post-minus-origin-rerope_dynamic-ntk_mesa-layers"
    assert f"{name}{layer}-dims0-31-positions32-95_256-319.csv" in downloads(app)
    app.selectbox(key="minus").set_value("nothing")
    app.segmented_control(key="positions").set_value("choose").run()
    assert "minus" not in titles(app)[0]
    app.slider(key="zoom").set_value((60, 69)).run()
    app.slider(key="dims").set_value((0, 3)).run()
    assert "Every value is drawn" in shown_texts(app)
    assert figures(app)[0]["data"][0]["z"]["shape"] == "4, 10"
    app.slider(key="layers").set_value((2, 2)).run()
    app.selectbox(key="run").set_value("nested/second").run()  # which has two layers
    assert [len(app.error), len(app.exception), len(figures(app))] == [0, 0, 2]


def test_of_dims_with_gaps_no_region_is_chosen(tmp_path, monkeypatch):
    hidden = hidden_states(layers=1, prompts=("repeated",))
    write_run(tmp_path / "gaps", hidden.assign_coords(dim=[*range(31), 300]))
    app = run(tmp_path, monkeypatch, "heatmaps")
    assert {trace["type"] for trace in figures(app)[0]["data"]} == {"heatmap"}
    assert [len(app.error), "Drag over" in shown_texts(app)] == [0, False]


def test_numbers_that_are_too_many_for_a_file_are_not_offered(opened, monkeypatch):
    monkeypatch.setattr("probe.figures.export.ROWS", 1000)
    app = opened("heatmaps", run="first")
    assert [f".{form}" in downloads(app) for form in ("csv", "npz")] == [False, True]
    assert "Not offered as csv: 12288 rows are more than 1000; choose fewer layers, dims or" in shown_texts(app)


@pytest.mark.parametrize("page", RUN_PAGES)
def test_a_page_looks_at_a_run_once(page, opened, monkeypatch):
    looked = []
    monkeypatch.setattr(runs, "check_inside", lambda place: looked.append(("checked", place)))
    monkeypatch.setattr(runs, "status_of", lambda place: looked.append(("status", place)))
    opened(page, run="first")
    assert looked
    assert len(looked) == len(set(looked))


def test_a_region_chosen_by_dragging_sets_the_sliders(root, monkeypatch):
    state = {"figure": {"selection": {"box": [{"x": [70.2, 60.4], "y": [2.8, 7.6]}]}}}
    monkeypatch.setattr("streamlit.session_state", state)
    heatmaps._narrow(open_run(root / "first").hidden, "figure")
    assert [state[key] for key in ("positions", "zoom", "dims")] == ["choose", (60, 70), (3, 8)]


def clicked(monkeypatch, point):
    """Has each figure that takes clicks say that this point was clicked; these figures, and the pages opened."""
    figures, pages = {}, []

    def plot(figure, *, key, selection_mode=None, **_):
        if selection_mode == "points":
            figures[key] = figure
        return {"selection": {"points": [point] if selection_mode == "points" else []}}

    monkeypatch.setattr("streamlit.plotly_chart", plot)
    monkeypatch.setattr("streamlit.switch_page", lambda page, *, query_params: pages.append((page.title, query_params)))
    return figures, pages


@pytest.mark.parametrize("page", ["mechanism", "anatomy"])
def test_a_click_on_a_head_opens_what_it_attends_to(page, opened, monkeypatch):
    figures, pages = clicked(monkeypatch, {"customdata": "layer 2, head 3: 34% [12, 50]"})
    app = opened(page, run="first", **({"locate_figures": "Layers and heads"} if page == "mechanism" else {}))
    assert "A click on a head opens what it attends to." in shown_texts(app)
    method = app.query_params[f"{'locate' if page == 'mechanism' else page}_method"]
    expected = {"run": "first", "tokens_head": "L2H3", "tokens_method": method}
    assert pages == [("Tokens", expected)] * len(figures)
    assert figures
    traces = [trace for figure in figures.values() for trace in figure.data if trace.type == "scatter"]
    texts = [trace.customdata for trace in traces if trace.customdata is not None]
    assert any(re.match(r"layer 2, (.* )?3: ", str(text)) for of_trace in texts for text in of_trace)
    clicked(monkeypatch, {"customdata": "layer 2, all heads: 34%"})
    opened(page, run="first")
    assert len(pages) == len(figures)  # a layer is no head


def test_only_maps_of_heads_are_clicked(opened, monkeypatch):
    for part in ("Smallest sets", "Clamps"):
        figures, _ = clicked(monkeypatch, {"customdata": "layer 2, head 3: 34%"})
        app = opened("mechanism", run="first", locate_figures=part)
        assert app.query_params["locate_figures"] == part
        assert figures == {}
        assert "A click on a head" not in shown_texts(app)


def test_a_click_on_a_point_of_the_curves_links_to_what_is_stored_there(opened, monkeypatch):
    links = []
    monkeypatch.setattr("streamlit.page_link", lambda page, **options: links.append((page.title, options)))
    figures, _ = clicked(monkeypatch, {"x": 128.0, "y": 2.5, "legendgroup": "rerope"})
    app = opened("overview", run="first")
    assert [*figures] == ["curves"]
    assert "At 128 tokens, rerope:" in shown_texts(app)
    near = {title: options for title, options in links if "label" in options}
    values = near["Heatmaps"]["query_params"]
    assert values | {"zoom": [*map(int, values["zoom"])]} == {
        "run": "first", "positions": "choose", "zoom": [96, 159], "methods": "rerope", "minus": "nothing"
    }  # fmt: skip
    assert near["Heatmaps"]["label"] == "Hidden states of tokens 96 to 159"
    assert near["Tokens"]["query_params"] == {"run": "first", "tokens_method": "rerope"}
    clicked(monkeypatch, {"x": 4096.0, "y": 2.5, "legendgroup": "rerope"})  # longer than what is stored
    app = opened("overview", run="first")
    labels = [options["label"] for title, options in links if title == "Heatmaps" and "label" in options]
    assert labels == ["Hidden states of tokens 96 to 159"]
    assert "At 4096 tokens (hidden states are stored up to 320), rerope:" in shown_texts(app)


def test_what_a_point_links_to_begins_where_states_begin(monkeypatch):
    links = []
    monkeypatch.setattr("streamlit.page_link", lambda _, **options: links.append(options))
    monkeypatch.setattr(overview, "hooks_of", lambda _: ["resid_post"])
    stored = SimpleNamespace(hidden={"position": xr.DataArray(np.arange(100, 200))})
    context = SimpleNamespace(run=SimpleNamespace(run=stored, name="one"), pages={"heatmaps": None})
    overview._near(context, SimpleNamespace(trained_length=64, methods=[]), {"x": 128.0})
    assert [link["label"] for link in links] == ["Hidden states of tokens 100 to 159"]


def test_without_hidden_states_a_point_links_to_no_page_of_them(root, opened, monkeypatch):
    titles = []
    monkeypatch.setattr("streamlit.page_link", lambda page, **options: titles.append(page.title))
    monkeypatch.setattr("mesa_lens.dashboard.views.overview.hooks_of", lambda _: [])
    monkeypatch.setattr("mesa_lens.dashboard.views.overview._cards", lambda _: None)
    clicked(monkeypatch, {"x": 128.0, "y": 2.5, "legendgroup": "rerope"})
    app = opened("overview", run="first")
    assert "At 128 tokens, rerope:" in shown_texts(app)
    assert "A click on a point links to other pages." in shown_texts(app)
    assert titles == ["Tokens", "Run your model"]


def test_methods_are_drawn_side_by_side_with_sizes_that_follow_m(opened):
    app = opened("methods", a="stair", b="mesa")
    assert len(figures(app)) == 2
    app.selectbox(key="a").set_value("origin").run()
    text = shown_texts(app)
    assert "The largest relative position is 23, at or beyond M = 16; pairs at M or beyond, where the" in text
    assert "never trained: 36; causal pairs masked: 0." in text  # 1 + ... + 8
    assert re.search(r"The largest relative position is \d+, inside M = 16; pairs at M or beyond.*: 0; ", text)
    app.number_input(key="b.mesa.window").set_value(16).run()
    assert "window=16" in app.warning[0].value.replace("\\", "")
    app.slider(key="window").set_value(128).run()
    fresh = opened("methods", a="rerope", window="128")
    assert app.number_input(key="b.mesa.window").value == fresh.number_input(key="b.mesa.window").value > 16
    linked = opened("methods", **{"a": "rerope", "window": "128", "a.rerope.window": "9"})
    assert linked.number_input(key="a.rerope.window").value == 9


def test_damaged_claims_are_named_with_the_command(tmp_path, monkeypatch):
    (tmp_path / "theory.json").write_text("[]")
    app = run(tmp_path, monkeypatch, "theory")
    assert "theory.json is damaged" in app.info[0].value.replace("\\", "")
    assert app.code[0].value == f"mesa-lens verify --html {tmp_path / 'theory'}"
    assert not app.error
    write_result(tmp_path / "theory.json", {"claims": [{"name": "3.1", "verdict": "proven", "whose": "ours"}]})
    text = run(tmp_path, monkeypatch, "theory").info[0].value.replace("\\", "")
    assert f"{tmp_path / 'theory.json'}: 'proven' is not a valid ClaimVerdict; remove it" in text


def test_theory_shows_what_the_closed_forms_say(opened):
    data = closed_forms(16, 0.5, 3, 3)
    for construction, E in (("remap, ideal recovery", None), ("Stair", 3)):
        excess = data["excess"].sel(construction=construction)
        beyond = excess.where((excess["t"] > 16) & (excess <= 0), drop=True)
        assert int(beyond["t"][0]) == first_failure(16, 3, E)
    app = opened("theory", theory_M="64", N="8")
    assert (app.metric[0].label, app.metric[0].value) == ("Plain positions fail at", "65")
    assert "the remap first fails at t = 181,369;" in shown_texts(app)
    assert "The paper's theorems: 3.1 holds. BROKEN: 3.2." in shown_texts(app)
    assert "recover up to M - 1, the remap first fails at t = 14." in shown_texts(
        opened("theory", theory_M="4", N="2", E="50")
    )
    app.slider(key="theory_M").set_value(4).run()
    assert "N=8 is not below M=4" in app.warning[0].value.replace("\\", "")


def test_a_claim_without_a_margin_is_shown(tmp_path, monkeypatch):
    claim = {"name": "3.1", "verdict": "BROKEN", "whose": "ours", "statement": "it holds", "margin": None}
    write_result(tmp_path / "theory.json", {"claims": [claim | {"error_text": "0"}]})
    app = run(tmp_path, monkeypatch, "theory")
    assert not app.exception
    assert tables(app)[0].iloc[0, -1] == "none (0)"


def test_runs_are_compared(root, monkeypatch, tmp_path):
    for name in ("a", "b", "c"):
        shutil.copytree(root / "nested" / "second", tmp_path / name)
    changed = {"method_configs": '{"mesa": {"window": 9}}', "created": "2026-01-02", "lengths": "[32]"}
    edit(tmp_path / "b", lambda attrs: attrs.update(changed))
    app = run(tmp_path, monkeypatch, "compare", run="a", **{"with": ["b", "c"]})
    assert not app.error
    drawn = [trace for panel in figures(app) for trace in panel["data"] if trace["mode"] == "lines+markers"]
    assert {trace["name"] for trace in drawn} >= {f"origin, {name}" for name in ("a", "b", "c")}
    assert len(drawn) == 3 * 2 * 4  # runs, measures, methods
    failures, settings = tables(app)
    kinds = [f"{kind}, {name}" for kind in ("measured failure", "drift onset") for name in ("a", "b", "c")]
    assert list(failures.columns) == ["method", *kinds]
    assert settings.set_index("setting").T.to_dict("list") == {"mesa: window": ["8", "9", "8"]}  # no dates


def damaged(kind, root, target):
    shutil.copytree(root / "first", target)
    store = target / "store.zarr"
    if kind == "unfinished":
        store.rename(target / "store.zarr.partial")
    elif kind == "no metadata":
        (store / "zarr.json").unlink()
    elif kind == "missing region":
        next(path for path in sorted((store / "resid_post").rglob("*")) if path.is_file() and path.name == "0").unlink()
    elif kind == "wrong attributes":
        text = (store / "zarr.json").read_text()
        (store / "zarr.json").write_text(text.replace('"trained_length": 64', '"trained_length": "many"'))


@pytest.mark.parametrize(
    ("kind", "page", "remedy"),
    [
        ("unfinished", "overview", "the capture is done, or go on with it: mesa-lens probe --seed=3 --out="),
        ("unfinished", "thresholds", "the capture is done, or go on with it: mesa-lens probe --seed=3 --out="),
        ("no metadata", "heatmaps", "give the folder"),
        ("missing region", "thresholds", "capture it again"),
        ("wrong attributes", "heatmaps", "capture it again"),
    ],
)
def test_a_bad_store_is_explained(root, monkeypatch, tmp_path, kind, page, remedy):
    damaged(kind, root, tmp_path / "bad")
    app = run(tmp_path, monkeypatch, page)
    assert [len(app.error), len(figures(app))] == [1, 0]
    assert remedy in app.error[0].value.replace("\\", "")


def test_a_run_that_does_not_open_is_neither_the_first_nor_beside_it(root, monkeypatch, tmp_path):
    for name in ("a", "b"):
        shutil.copytree(root / "first", tmp_path / name)
        os.utime(tmp_path / name / "store.zarr" / "zarr.json", (1, 1))  # older than those that do not open
    damaged("missing region", root, tmp_path / "newest")
    damaged("unfinished", root, tmp_path / "fresh")
    app = run(tmp_path, monkeypatch, "compare")
    assert not app.error
    assert {app.selectbox(key="run").value, *app.multiselect(key="with").value} == {"a", "b"}
    assert "fresh (unfinished)" in app.selectbox(key="run").options
    app.multiselect(key="with").set_value(["newest"]).run()
    assert not app.error
    assert "newest is left out:" in app.warning[0].value.replace("\\", "")


@pytest.mark.parametrize("page", ["overview", "results"])
def test_without_a_run_it_says_how_to_write_one(monkeypatch, tmp_path, page):
    app = run(tmp_path / "nothing", monkeypatch, page)
    assert not app.error
    assert ("mesa-lens probe --length 2048" if page == "overview" else "mesa-lens eval --out") in shown_texts(app)


@pytest.mark.slow
def test_the_dashboard_needs_no_torch(root):
    code = f"""
import os, sys
for name in ("torch", "transformers", "transformer_lens"): sys.modules[name] = None
os.environ["MESA_LENS_RUNS"] = {str(root)!r}
sys.path[:0] = [".", "tests/helpers"]
from pages import unopened
import app
for page in {PAGES!r}:
    app = unopened(page).run()
    assert not app.exception and not app.error, (page, app.exception, app.error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
