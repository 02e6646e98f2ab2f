"""Exports: what is in the files, that the same store gives the same bytes, and what is refused."""

import inspect
import io
import json
import math
import re
import shutil
from dataclasses import replace
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pytest
import xarray as xr
from commands import main
from matplotlib.image import imread
from synthetic import evaluation, hidden_states, write_run

from mesa.errors import Refused
from mesa_lens.export import exported, kinds, options_of
from probe.commands import commands
from probe.commands.anatomy.page import anatomy_export
from probe.commands.eval.page import evaluation_export
from probe.commands.locate.page import located_export
from probe.commands.probe.report import curves_export, threshold_export
from probe.commands.readout.page import readout_export
from probe.figures import export as figure_files
from probe.figures.export import formats, heatmap_export, npz_bytes
from probe.figures.heatmap import difference, regions
from probe.files import json_text, write
from probe.run import Run
from probe.thresholds.failure import measured_failure
from probe.thresholds.onset import best
from probe.thresholds.search import CrossingRule, search

M = 64
MAGIC = {"html": b"<!doctype html>", "png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF", "npz": b"PK", "csv": b""}
HOSTILE = "</script><script>alert(1)</script> $\\frac$"


@pytest.fixture(scope="module")
def hidden():
    return hidden_states(windows=3, layers=2, dims=12, prompts=("repeated", "text-0", "text-1"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory, hidden):
    return write_run(tmp_path_factory.mktemp("run"), hidden, evaluation(windows=3))


@pytest.fixture(scope="module")
def one(hidden):
    return hidden.sel(prompt="repeated")


@pytest.fixture(scope="module")
def crossings(one):
    return search(one, M, CrossingRule.scaled(M))


def run(folder, tmp_path, *arguments):
    """Exit code of the command, writing into tmp_path."""
    kind, *rest = arguments
    return main(["export", kind, str(folder), "--out", str(tmp_path), *rest])


DISTANCE = "state-distance-resid_post"
CONTROL = ("thresholds-onsets", "thresholds-control", "thresholds-control-places")


@pytest.mark.parametrize(
    ("kind", "arguments", "pictures", "numbers"),
    [
        (
            "heatmap",
            ["--layers", "1"],
            ["heatmap-resid_post-repeated-layers1"],
            ["heatmap-resid_post-repeated-layers1"],
        ),
        (
            "thresholds",
            ["--pairs", "1:3"],
            ["threshold-resid_post-repeated-layer1-dim3"],
            ["thresholds-resid_post-repeated", "threshold-resid_post-repeated-values", *CONTROL],
        ),
        pytest.param(
            "drift",
            ["--layers", "1"],
            ["drift-resid_post-repeated", "drift-resid_post-repeated-map"],
            [f"drift-resid_post-repeated-{table}" for table in ("levels", "dims", "onsets")],
            marks=pytest.mark.slow,
        ),
        pytest.param("distance", ["--layers", "1"], [DISTANCE], [DISTANCE, f"{DISTANCE}-last"], marks=pytest.mark.slow),
        (
            "curves",
            [],
            ["curves"],
            ["failures", *(f"curves-{table}" for table in ("passkey", "tail_nll", "scores", "differences"))],
        ),
    ],
)
def test_every_kind_in_every_format(kind, arguments, pictures, numbers, folder, tmp_path, capsys):
    forms = formats()
    assert run(folder, tmp_path, kind, *arguments, "--json", "--format", ",".join(forms)) == 0
    printed = json.loads(capsys.readouterr().out)
    names = {f"{name}.{form}" for form in forms for name in (pictures if form in forms[:4] else numbers)}
    assert {path.name for path in tmp_path.iterdir()} == names
    assert sorted(printed) == sorted(str(tmp_path / name) for name in names)
    for path in tmp_path.iterdir():
        assert path.read_bytes().startswith(MAGIC[path.suffix[1:]])
    page = (tmp_path / f"{pictures[0]}.html").read_text()
    assert page.count("plotly.js v") == 1
    assert not re.search(r"<(script|link|img)[^>]*(src|href)=", page)
    texts = [
        item.text for item in ElementTree.parse(tmp_path / f"{pictures[0]}.svg").iter() if item.tag.endswith("}text")
    ]
    assert "positions" in texts or any("(tokens)" in text for text in texts)
    fonts = (tmp_path / f"{pictures[0]}.pdf").read_bytes()
    assert b"/CIDFontType2" in fonts
    assert b"/Type3" not in fonts


@pytest.mark.slow
def test_the_same_store_gives_the_same_bytes(hidden):
    def exported():
        panel, scores = regions(hidden.sel(prompt="repeated"), [(32, 96)]), evaluation(windows=3)[["tail_nll"]]
        heatmap, curves = heatmap_export(panel, M), curves_export(scores, measured_failure(scores, M), M)
        files = [*heatmap.files("svg"), *heatmap.files("npz")]
        return dict([*files, *(item for form in formats() for item in curves.files(form))])

    first, second = exported(), exported()
    assert len(first) == 2 + 4 + 2 * 2
    assert first == second


def test_by_default_the_best_dims_as_png_beside_the_store(tmp_path, folder, crossings, capsys):
    folder = shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    assert main(["export", "thresholds", str(folder / "store.zarr"), "--top", "2"]) == 0
    names = [f"threshold-resid_post-repeated-layer{layer}-dim{dim}.png" for layer, dim in best(crossings, 2)]
    assert capsys.readouterr().out.split() == [str(tmp_path / "exports" / name) for name in names]
    assert [imread(tmp_path / "exports" / name).shape[1] for name in names] == [2160, 2160]  # 7.2 inches at 300 dpi
    assert main(["export", "thresholds", str(folder / "store.zarr"), "--top", "1"]) == 0
    assert f"replaced 1 of an earlier export: {tmp_path / 'exports' / names[0]}\n" in capsys.readouterr().err


def test_heatmap_numbers_carry_their_labels(one):
    panel = regions(one, [(0, 64), (100, 128)]).assign_attrs(model="tiny")
    ((name, content),) = heatmap_export(panel, M, cells=None).files("npz")
    assert name == "heatmap-resid_post-repeated.npz"
    loaded = np.load(io.BytesIO(content))
    about = json.loads(loaded["about"].item())
    values = loaded["resid_post"].transpose([about["dims"]["resid_post"].index(dim) for dim in panel.dims])
    np.testing.assert_array_equal(values, panel)
    assert loaded["position"].tolist() == [*range(64), *range(100, 128)]
    assert loaded["method"].tolist() == one["method"].values.tolist()
    assert loaded["prompt"].item() == "repeated"
    assert about["units"] == {"resid_post": "activation"}
    assert about["attrs"]["model"] == "tiny"
    assert about["attrs"]["trained_length"] == M


def test_differences_and_native_pictures(folder, tmp_path, one):
    chosen = ["--minus", "rerope", "--methods", "mesa,origin", "--positions", "40-99", "--native"]
    assert run(folder, tmp_path, "heatmap", *chosen, "--format", "png,npz") == 0
    stem = "heatmap-resid_post-repeated-minus-rerope"
    numbers, *pictures = (f"{stem}-{name}-positions40-99" for name in ("mesa_origin", "mesa", "origin"))
    written = {f"{numbers}.npz", *(f"{name}.png" for name in pictures)}
    assert {path.name for path in tmp_path.iterdir()} == written
    assert run(folder, tmp_path, "heatmap", *chosen[:4], "--positions", "40-49,60", "--format", "npz") == 0
    assert {path.name for path in tmp_path.iterdir()} == {*written, f"{stem}-mesa_origin-positions40-49_60.npz"}
    height, width = imread(tmp_path / f"{pictures[0]}.png").shape[:2]
    assert (height > 2 * 12 + 2, width > 60) == (True, True)  # axes about one pixel a value
    loaded = np.load(tmp_path / f"{numbers}.npz")
    between = one.sel(position=slice(40, 99))
    expected = between.sel({"method": ["mesa", "origin"]}).values - between.sel({"method": ["rerope"]}).values
    np.testing.assert_array_equal(loaded["resid_post"], expected)
    assert loaded["method"].tolist() == ["mesa", "origin"]
    assert loaded["minus"].item() == "rerope"
    (grid,) = heatmap_export(difference(regions(one, [(40, 100)]), "rerope"), M).figures.values()
    assert grid.title.startswith("resid_post minus rerope by dim and position, prompt repeated")
    assert grid.colour_title == "resid_post minus rerope (activation)"


def test_threshold_values_over_position(folder, tmp_path, one):
    assert run(folder, tmp_path, "thresholds", "--pairs", "1:3", "--methods", "mesa", "--format", "csv") == 0
    rows = pd.read_csv(tmp_path / "threshold-resid_post-repeated-values.csv")
    assert rows["position"].tolist() == list(range(192))
    np.testing.assert_allclose(rows["value"], one.sel({"method": "mesa", "layer": 1, "dim": 3}), rtol=1e-6)
    assert pd.read_csv(tmp_path / "thresholds-resid_post-repeated.csv")["method"].tolist() == ["mesa"]
    rule = replace(CrossingRule.scaled(M), smoothing=5, margin=0.0)
    crossings = search(one, 70, rule)
    files = dict(threshold_export(one, crossings, [(1, 3)]).files("csv"))
    names = (next(name for name in files if part in name) for part in ("values", "thresholds"))
    series, evaluated = (pd.read_csv(io.BytesIO(files[name])) for name in names)
    origin = one.sel({"method": "origin", "layer": 1, "dim": 3}).values.astype(float)
    smoothed = [origin[max(0, at - 4) : at + 1].mean() for at in range(192)]
    np.testing.assert_allclose(series[series["method"] == "origin"]["smoothed"], smoothed, rtol=1e-5)
    evaluated = evaluated[evaluated["method"] == "mesa"]
    assert evaluated["threshold"].item() == pytest.approx(origin[66:71].mean(), rel=1e-5)
    assert evaluated["limit"].item() == pytest.approx(evaluated["threshold"].item(), rel=1e-6)


def test_curves_have_a_row_for_each_sample_and_the_failures(folder, tmp_path):
    assert run(folder, tmp_path, "curves", "--format", "csv") == 0
    scores = evaluation(windows=3)
    nll = pd.read_csv(tmp_path / "curves-tail_nll.csv")
    assert len(nll) == scores["tail_nll"].size
    mesa = nll[(nll["method"] == "mesa") & (nll["length"] == 128)]["tail_nll"]
    np.testing.assert_allclose(mesa, scores["tail_nll"].sel({"method": "mesa", "length": 128}))
    failures = pd.read_csv(tmp_path / "failures.csv").set_index("method")
    assert failures.loc["origin", ["measured_by_nll", "measured_by_passkey"]].tolist() == [128, 192]
    measured = failures.loc["origin", ["measured_after", "measured_high", "measured_text"]]
    assert measured.tolist() == [64, 128, "(64, 128]"]
    assert 71 <= failures.loc["origin", "drift_onset"] <= 80
    assert np.isnan(failures.loc["mesa", "drift_onset"])
    assert failures.loc["mesa", "drift_onset_text"] == "none up to 192"


def test_of_methods_that_are_not_measured_yet_it_says_how_to_go_on():
    scores = evaluation().isel(method=[0, 1])
    scores["tail_nll"][:] = np.nan
    measured = measured_failure(evaluation(), M)
    with pytest.raises(
        Refused, match=r"the loss of origin, rerope is not measured yet; the same `mesa-lens probe` continues"
    ):
        curves_export(scores, measured, M)


def test_a_score_that_the_chosen_methods_lack_is_left_out():
    scores = evaluation(windows=3)
    scores["passkey"][1:] = np.nan
    export = curves_export(scores.sel({"method": ["mesa"]}), measured_failure(scores, M), M)
    assert list(export.numbers) == ["curves-tail_nll", "failures"]
    assert len(export.figures["curves"].panels) == 1


@pytest.mark.parametrize("kind", ["drift", "thresholds", "distance", "curves", "heatmap"])
def test_the_reference_may_be_left_out(kind, folder, tmp_path, capsys):
    assert run(folder, tmp_path, kind, "--methods", "rerope", "--format", "csv") == 0
    labels = [pd.read_csv(path) for path in tmp_path.glob("*.csv")]
    assert {tuple(item["method"].unique()) for item in labels if "method" in item} == {("rerope",)}


def test_a_csv_of_too_many_rows_is_refused_before_it_is_written(folder, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(figure_files, "ROWS", 1000)
    assert run(folder, tmp_path / "none", "heatmap", "--format", "csv") == 2
    size = 4 * 2 * 12 * 128  # methods, layers, dims, positions of the default regions
    assert f"csv: {size} rows are more than 1000; choose fewer layers, dims or" in capsys.readouterr().err
    assert not (tmp_path / "none").exists()
    assert run(folder, tmp_path, "heatmap", "--format", "csv", "--dims", "3", "--layers", "1") == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["heatmap", "--format", "png,gif"], "an export has no format 'gif'; choose from html, png, svg"),
        (["heatmap", "--native", "--format", "svg"], "a native heatmap has no format 'svg'; choose from png"),
        (["curves", "--methods", "all,typo"], "--methods all,typo: all stands for every method; leave the others out"),
        (["heatmap", "--prompt", "z"], "prompt 'z' was not captured; captured: repeated, text-0"),
        (["heatmap", "--minus", "rope"], "method 'rope' was not captured; captured: origin"),
        (["heatmap", "--layers", "0-2"], "layers 0-2 were not all captured; captured: 0-1"),
        (["heatmap", "--positions", "999"], "region 999-999 holds no captured position; captured: 0-191"),
        (["thresholds", "--pairs", "1:99"], "dim 99 was not captured; captured: 0-11"),
        (["thresholds", "--pairs", "1-2"], "--pairs '1-2' is not a list of layer:dim; write e.g. 1:234,2:17"),
        (["drift", "--prompt", "text-9"], "drift of prompt 'text-9' is not evaluated; evaluated: repeated, text-mean"),
    ],
)
def test_misuse_names_what_is_there_and_writes_nothing(arguments, message, folder, tmp_path, capsys):
    assert run(folder, tmp_path / "none", *arguments) == 2
    errors = capsys.readouterr().err.splitlines()
    assert message in errors[-1]
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("kind", kinds())
def test_flags_follow_from_the_parameters_of_the_call(kind):
    """A figure's call, and its flags: a parameter without its flag, or a flag without its parameter, is told here."""
    calls = {"locate": located_export, "anatomy": anatomy_export, "readout": readout_export, "eval": evaluation_export}
    _, *parameters = inspect.signature(calls.get(kind) or getattr(Run, kind)).parameters
    assert parameters == kinds()[kind][1].split(), f"flags of `mesa-lens export {kind}`: mesa_lens/export.py"


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({"export": ("a", "methods steps", "")}, "has no parameter 'steps'; known: methods, hook"),
        ({"export": ("a", "methods")}, "is not three texts: what it shows, its parameters, an example"),
        ({"export": ("a", "methods", ""), "name": "curves"}, "is called as a figure of a run is; rename the command"),
        ({"export": ("a", "", ""), "tells": ()}, "is none of its `tells`; name it there"),
    ],
)
def test_an_export_of_another_package_that_cannot_be_is_refused(changed, problem, monkeypatch, capsys):
    guest = replace(commands()["eval"], package="guest.norms", **{"name": "norms"} | changed)
    monkeypatch.setattr("mesa_lens.export.commands", lambda: commands() | {guest.name: guest})
    assert main(["export", "curves", "runs"]) == 2
    assert f"mesa-lens: the export of guest.norms {problem}" in capsys.readouterr().err


