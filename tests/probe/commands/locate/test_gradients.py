"""`locate --try gradients`: what a method in each head alone recovers, to first order."""

import headed
import matrix
import numpy as np
import pytest
import torch
from commands import main
from headed import HEAD

import mesa
from mesa.engine.bridge import hooked
from mesa.errors import Refused
from mesa.models import tokenizer_of
from mesa.support import attending_layers
from probe.commands.locate import LocateRequest
from probe.commands.locate.interventions import BASELINE, PATCHED, Edit, Gradients, Item, RunPair, run
from probe.commands.locate.page import in_notebook, located_export, located_findings
from probe.commands.locate.result import LOCATED
from probe.commands.locate.run import plan

M, STEP = 24, 0.01
METHODS = {BASELINE: mesa.Origin(trained_length=M), PATCHED: mesa.ReRoPE(trained_length=M, window=9)}
ITEM = Item(tuple(np.random.default_rng(0).integers(2, 97, 48).tolist()), 12)


@torch.no_grad()
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "family",
    ["llama", "gpt_neox", "qwen3_5", *(pytest.param(name, marks=pytest.mark.slow) for name in ("gemma3", "phi"))],
)
def test_an_estimate_is_the_slope_of_a_small_step(family):
    """A step of 1% towards the method's output, either way, in one head: by hook_z, which estimates do not use."""
    bridge = hooked(matrix.build(family, times=2).double(), tokenizer_of("default"))
    pair = RunPair(bridge, ITEM, METHODS)
    estimated = Gradients().run(pair)
    layers = attending_layers(bridge.original_model.config)
    before, z = pair.outcome(BASELINE).activations, [("z", layer) for layer in layers]
    inputs = [
        Edit(("resid_pre", layer), lambda _, layer=layer: before["resid_pre", layer]) for layer in range(pair.depth)
    ]
    changed = run(bridge, ITEM, METHODS[PATCHED], inputs, record=z).activations

    def loss(layer, head, size):
        def towards(states):
            by_head, others = (
                states.view(len(states), pair.heads, -1),
                changed["z", layer].view(len(states), pair.heads, -1),
            )
            by_head[:, head] += size * (others - by_head)[:, head]
            return states

        return run(bridge, ITEM, METHODS[BASELINE], [Edit(("z", layer), towards)]).losses.mean().item()

    slopes = np.zeros_like(estimated)
    for layer in layers:
        for head in range(pair.heads):
            slopes[layer, head] = (loss(layer, head, -STEP) - loss(layer, head, STEP)) / (2 * STEP)
    assert abs(slopes).max() > 1e-4
    np.testing.assert_allclose(estimated, slopes, atol=5e-3 * abs(slopes).max())  # losses are in float32


@torch.no_grad()
def test_parameters_and_layers_are_left_as_they_were():
    model = headed.planted()
    pair = RunPair(hooked(model, tokenizer_of("default")), ITEM, METHODS)
    before = pair.outcome(BASELINE).losses
    first, second = (Gradients().run(pair) for _ in range(2))
    assert np.array_equal(first, second)
    assert all(part.grad is None and part.requires_grad for part in model.parameters())
    assert torch.equal(before, run(pair.bridge, ITEM, METHODS[BASELINE]).losses)


@torch.no_grad()
def test_only_the_planted_head_has_an_estimate():
    estimated = abs(Gradients().run(RunPair(hooked(headed.planted(), tokenizer_of("default")), ITEM, METHODS)))
    assert np.unravel_index(estimated.argmax(), estimated.shape) == HEAD
    assert np.sort(estimated, axis=None)[-2] < 1e-3 * estimated.max()


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """The folder of a run on a planted model: gradients first, then patches of what is estimated best."""
    folder = tmp_path_factory.mktemp("gradients")
    model = headed.folder(folder / "model")
    words = ["locate", "--model", str(model), "--out", str(folder / "run"), "--lengths", "320", "--samples", "4"]
    assert main([*words, "--try", "gradients"]) == 0
    first = LOCATED.read(folder / "run")
    assert main([*words, "--try", "gradients,patch", "--ways", "only", "--heads", "0-1"]) == 0
    return folder / "run", first


def test_a_finished_folder_loads_no_model_so_needs_no_memory(done, monkeypatch):
    folder, _ = done
    monkeypatch.setattr("probe.capture.memory.free_bytes", lambda device="cpu": 2**17)
    words = ["locate", "--model", folder.parent / "model", "--out", folder, "--lengths", "320", "--samples", "4"]
    words += ["--try", "gradients,patch", "--ways", "only", "--heads"]
    assert main([*map(str, words), "0-1"]) == 0
    assert main([*map(str, words), "0-1", "--overwrite"]) == 1


def test_the_command_names_the_planted_head_and_what_to_patch(done):
    _, first = done
    assert {row.kind for row in first.effects} == {"gradients"}
    assert len(first.effects) == 12
    best = max(first.effects, key=lambda row: row.share)
    assert (best.layer, best.head, best.items) == (*HEAD, 4)
    ((_, sentences),) = located_findings(first)
    assert any("By gradients, of 12 heads most is estimated in L1H2" in text for text in sentences)
    assert "An estimate is no intervention: try --try patch --heads L1H2." in sentences  # all others are below 1%


def test_the_clearest_map_has_the_name_that_it_is_exported_as(done, tmp_path):
    folder, first = done
    (tmp_path / "locate").mkdir()
    LOCATED.write(tmp_path, first)
    for run_folder, name in ((tmp_path, "map-gradients"), (folder, "map")):
        _, _, export, main_figure = in_notebook(run_folder)
        assert main_figure == f"locate-{name}-rerope-320-nll"
        assert main_figure in export.figures


def test_the_same_folder_goes_on_with_patches_and_ranks_both(done):
    folder, first = done
    summary = LOCATED.read(folder)
    assert [row for row in summary.effects if row.kind == "gradients"] == first.effects
    ((_, sentences),) = located_findings(summary)
    assert any("over the 8 patched heads the rank correlation is" in text for text in sentences)
    assert {"locate-map-rerope-320-nll", "locate-map-gradients-rerope-320-nll"} <= located_export(
        summary
    ).figures.keys()
    assert "gradients" in (folder / "locate" / "effects.csv").read_text()


def test_random_weights_have_no_estimate(tmp_path, capsys):
    without = str(headed.folder(tmp_path / "without", []))
    words = ["locate", "--model", without, "--lengths", "320", "--try", "gradients", "--json"]
    assert main([*words, "--out", str(tmp_path / "none")]) == 1
    assert "no method is significantly better" in capsys.readouterr().err


@pytest.mark.filterwarnings("ignore")
def test_models_without_an_adapter_are_refused_before_their_weights(tmp_path):
    folder = tmp_path / "model"
    config = matrix.build("moshi", vocab_size=2048).config
    config.architectures = ["MoshiForCausalLM"]
    config.save_pretrained(folder)
    tokenizer_of("default").save_pretrained(folder)
    with pytest.raises(Refused, match="--try gradients needs TransformerLens, which has no adapter for a Moshi"):
        plan(LocateRequest(model=str(folder), lengths=(64,), kinds=("gradients",), trained_length=16))
