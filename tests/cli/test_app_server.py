"""`mesa-lens app`: what it refuses before it starts, whom the server answers, and which files it reads."""

import asyncio
import http.client
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import uvicorn
from pages import drawn, shown_texts
from results import write_evaluation
from starlette.responses import PlainTextResponse
from streamlit import config
from synthetic import evaluation, hidden_states, write_run

from mesa.errors import Refused
from mesa_lens.cli import main
from mesa_lens.dashboard import main as main_page, runs
from mesa_lens.dashboard.server import HOSTS_VARIABLE, PAGES, Guard, host_name
from probe.commands import commands
from probe.commands.probe.report import write_report
from probe.files import write_result
from probe.status import status_of

SOCKET = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13"}
SOCKET["Sec-WebSocket-Key"] = "dGhlIHNhbXBsZSBub25jZQ=="


@pytest.mark.parametrize(("name", "wrong"), [("nowhere", "is not there"), ("a-file", "is not a folder")])
def test_a_store_that_is_no_folder_is_refused(monkeypatch, tmp_path, capsys, name, wrong):
    (tmp_path / "a-file").write_text("")
    monkeypatch.setattr(subprocess, "call", lambda *_, **__: pytest.fail("a server was started"))
    assert main(["app", "--no-browser", "--store", str(tmp_path / name)]) == 2
    assert f"{name} {wrong}" in capsys.readouterr().err


def test_without_runs_the_finished_example_is_copied(monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    stores, commands = [], []
    monkeypatch.setattr(subprocess, "call", lambda *_, env: stores.append(Path(env["MESA_LENS_RUNS"])) or 0)

    def report(command, **_):
        assert not Path("runs").exists()
        commands.append(command[-2])
        return subprocess.CompletedProcess(command, returncode=1)

    monkeypatch.setattr(subprocess, "run", report)
    assert main(["app", "--no-browser"]) == 0
    shown = capsys.readouterr().err
    assert "no runs/ is here: the finished example is copied there" in shown
    assert "the report of smollm2-16k could not be written; `mesa-lens report runs/smollm2-16k` tries again" in shown
    assert commands == ["report"]
    parts = {part.command: part.left for part in status_of(Path("runs/smollm2-16k")).parts}
    assert parts == {"probe": 0, "locate": 0}
    assert main(["app", "--no-browser"]) == 0
    assert (capsys.readouterr().err, len(commands)) == ("", 1)
    assert stores == [tmp_path / "runs"] * 2


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["--host", "no such host!"], 2),
        (["--host", "192.0.2.1"], 2),
        (["--allow-host", "*"], 2),
        (["--port", "8501"], 1),
    ],
)
def test_what_is_refused_or_interrupted_leaves_no_example(monkeypatch, tmp_path, words, code):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(subprocess, "run", interrupted)
    assert main(["app", "--no-browser", *words]) == code
    assert [*tmp_path.iterdir()] == []


