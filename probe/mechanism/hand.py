"""The bridged model of a worker, and the runs of the item at hand, which what is tried on it begins with."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from transformer_lens.model_bridge import TransformerBridge

from probe.mechanism.attribution import attribute
from probe.mechanism.clamp import observable
from probe.mechanism.contrast import BROKEN, MENDED, Contrast
from probe.mechanism.items import blocks
from probe.mechanism.request import ORIGIN, Group, LocatePlan
from probe.tasks.repeated import repeated_word


class Hand:
    """What is kept from cell to cell: contrasts of one item or, in a search for a smallest set, of a group's items."""

    def __init__(self, made: LocatePlan, bridge: TransformerBridge, tokenizer: Any) -> None:
        self.made, self._bridge, self._tokenizer = made, bridge, tokenizer
        self._contrasts: dict[tuple[Any, ...], Contrast] = {}

    def losses(self, group: Group, name: str, number: int, each: Any, *, search: bool) -> list[float]:
        """Losses by block of one item with `each` done; name: the method, Origin for what serves all of them.

        Raises RuntimeError if they are not finite.
        """
        contrast = self._contrast(group, name, number, inside=getattr(each, "inside", False), search=search)
        outcome = each.run(contrast)
        found = blocks(group[0], outcome.losses.double().cpu().numpy())
        if not np.isfinite(found).all():
            raise RuntimeError(
                f"the losses of {(*group, name, number, *each.cell)} are not finite; try a wider --dtype "
                "(float32, float64)"
            )
        return found

    def dims(self, length: int) -> dict[str, list[Any]]:
        """The observable dims of a length and their stand-ins, by rule."""
        made, request = self.made, self.made.request
        methods = [made.methods[ORIGIN], made.methods[made.mending[0]]]
        ids, _ = repeated_word(self._tokenizer, request.word, length)
        rules = observable(self._bridge, ids, methods, request.dims, executor=request.executor)
        return {
            rule: [[layer, list(dims[layer]), controls[layer].tolist()] for layer in dims]
            for rule, (dims, controls) in rules.items()
        }

    def falls(self, group: Group, name: str, number: int, hooks: tuple[str, ...]) -> list[list[Any]]:
        """What every patch at some hooks would restore to first order."""
        found = attribute(self._contrast(group, name, number), hooks)
        return [[*each.cell, fall] for each, fall in found.items()]

    def _contrast(
        self, group: Group, name: str, number: int, *, inside: bool = False, search: bool = False
    ) -> Contrast:
        """A known one, or a new one beside those of the same item (in a search: of the same group and method)."""
        own = self.made.mending[0] if name == ORIGIN else name
        key = (*group, number, own, inside, search)
        if key not in self._contrasts:
            if search:
                keep = {at: each for at, each in self._contrasts.items() if at[:2] == group and at[3:] == key[3:]}
            else:
                keep = {at: each for at, each in self._contrasts.items() if at[:3] == key[:3] and not at[-1]}
            fresh = self._inside(group, number) if inside else self._whole(group, number, own)
            if not (inside or search):
                fresh.sharing(*(each for at, each in keep.items() if not at[-2]))
                keep = {at: each for at, each in keep.items() if at[-2]}
            self._contrasts = {**keep, key: fresh}
        return self._contrasts[key]

    def _whole(self, group: Group, number: int, name: str) -> Contrast:
        methods = {BROKEN: self.made.methods[ORIGIN], MENDED: self.made.methods[name]}
        return Contrast(self._bridge, self.made.items[group][number], methods, self.made.request.executor)

    def _inside(self, group: Group, number: int) -> Contrast:
        """Of the last M tokens of an item of text, both runs Origin's."""
        origin, item = self.made.methods[ORIGIN], self.made.items[group][number]
        cut = replace(item, ids=item.ids[-origin.trained_length :])
        return Contrast(self._bridge, cut, {BROKEN: origin, MENDED: origin}, self.made.request.executor)
