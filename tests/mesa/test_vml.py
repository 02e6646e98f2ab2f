"""Once the engine or the paper's models are imported, the first call of cos and exp has been of one number."""

import subprocess
import sys

import pytest

SPY = """
import torch
sizes = {}
def spied(name, function):
    def call(states, *args, **kwargs):
        sizes.setdefault((name, states.dtype), states.numel())
        return function(states, *args, **kwargs)
    return call
for name in ("cos", "exp"):
    setattr(torch, name, spied(name, getattr(torch, name)))
    setattr(torch.Tensor, name, spied(name, getattr(torch.Tensor, name)))
import %s
torch.rand(5000).cos(), torch.rand(5000).exp(), torch.rand(5000).double().cos(), torch.rand(5000).double().exp()
print(*sorted(sizes.values()))
"""


@pytest.mark.slow
@pytest.mark.parametrize("module", ["mesa.models", "mesa.engine.plug", "theory.model"])
def test_first_calls_are_of_one_number(module: str):
    done = subprocess.run([sys.executable, "-c", SPY % module], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["1"] * 4
