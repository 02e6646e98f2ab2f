"""A package of somebody else adds a method, a task, a family, a command and a figure, without touching ours."""

import re
import subprocess
import sys

import guests
import pytest

pytestmark = pytest.mark.slow
WARM = """
import sys
from pathlib import Path
import tiny
from guest.warm import WarmConfig, WarmForCausalLM
tokenizer = tiny.byte_level()
config = WarmConfig(vocab_size=len(tokenizer), hidden_size=32, intermediate_size=48, num_hidden_layers=2,
    num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=160, bos_token_id=0, pad_token_id=1)
tiny.torch.manual_seed(0)
WarmForCausalLM(config).eval().save_pretrained(sys.argv[1])
tokenizer.save_pretrained(sys.argv[1])
"""


@pytest.fixture(scope="module")
def done(model, tmp_path_factory):
    """By name, what each command line gave; and the folder of the run."""
    folder = tmp_path_factory.mktemp("guest")
    env, run, warm = guests.visible(folder / "site"), folder / "run", folder / "warm"
    subprocess.run([sys.executable, "-c", WARM, str(warm)], check=True, env=env, cwd=guests.ROOT)
    small = ["--model", model, "--out", run]
    task = ["eval", "--methods", "origin,coarse", "--model", model, "--out", folder / "eval"]
    norms = ["norms", *small, "--methods", "origin,coarse"]
    lines = {
        "help": ["--help"],
        "method": ["methods", "explain", "coarse", "--length", "6", "--set", "coarse.window=2"],
        "task": [*task, "--task", "repeats", "--lengths", "64", "--samples", "2"],
        "family": ["check", "--model", warm, "--methods", "coarse", "--pretended", "32"],
        "probe": ["probe", *small, "--methods", "origin,coarse", "--length", "200", "--samples", "0", "--texts", "0"],
        "begun": [*norms, "--minutes", "1e-9", "--note", "first"],
        "unfinished": ["status", run],
        "command": [*norms, "--note", "second"],
        "status": ["status", run],
        "report": ["report", run],
        "export": ["export", "norms", run, "--lengths", "64", "--format", "csv"],
    }
    return dict(zip(lines, guests.commands(env, *lines.values(), before=guests.UNDRAWN), strict=True)), run, env


def test_each_is_used_by_the_command_line(done):
    results, run, _ = done
    assert {name: (code, err[-300:]) for name, (code, _, err) in results.items() if code} == {}
    assert re.search(r"norms +measure how long hidden states are under each method", results["help"][1])
    assert "rounded positions" in results["method"][1]
    assert "repeats, loss (nats/token)" in results["task"][1]
    assert "0 failed" in results["family"][1]
    assert "The norm of 4 passes' last states." in results["command"][1]
    assert (run / "norms" / "report.html").is_file()
    assert results["export"][1].split() == [str(run / "exports" / "norms.csv")]
    assert len((run / "exports" / "norms.csv").read_text().splitlines()) == 1 + 2  # two methods at one length


def test_the_status_counts_its_cells_and_names_the_command_that_goes_on(done):
    results, _, _ = done
    assert "norms: 1 of 4 cells done, 3 left" in results["unfinished"][1]
    assert "norms: 4 of 4 cells done" in results["status"][1]
    assert "finished" in results["status"][1].splitlines()[0]


def test_the_report_of_the_run_tells_of_it_with_its_figure(done):
    _, run, _ = done
    text = (run / "report.html").read_text(encoding="utf-8")
    assert "The norm of 4 passes' last states." in text or "The norm of 4 passes&#39; last states." in text
    assert 'href="norms/report.html"' in text


def test_the_dashboard_has_a_page_of_it(done):
    _, run, env = done
    code = """
from streamlit.testing.v1 import AppTest
from mesa_lens.dashboard.main import PAGES
from mesa_lens.dashboard.server import ROUTES
assert "norms" in PAGES and "/norms" in {route.path for route in ROUTES}
app = AppTest.from_string("from mesa_lens.dashboard.main import main; main('norms')", default_timeout=60).run()
assert not app.exception and not app.error, (app.exception, app.error)
assert any("The norm of 4" in part.value for part in app.markdown), [part.value for part in app.markdown]
"""
    env = env | {"MESA_LENS_RUNS": str(run.parent)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env=env)
    assert done.returncode == 0, done.stderr[-2000:]
