"""research/paper: every config is planned, the tiny model's report holds its numbers, an interrupted run goes on."""

import json
import re
from collections import Counter
from pathlib import Path
from unittest.mock import Mock

import pytest
import yaml

from mesa.settings import make_methods
from probe.eval_tasks import sources
from probe.eval_tasks.ruler import RULER
from probe.statistics import shown
from probe.store.reader import open_run
from research.paper import run as script, runner
from research.paper.config import check, estimate, read, section_request
from research.paper.sections import SECTIONS

CONFIGS = sorted((Path(__file__).parents[2] / "research/paper/configs").glob("*.yaml"))
LENGTHS = "200,320"
PROBE = {"length": 320, "samples": 1, "texts": 0, "lengths": "80,160", "layers": "1"}
PASSKEY = {"lengths": "200", "samples": 1}

pytestmark = pytest.mark.usefixtures("undrawn", "little_text")


@pytest.fixture(scope="module")
def little_text():
    """Of the held-out texts the shortest alone, so that little is tokenized."""
    text = min(sources.heldout(), key=len)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sources, "heldout", lambda: [text])
        yield


class Paper:
    """A config, its output folder, and the command over both."""

    def __init__(self, model, folder):
        self.model, self.config, self.out = model, folder / "config.yaml", folder / "out"
        self.words = ["--config", str(self.config), "--out", str(self.out)]

    def write(self, sections, **more):
        config = {"model": self.model, "trained_length": 160, "methods": ["origin", "mesa"], "sections": sections}
        self.config.write_text(yaml.safe_dump({**config, **more}, sort_keys=False))

    def run(self, *options):
        script.main(script.parser().parse_args([*self.words, *options]))

    @property
    def html(self):
        return (self.out / "report.html").read_text()

    @property
    def results(self):
        return json.loads((self.out / "results.json").read_text())["sections"]


@pytest.fixture
def paper(model, tmp_path):
    return Paper(model, tmp_path)


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_every_config_states_valid_methods(path):
    config = read(path)
    for name in config.sections:
        request = section_request(config, name)
        methods = make_methods(request.methods or "all", config.trained_length, request.method_settings)
        assert {method.trained_length for method in methods.values()} == {config.trained_length}
    if path.stem == "llama2-7b":
        mesa = make_methods("mesa", 4096, section_request(config, "ablation").method_settings)["mesa"]
        assert (mesa.window, mesa.width, mesa.first, mesa.last) == (512, 50, 100, 512)


def test_the_estimate_counts_every_section_and_ends_before_anything_runs(paper, capsys):
    sections = {"passkey": PASSKEY, "ablation": {"lengths": "320", "samples": 1}, "probe": PROBE, "summary": {}}
    paper.write(sections)
    text, passes = estimate(read(paper.config))
    assert "passkey (Figure 3): 2 tasks: 2 passes, 400 tokens" in text
    assert "ablation (Figure 9): 6 tasks: 6 passes" in text
    assert "summary: left out, no lm-eval tasks are given; set `tasks:`, e.g. longbench_gov_report" in text
    by_length = Counter()
    for (_, length), count in passes.items():
        by_length[length] += count
    assert by_length == {200: 2, 320: 6 + 2, 80: 4, 160: 4}
    paper.run("--estimate")
    assert "probe (Figures 2 and 11 to 16): model" in capsys.readouterr().out
    assert not paper.out.exists()


def test_all_methods_are_those_that_the_model_can_have(paper, capsys):
    sections = {"nll": {"lengths": "256,512", "samples": 1}, "probe": {"samples": 1}, "ablation": {"samples": 1}}
    paper.write(sections, model="alibi", trained_length=256, methods="all")
    plans = check(read(paper.config))
    assert capsys.readouterr().err.count("left out: yarn cannot be attached") == 1
    assert [len(plans[name].methods) for name in sections] == [14, 14, 3]
    paper.write(sections, model="alibi", trained_length=256, methods=["origin", "yarn"])
    with pytest.raises(ValueError, match="yarn cannot be attached to model type 'mpt'"):
        check(read(paper.config))