def test_what_is_no_host_is_refused(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(subprocess, "call", lambda *_, **__: pytest.fail("a server was started"))
    for name in ("http://lab", "a b", "user@lab", "lab/", "lab:x", "*"):
        assert main(["app", "--no-browser", "--store", str(tmp_path), "--allow-host", name]) == 2
        assert f"{name!r} is not a host" in capsys.readouterr().err
    assert [host_name(name) for name in ("Lab.Example.org.:80", "[::1]:8501")] == ["lab.example.org", "[::1]"]


@pytest.mark.parametrize(
    ("host", "origin", "listening", "is_answered"),
    [
        ("localhost:8501", None, "127.0.0.1", True),
        ("127.0.0.1:8501", "http://127.0.0.1:8501", "127.0.0.1", True),
        ("[::1]:8501", "http://[::1]:8501", "127.0.0.1", True),
        ("evil.example", None, "127.0.0.1", False),
        ("evil.example:8501", "http://evil.example:8501", "127.0.0.1", False),  # DNS rebinding
        ("localhost.evil.example", None, "127.0.0.1", False),
        ("192.168.0.7", None, "127.0.0.1", False),
        ("localhost@evil.example", None, "127.0.0.1", False),
        ("", None, "127.0.0.1", False),
        (None, None, "127.0.0.1", False),
        ("localhost:8501", "http://evil.example", "127.0.0.1", False),
        ("localhost:8501", "http://localhost:9000", "127.0.0.1", False),  # another program of this machine
        ("localhost:8501", "null", "127.0.0.1", False),
        ("localhost:8501", "http://[", "127.0.0.1", False),
        ("lab:8501", "http://lab:8501", "lab", True),  # --host lab
        ("given.example", "https://given.example", "127.0.0.1", True),  # --allow-host, behind a proxy
        ("127.0.0.1:8501", "https://given.example", "127.0.0.1", True),  # which writes its own Host
        ("192.168.0.7:8501", "http://192.168.0.7:8501", "0.0.0.0", True),  # no name, so nobody rebound it
        ("evil.example:8501", "http://evil.example:8501", "0.0.0.0", False),
    ],
)
@pytest.mark.parametrize("kind", ["http", "websocket"])
def test_own_hosts_and_origins_are_answered(monkeypatch, kind, host, origin, listening, is_answered):
    monkeypatch.setenv(HOSTS_VARIABLE, "given.example")
    monkeypatch.setattr(config, "get_option", {"server.address": listening}.get)
    headers = [(name, value.encode()) for name, value in ((b"host", host), (b"origin", origin)) if value is not None]
    sent = []

    async def send(message):
        sent.append(message)

    asyncio.run(Guard(small)({"type": kind, "headers": headers, "extensions": {}}, None, send))
    answered = {"http": sent[0].get("status") == 200, "websocket": sent[0]["type"] == "websocket.accept"}
    assert answered[kind] == is_answered
    assert is_answered or sent[0]["status"] in (400, 403)


def test_every_page_has_its_address():
    assert list(main_page.PAGES) == PAGES


def test_a_command_of_another_package_takes_no_page_of_ours(monkeypatch):
    assert runs.pages_of_packages(PAGES) == []
    monkeypatch.setattr(runs, "commands", lambda: {"compare": commands()["anatomy"]})
    with pytest.raises(Refused, match=r"probe\.commands\.anatomy is called 'compare', as a page is; rename or"):
        runs.pages_of_packages(PAGES)


def status(port, path="/", **headers):
    """Status and headers of a request; 101 for a socket that opens."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    connection.request("GET", path, headers={"Host": f"127.0.0.1:{port}", **headers})
    answer = connection.getresponse()
    connection.close()
    return answer.status, answer.headers


def foreign_requests_are_refused(port, page, stream):
    """Of a started server: HTTP and socket, by Host and by Origin; no page of others may frame it."""
    for path, upgrade, fine in ((page, {}, 200), (stream, SOCKET, 101)):
        own, headers = status(port, path, Origin=f"http://127.0.0.1:{port}", **upgrade)
        assert own == fine
        for wrong in ({"Host": "evil.example"}, {"Origin": "http://evil.example"}):
            assert status(port, path, **wrong, **upgrade)[0] in (400, 403)
        both = {"Host": f"evil.example:{port}", "Origin": f"http://evil.example:{port}"}
        assert status(port, path, **both, **upgrade)[0] == 400
        if fine == 200:
            assert headers["X-Frame-Options"] == "DENY"
            assert "frame-ancestors 'none'" in headers["Content-Security-Policy"]


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


async def small(scope, receive, send):
    """An application with a page and a socket."""
    if scope["type"] == "http":
        await PlainTextResponse("a page")(scope, receive, send)
    elif scope["type"] == "websocket":
        await send({"type": "websocket.accept"})


def test_foreign_requests_are_refused_by_a_server_behind_the_guard():
    port = free_port()
    server = uvicorn.Server(
        uvicorn.Config(Guard(small), port=port, lifespan="off", log_level="error", ws="websockets-sansio")
    )
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        while not server.started:
            time.sleep(0.01)
        foreign_requests_are_refused(port, "/", "/")
    finally:
        server.should_exit = True
        thread.join()


@pytest.mark.slow
def test_foreign_requests_are_refused_by_the_dashboard(tmp_path):
    port = free_port()
    command = [sys.executable, "-m", "mesa_lens", "app", "--no-browser", "--store", str(tmp_path), "--port", str(port)]
    with subprocess.Popen(command, start_new_session=True) as server:
        try:
            for _ in range(240):
                try:
                    status(port)
                    break
                except OSError:
                    time.sleep(0.25)
            foreign_requests_are_refused(port, "/", "/_stcore/stream")
        finally:
            os.killpg(server.pid, 15)


@pytest.fixture
def opened(monkeypatch, tmp_path):
    root = tmp_path / "runs"
    root.mkdir()
    monkeypatch.setenv("MESA_LENS_RUNS", str(root))
    return lambda page, **query: drawn(page, **query)


def a_run(folder):
    return write_run(folder, hidden_states(layers=2, dims=4), evaluation())


def test_links_that_lead_out_of_the_store_are_not_followed(opened, tmp_path):
    root, outside = tmp_path / "runs", tmp_path / "outside"
    a_run(outside / "secret")
    write_evaluation(outside / "scores")
    (root / "linked").symlink_to(outside / "secret")
    (root / "scores").symlink_to(outside / "scores")
    (root / "below").mkdir()
    (root / "below" / "linked").symlink_to(outside)
    for query in ({}, {"run": "linked"}, {"run": "below/linked/secret"}, {"run": "../outside/secret"}):
        app = opened("overview", **query)
        assert "There is no run under" in shown_texts(app)
        assert not app.get("plotly_chart")
    for query in ({}, {"result": "scores (eval)"}, {"result": "../outside/scores (eval)"}):
        assert "There is no evaluation" in shown_texts(opened("results", **query))


@pytest.mark.parametrize("name", ["summary.json", "report.html", "locate", "store.zarr/resid_post"])
def test_a_run_that_holds_a_link_out_of_the_store_is_not_read(opened, tmp_path, name):
    run, outside = a_run(tmp_path / "runs" / "mine"), tmp_path / "outside"
    place = run / name
    outside.mkdir()
    if place.exists():
        shutil.move(place, outside / "moved")
    else:
        (outside / "moved").write_text("secret")
    place.symlink_to(outside / "moved")
    for page in ("overview", "mechanism", "thresholds"):
        app = opened(page)
        assert "leads out of" in app.error[0].value.replace("\\", "")
        assert not app.get("plotly_chart")


def test_links_inside_the_store_are_followed(opened, tmp_path):
    a_run(tmp_path / "runs" / ".kept" / "run")
    (tmp_path / "runs" / "linked").symlink_to(tmp_path / "runs" / ".kept" / "run")
    (tmp_path / "runs" / ".kept" / "run" / "loop").symlink_to(tmp_path / "runs" / ".kept")
    app = opened("thresholds", run="linked")
    assert not app.error
    assert not app.warning


@pytest.mark.usefixtures("undrawn", "unpainted")
def test_what_a_files_numbers_say_stays_text(opened, tmp_path):
    run = a_run(tmp_path / "runs" / "mine")
    write_report(run)
    path, hostile = run / "summary.json", "<img src=x onerror=alert(1)>"
    write_result(path, {**json.loads(path.read_text()), "model": hostile})
    assert hostile in path.read_text()
    html = "".join(part.proto.body for part in opened("overview").get("html"))
    assert "&lt;img src=x" in html
    assert "<img" not in html
