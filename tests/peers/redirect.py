"""A pytest plugin: whatever TransformerLens' tests load is a copy of one model, on the kind of bridge asked for.

Stored activations of other models are not there. What each test says goes into a file.
"""

import json
import os
from pathlib import Path

import bridges
import torch
import transformers
from transformer_lens.model_bridge import TransformerBridge

_said: dict[str, str] = {}


def _boot(model_name=None, *args, hf_model=None, dtype=torch.float32, **kwargs):
    if hf_model is None:
        return bridges.bridge(dtype)
    return bridges.BOOT(model_name, *args, hf_model=hf_model, dtype=dtype, **kwargs)


def _model(cls, *args, dtype=None, torch_dtype=None, attn_implementation=None, **kwargs):
    model = bridges.fresh(dtype or torch_dtype)[0]
    if attn_implementation:
        model.set_attn_implementation(attn_implementation)
    return model


def pytest_configure(config):
    bridges.loaded()  # by the functions that are replaced below
    TransformerBridge.boot_transformers = staticmethod(_boot)
    transformers.AutoModelForCausalLM.from_pretrained = classmethod(_model)
    transformers.AutoTokenizer.from_pretrained = classmethod(lambda cls, *args, **kwargs: bridges.fresh()[1])
    import tests.goldens  # of TransformerLens

    tests.goldens.goldens_available = lambda *args, **kwargs: False


def pytest_runtest_logreport(report):
    name = report.nodeid.rpartition("/")[2]
    if report.failed:
        why = [line[1:].strip() for line in report.longreprtext.splitlines() if line.startswith("E ")]
        _said[name] = (why or ["failed"])[0][:300]
    elif report.when == "call" or report.skipped:
        _said.setdefault(name, report.outcome)


def pytest_sessionfinish(session):
    Path(os.environ["PEERS_OUT"]).write_text(json.dumps(_said, indent=1))
