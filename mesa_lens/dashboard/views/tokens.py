"""Token by token: each token's loss, and what one head attends to, under the reference and a method."""

from __future__ import annotations

import streamlit as st

from mesa_lens.dashboard.elements import choose_labels, download, file_stem, suggest
from mesa_lens.dashboard.runs import Context
from probe.figures.token_views import attention_view, head_changes, loss_view, methods_of
from probe.store.results import find_tokens

_DEFAULT = "the most changed"


def page(context: Context) -> None:
    """The text under the chosen method, then a head's attention."""
    tokens = find_tokens(context.run.path)
    if tokens is None:
        text = "No text was captured token by token in this run. Capture one, then reload this page:"
        suggest(text, f"mesa-lens anatomy --parts tokens --out {context.run.path}")
        return
    methods, heads = list(tokens["methods"]), range(head_changes(tokens).shape[1])
    places = [_DEFAULT, *(f"{layer}.{head}" for layer in tokens["layers"] for head in heads)]
    first = {"method": methods_of(tokens)[1], "head": _DEFAULT}
    chosen = choose_labels({"method": methods, "head": places}, first, "tokens")
    place = [] if chosen["head"] == _DEFAULT else map(int, chosen["head"].split("."))
    losses = loss_view(tokens, chosen["method"])
    attention = attention_view(tokens, chosen["method"], *place)
    st.html(losses)
    st.subheader("What a head attends to", anchor=False)
    st.html(attention, unsafe_allow_javascript=True)
    download("Both (HTML)", losses + attention, f"{file_stem(context.run.name, 'tokens', *chosen.values())}.html")
