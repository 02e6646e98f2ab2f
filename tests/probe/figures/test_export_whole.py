"""Numbers in files are whole, and each is that of its labels; what is pooled says so."""

import io
import json

import anatomized
import located
import numpy as np
import pandas as pd
import pytest
import xarray as xr
from commands import main
from synthetic import evaluation, hidden_states, write_run

import probe
from probe.figures import heatmap, static
from probe.figures.export import csv_bytes, heatmap_export, row_table
from probe.store.reader import labelled

ODD = [*range(3, 90, 2), *range(120, 160)]
LABELS = ("method", "layer", "dim", "position")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Sparse positions and dims, names that are no ASCII, float16."""
    hidden = hidden_states(windows=3, layers=3, dims=12).isel(layer=[0, 2], position=ODD, dim=[1, 2, 5, 11])
    names = ["origin", "rerope", "mesa:window=8", "ü 𝛼/β"]
    return write_run(tmp_path_factory.mktemp("run"), hidden.assign_coords(method=names), dtype="float16")


@pytest.fixture(scope="module")
def run(folder):
    return probe.open_run(folder)


def reopened(path):
    """A file of numbers as (labels, values) by variable."""
    if path.suffix == ".csv":
        frame = pd.read_csv(path)
        return frame.set_index(list(LABELS))["resid_post"].to_xarray()
    file = np.load(path)
    about = json.loads(str(file["about"]))
    dims = about["dims"]["resid_post"]
    return xr.DataArray(file["resid_post"], {dim: file[dim] for dim in dims}, dims, attrs=about["attrs"])


@pytest.mark.quick_cases(4)
@pytest.mark.parametrize("form", ["npz", "csv"])
@pytest.mark.parametrize(
    "options",
    [
        [],
        ["--minus", "origin"],
        ["--minus", "mesa:window=8", "--methods", "ü 𝛼/β,rerope", "--layers", "2"],
        ["--prompt", "text-0", "--dims", "5,11", "--positions", "121-130,3,60-63"],
        ["--methods", "rerope", "--layers", "0", "--dims", "2", "--positions", "5"],
    ],
)
def test_every_value_is_that_of_its_labels(form, options, folder, run, tmp_path):
    assert main(["export", "heatmap", str(folder), "--format", form, "--out", str(tmp_path), *options]) == 0
    (path,) = tmp_path.iterdir()
    written = reopened(path)
    given = dict(zip(options[::2], options[1::2], strict=True))
    hidden = run.hidden["resid_post"].sel(prompt=given.get("--prompt", "repeated"))
    expected = hidden.load()
    if minus := given.get("--minus"):
        expected = expected.astype(np.float32) - expected.sel(method=minus).astype(np.float32)
    assert written.size == np.prod([len(np.unique(written[dim])) for dim in LABELS])
    labels = {dim: written[dim].values for dim in LABELS}
    np.testing.assert_array_equal(written.sel(labels).transpose(*LABELS), expected.sel(labels).transpose(*LABELS))
    sizes = {"method": 4 - bool(minus), "layer": 2, "dim": 4, "position": len(expected["position"])}
    for dim, flag in {"method": "--methods", "layer": "--layers", "dim": "--dims"}.items():
        sizes[dim] = len(given[flag].split(",")) if flag in given else sizes[dim]
    sizes["position"] = {"121-130,3,60-63": 13, "5": 1}.get(given.get("--positions"), 84)
    assert dict(written.sizes) == sizes
    assert "pooled" not in path.name


@pytest.mark.parametrize("minus", [None, pytest.param("origin", marks=pytest.mark.slow)])
def test_python_and_the_command_write_the_same_numbers(minus, folder, run, tmp_path, monkeypatch):
    flags = ["--minus", minus] if minus else []
    assert main(["export", "heatmap", str(folder), "--format", "npz,csv", "--out", str(tmp_path / "a"), *flags]) == 0
    run.heatmap(minus).save(tmp_path / "b", "npz,csv")
    monkeypatch.setattr("probe.run._WHOLE", 10)  # as of a panel that does not fit into memory
    large = run.heatmap(minus)
    large.save(tmp_path / "c", "npz,csv")
    files = [{path.name: path.read_bytes() for path in (tmp_path / name).iterdir()} for name in "abc"]
    assert files[0] == files[1] == files[2]
    np.testing.assert_array_equal(large.data.isel(method=1, layer=0), run.heatmap(minus).data.isel(method=1, layer=0))


@pytest.mark.parametrize("large", [False, True])
def test_pooling_is_an_option_and_named(large, folder, run, tmp_path, capsys, monkeypatch):
    if large:
        monkeypatch.setattr("probe.run._WHOLE", 10)
    given = ["--pool", "500", "--format", "npz,csv", "--out", str(tmp_path)]
    assert main(["export", "heatmap", str(folder), *given]) == 0
    block = "4x40"
    stem = f"heatmap-resid_post-repeated-pooled-{block}"
    assert {path.name for path in tmp_path.iterdir()} == {f"{stem}.npz", f"{stem}.csv"}
    what = "the value farthest from 0 of up to 4 dims x 40 positions, with its sign; dim and position are the first"
    assert f"mesa-lens: {stem}: each value is {what}" in capsys.readouterr().err
    file = np.load(tmp_path / f"{stem}.npz")
    attrs = json.loads(str(file["about"]))["attrs"]
    assert (attrs["pooled"], attrs["block"]) == (what, [4, 40])
    assert file["resid_post"].size <= 500
    hidden = run.hidden["resid_post"].sel(method="rerope", layer=2, prompt="repeated")
    dims, positions = (slice(int(file[name][-1]), int(file[f"{name}_last"][-1])) for name in ("dim", "position"))
    part = hidden.sel(dim=dims, position=positions).values.ravel()
    written = file["resid_post"][1, 1, -1, -1]
    assert written == part[np.abs(part.astype(float)).argmax()]
    assert pooled_text(run) == what.partition(",")[0]


def pooled_text(run):
    return repr(run.heatmap(pool=500)).partition("each value is ")[2].partition("\n")[0]


def test_pictures_say_that_they_are_pooled(run):
    values = hidden_states(windows=40, layers=1, prompts=("a",)).isel(prompt=0)
    (grid,) = heatmap_export(heatmap.regions(values, [(0, 2560)]), 64).figures.values()
    drawn = grid.title, static.draw(grid).get_suptitle().replace("\n", " ")
    assert drawn[1] == f"{drawn[0]}; drawn: the farthest from 0 of 1 x 6 cells"
    (grid,) = run.heatmap(cells=500).export.figures.values()
    assert grid.title.endswith("; a cell is the value farthest from 0 of up to 4 dims x 40 positions")
    (grid,) = run.heatmap().export.figures.values()
    assert "farthest" not in grid.title


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["heatmap", "--pool", "10"], "--pool is about numbers; --format png has none: leave it out"),
        (["heatmap", "--native", "--format", "csv,npz"], "--native is about pictures; --format csv,npz has none"),
        (["heatmap", "--native", "--pool", "9", "--format", "png,npz"], "--native draws every value, --pool merges"),
        (["heatmap", "--pool", "99", "--format", "csv"], "pool 99 is below 360, a value for each method, layer and"),
        (["thresholds", "--pairs", "2:5", "--top", "3"], "--top 3 chooses the best dims, --pairs names them: leave"),
        (["heatmap", "--positions", "121-130,125-140"], "regions 121-130, 125-140 overlap; join them"),
    ],
)
def test_an_option_that_changes_nothing_is_refused(arguments, message, folder, tmp_path, capsys):
    kind, *rest = arguments
    assert main(["export", kind, str(folder), "--out", str(tmp_path / "none"), *rest]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "none").exists()


def test_a_csv_is_read_back_as_it_was():
    tiny = np.array([np.pi * 1e-14, 1e30 / 3, -0.1, np.nan, np.inf])
    numbers = xr.Dataset(
        {
            "double": ("n", tiny),
            "single": ("n", tiny.astype(np.float32)),
            "half": ("n", np.array([1 / 3, 65504, -0.1, 6e-8, np.inf], np.float16)),
            "tokens": ("n", np.array([1.0, np.nan, np.inf, 4, 5]), {"units": "tokens"}),
        },
        {"n": range(5)},
    )
    content = csv_bytes(numbers)
    frame = pd.read_csv(io.BytesIO(content))
    for name, values in numbers.items():
        np.testing.assert_array_equal(frame[name], values)
    assert content.splitlines()[1].endswith(b",1")
    assert content.splitlines()[3].endswith(b",inf")


def test_a_missing_truth_is_not_false():
    table = row_table([{"evaluated": True}, {"evaluated": None}, {"evaluated": False}])
    assert table["evaluated"].values.tolist() == ["True", "", "False"]


@pytest.mark.parametrize("minus", [None, "a"])
def test_a_wide_heatmap_is_narrow_enough_for_a_browser(minus):
    """plotly.js draws nothing, as where nothing is known, from 65,536 columns on."""
    values = np.zeros((2, 1, 3, 70_000), np.float32)
    values[1, 0, 1, 69_999] = -7
    coords = {"method": ["a", "b"], "layer": [4], "dim": range(3), "position": range(70_000)}
    hidden = xr.DataArray(values, coords, ("method", "layer", "dim", "position"), name="resid_post")
    panel = heatmap.difference(heatmap.regions(hidden, [(0, 70_000)]), minus)
    export = heatmap_export(panel, 512)
    for grid in (*export.figures.values(), heatmap.heatmap_grid(panel, 512)):
        cell = grid.cells[0][-1]
        assert cell.values.shape == (3, 3889)
        assert cell.values[1, -1] == -7
        assert cell.ends[:2] == (-0.5, 69_999.5)
        assert "of up to 1 dims x 18 positions" in grid.title
        assert grid.seen.endswith("layer 4, dim 1, positions 69984 to 69999.")
    (numbers,) = export.numbers.values()
    assert numbers["resid_post"].size == panel.size


def test_sel_takes_a_method_and_never_ignores_it(run):
    hidden = run.hidden
    expected = hidden["resid_post"].sel({"method": "rerope", "layer": 2}).values
    np.testing.assert_array_equal(hidden.sel(method="rerope", layer=2)["resid_post"], expected)
    np.testing.assert_array_equal(hidden["resid_post"].sel(method="rerope", layer=2), expected)
    one = hidden.resid_post.isel(prompt=0).sel({"layer": 2})
    np.testing.assert_array_equal(one.sel(method=["rerope"])[0], expected[0])
    assert hidden.sel(position=70.2, method="nearest")["position"].item() == 71
    assert run.heatmap().data.sel(method="origin")["method"].item() == "origin"
    for values in (hidden, hidden["resid_post"], hidden["resid_post"] * 2, run.heatmap().data):
        with pytest.raises(KeyError, match="method 'reropes' is not there; there is origin, rerope, "):
            values.sel(method="reropes")
        for wanted in ({"layer": 9}, {"layer": [2, 9]}, {"method": "rerope", "layer": np.array([9])}):
            with pytest.raises(KeyError, match="layer 9 is not there; there is "):
                values.sel(**wanted)
            with pytest.raises(KeyError, match="layer 9 is not there; there is "):
                values.sel(wanted)
    with pytest.raises(KeyError, match="'lyer' is not a valid dimension"):
        hidden.sel(lyer=2)
    with pytest.raises(KeyError, match="layer 9 is not there; there is "):
        hidden["resid_post"].loc[{"layer": 9}]
    with pytest.raises(KeyError, match="method"):
        labelled(row_table([{"method": "mesa", "share": 1.0}])).sel(method="mesa")


def test_a_variable_of_another_shape_is_a_heatmap_of_its_own_axis(tmp_path, capsys):
    """Numbers of every head: no dims, so no thresholds."""
    sizes = hidden_states(windows=3, layers=2, dims=4, prompts=("a",)).rename("z_size").rename(dim="head")
    folder = write_run(tmp_path / "run", sizes)
    given = ["--positions", "60-69", "--pool", "160", "--format", "png,csv", "--out", str(tmp_path / "out")]
    assert main(["export", "heatmap", str(folder), *given]) == 0
    frame = pd.read_csv(tmp_path / "out" / "heatmap-z_size-a-positions60-69-pooled-1x2.csv")
    first = frame[(frame["method"] == "mesa") & (frame["layer"] == 1) & (frame["head"] == 3)].iloc[0]
    values = sizes.sel({"prompt": "a", "method": "mesa", "layer": 1, "head": 3, "position": [60, 61]}).values
    assert first["z_size"] == pytest.approx(values[np.abs(values).argmax()])
    (grid,) = probe.open_run(folder).heatmap().export.figures.values()
    assert grid.title.startswith("z_size by head and position, prompt a")
    assert [grid.cells[0][0].y_title[:13], ", head " in grid.seen] == ["layer 0: head", True]
    assert main(["export", "thresholds", str(folder)]) == 2
    assert "hook 'z_size' has no dims, which thresholds and drift are of" in capsys.readouterr().err


def test_labels_of_like_names_have_files_of_their_own(tmp_path):
    names = ["origin", "rerope:heads=0:1,2", "rerope:heads=0,1:2", "rerope heads 0 1 2"]
    hidden = hidden_states(windows=3, layers=1, dims=4, prompts=("a",)).assign_coords(method=names)
    folder = write_run(tmp_path / "run", hidden)
    assert main(["export", "heatmap", str(folder), "--native", "--out", str(tmp_path / "out")]) == 0
    assert len(list((tmp_path / "out").iterdir())) == 4


def test_the_other_kinds_are_whole_and_exact(tmp_path):
    hidden, scores = hidden_states(windows=3, layers=2, dims=12), evaluation(windows=3)
    run = probe.open_run(write_run(tmp_path / "run", hidden, scores))
    located.write(run.folder)
    anatomized.write(run.folder)
    search, drift = run.thresholds().data, run.drift().data
    for name in ("thresholds", "drift", "curves", "located", "anatomy"):
        shown = getattr(run, name)()
        shown.save(tmp_path / "out", "csv,npz")
        for stem, numbers in shown.export.numbers.items():
            frame = pd.read_csv(tmp_path / "out" / f"{stem}.csv", keep_default_na=False, na_values=[""])
            assert len(frame) == np.prod(list(numbers.sizes.values()))
            file = np.load(tmp_path / "out" / f"{stem}.npz")
            for key, values in numbers.variables.items():
                np.testing.assert_array_equal(file[key], values.values.astype(file[key].dtype))
    for stem, of, names in (
        ("thresholds-resid_post-repeated", search, ["threshold", "limit", "score"]),
        ("threshold-resid_post-repeated-values", hidden.sel(prompt="repeated").to_dataset(name="value"), ["value"]),
        ("drift-resid_post-repeated-levels", drift, ["level"]),
    ):
        frame = pd.read_csv(tmp_path / "out" / f"{stem}.csv")
        for name in names:
            rows = {dim: xr.DataArray(frame[dim], dims="row") for dim in of[name].dims}
            np.testing.assert_array_equal(frame[name], of[name].sel(rows))
    frame = pd.read_csv(tmp_path / "out" / "curves-tail_nll.csv")
    for (method, length), rows in frame.groupby(["method", "length"]):
        np.testing.assert_array_equal(rows["tail_nll"], scores["tail_nll"].sel({"method": method, "length": length}))


def test_the_tables_of_drift_are_of_the_chosen_layers(tmp_path):
    run = probe.open_run(write_run(tmp_path / "run", hidden_states(windows=3, layers=3, dims=12)))
    levels, dims, onsets = run.drift(layers=[2]).export.numbers.values()
    assert levels["layer"].values.tolist() == dims["layer"].values.tolist() == [2]
    assert (onsets["method"] == levels["method"].values).all()