def test_an_export_without_methods_is_called_with_what_is_set(monkeypatch, tmp_path):
    guest = replace(commands()["eval"], name="norms", export=("a", "lengths", ""), example="--help")
    monkeypatch.setattr("mesa_lens.export.commands", lambda: {"norms": guest})
    monkeypatch.setattr(type(guest), "on_page", lambda *_: lambda folder, **chosen: (folder, chosen))
    assert exported(options_of("norms")(store=tmp_path, lengths=(8,)), None) == (tmp_path, {"lengths": (8,)})
    assert guest.example_out == "runs/norms"


def test_the_example_of_a_kind_names_a_folder_that_the_command_wrote_to(capsys):
    with pytest.raises(SystemExit):
        main(["export", "eval", "--help"])
    assert "mesa-lens export eval runs/eval --format svg,csv" in capsys.readouterr().out


def test_every_figure_of_a_run_has_its_export():
    """`located` is the kind `locate`; the csv of `mesa-lens predict` are those of `prediction`."""
    calls = {name: call for name, call in vars(Run).items() if inspect.isfunction(call)}
    results = {name for name, call in calls.items() if call.__annotations__.get("return") == "Result"}
    assert results - {"located", "prediction"} | {"locate", "eval"} == {*kinds()}, (
        "a row of KINDS in mesa_lens/export.py, or a command's `export`"
    )


