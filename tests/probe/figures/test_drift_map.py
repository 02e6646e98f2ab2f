"""The drift map: where a planted break is, in which words; nothing red where nothing breaks."""

import numpy as np
import pytest
from synthetic import hidden_states

from probe.figures.states import COLUMNS, drift_chart, drift_layers, drift_map
from probe.thresholds.drift import find_drift

M = 64


@pytest.fixture(scope="module")
def drift():
    return find_drift(hidden_states(M, windows=5).sel(prompt="repeated"), M)


def test_a_planted_break_is_red_where_it_is_and_nowhere_else(drift):
    maps = [one for (one,) in drift_map(drift, "repeated").cells]
    assert [one.title.partition(":")[0] for one in maps] == ["origin", "rerope", "dynamic-ntk", "mesa"]
    origin, rerope = maps[:2]
    late = origin.x >= 1.5 * M
    assert (origin.values[1:, late] > 0).all()
    assert not (origin.values[0] > 0).any()  # the first layer never leaves
    assert not (rerope.values > 0).any()
    assert origin.mark.x in range(M, 80)
    assert rerope.mark is None
    assert rerope.title == "rerope: none up to 320"
    assert np.isnan(origin.values[:, origin.x < drift.attrs["warm_up"]]).all()


def test_many_runs_keep_their_largest_and_gaps_stay_empty(drift):
    many = find_drift(hidden_states(M, windows=3 * COLUMNS // 32, layers=2, dims=12).isel(prompt=0), M)
    origin = drift_map(many).cells[0][0].values
    assert origin.shape[1] <= COLUMNS
    at = many.sel({"method": "origin"})
    largest = np.sqrt((at["level"] / at["limit"]).where(~at["warm_up"]).max())
    assert np.nanmax(origin) == pytest.approx(float(np.log2(largest)))
    gap = drift_map(drift.isel(run=[*range(100), *range(140, drift.sizes["run"])]))
    empty = np.isnan(gap.cells[0][0].values).all(axis=0)
    assert empty[50:70].all()  # a column is two runs
    assert not empty[30:50].any()


def test_a_layer_that_is_not_evaluated_is_drawn_faintly_and_is_not_the_strongest(drift):
    doubted = drift.assign(doubt=drift["doubt"].astype("U40")).copy(deep=True)
    doubted["level"].loc[{"method": "origin", "layer": 0}] = 1e6
    for name, value in (("doubt", "no clearer than chance"), ("first", np.nan)):
        doubted[name].loc[{"method": "origin", "layer": 0}] = value
    doubted["first"].loc[{"method": "origin"}] = np.nan
    first, strongest = drift_layers(doubted)
    assert (first, strongest > 0) == (0, True)
    lines = [panel.lines[0] for panel in drift_chart(doubted).panels]
    assert [line.faint for line in lines] == [True, False]
    assert [line.entry for line in lines] == ["origin, layer 0: not evaluated, no clearer than chance", "origin"]
