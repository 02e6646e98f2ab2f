"""Every public tool and benchmark of TransformerLens on our bridge: under Origin as on theirs, and under methods."""

import contextlib
import dataclasses
import functools
import inspect

import cases
import pytest
import tiny
import torch
from transformer_lens import benchmarks
from transformer_lens.model_bridge import TransformerBridge
from transformer_lens.tools import analysis
from transformer_lens.tools.analysis.attribution_patching import Node

import mesa
from mesa.models import load

pytestmark = pytest.mark.filterwarnings(
    "ignore:gradients are on", "ignore:coordinate_patch_hooks", "ignore::DeprecationWarning"
)

LENGTH = 30
CLEAN, CORRUPT = (tiny.tokens(2, LENGTH, seed) for seed in (0, 1))
ONE, OTHER = CLEAN[:1], CORRUPT[:1]
HOOK, WORDS = "blocks.1.hook_out", "a text of some words " * 6


def metric(logits):
    return logits[:, -1, 5].sum() - logits[:, -1, 7].sum()


def last(bridge):
    """What runs the model on token ids, and the positions read."""
    return lambda ids: bridge(ids)[:, -1, 4:7]


AT = torch.tensor([LENGTH - 2, LENGTH - 1])
BOTH = {"base_positions": AT, "source_positions": AT}


def added(base, source):
    return base + 0.5 * source


def patched(function, **options):
    def call(bridge):
        caches = {
            f"{name}_cache": bridge.run_with_cache(ids)[1] for name, ids in (("clean", ONE), ("corrupted", OTHER))
        }
        return function(bridge, OTHER, patching_metric=metric, verbose=False, **caches, **options)

    return call


@functools.cache
def fitted(bridge):
    return analysis.JacobianLens.fit(
        bridge, [WORDS], corpus="here", source_layers=[0, 1], max_seq_len=22, show_progress=False
    )


def calling(name, *given, **options):
    return lambda bridge: getattr(analysis, name)(bridge, *given, **options)


def lens(name, *given, **options):
    return lambda bridge: getattr(fitted(bridge), name)(bridge, *given, **options)


def lens_hooks(name, *tokens, **options):
    def call(bridge):
        with bridge.hooks(getattr(fitted(bridge), name)(bridge, *tokens, layers=[1], **options)):
            return bridge(ONE)

    return call


def active(bridge):
    """A token in whose direction the states point."""
    return int(fitted(bridge).decompose(bridge, WORDS, 1, position=18, k=3).support[0])


def direct(bridge):
    bridge.enable_compatibility_mode()
    return analysis.direct_logit_attribution(bridge, ONE, 5)


def circuit():
    ends = [("attn_head_out", 0, LENGTH - 1, 1), ("mlp_in", 1, LENGTH - 1, None)]
    return [tuple(Node(kind, position, layer, head) for kind, layer, position, head in ends)]


CALLS = {
    "attention_head_subspace_affinity": calling("attention_head_subspace_affinity", target_role="Q"),
    "attribution_patch": calling("attribution_patch", ONE, OTHER, metric),
    "collect_activations": lambda bridge: analysis.collect_activations(bridge, HOOK, CLEAN, last(bridge), positions=AT),
    "direct_logit_attribution": direct,
    "faithfulness": calling("faithfulness", ONE, OTHER, metric, circuit()),
    "fit_das": lambda bridge: (
        analysis.fit_das(
            bridge, HOOK, CLEAN, CORRUPT, torch.tensor([0, 1]), last(bridge), rank=1, epochs=1, **BOTH
        ).basis
    ),
    "get_act_patch_direct_path": patched(analysis.get_act_patch_direct_path, src_layer=0, src_head=0),
    "get_act_patch_direct_path_all_sources": patched(analysis.get_act_patch_direct_path_all_sources),
    "intervened_logits": lambda bridge: analysis.intervened_logits(
        bridge, HOOK, added, CLEAN, torch.ones(2, 32), last(bridge), positions=AT
    ),
    "run_with_intervention": lambda bridge: analysis.run_with_intervention(
        bridge, HOOK, added, CLEAN, torch.ones(2, 32), last(bridge), positions=AT
    ),
    "logit_lens": calling("logit_lens", ONE),
    "logit_readout": calling("logit_readout", torch.ones(2, 32)),
    "JacobianLens.fit": lambda bridge: fitted(bridge).jacobians,
    "JacobianLens.validate_model": lambda bridge: fitted(bridge).validate_model(bridge).jacobians,
    "JacobianLens.readout": lens("readout", ONE),
    "JacobianLens.lens_vectors": lens("lens_vectors", [5, 7], 1),
    "JacobianLens.lens_vector_dictionary": lens("lens_vector_dictionary", 1),
    "JacobianLens.decompose": lens("decompose", WORDS, 1, position=18, k=3),
    "JacobianLens.coordinate_patch": lambda bridge: fitted(bridge).coordinate_patch(
        bridge, WORDS, 1, active(bridge), 7, position=18, k=3
    ),
    "JacobianLens.occupancy": lens("occupancy", WORDS, 1, position=20, max_atoms=3, num_control_dictionaries=2),
    "JacobianLens.fraction_of_variance": lens("fraction_of_variance", ONE, k=3),
    "JacobianLens.steering_hooks": lens_hooks("steering_hooks", 5),
    "JacobianLens.ablation_hooks": lens_hooks("ablation_hooks", 5),
    "JacobianLens.swap_hooks": lens_hooks("swap_hooks", 5, 7),
    "JacobianLens.swap_clamp_hooks": lambda bridge: lens_hooks(
        "swap_clamp_hooks", 5, 7, clean_cache=bridge.run_with_cache(ONE)[1]
    )(bridge),
    "JacobianLens.coordinate_patch_hooks": lens("coordinate_patch_hooks", 5, 7, [1], positions=[18]),
}
OTHERS = {
    "reinitialized": "refuses models with norms of transformers, which have no reset_parameters",
    "random_init_bridge": "boots a model of the hub",
    "JacobianLens.from_pretrained": "reads a lens from the hub",
}
"""Tools that take no bridge that we can give them."""
NOT_BENCHMARKED = {"run_benchmark_suite": "boots a model of the hub", "benchmark_text_quality": "asks another model"}


