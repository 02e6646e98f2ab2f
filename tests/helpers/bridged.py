"""A family of the matrix on `mesa.bridge`, held to the model itself."""

import contextlib

import cases
import torch
from matrix import build
from tiny import tokens

import mesa
from mesa.decoder import layers_of, removed


def attached(model, name):
    return mesa.applied(model, cases.method(name)) if name else contextlib.nullcontext()


@torch.no_grad()
def held_to_the_model(family, tokenizer):
    """Logits, whatever listens, and the states after every layer: without a method, under Origin and under ReRoPE."""
    model, bridge, ids = build(family), mesa.bridge(build(family), tokenizer), tokens(2, 30)
    for name in (None, "origin", "rerope"):
        states = []

        def note(layer, args, output, states=states):
            states.append(output[0] if isinstance(output, tuple) else output)

        with attached(model, name), removed([layer.register_forward_hook(note) for layer in layers_of(model)]):
            wanted = model(ids, use_cache=False).logits
        allowed = {"atol": 1e-4 * max(1.0, float(wanted.abs().max())), "rtol": 0}
        with attached(bridge.original_model, name):
            torch.testing.assert_close(bridge(ids), wanted, **allowed)
            few = bridge.run_with_cache(ids, names_filter=lambda hook: hook.endswith("hook_resid_post"))
            every = bridge.run_with_cache(ids)
        for logits, cache in (few, every):
            torch.testing.assert_close(logits, wanted, **allowed)
            if "blocks.0.hook_resid_post" in bridge.hook_dict:  # hrm_text runs two stacks again and again
                for layer, after in enumerate(states):
                    allowed["atol"] = 1e-4 * max(1.0, float(after.abs().max()))
                    got = cache[f"blocks.{layer}.hook_resid_post"]
                    torch.testing.assert_close(got, after, **allowed)
