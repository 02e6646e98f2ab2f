"""What wrong command lines are tried on: a tiny model, damaged copies of it, texts and a store."""

import json
import shutil
from pathlib import Path

import results
import synthetic
import tiny
import yaml

DATA = yaml.safe_load((Path(__file__).parent / "wrong.yaml").read_text(encoding="utf-8"))
TEXT = " ".join(f"Nothing is said here at all, {number} times over." for number in range(400))


def build(folder: Path) -> dict[str, str]:
    """Makes everything in `folder`; the paths by name."""
    model = tiny.folder(folder / "model")
    world = {"model": str(model), "text": _file(folder / "text.txt", TEXT)}
    world["file"] = world["text"]
    (folder / "binary.txt").write_bytes(bytes(range(256)) * 20)
    world |= {"binary": str(folder / "binary.txt"), "here": str(folder)}
    for name, changes in DATA["configs"].items():
        stored = json.loads((model / "config.json").read_text())
        world[f"model-{name}"] = _damaged(model, folder / name, json.dumps(stored | changes))
    for name, text in {"list": "[]", "cut": '{"model_type": "lla', "empty": ""}.items():
        world[f"model-{name}"] = _damaged(model, folder / f"config-{name}", text)
    weights = (model / "model.safetensors").read_bytes()
    for name, content in {"cut": weights[:200], "garbage": b"x" * 500, "empty": b"", "short": weights[:-100]}.items():
        world[f"weights-{name}"] = _damaged(model, folder / f"weights-{name}", None)
        (folder / f"weights-{name}" / "model.safetensors").write_bytes(content)
    hidden = synthetic.hidden_states(layers=2, dims=16)
    world["run"] = str(synthetic.write_run(folder / "run", hidden, synthetic.evaluation()))
    world["evaluated"] = str(results.write_evaluation(folder / "evaluated"))
    for name, text in {"list": "[]", "cut": '{"attributes": {', "number": "5"}.items():
        shutil.copytree(folder / "run", folder / f"run-{name}")
        world[f"run-{name}"] = str(folder / f"run-{name}")
        (folder / f"run-{name}" / "store.zarr" / "zarr.json").write_text(text)
    return world


def _file(path: Path, text: str) -> str:
    path.write_text(text)
    return str(path)


def _damaged(model: Path, folder: Path, config: str | None) -> str:
    shutil.copytree(model, folder)
    if config is not None:
        (folder / "config.json").write_text(config)
    return str(folder)