def takes_a_model(tool):
    tool = getattr(tool, "__func__", tool)
    return inspect.isfunction(tool) and "model" in inspect.signature(tool).parameters


def stock(model, tokenizer):
    return TransformerBridge.boot_transformers(
        "LlamaForCausalLM", hf_model=model, tokenizer=tokenizer, dtype=model.dtype, device="cpu"
    )


def tensors(result):
    """All numbers of a tool's result, in order."""
    if isinstance(result, torch.Tensor):
        return [result.detach().float()]
    if dataclasses.is_dataclass(result):
        result = [getattr(result, field.name) for field in dataclasses.fields(result)]
    if isinstance(result, dict):
        result = list(result.values())
    if isinstance(result, list | tuple):
        return [tensor for part in result for tensor in tensors(part)]
    return [torch.tensor(float(result))] if isinstance(result, float) else []


@pytest.fixture(scope="module")
def tokenizer():
    tokenizer = load().tokenizer
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.bos_token
    return tokenizer


def fresh(tokenizer):
    return tiny.model(vocabulary=len(tokenizer), key_heads=4)


ATTACHED = [(method, executor) for method in ("origin", "mesa") for executor in ("fused", "dense")]


@contextlib.contextmanager
def all_bridges(tokenizer):
    """The stock bridge, and ours by method and executor."""
    bridges = {pair: mesa.bridge(fresh(tokenizer), tokenizer) for pair in ATTACHED}
    with contextlib.ExitStack() as stack:
        for (method, executor), bridge in bridges.items():
            stack.enter_context(mesa.applied(bridge.original_model, cases.method(method), executor=executor))
        yield stock(fresh(tokenizer), tokenizer), bridges


@pytest.fixture(scope="module")
def shared(tokenizer):
    with all_bridges(tokenizer) as bridges:
        yield bridges
    fitted.cache_clear()


@pytest.fixture
def bridges(request, tokenizer):
    """The module's, or fresh ones for what changes weights or settings of a bridge."""
    if not {"direct_logit_attribution", "benchmark_weight_modification"} & {*request.node.callspec.params.values()}:
        yield request.getfixturevalue("shared")
        return
    with all_bridges(tokenizer) as own:
        yield own


def test_all_public_tools_are_called():
    named = {name: getattr(analysis, name) for name in analysis.__all__}
    named |= {f"JacobianLens.{name}": tool for name, tool in vars(analysis.JacobianLens).items() if name[0] != "_"}
    assert {name for name, tool in named.items() if takes_a_model(tool)} | {"random_init_bridge"} == {*CALLS, *OTHERS}


LONG = ("faithfulness", "get_act_patch_direct_path_all_sources")
"""Tools that take seconds; `attribution_patch` and `get_act_patch_direct_path` call the same passes."""


@pytest.mark.quick_cases(8)
@pytest.mark.parametrize("tool", [pytest.param(tool, marks=pytest.mark.slow if tool in LONG else ()) for tool in CALLS])
def test_tools_see_what_the_method_computes(tool, bridges):
    theirs, ours = bridges
    torch.manual_seed(0)
    expected = tensors(CALLS[tool](theirs))
    assert expected or tool == "JacobianLens.coordinate_patch_hooks"  # which gives hooks
    results = {pair: tensors(CALLS[tool](bridge)) for pair, bridge in ours.items()}
    for executor in ("fused", "dense"):
        torch.testing.assert_close(results["origin", executor], expected, atol=1e-4, rtol=1e-4, equal_nan=True)
    torch.testing.assert_close(results["mesa", "fused"], results["mesa", "dense"], atol=1e-4, rtol=1e-4, equal_nan=True)


def benchmarked(name, bridge):
    function = getattr(benchmarks, name)
    given = {"test_text": WORDS, "test_input": WORDS, "test_prompts": ["one two", "three"], "max_new_tokens": 3}
    known = inspect.signature(function).parameters
    result = function(bridge, **{key: value for key, value in given.items() if key in known})
    return result.passed, None if result.passed else result.message


@pytest.mark.quick_cases(6)
@pytest.mark.parametrize(
    "name",
    [
        name
        for name in benchmarks.__all__
        if inspect.isfunction(getattr(benchmarks, name)) and name not in NOT_BENCHMARKED
    ],
)
def test_benchmarks_pass_where_they_pass_on_the_stock_bridge(name, bridges):
    theirs, ours = bridges
    expected = benchmarked(name, theirs)
    for bridge in ours.values():
        passed, said = benchmarked(name, bridge)
        assert passed or not expected[0], said
