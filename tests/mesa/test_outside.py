"""What is taken of other packages: their private names, all in one file, and what they call a cache."""

import ast
import importlib
import inspect
from functools import partial
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace

import pytest
import tiny
import torch
from packaging.version import Version
from transformers import DynamicCache, Qwen2_5OmniConfig

import mesa
from mesa.outside import PRIVATE, attention_called, with_cache

ROOT = Path(__file__).parents[2]


def test_parts_of_a_config_have_their_attention_back():
    config = Qwen2_5OmniConfig(attn_implementation="sdpa")
    parts = [config, config.thinker_config, config.thinker_config.text_config, config.thinker_config.audio_config]
    parts[3]._attn_implementation = "eager"
    with attention_called(SimpleNamespace(config=config), "ours", lambda: None, lambda: None):
        assert {part._attn_implementation for part in parts} == {"ours"}
    assert [part._attn_implementation for part in parts] == ["sdpa", "sdpa", "sdpa", "eager"]


OURS = {
    "_asdict",
    "_fields",
    "_replace",
    "_make",
    "_StoreAction",
    "_option_string_actions",
    "_temp_dir",
}
"""The standard library's, and an option of Ray."""


def test_every_private_name_of_another_package_is_listed():
    trees = [
        ast.parse(file.read_text()) for part in ("mesa", "probe", "theory") for file in (ROOT / part).rglob("*.py")
    ]
    nodes = [node for tree in trees for node in ast.walk(tree)]
    own = {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    own |= {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    own |= {node.attr for node in nodes if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)}
    used = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    used |= {alias.name for node in nodes if isinstance(node, ast.ImportFrom) for alias in node.names}
    listed = {part for names in PRIVATE.values() for name in names for part in name.replace(":", ".").split(".")}
    private = {name for name in used if name.startswith("_") and not name.startswith("__")}
    assert private - own - listed - OURS == set()


@pytest.mark.parametrize(("seen", "name"), [(seen, name) for seen, names in PRIVATE.items() for name in names])
def test_every_listed_name_is_there(seen, name):
    package, oldest, *_ = seen.split()
    if Version(version(package.replace("_", "-"))) < Version(oldest):
        pytest.skip(f"of {seen}")
    path, _, inside = name.partition(":")
    place = importlib.import_module(package)
    for part in path.split("."):
        if inspect.isclass(place) and not hasattr(place, part):
            place = place()  # what objects have
        elif not hasattr(place, part):
            importlib.import_module(f"{place.__name__}.{part}")
        place = getattr(place, part)
    assert not inside or inside in inspect.getsource(inspect.getmodule(place))


@pytest.mark.parametrize("name", ["cache", "past_key_values"])
@torch.no_grad()
def test_a_cached_decode_is_one_pass_whatever_the_forward_calls_its_cache(name):
    model, ids, cache = tiny.model(), tiny.tokens(1, 40), DynamicCache()
    decoder, (own,) = model.model, with_cache(model, cache)
    inner = decoder.forward

    def forward(input_ids=None, cache=None, past_key_values=None, **kwargs):
        return inner(input_ids, **{own: cache if past_key_values is None else past_key_values}, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decoder, "forward", forward)
        with mesa.applied(model, mesa.ReRoPE(trained_length=16)):
            expected = decoder(ids).last_hidden_state
            parts = [decoder(part, **{name: cache}).last_hidden_state for part in ids.split([30, 9, 1], 1)]
    torch.testing.assert_close(torch.cat(parts, 1), expected, atol=1e-5, rtol=0)


@torch.no_grad()
def test_a_cache_that_the_model_does_not_fill_is_refused():
    """Without it each pass would be computed as a text of its own."""
    model, ids = tiny.model(), tiny.tokens(1, 40)
    decoder, (own,) = model.model, with_cache(model, None)
    inner = decoder.forward
    filled = DynamicCache()

    def forward(which, input_ids=None, **kwargs):
        return inner(input_ids, **{own: which})

    with mesa.applied(model, mesa.ReRoPE(trained_length=16)), pytest.MonkeyPatch.context() as patch:
        with pytest.raises(ValueError, match=r"a DynamicCache as 'kv_cache'.*'cache' or 'past_key_values'"):
            decoder(ids, kv_cache=DynamicCache())
        decoder(ids, **{own: filled})
        patch.setattr(decoder, "forward", partial(forward, None))
        with pytest.raises(RuntimeError, match="a cache, which holds 0 tokens after a pass up to token 40"):
            decoder(ids, **{own: DynamicCache()})
        with pytest.raises(ValueError, match=r"has dropped 40 tokens that layer 0 .* sees, or is not the one"):
            decoder(ids[:, :1], **{own: filled})
