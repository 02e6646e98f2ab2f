"""A store at the URL of an object store is the same store: sealed, checked, gone on with, and told of in one line."""

import importlib.util

import numpy as np
import objects
import pytest
import synthetic
from commands import main

from mesa_lens.dashboard.runs import entries
from probe.opened import open_run
from probe.status import status_of
from probe.store import location, store
from probe.store.cache import mark
from probe.store.location import POINTER, as_path, store_in
from probe.store.reader import partial_path
from probe.store.regions import whole_passes

fsspec = pytest.importorskip("fsspec")
has_client = pytest.mark.skipif(importlib.util.find_spec("obstore") is None, reason="needs mesa-lens[remote]")


@pytest.fixture
def server(monkeypatch):
    location.root_client.cache_clear()
    with objects.served() as running:
        for name, value in objects.environment(running).items():
            monkeypatch.setenv(name, value)
        yield running


@pytest.fixture(params=["memory", pytest.param("s3", marks=[has_client, pytest.mark.slow])])
def url(request):
    """The URL of a run's folder, in memory and behind a server."""
    if request.param == "s3":
        request.getfixturevalue("server")
        return "s3://bucket/run"
    fsspec.filesystem("memory").store.clear()
    return "memory://bucket/run"


def hidden():
    return synthetic.hidden_states(layers=2, dims=4).isel(method=[0, 3], position=slice(0, 100))


LABELS = {f"{name}s": hidden()[name].values.tolist() for name in ("method", "prompt", "layer", "position", "dim")}
LABELS |= {"hooks": ["resid_post"], "attrs": {"trained_length": 64, "model": "tiny"}}


def written(url, **more):
    values = hidden()
    synthetic.write_run(as_path(url), values, synthetic.evaluation(), tokens=synthetic.tokens_of(values), **more)
    return url


def test_a_store_comes_back_from_a_url_as_from_a_folder(url, tmp_path):
    written(url)
    synthetic.write_run(tmp_path / "run", hidden(), synthetic.evaluation(), tokens=synthetic.tokens_of(hidden()))
    there, here = open_run(url), open_run(tmp_path / "run")
    assert there.hidden.identical(here.hidden)
    assert there.evaluation.identical(here.evaluation)
    assert mark(there) == mark(here)
    assert open_run(f"{url}/store.zarr").hidden.attrs == here.hidden.attrs
    one = {"method": "mesa", "prompt": "text-0", "layer": 1}
    np.testing.assert_array_equal(there.hidden["resid_post"].sel(one), hidden().sel(one))


def test_a_store_at_a_url_is_resumed_and_whole_only_at_the_end(url):
    path = store_in(as_path(url), "store.zarr")
    for done, method in enumerate(LABELS["methods"]):
        store.create(path, **LABELS)  # as a run that goes on does
        assert len(whole_passes(partial_path(path))) == 2 * done
        with pytest.raises(ValueError, match=r"is incomplete: \d+ region"):
            open_run(url)
        for prompt in LABELS["prompts"]:
            for layer in LABELS["layers"]:
                values = hidden().sel({"method": method, "prompt": prompt, "layer": layer}).values
                store.write(path, "resid_post", method, prompt, layer, values)
    store.finish(path)
    assert open_run(url).hidden.sizes["method"] == 2
    with pytest.raises(FileExistsError, match="already holds a run with the same config; use --overwrite"):
        store.create(path, **LABELS)
    with pytest.raises(FileExistsError, match=r"another config: model .tiny there, other now. differs"):
        store.create(path, **{**LABELS, "attrs": {"trained_length": 64, "model": "other"}})
    store.discard(path)
    assert open_run(url).path == path
    store.remove(path)
    with pytest.raises(FileNotFoundError, match="no run at"):
        open_run(url)


def test_damage_at_a_url_is_detected(url):
    written(url)
    fs = location.client(url)
    chunk = f"{fs._strip_protocol(url)}/store.zarr/resid_post/c/1/1/1/0/0"
    content = fs.cat_file(chunk)
    fs.pipe_file(chunk, content[:9] + bytes([content[9] ^ 4]) + content[10:])
    values = open_run(url).hidden["resid_post"]
    with pytest.raises(ValueError, match="resid_post is damaged"):
        values.sel({"method": "mesa", "prompt": "text-0", "layer": 1}).load()
    fs.pipe_file(chunk, content[:-1])
    with pytest.raises(ValueError, match=r"1 region.*'mesa', prompt 'text-0', layer 1"):
        open_run(url)


