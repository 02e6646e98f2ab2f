"""The dashboard's page Predict: any method's failure length from a stored curve."""

from pathlib import Path

import pytest
from pages import drawn, shown_texts
from predicted import prediction
from synthetic import hidden_states, of_run, write_run

from probe.commands.predict.page import prediction_chart
from probe.commands.predict.result import PREDICTION
from probe.files import write_result


@pytest.fixture
def opened(tmp_path, monkeypatch):
    """Opens the page over a run with a prediction, or without."""
    write_run(tmp_path / "run", hidden_states(layers=1))
    monkeypatch.setenv("MESA_LENS_RUNS", str(tmp_path))

    def page(summary=None):
        if summary is not None:
            (tmp_path / "run" / "predict").mkdir()
            write_result(tmp_path / "run" / "predict" / "prediction.json", summary | of_run(tmp_path / "run"))
        return drawn("predict")

    return page


def test_without_a_prediction_the_page_names_the_command_and_with_a_refusal_its_reason(opened):
    assert "mesa-lens predict --out" in shown_texts(opened())
    assert "Nothing is predicted: nothing is lost." in shown_texts(opened(prediction("nothing is lost")))


def test_of_no_covered_method_that_is_said():
    empty = prediction() | {"methods": {"yarn": {"config": {}, "refusal": "rotary frequencies are changed"}}}
    chart = prediction_chart(PREDICTION.parse(empty, Path()))
    assert chart.panels[0].seen == "No method here is covered"


def test_moving_a_parameter_moves_the_failure(opened):
    app = opened(prediction())
    assert "is not predicted: not covered, since no key is at a distance of M or more up to 512 tokens" in shown_texts(
        app
    )
    app.slider(key="predict.leaky-rerope.k").set_value(1.2).run()
    assert "Predicted: leaky-rerope fails at" in shown_texts(app)
    app.selectbox(key="predicted").set_value("rerope").run()
    assert "not covered" in shown_texts(app)
    app.slider(key="predict.rerope.window").set_value(200).run()
    assert "is not below the trained length 64" in shown_texts(app)
    assert "Methods of this run" in shown_texts(app)  # all the same
    assert not app.exception


def test_the_page_says_what_it_leaves_out_what_z_is_and_how_well_the_law_fits(opened):
    texts = shown_texts(opened(prediction()))
    assert "Left out: dynamic-ntk, ntk-mixed, yarn, cope (they change rotary frequencies" in texts
    assert "Not predicted: yarn: rotary frequencies are changed." in texts
    assert "Z is their weighted number: each counts (distance - M + 1)^p." in texts
    assert "Here p = 0.5 [0.4, 0.6], so both their number and their distance count." in texts
    assert "Misfit of the law to the 9 position gaps that it was fitted to: 0.07 nats/token" in texts


def test_log_n_is_not_predicted_where_it_was_not_measured(opened):
    summary = prediction()
    summary["law"]["scale_power"] = None
    app = opened(summary)
    assert "what log n takes away was not measured" in shown_texts(app)
    app.checkbox(key="predict.leaky-rerope.log_n").uncheck().run()
    assert "is not predicted: not covered" in shown_texts(app)
