"""Token by token: each token's loss, and what one head attends to, under the reference and a method."""

from __future__ import annotations

import streamlit as st

from mesa_lens.dashboard import elements as ui
from mesa_lens.dashboard.runs import Context
from probe.commands.anatomy.page import attention_view, head_changes, loss_view, methods_of
from probe.commands.anatomy.result import TOKENS
from probe.heads import head_name, parse_head

_DEFAULT = "the most changed"


def page(context: Context) -> None:
    """The text under the chosen method, then a head's attention."""
    tokens = ui.written(context, TOKENS.find, "anatomy --parts tokens")
    if tokens is None:
        return
    methods, heads = list(tokens.methods), range(head_changes(tokens).shape[1])
    places = [_DEFAULT, *(head_name(layer, head) for layer in tokens.layers for head in heads)]
    first = {"method": methods_of(tokens)[1], "head": _DEFAULT}
    method, head = ui.choose_labels({"method": methods, "head": places}, first, "tokens").values()
    losses = loss_view(tokens, method)
    attention = attention_view(tokens, method, *([] if head == _DEFAULT else parse_head(head)))
    st.html(losses)
    ui.heading("What a head attends to")
    st.html(attention, unsafe_allow_javascript=True)
    ui.download("Both (HTML)", losses + attention, f"{ui.file_stem(context.run.name, 'tokens', method, head)}.html")
