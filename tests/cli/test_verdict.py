"""The same verdict in four places: summary.json, the report, the terminal and the dashboard, with all 17 methods."""

import html
import json
import re

import located
import pytest
from pages import drawn
from synthetic import METHODS, evaluation, hidden_states, many, write_run

from mesa_lens.cli import main
from probe.commands.probe import report


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("root") / "run"
    write_run(folder, many(hidden_states(layers=2, dims=8)), many(evaluation()), model="a < b & c")
    located.write(folder, model="a < b & c", trained=64)
    return folder


def shown(page):
    """What a reader sees of the verdict in a page: sentences and notes, and the table's texts, row by row."""
    (part,) = re.findall(r'<div class="verdict">.*?(<dl>.*?)<style>', page, re.DOTALL)
    words = [plain(text) for text in re.findall(r"<d[td]>.*?</d[td]>|<p>.*?</p>", part, re.DOTALL)]
    rows = re.findall(r"<tr>.*?</tr>", part, re.DOTALL)
    return words, [[plain(cell) for cell in re.findall(r"<t[dh].*?>.*?</t[dh]>", row, re.DOTALL)] for row in rows]


def plain(part):
    return html.unescape(" ".join(re.sub(r"<[^>]*>", "", part).split()))


@pytest.mark.slow
def test_report_summary_terminal_and_dashboard_say_the_same(folder, capsys, monkeypatch):
    monkeypatch.setattr(report, "write_figures", lambda *_: None)  # they take a minute
    assert main(["report", str(folder)]) == 0
    terminal = capsys.readouterr().out
    verdict = json.loads((folder / "summary.json").read_text())["verdict"]
    assert sorted(row["method"] for row in verdict["rows"]) == sorted(METHODS)
    assert [row["method"] for row in verdict["rows"]] == [cells[1] for cells in verdict["cells"]]
    words = [text for each in verdict["sentences"] for text in (each["heading"], each["text"])] + verdict["notes"]
    words = [text.replace("`", "") for text in words]  # pages have <code>
    table = [verdict["head"], *verdict["cells"]]

    assert shown((folder / "report.html").read_text()) == (words, table)

    monkeypatch.setenv("MESA_LENS_RUNS", str(folder.parent))
    (page,) = [
        part.proto.body for part in drawn("overview", run="run").get("html") if 'class="verdict"' in part.proto.body
    ]
    assert shown(page) == (words, table)

    flowing = " ".join(terminal.split())
    for sentence in verdict["sentences"]:
        assert f"{sentence['heading']}: {sentence['text']}" in flowing
    assert all(note in flowing for note in verdict["notes"])
    begin = next(row for row, line in enumerate(terminal.splitlines()) if line.startswith("rank "))
    lines = terminal.splitlines()[begin : begin + 18]
    assert [re.split(r" {2,}", line) for line in lines] == table
