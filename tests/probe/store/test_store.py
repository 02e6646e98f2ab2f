"""A store is whole or does not open, and says why."""

import errno
import json
from itertools import product

import numpy as np
import pytest
import xarray as xr
import zarr

from probe.store import reader, store
from probe.store.reader import (
    EVALUATION,
    complete_passes,
    hook_values,
    in_ranges,
    missing_regions,
    open_run,
    partial_path,
)

METHODS, PROMPTS, LAYERS, POSITIONS, DIMS = ["origin", "mesa"], ["repeated"], [0, 3], [4, 5, 9], [7, 8]
ATTRS = {"trained_length": 4, "model": "tiny", "spec": json.dumps({"dims": DIMS}), "created": "2026-01-01"}


AXES = {"position": POSITIONS, "dim": DIMS}


def begin(path, overwrite=False, **changes):
    labels = {"methods": METHODS, "prompts": PROMPTS, "layers": LAYERS, "axes": {"resid_post": AXES}}
    store.create(path, store.Template(**{**labels, "attrs": ATTRS, **changes}), overwrite=overwrite)


def region(method, layer):
    """Values that tell method, layer, position and dim apart."""
    start = 1000 * METHODS.index(method) + 100 * layer
    return start + 10 * np.arange(3)[:, None] + np.arange(2)[None].astype(np.float32)


def fill(path, skip=()):
    for method in METHODS:
        for layer in LAYERS:
            if (method, layer) not in skip:
                store.write(path, "resid_post", method, "repeated", layer, region(method, layer))


@pytest.fixture
def path(tmp_path):
    return tmp_path / "demo" / "store.zarr"


@pytest.fixture
def whole(path):
    begin(path)
    fill(path)
    store.finish(path)
    return path


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_every_region_comes_back_under_its_labels(path, dtype):
    begin(path, dtype=dtype)
    fill(path)
    store.finish(path)
    hidden = xr.open_zarr(path)["resid_post"]
    assert (hidden.dtype, hidden.attrs["units"]) == (dtype, "activation")
    assert hidden.dims == ("method", "prompt", "layer", "position", "dim")
    np.testing.assert_array_equal(hidden, [[[region(method, layer) for layer in LAYERS]] for method in METHODS])
    assert float(hidden.sel({"method": "mesa", "prompt": "repeated", "layer": 3, "position": 9, "dim": 8})) == 1321


def test_variables_have_axes_of_their_own(path):
    """States of two widths, and attention weights (head, position, key)."""
    axes = {"resid_post": AXES, "k": {"position": POSITIONS, "dim_k": [7]}}
    axes |= {"pattern": {"head": [0, 1], "position": POSITIONS, "key": [0, 1, 2, 3]}}
    begin(path, axes=axes)
    fill(path)
    with pytest.raises(ValueError, match=r"pattern of method 'mesa'.* has shape \(3, 2\), but .* holds \(2, 3, 4\)$"):
        store.write(path, "pattern", "mesa", "repeated", 0, region("mesa", 0))
    values = {"k": np.arange(3.0)[:, None], "pattern": np.arange(24.0).reshape(2, 3, 4)}
    for hook, states in values.items():
        assert complete_passes(partial_path(path)) == set()
        for method, layer in product(METHODS, LAYERS):
            store.write(path, hook, method, "repeated", layer, states + 100 * layer)
    store.finish(path)
    run = open_run(path)
    assert [dict(hook_values(run, hook).sizes) for hook in ("k", "pattern")] == [
        {"method": 2, "prompt": 1, "layer": 2, "position": 3, "dim": 1},
        {"method": 2, "prompt": 1, "layer": 2, "head": 2, "position": 3, "key": 4},
    ]
    for hook, states in values.items():
        read = hook_values(run, hook).sel({"method": "mesa", "prompt": "repeated", "layer": 3})
        np.testing.assert_array_equal(read, states + 300)
    assert hook_values(run, "pattern").sel(head=1, position=9, key=3).values.tolist() == [[[23, 323]]] * 2
    with pytest.raises(ValueError, match="pattern has no dims; it is by method, prompt, layer, head, position, key"):
        in_ranges(hook_values(run, "pattern"), "dim", [(0, 1)])
    with pytest.raises(FileExistsError, match=r"hooks \(.*k.*pattern.* there, .*resid_post.* now\) differs"):
        begin(path)


def test_the_run_folder_opens_as_well_as_its_store(whole):
    assert open_run(whole.parent).path == open_run(whole).path == whole
    assert open_run(whole).trained_length == 4
    assert open_run(whole).evaluation is None


