"""The address holds every choice of every page, opens the same picture again, and says what it does not understand."""

import json

import anatomized
import located
import pytest
import readings
from pages import drawn, shown_texts
from predicted import prediction
from results import write_evaluation
from synthetic import evaluation, hidden_states, of_run, write_run

from mesa_lens.dashboard.address import numbers, one_of, some_of
from mesa_lens.dashboard.main import PAGES
from mesa_lens.dashboard.server import ROUTES
from probe.commands.probe.report import write_report
from probe.files import write_result

KINDS = ("selectbox", "multiselect", "slider", "number_input", "checkbox", "text_input", "segmented_control")


@pytest.fixture(scope="module")
def root(tmp_path_factory, undrawn):
    root = tmp_path_factory.mktemp("root")
    for name in ("first", "second", "third"):
        write_run(root / name, hidden_states(layers=3, dims=12), evaluation())
    located.write(root / "first")
    anatomized.write(root / "first")
    write_result(root / "first" / "anatomy" / "tokens.json", anatomized.tokens() | of_run(root / "first"))
    (root / "first" / "predict").mkdir()
    readings.write(root / "first")
    write_result(root / "first" / "predict" / "prediction.json", prediction() | of_run(root / "first"))
    for name in ("mine", "other"):
        write_evaluation(root / name)
    write_report(root / "first")
    return root


@pytest.fixture(autouse=True)
def store(root, monkeypatch):
    monkeypatch.setenv("MESA_LENS_RUNS", str(root))


def picture(app):
    """All that a page shows: texts, figures, tables, files."""
    specs = [json.loads(chart.proto.spec) for chart in app.get("plotly_chart")]
    html = [part.proto.body for part in app.get("html")]
    return shown_texts(app), specs, html, [str(table.value) for table in app.dataframe], downloads(app)


def downloads(app):
    return [str(element.key) for element in app.get("download_button")]


def widgets(app):
    return [widget for kind in KINDS for widget in getattr(app, kind) if not widget.disabled]


def change(widget):
    """Sets a widget to a value that it does not have, if there is another."""
    if widget.type == "selectbox":
        widget.select_index(len(widget.options) - 1 if widget.index == 0 else 0)
    elif widget.type == "button_group":
        widget.set_value(widget.options[-1])
    elif widget.type == "multiselect":
        widget.set_value(widget.options[-1:])
    elif widget.type == "checkbox":
        widget.set_value(not widget.value)
    elif widget.type == "text_input":
        widget.set_value("1:3, 0:2")
    elif isinstance(widget.value, tuple | list):
        widget.set_value((widget.min, widget.min + widget.step))
    else:
        widget.set_value(widget.value + (widget.step if widget.value < widget.max else -widget.step))


def address_of(app):
    return {name: app.query_params[name] for name in app.query_params}


@pytest.mark.quick_cases(4)
@pytest.mark.parametrize("page", PAGES)
def test_an_address_opens_the_same_picture_and_what_it_does_not_understand_is_said(page):
    app = drawn(page, run="first")
    check_nonsense(page, app)
    first, seen = picture(app), set()
    for _ in range(2):  # some widgets appear by what others are set to
        new = [widget for widget in widgets(app) if widget.key != "run" and widget.key not in seen]
        for widget in new:
            change(widget)
        seen |= {widget.key for widget in new}
        if new:
            app.run()
    assert not app.exception
    assert not app.error
    assert {widget.key for widget in widgets(app)} <= set(address_of(app))
    fresh = drawn(page, **address_of(app))
    assert picture(fresh) == picture(app)
    assert address_of(fresh) == address_of(app)
    assert (picture(app) != first) == bool(seen)


def check_nonsense(page, app):
    """That a page opens as `app` did where its address holds what is not understood, and says so once."""
    names = [name for name in address_of(app) if name != "run"]
    wrong = drawn(page, run="first", **dict.fromkeys([*names, "unknown"], "nonsense"))
    (notice,) = [warning.value.replace("\\", "") for warning in wrong.warning if "Not understood" in warning.value]
    for name in names:
        assert f"{name}=nonsense ({name}=" in notice
    assert "unknown=nonsense (nothing on this page)" in notice
    assert picture(wrong)[1:] == picture(app)[1:]
    assert address_of(wrong) == address_of(app)
    wrong.run()
    assert not [warning for warning in wrong.warning if "Not understood" in warning.value]


@pytest.mark.parametrize(
    ("values", "fine", "wrong"),
    [
        (numbers(int, 0, 9), {"0": 0, "9": 9}, ["10", "-1", "nan", "1e3", "0.5", "\u00b2", "", "x"]),
        (numbers(float, 0.5, 2), {"0.5": 0.5, "2": 2.0}, ["inf", "nan", "1e999", "0.4", ""]),
        (one_of([1, 2]), {"1": 1, "2": 2}, ["3", "01", ""]),
        (some_of(["a", "b"]), {"a": ["a"], "": []}, ["c", "A"]),
    ],
)
def test_a_value_is_one_that_the_widget_can_have(values, fine, wrong):
    for text, value in fine.items():
        assert values.read([text]) == value
        assert values.write(value) == [text]
    assert [values.read([text]) for text in wrong] == [None] * len(wrong)


def test_two_numbers_ascend_and_one_of_several_texts_is_none():
    assert numbers(int, 0, 9, 2).read(["2", "5"]) == (2, 5)
    assert [numbers(int, 0, 9, 2).read(texts) for texts in (["5", "2"], ["2"], ["0", "10"])] == [None] * 3
    assert [values.read(["1", "1"]) for values in (numbers(int, 0, 9), one_of([1]))] == [None] * 2
    assert some_of(["a", "b"]).read(["b", "c", "b"]) == ["b"]


def test_a_dragged_region_is_in_the_address():
    app = drawn("heatmaps", run="first")
    app.session_state["positions"], app.session_state["zoom"] = "choose", (60, 70)  # as `_narrow` does
    app.run()
    assert [app.query_params[name] for name in ("positions", "zoom")] == ["choose", ["60", "70"]]
    assert picture(drawn("heatmaps", **address_of(app))) == picture(app)


def test_an_address_waits_for_what_is_missing(root, tmp_path, monkeypatch):
    app = drawn("anatomy", run="second", anatomy_method="mesa", anatomy_length="512")
    assert not app.warning
    assert address_of(app) == {"run": "second", "anatomy_method": "mesa", "anatomy_length": "512"}
    app.selectbox(key="run").set_value("first").run()
    assert app.selectbox(key="anatomy_method").value == "mesa"


def test_the_servers_addresses_are_those_of_the_pages():
    assert {route.path for route in ROUTES} == {"/", *(f"/{name}" for name in PAGES)}
