"""`mesa.check` passes where all is right, and names what was planted where not."""

import sys
from pathlib import Path

import cases
import families
import matrix
import pytest
import structures
import tiny
import torch
from transformers.models.llama.modeling_llama import LlamaAttention

import mesa
from mesa.checking.check import CHECKS
from mesa.engine import attention, plug
from mesa.engine.rope import Rotation

ROOT = Path(__file__).parents[3]
sys.path.append(str(ROOT / "benchmarks"))
import support  # noqa: E402

FAMILIES = list(support.families.FAMILIES)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return tiny.tokenizer(tmp_path_factory.mktemp("tokenizer"))


def checked(model, tokenizer, methods="rerope", **changes):
    return mesa.check(model, tokenizer, methods=methods, pretended=32, **changes)


def rows(report, result):
    return {(row.check, row.method): row.detail for row in report.rows if row.result == result}


FAST = ("llama", "gpt_neox", "gemma3_text", "mpt")  # of each kind one
ALL = [pytest.param(each, marks=() if each in FAST else pytest.mark.slow) for each in FAMILIES]


@pytest.mark.parametrize("family", ALL)
def test_every_family_passes(family, tmp_path):
    """With a method of each kind; the slow test below has them all."""
    kind, report = support.checked(family, tmp_path, "origin,rerope,mesa")
    assert not report.failed
    said = rows(report, "not run")
    assert set(said) <= {("rotary", "")} if kind in ("mpt", "bloom") else not said
    assert len(rows(report, "passed")) + len(said) == 6 + 3 * len(CHECKS)


STRUCTURED = (
    "some layers do not rotate",
    "linear layers",
    "MLA",
    "sinks",
    "soft cap",
    "norms after the rotation",
    "chunks",
)


@pytest.mark.parametrize("structure", STRUCTURED)
def test_every_structure_passes(structure, tokenizer):
    report = checked(structures.build(structure), tokenizer)
    assert not report.failed
    assert {check for check, _ in rows(report, "not run")} <= {"bridge against hidden states"}
    assert len(rows(report, "passed")) >= 5 + len(CHECKS)


@pytest.mark.parametrize(("structure", "lost"), [("sinks", "s_aux"), ("soft cap", "softcap")])
def test_what_changes_a_softmax_is_checked_by_pairs(structure, lost, tokenizer, monkeypatch):
    """The engine without it; at attach it would be refused, which is left out here."""
    scoring, model = attention.Schedule.scoring, structures.build(structure)
    with mesa.applied(model, cases.method("rerope")):
        pass
    left = {"softcap": 0, "s_aux": 1}[lost]
    monkeypatch.setattr(
        attention.Schedule,
        "scoring",
        lambda self, *given: scoring(self, *(None if place == left else part for place, part in enumerate(given))),
    )
    assert ("fused against pairs", "rerope") in rows(checked(model, tokenizer), "failed")


@pytest.mark.parametrize(
    ("window", "result", "detail"),
    [
        (None, None, None),
        (90, "note", "of 90 tokens; filled at 96"),
        (91, "not run", "of 91 tokens; 91 are not filled at 96; use --pretended 33"),
        pytest.param(
            512, "not run", "of 512 tokens; 512 are not filled at 96; use --pretended 173", marks=pytest.mark.slow
        ),
        (40000, "not run", "of 40000 tokens; 40000 are not filled at 96; no --pretended fills it"),
    ],
)
def test_a_sliding_window_that_no_prompt_fills_is_said_with_the_remedy(window, result, detail, tokenizer):
    report = checked(families.build("mistral sliding", sliding_window=window), tokenizer, "origin")
    said = [(row.result, row.detail) for row in report.rows if row.check == "sliding windows"]
    assert said == ([(result, detail)] if result else [])
    assert not report.failed


def test_a_model_without_an_adapter_passes_and_the_row_says_so(tokenizer):
    report = checked(structures.build("beside a recurrence"), tokenizer)
    assert "bridge against hidden states" not in {check for check, _ in rows(report, "not run")}
    report = checked(structures.built("moshi", {**structures.SIZES, "audio_vocab_size": 8, "ffn_dim": 96}), tokenizer)
    assert not report.failed
    said = rows(report, "not run")["bridge against hidden states", ""]
    assert said == "TransformerLens has no adapter for a MoshiForCausalLM: states are the layers' own output"


def test_where_no_layer_rotates_masks_are_checked(tokenizer):
    report = checked(structures.build("no layer rotates"), tokenizer, "rerope,lm-infinite")
    assert not report.failed
    assert rows(report, "not run")["rotary", ""] == "none of the model's layers rotates its queries and keys"
    assert ("fused against pairs", "lm-infinite") in rows(report, "passed")