def test_figures_are_exported_and_runs_are_listed_from_a_url(url, tmp_path, capsys):
    written(url)
    assert main(["export", "drift", url, "--format", "npz", "--out", str(tmp_path / "out")]) == 0
    assert list((tmp_path / "out").glob("*.npz"))
    assert [(entry.name, entry.finished) for entry in entries(as_path(url))] == [("run", True)]
    assert [entry.name for entry in entries(as_path(url).parent)] == ["run"]
    assert main(["report", url]) == 2
    assert f"{url} is a URL; give the folder" in capsys.readouterr().err


@pytest.mark.usefixtures("undrawn")
def test_a_run_keeps_its_store_at_a_url_and_all_else_in_its_folder(model, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("mesa_lens.probe._check_store", lambda url: None)
    fsspec.filesystem("memory").store.clear()
    out, url = tmp_path / "out", "memory://bucket/far"
    words = f"--model {model} --methods origin,rerope --length 400 --texts 0 --samples 0 --layers 0 --out {out} --store"
    arguments = ["probe", *words.split()]
    assert main([*arguments, url]) == 0
    assert not (out / "store.zarr").exists()
    assert (out / POINTER).read_text().split()[0] == url
    near, far = open_run(out), open_run(url)
    assert (near.path, near.folder) == (far.path, out)
    assert near.summary["trained_length"] == 160
    assert status_of(out).state == "finished"
    assert [entry.finished for entry in entries(tmp_path)] == [True]
    capsys.readouterr()
    for place, code, says in (
        (url, 0, f"finished already: {out}"),
        ("memory://bucket/other", 2, f"{out} has its store at {url}; choose another --out"),
    ):
        assert main([*arguments, place]) == code
        assert says in capsys.readouterr().err
    store.remove(near.path)
    assert main(["report", str(out)]) == 2
    assert "no run at memory://bucket/far/store.zarr" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ("ftp://host/run", "is no URL of an object store; they begin with s3, "),
        ("s3://bucket/../run", "has a '..' in it"),
    ],
)
def test_what_is_no_url_of_a_store_is_refused(arguments, says, tmp_path, capsys):
    assert main(["export", "drift", arguments]) == 2
    assert says in capsys.readouterr().err
    (tmp_path / POINTER).write_text(arguments)
    with pytest.raises(ValueError, match=rf"store.url has to name the URL .*: .*{says.split(';')[0]}"):
        open_run(tmp_path)


def test_what_is_gone_with_the_command_holds_no_store(tmp_path, capsys):
    assert main(["probe", "--store", "memory://bucket/run", "--out", str(tmp_path / "out")]) == 2
    assert "'memory://bucket/run' is gone as this command ends; give s3://" in capsys.readouterr().err


@has_client
def test_a_wrong_key_and_an_unreachable_address_are_one_line(server, monkeypatch, capsys):
    for variable, value in (("AWS_ACCESS_KEY_ID", "nobody"), ("AWS_ENDPOINT_URL", "http://127.0.0.1:1")):
        location.root_client.cache_clear()
        monkeypatch.setenv(variable, value)
        assert main(["export", "drift", "s3://bucket/one"]) == 1
        (line,) = capsys.readouterr().err.splitlines()
        assert "s3://bucket/one" in line
        assert "cannot be reached" in line
        assert "credentials" in line


@pytest.mark.parametrize(
    ("lost", "raised"),
    [("layer/zarr.json", TimeoutError), ("evaluation/zarr.json", type("GenericError", (Exception,), {}))],
)
def test_an_object_store_that_fails_is_not_a_damaged_store(lost, raised, monkeypatch):
    fsspec.filesystem("memory").store.clear()
    url = written("memory://bucket/run")
    path, fs = location.store_in(as_path(url), "store.zarr"), type(fsspec.filesystem("memory"))
    real = fs.cat_file

    def cat_file(self, path, *args, **more):
        if path.endswith(lost):
            raise raised("connection reset")
        return real(self, path, *args, **more)

    monkeypatch.setattr(fs, "cat_file", cat_file)
    for read in (lambda: open_run(url), lambda: store.find_store(path, **LABELS)):
        with pytest.raises(OSError, match=r"connection reset.*(try again|credentials)") as error:
            read()
        assert "--overwrite" not in str(error.value)
