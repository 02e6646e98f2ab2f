"""Layers that carry a state next to attention: what padding and caches would change is refused, the rest is exact."""

import matrix
import pytest
import torch
import transformers
from tiny import in_pieces
from transformers import AutoModelForCausalLM, DynamicCache

import mesa
from mesa.decoder import replaced
from mesa.engine.structure import state_of
from mesa.errors import Refused

SIZES = {
    "vocab_size": 512, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 48, "initializer_range": 0.25, "pad_token_id": None,
    "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
MAMBA = {"mamba_n_heads": 8, "mamba_d_head": 16, "mamba_d_state": 16, "mamba_n_groups": 1, "mamba_chunk_size": 16}
LINEAR = {
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
}
HYBRIDS = {
    "Lfm2Config": ({"layer_types": ["conv", "full_attention", "conv"]}, (0, 2)),
    "Qwen3_5TextConfig": (
        {"head_dim": 16, "layer_types": ["linear_attention", "full_attention", "linear_attention"], **LINEAR},
        (0, 2),
    ),
    "FalconH1Config": ({**MAMBA, "mamba_d_ssm": 128}, (0, 1, 2)),  # state and attention in the same layer
    "JambaConfig": (
        {
            "attn_layer_period": 3, "attn_layer_offset": 1, "expert_layer_period": 2, "expert_layer_offset": 1,
            "num_experts": 4, "num_experts_per_tok": 2, "mamba_d_state": 8, "mamba_dt_rank": 4,
            "use_mamba_kernels": False,
        },
        (0, 2),
    ),
    "RecurrentGemmaConfig": (
        {"head_dim": 16, "lru_width": 64, "attention_window_size": 20, "block_types": ["recurrent", "attention"]},
        (0, 2),
    ),
}  # fmt: skip
WRONG = {"JambaConfig": "several", "RecurrentGemmaConfig": "left"}
"""What transformers' own code of a family gets wrong besides padding between tokens."""
METHOD = mesa.ReRoPE(trained_length=16)


def build(name, **changes):
    config = getattr(transformers, name)(**{**SIZES, **(HYBRIDS[name][0] if name in HYBRIDS else {}), **changes})
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(config).eval()


@pytest.fixture(scope="module", params=list(HYBRIDS))
def hybrid(request):
    return request.param, build(request.param)


def text(tokens=60, seed=1):
    return torch.randint(3, 512, (1, tokens), generator=torch.Generator().manual_seed(seed))


def padded(ids, before, by=9):
    """The same tokens with padding before one of them, and its mask."""
    padding = text(by, seed=2)
    mask = torch.cat([torch.ones(1, before), torch.zeros(1, by), torch.ones(1, ids.shape[1] - before)], 1).long()
    return {"input_ids": torch.cat([ids[:, :before], padding, ids[:, before:]], 1), "attention_mask": mask}


def test_layers_with_a_state_are_those_of_the_config(hybrid):
    name, model = hybrid
    assert state_of(model).layers == HYBRIDS[name][1]


@pytest.mark.parametrize("name", ["FalconH1Config", "JambaConfig", "RecurrentGemmaConfig", "LlamaConfig"])
def test_bfloat16_hides_no_state_and_is_taken_for_none(name):
    """Of what is right rounding makes up to 0.014 of the largest number, of what is wrong padding makes 0.055."""
    model = build(name, dtype=torch.bfloat16)
    assert model.dtype == torch.bfloat16
    assert state_of(model) == state_of(build(name))


def test_too_little_memory_is_not_taken_for_what_a_model_gets_wrong():
    model = build("Lfm2Config")
    forward = model.model.forward

    def few(*args, attention_mask=None, **options):
        if attention_mask is not None:
            torch.empty(2**60, dtype=torch.uint8)
        return forward(*args, **options)

    with replaced((model.model, "forward", few)), pytest.raises(RuntimeError, match="allocate memory"):
        state_of(model)
    assert state_of(model) == state_of(build("Lfm2Config"))


@pytest.mark.parametrize("name", ["LlamaConfig", "Gemma3TextConfig", "MistralConfig"])
def test_attention_carries_no_state(name):
    assert state_of(build(name, **({"sliding_window": 16} if name != "LlamaConfig" else {}))) is None


def test_a_convolution_before_attention_is_a_state():
    assert state_of(matrix.build("zaya")).layers == (0, 1)


@torch.no_grad()
@pytest.mark.parametrize("before", [0, 30])
def test_padding_is_as_if_there_were_none_or_refused(hybrid, before):
    name, model = hybrid
    ids = text()
    with mesa.applied(model, METHOD, prompt_length=60):
        expected = model(ids, use_cache=False).logits[0]
    batch = padded(ids, before)
    with mesa.applied(model, METHOD, prompt_length=69):
        if before or WRONG.get(name) == "left":
            where = "has padding between its tokens" if before else "is padded on the left"
            with pytest.raises(Refused, match=f"row 0 {where}, and layer 0 of this .* carries a state"):
                model(**batch, use_cache=False)
            return
        got = model(**batch, use_cache=False).logits[0, batch["attention_mask"][0].bool()]
    torch.testing.assert_close(got, expected, atol=1e-4 * float(expected.abs().max()), rtol=0)


@torch.no_grad()
@pytest.mark.parametrize("ends", [(4,), (4, 5), (1,)])
def test_padding_that_comes_in_pieces_is_as_if_there_were_none_or_refused(hybrid, ends):
    """A step of one token goes on with the state, whether it is padding or not."""
    name, model = hybrid
    if name in WRONG:
        pytest.skip("refused for other reasons")
    ids, batch = text(), padded(text(), 0)
    with mesa.applied(model, METHOD, prompt_length=69):
        if 1 in (*ends, ends[-1] - ends[0]):
            with pytest.raises(Refused, match="row 0 is padding alone up to a pass of one token, and layer 0 of this"):
                in_pieces(model, batch["input_ids"], *ends, mask=batch["attention_mask"])
            return
        got = in_pieces(model, batch["input_ids"], *ends, mask=batch["attention_mask"])[0, 9:]
    with mesa.applied(model, METHOD, prompt_length=60):
        expected = model(ids, use_cache=False).logits[0]
    torch.testing.assert_close(got, expected, atol=1e-4 * float(expected.abs().max()), rtol=0)


@torch.no_grad()
def test_several_tokens_after_a_cache_are_those_of_one_pass_or_refused(hybrid):
    name, model = hybrid
    ids = text(64)
    with mesa.applied(model, METHOD, prompt_length=60):
        expected = model(ids, use_cache=False).logits[0, 60:]
        cache = DynamicCache(config=model.config)
        if model(ids[:, :60], past_key_values=cache).get("past_key_values") is None:
            pytest.skip("no cache to go on from")
        if WRONG.get(name) == "several":
            with pytest.raises(Refused, match=r"4 tokens come after a cache of 60, .* one at a time"):
                model(ids[:, 60:], past_key_values=cache)
            return
        got = model(ids[:, 60:], past_key_values=cache).logits[0]
    torch.testing.assert_close(got, expected, atol=1e-4 * float(expected.abs().max()), rtol=0)


@torch.no_grad()
def test_a_row_padded_on_the_right_cannot_go_on(hybrid):
    model, ids = hybrid[1], text()
    batch = {"input_ids": torch.cat([ids, text(9, 2)], 1), "attention_mask": padded(ids, 60)["attention_mask"]}
    with mesa.applied(model, METHOD):
        cache = model(**batch, use_cache=True).get("past_key_values")
        if cache is None:
            pytest.skip("no cache to go on from")
        mask = torch.cat([batch["attention_mask"], torch.ones(1, 1).long()], 1)
        with pytest.raises(Refused, match="padding between its tokens"):
            model(text(1, 3), attention_mask=mask, past_key_values=cache)


def test_check_tells_what_is_refused():
    rows = mesa.check(build("RecurrentGemmaConfig"), None, methods="rerope", pretended=24).rows
    said = {row.check: row for row in rows}
    assert "layers 0, 2 carry a state" in said["carried state"].detail
    assert said["left padding against none"].result == "not run"
    assert not [row for row in rows if row.result == "failed"]


@pytest.mark.parametrize(
    ("config", "changes", "chosen", "message"),
    [
        ("Lfm2Config", {}, {"layers": (0, 1)}, "layers names layer 0, which has no attention; layers with: 1"),
        ("Lfm2Config", {}, {"heads": {2: (0,)}}, "heads names layer 2, which has no attention"),
        ("SmolLM3Config", {"no_rope_layers": [1, 0, 1]}, {"layers": (1,)}, "layer 1, which has no positions.*: 0, 2"),
    ],
)
def test_a_layer_that_the_method_would_leave_as_it_is_cannot_be_chosen(config, changes, chosen, message):
    method = mesa.ReRoPE(trained_length=48, log_n=False, **chosen)
    with pytest.raises(Refused, match=message), mesa.applied(build(config, **changes), method):
        pass


@pytest.mark.parametrize("chosen", [{"layers": (3, 4)}, {"heads": {4: (0,)}}])
def test_a_layer_without_a_module_cannot_be_chosen(chosen):
    """HRM-Text's config counts each of four layers four times."""
    model, method = matrix.build("hrm_text"), mesa.ReRoPE(trained_length=48, **chosen)
    message = f"rerope: {next(iter(chosen))} names layer 4; this model has modules of layers 0-3"
    with pytest.raises(Refused, match=message), mesa.applied(model, method):
        pass


def test_a_layer_without_positions_can_be_chosen_by_a_method_that_hides_keys():
    model, ids = build("SmolLM3Config", no_rope_layers=[1, 0, 1]), text(100)
    with torch.no_grad():
        with mesa.applied(model, mesa.Origin(trained_length=48)):
            origin = model(ids, use_cache=False).logits
        with mesa.applied(model, mesa.LMInfinite(trained_length=48, layers=(1,))):
            assert (model(ids, use_cache=False).logits - origin).abs().max() > 0.1


def tracing(model):
    ids = text(75)
    called = lambda tokens: model(tokens, use_cache=False, labels=tokens).loss  # noqa: E731
    return {
        "a compiled function": lambda: torch.compile(called, backend="eager")(ids),
        "the attached model": lambda: torch.compile(model, backend="eager")(ids),
        "export": lambda: torch.export.export(model, (ids,), strict=False),
        "jit": lambda: torch.jit.trace(lambda tokens: model(tokens, use_cache=False).logits, ids),
    }


@pytest.mark.parametrize("how", ["a compiled function", "the attached model", "export", "jit"])
@pytest.mark.filterwarnings("ignore")
def test_tracing_in_a_block_is_refused(how):
    model = build("LlamaConfig", num_hidden_layers=1)
    with torch.no_grad(), mesa.applied(model, METHOD), pytest.raises(Refused, match="this pass is traced"):
        tracing(model)[how]()