def test_the_page_lists_the_families_of_the_matrix():
    listed = support.on_page()
    works = support.sentences(listed, "Work")
    assert works == {*matrix.WORKS, *matrix.ALIBI}
    assert support.sentences(listed, "Refused") == {*matrix.REFUSED}
    refused = f"{len(matrix.REFUSED)} are [refused"
    said = f"{len(works)} transformers families, from Llama to gpt-oss, were tried and work; {refused}"
    assert said in " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_the_lists_of_families_are_what_the_script_finds():
    assert support.lists(support.tried_families()) == support.on_page()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_other_dtypes_pass_and_find_mistakes(dtype, tokenizer):
    report = checked(support.families.build("gpt_neox").to(dtype), tokenizer)
    assert not report.failed
    assert not rows(report, "not run")
    assert f"{dtype}".removeprefix("torch.") in report.rows[0].detail


def test_model_and_tokenizer_are_left_as_they_were(tmp_path):
    model, visible, tokenizer = tiny.model(), [], tiny.tokenizer(tmp_path)
    tokenizer.padding_side, tokenizer.bos_token = "left", None  # with one TransformerLens may load it again
    special = dict(tokenizer.special_tokens_map)
    own = model.lm_head.register_forward_hook(lambda *_: visible.append(1))
    before = {name: type(module) for name, module in model.named_modules()}, model.config.to_dict()
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    report = checked(model, tokenizer)
    assert (tokenizer.padding_side, tokenizer.special_tokens_map) == ("left", special)
    assert ({name: type(module) for name, module in model.named_modules()}, model.config.to_dict()) == before
    assert all(torch.equal(value, weights[name]) for name, value in model.state_dict().items())
    own.remove()
    visible.clear()
    model(torch.zeros(1, 3, dtype=torch.long))
    assert not visible
    assert [row.difference for row in report.rows if row.check == "restored"] == [0.0]


def test_weights_that_are_no_numbers_are_named_and_nothing_is_passed_after_them(tokenizer):
    model = tiny.model()
    with torch.no_grad():
        model.model.layers[1].self_attn.k_proj.weight[0, 0] = float("nan")
    report = checked(model, tokenizer)
    ((_, detail),) = rows(report, "failed").items()
    assert detail.startswith("1 of 512 numbers of model.layers.1.self_attn.k_proj.weight are not finite")
    assert not rows(report, "passed")
    assert set(rows(report, "not run").values()) == {"'weights are numbers' failed"}


class Bypassing(LlamaAttention):
    """Attention of its own, as remote code has it."""

    def forward(self, hidden_states, position_embeddings=None, attention_mask=None, **kwargs):
        return self.o_proj(self.q_proj(hidden_states) * position_embeddings[0].repeat(1, 1, 4)), None


def test_attention_that_bypasses_transformers_fails(tokenizer):
    model = tiny.model()
    model.model.layers[1].self_attn = Bypassing(model.config, 1)
    report = checked(model.eval(), tokenizer)
    failed = rows(report, "failed")
    assert set(failed) == {("stock against origin", "")}
    assert "layer 1 uses positions outside of attention that is called" in failed["stock against origin", ""]
    assert ("fused against pairs", "rerope") in rows(report, "not run")


def test_a_layer_that_turns_otherwise_than_its_rotary_module_fails(tokenizer):
    def twice(module, args, kwargs):
        cos, sin = kwargs["position_embeddings"]
        return args, {**kwargs, "position_embeddings": (cos * cos - sin * sin, 2 * sin * cos)}

    model = tiny.model()
    model.model.layers[1].self_attn.register_forward_pre_hook(twice, with_kwargs=True)
    failed = rows(checked(model, tokenizer), "failed")
    assert "in layer 1" in failed["rotary", ""]
    assert "other positions" in failed["rotary", ""]


def test_a_wrong_executor_fails(tokenizer, monkeypatch):
    """One that loses the farthest key's weight, by each of the checks that should see it."""

    def wrong(schedule, query, key, value, scale):
        value = torch.cat([value[:, :, :1] * 0.9, value[:, :, 1:]], 2)
        return attention.fused(schedule, query, key, value, scale)

    monkeypatch.setitem(plug.EXECUTORS, "fused", wrong)
    failed = rows(checked(tiny.model(), tokenizer), "failed")
    failing = {check for check, _ in failed}
    assert {"stock against origin", "fused against dense", "fused against pairs"} <= failing
    assert all("report it with this table" in detail for detail in failed.values())


