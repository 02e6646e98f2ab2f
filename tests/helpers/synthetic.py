"""Hidden states with known breaks: a slow noise about each dim's level, and a jump in some dims of deeper layers."""

import json

import numpy as np
import xarray as xr

from probe.files import SEAL, seal_of
from probe.run_folder import RUN, run_of
from probe.store import store
from probe.store.reader import EVALUATION, TOKENS

LEAVES_AT = {"origin": 1.1, "dynamic-ntk": 3.0}  # in trained windows; the other methods never leave
DRIFTING = 10  # the first dims of every layer but the first
_COPIES = [f"copy-{number}" for number in range(13)]
METHODS = [*_COPIES, "origin", "rerope", "dynamic-ntk", "mesa"]  # of `many`


def hidden_states(trained_length=64, windows=5, layers=3, dims=32, prompts=("repeated", "text-0"), seed=0, noise=0.2):
    """(method, prompt, layer, position, dim); `text-0` has five times the noise of `repeated`."""
    methods = ["origin", "rerope", "dynamic-ntk", "mesa"]
    length = windows * trained_length
    rng = np.random.default_rng(seed)
    levels, sides = rng.normal(0, 1, (layers, 1, dims)), rng.choice([-1, 1], (layers, 1, dims))
    white = rng.normal(0, noise, (len(methods), len(prompts), layers, length, dims))
    white[:, 1:] *= 5
    values = levels + white
    position = np.arange(length)
    for row, method in enumerate(methods):
        if method in LEAVES_AT:
            past = np.clip((position - LEAVES_AT[method] * trained_length) / trained_length * 4, 0, 1)
            values[row, :, 1:, :, :DRIFTING] += 4 * past[:, None] * sides[1:, :, :DRIFTING]
    values[..., 0, :] += 30  # the first token's huge values
    return xr.DataArray(
        values.astype(np.float32),
        dims=("method", "prompt", "layer", "position", "dim"),
        coords={
            "method": methods,
            "prompt": list(prompts),
            "layer": range(layers),
            "position": position,
            "dim": range(dims),
        },
        name="resid_post",
        attrs={"long_name": "resid_post", "units": "activation"},
    )


def evaluation(trained_length=64, windows=5):
    """Scores by length to match: Origin fails from 2 M, Dynamic-NTK at the last length, the others never."""
    lengths = [trained_length // 2, *(trained_length * n for n in range(1, windows + 1))]
    methods = ["origin", "rerope", "dynamic-ntk", "mesa"]
    nll, hits = np.full((4, len(lengths), 6), 3.0), np.ones((4, len(lengths), 20))
    nll[0, 2:] = 3.8
    hits[0, 3:] = 0
    nll[2, -1] = 3.7
    hits[2, -1, :9] = 0
    nll += np.random.default_rng(1).normal(0, 0.02, nll.shape)
    return xr.Dataset(
        {
            "tail_nll": (("method", "length", "window"), nll, {"long_name": "tail NLL", "units": "nats/token"}),
            "passkey": (("method", "length", "sample"), hits, {"long_name": "passkey found", "units": "1"}),
        },
        coords={"method": methods, "length": lengths},
    )


def many(values):
    """The four methods, and copies of one under other names."""
    copies = [values.sel({"method": ["mesa"]}).assign_coords({"method": [name]}) for name in _COPIES]
    return xr.concat([*copies, values], "method")


def tokens_of(hidden):
    """Ids and texts of made-up prompts: one word repeated, and a text in which every token differs."""
    shape = hidden.sizes["prompt"], hidden.sizes["position"]
    ids = np.arange(shape[0])[:, None] * np.arange(shape[1])
    texts = np.array([[f" w{each}" if each else " hello" for each in row] for row in ids.tolist()], object)
    labels = {name: hidden[name].values for name in ("prompt", "position")}
    return xr.Dataset({"id": (tuple(labels), ids), "text": (tuple(labels), texts)}, labels)


def of_run(folder):
    """What a command's result in the folder of a run says of that."""
    run = run_of(folder / "store.zarr" / "zarr.json")
    return {RUN: run} if run else {}


def write_run(folder, hidden, scores=None, model="tiny", trained_length=64, dtype="float32", tokens=None, **attributes):
    path = folder / "store.zarr"
    names = {f"{name}s": hidden[name].values.tolist() for name in ("method", "prompt", "layer")}
    attrs = {
        "trained_length": trained_length,
        "model": model,
        "created": "2026-01-01",
        "method_configs": '{"mesa": {"window": 8}}',
        **attributes,
    }
    axes = {hidden.name: {name: hidden[name].values.tolist() for name in hidden.dims[3:]}}
    store.create(path, store.Template(axes=axes, dtype=dtype, attrs=attrs, **names))
    for method in names["methods"]:
        for prompt in names["prompts"]:
            for layer in names["layers"]:
                values = hidden.sel({"method": method, "prompt": prompt, "layer": layer}).values
                store.write(path, hidden.name, method, prompt, layer, values)
    if tokens is not None:
        store.write_group(path, TOKENS, tokens)
    if scores is not None:
        store.write_group(path, EVALUATION, scores)
    store.finish(path)
    return folder


def edit(folder, change):
    """Calls `change` with the store's attributes, to be written back under a seal of their own."""
    path = folder / "store.zarr" / "zarr.json"
    content = json.loads(path.read_text())
    change(content["attributes"])
    path.write_text(json.dumps(content))
    content["attributes"][SEAL] = seal_of(path.parent)
    path.write_text(json.dumps(content))
