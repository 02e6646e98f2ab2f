"""The tokens of each prompt: kept in the store, and told under the cursor; stores without them open as before."""

import pytest
from synthetic import hidden_states, tokens_of, write_run

from probe.commands.probe.report import threshold_export
from probe.figures.export import heatmap_export
from probe.figures.heatmap import regions
from probe.figures.interactive import draw
from probe.figures.states import threshold_chart
from probe.store.reader import hook_values, one_prompt, open_run
from probe.thresholds.search import CrossingRule, search

M = 64


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    hidden = hidden_states()
    return write_run(tmp_path_factory.mktemp("run"), hidden, tokens=tokens_of(hidden))


@pytest.fixture(scope="module")
def hidden(folder):
    return hook_values(open_run(folder))


def test_hovering_a_text_prompt_shows_the_token_which_is_no_markup(hidden):
    text = one_prompt(hidden, "text-0").copy()
    assert text["token"].sel(position=[0, 1, 70]).values.tolist() == [" hello", " w1", " w70"]
    for token, shown in ((" w70", " w70"), ("<b>%{x}</b>", "&lt;b&gt;%{x}&lt;/b&gt;")):
        text["token"][70] = token
        trace = draw(threshold_chart(text, search(text, M, CrossingRule.scaled(M)), 1, 3)).data[0]
        assert trace.hovertemplate.endswith("<br>%{customdata}<extra></extra>")
        assert trace.customdata[70] == f"token '{shown}'"


def test_exports_carry_the_token(hidden):
    text = one_prompt(hidden, "text-0")
    crossings = search(text, M, CrossingRule.scaled(M))
    export = threshold_export(text, crossings, [(1, 3), (1, 4)])
    values = dict(export.files("csv"))["threshold-resid_post-text-0-values.csv"].decode().splitlines()
    assert "token" in values[0].split(",")
    assert any(" w70" in line for line in values)
    panel = heatmap_export(regions(text, [(60, 70)]), M)
    assert all(content for form in ("csv", "npz") for _, content in panel.files(form))