def test_distances_a_tenth_too_large_fail_by_pairs_alone(tokenizer, monkeypatch):
    """Both executors are wrong alike, in what ReRoPE turns on from its cached position."""
    assert rows(checked(tiny.model(), tokenizer), "failed") == {}  # which finds the model's structure as it is
    angles = Rotation._angles
    monkeypatch.setattr(Rotation, "_angles", lambda self, by, plan, device: angles(self, by * 1.1, plan, device))
    failed = rows(checked(tiny.model(), tokenizer), "failed")
    assert {check for check, _ in failed} == {"fused against pairs"}


def test_a_cache_that_forgets_fails_in_decoding(tokenizer, monkeypatch):
    laid_out = plug.Attachment._laid_out

    def late(self, real, index, prompt_length, padded):
        return laid_out(self, real, index, (2 if real.shape[1] > index.shape[1] else 1) * prompt_length, padded)

    monkeypatch.setattr(plug.Attachment, "_laid_out", late)
    failed = rows(checked(tiny.model(), tokenizer, "mesa"), "failed")
    assert {check for check, _ in failed} == {"decoding against one pass"}


@pytest.mark.parametrize(("first", "detail"), [(True, "'<s>' (0) (bos)"), (False, "nothing: a prompt of one repeated")])
def test_what_the_tokenizer_puts_first(first, detail, tmp_path):
    report = checked(tiny.model(), tiny.tokenizer(tmp_path, first))
    (row,) = (row for row in report.rows if row.check == "first token")
    assert row.result == "note"
    assert row.detail.startswith(detail)


def test_what_needs_a_tokenizer_is_not_run_without_one(monkeypatch):
    monkeypatch.setattr("mesa.checking.check.bridge", None)  # which would ask the hub for one
    report = checked(tiny.model(), None)
    assert not report.failed
    assert {check for check, _ in rows(report, "not run")} == {"first token", "bridge against hidden states"}


def test_checks_for_which_memory_is_too_small_are_not_run(tokenizer, monkeypatch):
    monkeypatch.setattr("mesa.checking.subject.run", lambda *_, **__: torch.empty(2**60, dtype=torch.uint8))
    report = checked(tiny.model(), tokenizer)
    assert not report.failed
    assert "memory" in (detail := rows(report, "not run")["states are numbers", ""])
    assert detail.endswith("; use a smaller --pretended, or a device with more memory")
    assert rows(report, "not run")["restored", ""] == "'states are numbers' was not run"


def test_what_cannot_be_judged_is_not_passed(tokenizer):
    """Without values attention does nothing; a model's type may not take a method; minutes end."""
    model = tiny.model()
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.v_proj.weight.zero_()
    assert "changes nothing here" in rows(checked(model, tokenizer), "not run")["fused against dense", "rerope"]
    report = checked(support.families.build("mpt"), tokenizer, "dynamic-ntk")
    assert rows(report, "not run")["decoding against one pass", "dynamic-ntk"].endswith("ALiBi has none")
    report = checked(tiny.model(), tokenizer, minutes=1e-9)
    assert not rows(report, "passed")
    assert "minutes were over" in rows(report, "not run")["restored", ""]


def test_misuse_is_refused(tokenizer):
    with pytest.raises(ValueError, match=r"in training mode; call model.eval"):
        checked(tiny.model().train(), tokenizer)
    with pytest.raises(ValueError, match="pretended=7 is not within 24 to 4096"):
        mesa.check(tiny.model(), tokenizer, pretended=7)
    for wrong, says in ((0, "is below 2"), (1, "is below 2"), (2.5, "is not an integer")):
        with pytest.raises(ValueError, match=f"trained_length={wrong} {says}"):
            mesa.check(tiny.model(), tokenizer, trained_length=wrong)
    model = tiny.model()
    with mesa.applied(model, cases.method("rerope")), pytest.raises(ValueError, match="already attached to this model"):
        checked(model, tokenizer)


def test_the_table_and_the_record_say_the_same(tokenizer):
    report = checked(tiny.model(), tokenizer, "origin,rerope,stair")
    record, text = report.record(), str(report)
    assert (record["passed"], record["failed"], record["not_run"]) == (6 + 3 * len(CHECKS), 0, 0)
    assert text.startswith(f"LlamaForCausalLM: {record['passed']} passed, 0 failed, 0 not run")
    for check in CHECKS:
        worst = max((row for row in report.rows if row.check == check), key=lambda row: row.difference / row.allowed)
        (line,) = (line for line in text.splitlines() if line.startswith(check))
        assert f"{worst.difference:8.1e} {worst.allowed:8.1e}  3 methods, {worst.method} the farthest" in line
    assert "cannot guarantee that a method helps" in text.splitlines()[-1]
    assert record["lengths"] == [35, 96]