def test_nothing_stands_under_the_name_before_the_end(path):
    begin(path)
    fill(path, skip=[("mesa", 0)])
    assert not path.exists()
    with pytest.raises(
        ValueError,
        match=r"not finished: 1 region.*'mesa', prompt 'repeated', layer 0; the same `mesa-lens probe` continues",
    ):
        open_run(path.parent)
    with pytest.raises(ValueError, match=r"cannot be finished: 1 region"):
        store.finish(path)
    assert not path.exists()


def test_damage_after_the_end_shows(whole):
    chunk = whole / "resid_post" / "c" / "1" / "0" / "1" / "0" / "0"
    content = chunk.read_bytes()
    chunk.write_bytes(content[:-1])
    with pytest.raises(ValueError, match=r"1 region.*'mesa'.*layer 3; capture it again with --overwrite"):
        open_run(whole)
    chunk.unlink()
    with pytest.raises(ValueError, match=r"1 region"):
        open_run(whole)
    chunk.write_bytes(content)
    (whole / "zarr.json").write_text("{")
    with pytest.raises(ValueError, match="is damaged"):
        open_run(whole)


def flip(chunk, place):
    content = bytearray(chunk.read_bytes())
    content[place] ^= 4
    chunk.write_bytes(content)


def test_a_flipped_bit_is_detected_on_reading(whole):
    flip(whole / "resid_post" / "c" / "1" / "0" / "1" / "0" / "0", 5)
    hidden = open_run(whole).hidden["resid_post"]
    assert float(hidden.sel({"method": "origin", "layer": 3}).max()) == 321
    with pytest.raises(ValueError, match=r"store\.zarr: resid_post is damaged \(.*check.*\); capture it again"):
        hidden.sel({"method": "mesa"}).max()


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_values_that_are_not_finite_are_detected_on_reading(whole, value):
    zarr.open_group(whole, mode="r+", use_consolidated=False)["resid_post"][1, 0, 1, 2, 0] = value
    with pytest.raises(ValueError, match=r"resid_post is damaged \(not all values are finite\); capture it again"):
        open_run(whole).hidden["resid_post"].load()


@pytest.fixture
def scored(path):
    """A whole store with scores."""
    begin(path, attrs={**ATTRS, "prompts": "hello"})
    fill(path)
    scores = {"tail_nll": (("method", "length"), np.ones((2, 1)))}
    labels = {"method": METHODS, "length": [4]}
    store.write_group(path, EVALUATION, xr.Dataset(scores, labels, {"vocabulary": 97}))
    store.finish(path)
    return path


@pytest.mark.parametrize(
    ("file", "change", "says"),
    [
        ("", lambda meta: meta["attributes"].update(trained_length=8), "its attributes are not those"),
        ("", lambda meta: meta["attributes"].pop("model"), "its attributes are not those"),
        ("resid_post", lambda meta: meta["attributes"].update(units="volts"), "its attributes are not those"),
        ("evaluation", lambda meta: meta["attributes"].update(vocabulary=9), "its evaluation's attributes are not"),
        ("evaluation", lambda meta: meta["attributes"].pop("complete"), "its evaluation's attributes are not"),
        (
            "evaluation/tail_nll",
            lambda meta: meta["chunk_grid"]["configuration"].update(chunk_shape=[2, 0]),
            "its eval",
        ),
    ],
)
def test_an_edited_attribute_is_detected(scored, file, change, says):
    assert open_run(scored).evaluation.attrs == {"vocabulary": 97}
    path = scored / file / "zarr.json"
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))
    with pytest.raises(ValueError, match=f"is damaged .{says}.*; capture it again"):
        open_run(scored)


def test_an_existing_run_stays_without_overwrite(whole):
    with pytest.raises(FileExistsError, match=r"the same config; use --overwrite or another --out"):
        begin(whole)
    with pytest.raises(FileExistsError, match=r"another config: model .* differs"):
        begin(whole, attrs={**ATTRS, "model": "other"})
    begin(whole, attrs={**ATTRS, "model": "other"}, overwrite=True)
    assert open_run(whole).hidden.attrs["model"] == "tiny"  # until the new one is whole
    fill(whole)
    store.finish(whole)
    assert open_run(whole).hidden.attrs["model"] == "other"
    assert [entry.name for entry in whole.parent.iterdir()] == ["store.zarr"]


