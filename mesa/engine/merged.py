"""The running merge of attention over disjoint keys."""

from __future__ import annotations

import math

import torch
from torch import Tensor


class Merged:
    """Running merge of attention parts over disjoint keys, in float32 or better."""

    def __init__(self, query: Tensor, start: int) -> None:
        self.dtype, self.start, self.shape = query.dtype, start, query.shape
        self.whole: tuple[Tensor, Tensor] | None = None
        self.accurate = torch.promote_types(query.dtype, torch.float32)
        self.device = query.device
        self.begun = 0  # rows from it on have no part yet

    def add(self, begin: int, end: int, output: Tensor, log_sum: Tensor) -> None:
        """Adds the part of the queries begin .. end - 1."""
        rows = slice(begin - self.start, end - self.start)
        fresh, self.begun = rows.start >= self.begun, max(self.begun, rows.stop)
        if self.whole is None:
            if end - begin == self.shape[2]:
                self.whole = output, log_sum
                return
            empty = torch.zeros(self.shape, dtype=self.accurate, device=self.device)
            self.whole = empty, empty.new_full(self.shape[:3], -math.inf)
        total, total_log = self.whole
        if total.dtype != self.accurate:
            total = total.to(self.accurate)
        if fresh:
            total[:, :, rows], total_log[:, :, rows] = output, log_sum
            self.whole = total, total_log
            return
        old_log = total_log[:, :, rows]
        new_log = torch.logaddexp(old_log, log_sum)
        remaining = (old_log - new_log).exp().nan_to_num(nan=0.0)[..., None]  # NaN: neither part saw a key
        added = (log_sum - new_log).exp().nan_to_num(nan=0.0)[..., None]
        total[:, :, rows].mul_(remaining).addcmul_(output.to(self.accurate), added)
        total_log[:, :, rows] = new_log
        self.whole = total, total_log

    def output(self) -> Tensor:
        """The merged output in the query's dtype."""
        if self.whole is None:
            return torch.zeros(self.shape, dtype=self.dtype, device=self.device)
        return self.whole[0].to(self.dtype)
