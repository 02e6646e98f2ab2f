"""What wrong command lines are tried on: a tiny model, damaged copies of it, texts, a store, configs of `paper`."""

import json
import shutil
from pathlib import Path

import synthetic
import tiny

CONFIGS = {  # damaged config.json by name: what is changed
    "layers-null": {"num_hidden_layers": None},
    "layers-text": {"num_hidden_layers": "four"},
    "heads-odd": {"num_attention_heads": 3},
    "heads-zero": {"num_attention_heads": 0},
    "window-text": {"max_position_embeddings": "256"},
    "window-zero": {"max_position_embeddings": 0},
    "vocabulary-small": {"vocab_size": 8},
    "vocabulary-null": {"vocab_size": None},
    "type-unknown": {"model_type": "nonsense"},
    "type-number": {"model_type": 3},
    "rope-text": {"rope_parameters": "x"},
    "dtype-unknown": {"dtype": "float7"},
    "hidden-wide": {"hidden_size": 10**12},
    "vocabulary-large": {"vocab_size": 10**15},
}
PAPER = {  # a line of the config in place of the good one
    "null-seed": "seed: null",
    "text-seed": "seed: x",
    "list-seed": "seed: [1]",
    "zero-window": "trained_length: 0",
    "number-set": "set: 5",
    "bad-set": "set: [rerope.nonsense=1]",
    "unknown-key": "nonsense: 1",
    "null-methods": "methods: null",
    "unknown-method": "methods: [origin, rope]",
    "null-sections": "sections: null",
    "list-sections": "sections: [passkey]",
    "unknown-section": "sections: {nonsense: {}}",
    "null-samples": "sections: {passkey: {samples: null}}",
    "list-samples": "sections: {passkey: {samples: [1]}}",
    "float-samples": "sections: {passkey: {samples: 1.5}}",
    "zero-samples": "sections: {passkey: {samples: 0}}",
    "null-batch": "sections: {passkey: {batch: null}}",
    "number-text": "sections: {nll: {text: 5}}",
    "number-tasks": "sections: {longbench: {tasks: 5}}",
    "list-lengths": "sections: {passkey: {lengths: [1, [2]]}}",
    "number-section": "sections: {passkey: 5}",
    "bad-ranges": "sections: {probe: {layers: 1-}}",
    "negative-texts": "sections: {probe: {texts: -1}}",
    "bad-load": "load: {nonsense: 1}",
    "text-load": "load: cpu",
    "number-dtype": "load: {dtype: 5}",
    "not-yaml": "a: [",
}
GOOD = "model: {model}\ntrained_length: 160\nmethods: origin\nsections: {{passkey: {{samples: 1}}}}\n"


def build(folder: Path) -> dict[str, str]:
    """Makes everything in `folder`; the paths by name."""
    model = tiny.folder(folder / "model")
    world = {"model": str(model), "text": _file(folder / "text.txt", "Nothing is said here at all. " * 400)}
    world["file"] = world["text"]
    (folder / "binary.txt").write_bytes(bytes(range(256)) * 20)
    world |= {"binary": str(folder / "binary.txt"), "no-yaml": str(folder / "binary.txt"), "here": str(folder)}
    for name, changes in CONFIGS.items():
        stored = json.loads((model / "config.json").read_text())
        world[f"model-{name}"] = _damaged(model, folder / name, json.dumps(stored | changes))
    for name, text in {"list": "[]", "cut": '{"model_type": "lla', "empty": ""}.items():
        world[f"model-{name}"] = _damaged(model, folder / f"config-{name}", text)
    weights = (model / "model.safetensors").read_bytes()
    for name, content in {"cut": weights[:200], "garbage": b"x" * 500, "empty": b"", "short": weights[:-100]}.items():
        world[f"weights-{name}"] = _damaged(model, folder / f"weights-{name}", None)
        (folder / f"weights-{name}" / "model.safetensors").write_bytes(content)
    for name, line in PAPER.items():
        rest = [good for good in GOOD.format(model=model).splitlines() if good.split(":")[0] != line.split(":")[0]]
        world[f"paper-{name}"] = _file(folder / f"{name}.yaml", "\n".join([*rest, line]))
    world["paper"] = _file(folder / "good.yaml", GOOD.format(model=model))
    world["run"] = str(
        synthetic.write_run(folder / "run", synthetic.hidden_states(layers=2, dims=16), synthetic.evaluation())
    )
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