def test_a_disk_that_fills_up_loses_nothing_that_was_written(path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    begin(path)
    fill(path, skip=[("mesa", 3)])
    with monkeypatch.context() as patch:
        patch.setattr(zarr.Array, "__setitem__", full)
        with pytest.raises(OSError, match=r"the disk is full: .*partial is kept as it is; free some space"):
            store.write(path, "resid_post", "mesa", "repeated", 3, region("mesa", 3))
    begin(path)
    assert len(missing_regions(partial_path(path))) == 1


def test_a_store_that_was_cut_short_goes_on(path):
    begin(path)
    fill(path, skip=[("mesa", 3)])
    chunk = partial_path(path) / "resid_post" / "c" / "0" / "0" / "1" / "0" / "0"
    chunk.write_bytes(chunk.read_bytes()[:-1])
    chunk.with_name("0.5.partial").write_text("of a write that was killed")
    begin(path, attrs={**ATTRS, "created": "later"})
    assert complete_passes(partial_path(path)) == set()
    store.write(path, "resid_post", "origin", "repeated", 3, region("origin", 3))
    assert complete_passes(partial_path(path)) == {("origin", "repeated")}
    store.write(path, "resid_post", "mesa", "repeated", 3, region("mesa", 3))
    store.finish(path)
    hidden = open_run(path).hidden
    assert hidden.attrs["created"] == ATTRS["created"]
    np.testing.assert_array_equal(hidden["resid_post"].sel({"method": "origin", "layer": 3})[0], region("origin", 3))
    assert not list(path.rglob("*.partial"))


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"attrs": {**ATTRS, "model": "other"}}, r"model \(.* there, other now\)"),
        ({"axes": {"resid_post": {**AXES, "position": [4, 5, 10]}}}, r"position \(.* there, \[4, 5, 10\] now\)"),
        ({"dtype": "float16"}, "dtype"),
    ],
)
def test_an_unfinished_store_of_another_config_stays_without_overwrite(path, changes, key):
    begin(path)
    fill(path, skip=[("mesa", 3)])
    with pytest.raises(FileExistsError, match=f"an unfinished run with another config: {key} differs; use --overwrite"):
        begin(path, **changes)
    assert len(missing_regions(partial_path(path))) == 1
    begin(path, **changes, overwrite=True)
    assert not complete_passes(partial_path(path))


@pytest.mark.parametrize("late", [False, True])
def test_the_evaluation_travels_with_the_store(path, late):
    labels = {"method": METHODS, "length": [4, 8, 16]}
    scores = xr.Dataset({"tail_nll": ((*labels, "window"), np.arange(12.0).reshape(2, 3, 2))}, labels)
    scores = scores.assign(dict.fromkeys("zeamb", scores["tail_nll"]))
    begin(path)
    fill(path)
    if late:
        store.finish(path)
    for number in (0,) if late else (1, 0):  # the last that was written counts
        store.write_group(path, EVALUATION, scores + number)
    if not late:
        store.finish(path)
    evaluation = open_run(path).evaluation
    assert list(evaluation) == sorted(scores)
    assert evaluation["tail_nll"].sel({"method": "mesa", "length": 16}).values.tolist() == [10, 11]
    assert xr.open_zarr(path, group="evaluation").sizes == scores.sizes
    assert [entry.name for entry in path.parent.iterdir()] == ["store.zarr"]


def test_large_regions_are_many_chunks_in_one_file_and_small_ones_one(path, monkeypatch):
    assert reader.layout((2048, 512), 4) == ((2048, 512), None)
    assert reader.layout((32768, 8192), 2) == ((1024, 256), (32768, 8192))
    assert reader.layout((2, 32768, 4096), 4) == ((1, 1024, 256), (2, 32768, 4096))
    assert reader.layout((20001, 5000), 2) == ((1001, 250), (20020, 5000))  # 20 x 20 chunks, the last are not full
    monkeypatch.setattr(reader, "WHOLE", 8)
    monkeypatch.setattr(reader, "_CHUNK", (2, 1))
    begin(path, dtype="float16")
    fill(path, skip=[("mesa", 3)])
    assert complete_passes(partial_path(path)) == {("origin", "repeated")}
    store.write(path, "resid_post", "mesa", "repeated", 3, region("mesa", 3))
    store.finish(path)
    values = open_run(path).hidden["resid_post"]
    whole = np.array([[[region(method, layer) for layer in LAYERS]] for method in METHODS])
    np.testing.assert_array_equal(values, whole)
    for slices in (16, 1):
        monkeypatch.setattr(reader, "_SLICES", slices)
        for method, layer, position, dim in (
            ([1], [0, 1], [0, 2], 1),
            (0, [1, 0], [2, 0, 1], [1]),
            ([0, 1], 1, [], [0, 1]),
        ):
            chosen = {"method": method, "prompt": 0, "layer": layer, "position": position, "dim": dim}
            np.testing.assert_array_equal(values.isel(chosen), values.copy(data=whole).isel(chosen))
    chunk = path / "resid_post" / "c" / "1" / "0" / "1" / "0" / "0"
    assert chunk.stat().st_size == 4 * (2 * 2 + 4 + 16) + 4
    flip(chunk, 1)
    with pytest.raises(ValueError, match=r"resid_post is damaged"):
        open_run(path).hidden["resid_post"].sel({"method": "mesa", "layer": 3}).load()