def test_a_file_in_the_place_of_the_folder_is_named_before_anything_is_drawn(folder, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("mesa_lens.export.exported", lambda *_: pytest.fail("drawn"))
    for place in ("file", "file/in/it"):
        (tmp_path / "file").touch()
        assert run(folder, tmp_path / place, "curves") == 2
        assert f"{tmp_path / 'file'} is a file; name a folder" in capsys.readouterr().err
    (folder / "exports").touch()
    assert main(["export", "curves", str(folder)]) == 2
    assert f"{folder / 'exports'} is a file; name a folder" in capsys.readouterr().err
    (folder / "exports").unlink()


def test_files_are_replaced_whole_or_stay(tmp_path, monkeypatch):
    target = tmp_path / "curves.csv"
    write(target, b"former")
    monkeypatch.setattr("os.replace", lambda *_: (_ for _ in ()).throw(OSError("disk")))
    with pytest.raises(OSError, match="disk"):
        write(target, b"later")
    assert target.read_bytes() == b"former"
    assert list(tmp_path.iterdir()) == [target]


def test_labels_from_a_store_are_only_text(one):
    labelled = one.assign_coords(prompt=HOSTILE, method=[HOSTILE, "rerope", "dynamic-ntk", "mesa"])
    crossings = search(labelled, M, CrossingRule.scaled(M), HOSTILE)
    exports = heatmap_export(regions(labelled, [(0, 64)]), M), threshold_export(labelled, crossings, [(1, 3)])
    for export in exports:
        for form in ("html", "svg"):
            ((name, content),) = export.files(form)
            assert re.fullmatch(r"[\w.-]+", name)
            assert b"<script>alert(1)" not in content
        texts = [item.text or "" for item in ElementTree.fromstring(content).iter()]
        assert any("$\\frac$" in text for text in texts)  # not mathematics


def test_json_is_strict():
    text = json_text({"share": np.float64("nan"), "ends": (1.5, math.inf), "rows": [{"low": -math.inf, "n": 3}]}, None)
    assert text == '{"share": null, "ends": [1.5, null], "rows": [{"low": null, "n": 3}]}'
    numbers = xr.Dataset({"share": ("layer", [1.0])}, attrs={"factor": math.inf})
    about = np.load(io.BytesIO(npz_bytes(numbers)))["about"].item()
    assert json.loads(about, parse_constant=pytest.fail)["attrs"] == {"factor": None}
