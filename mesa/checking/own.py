"""The model by itself and under Origin: finite, turned as its rotary module says, the same through the plug."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from mesa.checking.oracle import rotated
from mesa.checking.rounding import ALLOWED, shaken
from mesa.checking.rows import FAILED, NOT_RUN, PASSED, Found, Row, judged
from mesa.checking.subject import Setting, Subject, apart, array, run
from mesa.engine.apply import applied
from mesa.methods import NoPE, Origin


def weights(subject: Subject) -> Row:
    """Whether all weights are numbers."""
    named = {**dict(subject.model.named_parameters()), **dict(subject.model.named_buffers())}
    read = [(name, values) for name, values in named.items() if values.is_floating_point() and not values.is_meta]
    for name, values in read:
        if not values.isfinite().all():
            count = int((~values.isfinite()).sum())
            says = f"{count} of {values.numel()} numbers of {name} are not finite; get the checkpoint anew"
            return Row("weights are numbers", FAILED, says)
    return Row("weights are numbers", PASSED, f"{len(read)} tensors")


def states(subject: Subject) -> Row:
    """Whether the stock model's states and logits are numbers."""
    for setting in subject.settings:
        stock = subject.hear(setting)
        for layer, each in enumerate((*stock.states, stock.logits)):
            if not each.isfinite().all():
                what = "the logits" if layer == len(stock.states) else f"the states that enter layer {layer}"
                says = f"{what} are not finite at {setting.where}; run it with --dtype float32"
                return Row("states are numbers", FAILED, says)
    layers = subject.model.config.num_hidden_layers
    return Row("states are numbers", PASSED, f"{layers} layers of the stock model, and its logits")


def through_the_plug(subject: Subject) -> Row:
    """The stock model against Origin."""
    found = []
    for setting in subject.settings:
        stock, logits = subject.stock[setting], []
        for method in (Origin, NoPE):
            with applied(subject.model, method(trained_length=subject.pretended)):
                logits.append(run(subject.model, subject.ids(setting.length)).logits)
        difference, mistake = (apart(each, stock.logits) for each in logits)
        found.append(Found(difference, stock.allowed, mistake, f"at {setting.where}"))
    remedy = "attached methods do not see this model's attention; use none of them on it, and report it with this table"
    return judged("stock against origin", "", found, "logits of the stock model and through the plug", remedy)


def turned(subject: Subject) -> Iterator[Row]:
    """Every layer's queries and keys against the rotation that the model's rotary module says."""
    name = "rotary"
    if not subject.rotary:
        yield Row(name, NOT_RUN, "the model has no rotary embeddings")
        return
    setting, found = subject.settings[-1], []
    stock = subject.stock[setting]
    layers = subject.model.config.num_hidden_layers
    silent = [layer for layer in range(layers) if layer not in stock.calls.functions or layer not in stock.bare]
    if silent:
        says = f"layer {silent[0]} does not call its attention through transformers' AttentionInterface"
        yield Row(name, FAILED, f"{says}; no method can be attached to it")
        return
    for layer in range(layers):
        found.append(_turned(subject, setting, layer))
    says = "queries and keys as the model turns them and as its rotary module's frequencies say"
    remedy = "this layer gives tokens other positions, so that methods would weave distances it does not use"
    yield judged(name, "", found, says, remedy)


def _turned(subject: Subject, setting: Setting, layer: int) -> Found:
    """What was found in a layer; the mistake is one position."""
    stock = subject.stock[setting]
    given, bare, at = stock.calls.functions[layer], stock.bare[layer], stock.positions[layer]
    index = np.arange(float(setting.length))
    blur, dtype, largest = setting.length * 2.0**-24, subject.model.dtype, np.zeros(3)
    for theirs, ours in ((given.query, bare.query), (given.key, bare.key)):
        for head in range(ours.shape[1]):
            state, got = array(ours[0, head]), array(theirs[0, head])
            true = rotated(state, index, at)
            off = shaken(rotated(shaken(state, dtype, 0), index + blur, at), dtype, 1)
            apart = [abs(each - true).max() for each in (got, off, rotated(state, index + 1, at))]
            largest = np.maximum(largest, apart)
    return Found(float(largest[0]), ALLOWED * float(largest[1]), float(largest[2]), f"in layer {layer}")


def restored(subject: Subject) -> Row:
    """Whether the stock model computes what it did before."""
    name, setting = "restored", subject.settings[-1]
    difference = apart(run(subject.model, subject.ids(setting.length)).logits, subject.stock[setting].logits)
    row = Row(name, PASSED, "logits of the stock model before and after", difference=difference, allowed=0.0)
    if difference == 0:
        return row
    return replace(row, result=FAILED, says=f"{row.says}; load the model anew")