@pytest.mark.slow
def test_a_report_of_every_kind_of_section(paper, capsys):
    sections = {
        "probe": {"length": 320, "samples": 1, "texts": 0, "lengths": "160,300"},
        "passkey": {"lengths": LENGTHS, "samples": 2},
        "nll": {"lengths": LENGTHS, "samples": 2},
        "summary": {},
        "latency": {"lengths": "64", "samples": 1},
        "longbench": {},
        "ablation": {"lengths": "320", "samples": 1},
        "ruler": {"lengths": "320", "samples": 1, "tasks": "vt"},
    }
    paper.write(sections, title="<b>Tiny</b>")
    paper.run()
    assert "longbench: left out, no lm-eval tasks are given" in capsys.readouterr().out
    html, results = paper.html, paper.results
    assert not re.search(r"<(script|link|img)\s[^>]*(src|href)=", html)  # nothing is fetched
    assert set(results) == set(sections)
    measured = open_run(paper.out / "probe").evaluation
    assert measured is not None
    assert measured["length"].values.tolist() == [160, 300]
    assert {cell["method"] for cell in results["ablation"]["cells"]} == {
        f"mesa, {weave}" for weave in ("stair", "rerope", "leaky-rerope")
    }
    for text in (
        "&lt;b&gt;Tiny",
        "41.0/20.4/37.5",  # Table 1: Mesa at 4k
        "42.76",  # Table 3: Mesa, M-Document QA, 8k+
        *(f'id="{name}"' for name in sections),
        *(shown(cell["mean"], cell["low"], cell["high"], ".2f") for cell in results["nll"]["cells"]),
    ):
        assert text in html
    assert {cell["task"] for cell in results["ruler"]["cells"]} == {"vt"}
    assert SECTIONS["ruler"].tasks == tuple(task.name for task in RULER)


@pytest.mark.slow
def test_an_interrupted_run_goes_on(paper, monkeypatch):
    paper.write({"probe": PROBE, "passkey": PASSKEY})
    with monkeypatch.context() as patch:
        patch.setattr(runner, "run_cells", Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(SystemExit, match="the same command continues"):
            paper.run()
    monkeypatch.setattr(runner, "run_probe", Mock(side_effect=AssertionError("ran")))
    paper.run()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sections": {"passkey": {"length": 5}}}, "passkey has an unknown key 'length'; known: methods, "),
        ({"sections": {"passkey": {"lengths": "20"}}}, "length=20 is below the task's fixed text"),
        ({"sections": {"ruler": {"tasks": "vt,nll"}}}, "ruler: tasks has an unknown key 'nll'; known: vt"),
        ({"sections": {}}, "config.yaml has no sections; see research/paper/configs/default.yaml"),
    ],
)
def test_bad_configs_are_refused_before_anything_runs(paper, changes, message):
    paper.write(**changes)
    with pytest.raises(ValueError, match=re.escape(message)):
        paper.run()
    assert not paper.out.exists()


@pytest.mark.parametrize("value", ["4:16:4", "yes", "012", "1_000"])
def test_yaml_reads_what_is_written(paper, value):
    paper.config.write_text(
        f"model: default\ntrained_length: 256\ntitle: {value}\nsections: {{probe: {{prompt: {value}}}}}\n"
    )
    config = read(paper.config)
    assert (config.title, config.sections["probe"]["prompt"]) == (value, value)


WRONG = """
seed: null
seed: x
seed: [1]
trained_length: 0
set: 5
set: [rerope.nonsense=1]
nonsense: 1
methods: null
methods: [origin, rope]
sections: null
sections: [passkey]
sections: {nonsense: {}}
sections: {passkey: {samples: null}}
sections: {passkey: {samples: [1]}}
sections: {passkey: {samples: 1.5}}
sections: {passkey: {samples: 0}}
sections: {passkey: {batch: null}}
sections: {nll: {text: 5}}
sections: {passkey: {lengths: [1, [2]]}}
sections: {passkey: 5}
sections: {probe: {layers: 1-}}
sections: {probe: {texts: -1}}
load: {nonsense: 1}
load: cpu
load: {dtype: 5}
a: [
""".strip().splitlines()


@pytest.mark.parametrize("line", WRONG)
def test_a_wrong_line_is_refused(paper, line):
    good = {"model": paper.model, "trained_length": "160", "methods": "origin", "sections": "{passkey: {samples: 1}}"}
    good.pop(line.partition(":")[0], None)
    paper.config.write_text("\n".join([*(f"{key}: {value}" for key, value in good.items()), line]))
    with pytest.raises(ValueError, match=r"\S"):
        paper.run()
    assert not paper.out.exists()
