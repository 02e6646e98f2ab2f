"""What runs on devices other than CPUs, each kernel after a trial, else plain operations.

Rotation and merging are a launch each. Attention over spans goes to our own Triton kernel (half precision; any spans,
both sides of a carry, soft caps), to PyTorch's `varlen_attn` where a newer flash attention was chosen (half precision,
windows), to a compiled `flex_attention` (patterns, ALiBi, float32) or to plain operations, by what each device was
found to do right. They are tested on a CPU by stand-ins that promise what those kernels do and by Triton's interpreter,
and counted on shapes; `make test-gpu` tests them on a GPU.
"""

import functools
import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.attention import current_flash_attention_impl, flex_attention as flex, varlen
from torch.nn.functional import scaled_dot_product_attention

from mesa.engine.compiled import compiled, one_launch
from mesa.engine.rope import RotaryLayout, rotated
from mesa.engine.scores import capped, scores_of
from mesa.engine.spans import PairSpan, sides_of
from mesa.plan import Carry

_BLOCK = 128
"""Queries, and keys, of a block that `flex_attention` leaves out or masks (tokens)."""

_SCORES = 2**28
"""Scores that plain operations hold at a time."""

_ULPS = 4
"""Units in the last place of the largest number by which a kernel's output may differ from float64's."""


def rotate(into: Tensor, *states: Any) -> None:
    """States of tokens, rotated as `rope.rotated` does, written to `into` (batch, head, token, dim) in one launch."""
    triton = launch_kernels(into.device, into.dtype)
    triton.rotate(into, *states) if triton else one_launch(_rotate_plainly, into, *states)


def _rotate_plainly(
    into: Tensor, rows: Tensor | None, states: Tensor, cos: Tensor | None, sin: Tensor | None, *others: Any
) -> None:
    """`rope.rotated`, to `into`, by those rows of cos and sin."""
    if rows is not None and cos is not None and sin is not None:
        cos, sin = (part[rows] if rows.dim() == 1 else part[rows].unsqueeze(1) for part in (cos, sin))
    into.copy_(rotated(states, cos, sin, *others))


def merge(total: Tensor, *part: Any) -> None:
    """Merges a part's output into `total` (query, batch, head, dim), in place, in one launch; see `merge_plainly`."""
    triton = launch_kernels(total.device, total.dtype)
    triton.merge(total, *part) if triton else one_launch(merge_plainly, total, *part)


def merge_plainly(total: Tensor, log_sum: Tensor, output: Tensor, other: Tensor, sinks: Tensor | None = None) -> None:
    """Adds a part's output (query, batch, head, dim) and log-sum-exp (batch * head, query) to what is there.

    Over disjoint keys. sinks: a further term of each head's softmax as well, as a score (head,).
    """
    both = torch.logaddexp(log_sum, other)
    share = _by_query((other - both).exp().nan_to_num(nan=0.0), total)  # NaN: neither part saw a key
    accurate = total.to(share.dtype)
    accurate = accurate + share * (output.to(share.dtype) - accurate)
    if sinks is not None:
        accurate, both = accurate * _share_of_keys(both, sinks, total), torch.logaddexp(both, _scores_of(sinks, both))
    total.copy_(accurate)
    log_sum.copy_(both)


def add_sinks(total: Tensor, log_sum: Tensor, sinks: Tensor) -> None:
    """Adds each head's sink, a score (head,) without value, to the softmax of `total`, in one launch."""
    one_launch(_sink, total, log_sum, sinks)


def _sink(total: Tensor, log_sum: Tensor, sinks: Tensor) -> None:
    """Takes in a further term of each head's softmax, as a score (head,)."""
    total.copy_(total * _share_of_keys(log_sum, sinks, total))


def _share_of_keys(log_sum: Tensor, sinks: Tensor, total: Tensor) -> Tensor:
    """What sinks leave to keys (query, batch, head, 1)."""
    return _by_query((log_sum - _scores_of(sinks, log_sum)).sigmoid(), total)


def _by_query(shares: Tensor, total: Tensor) -> Tensor:
    """Numbers (batch * head, query) as factors of `total`, (query, batch, head, 1)."""
    return shares.t().unflatten(1, total.shape[1:3]).unsqueeze(-1)


def _scores_of(sinks: Tensor, log_sum: Tensor) -> Tensor:
    """Sinks (batch * head, 1)."""
    return sinks.to(log_sum).repeat(log_sum.shape[0] // sinks.shape[0]).unsqueeze(1)


@dataclass(frozen=True)
class Scoring:
    """What makes scores of products: c in c tanh(s / c), or ALiBi's slopes (head,) and positions (token,) of a span."""

    scale: float
    softcap: float | Tensor | None = None
    slopes: Tensor | None = None
    query_position: Tensor | None = None
    key_position: Tensor | None = None

    @property
    def plain(self) -> bool:
        """Whether they are but scaled."""
        return self.softcap is None and self.slopes is None


def kernel_for(
    query: Tensor, spans: Sequence[PairSpan], scoring: Scoring, carries: bool = False
) -> Callable[..., tuple[Tensor, Tensor]]:
    """The first kernel that is one for this and was found to do right on the device.

    It gives attention of one launch's spans (query, batch, head, dim), and its log-sum-exp (batch * head, query), by
    query, key, value (batch, head, token, dim), from the spans' first ones to their last; the spans; their scoring;
    a cache of what is made once for all layers; and into where the output goes, a new tensor where that is None.
    carries: whether pairs that `holds` leaves out are there as well, with other queries; only `by_triton` does both.
    """
    usable = (kernel for kernel in kernels() if is_usable(kernel, query, spans, scoring, carries))
    return next(usable, by_operations)


def is_usable(
    kernel: Callable[..., Any], query: Tensor, spans: Sequence[PairSpan], scoring: Scoring, carries: bool = False
) -> bool:
    """Whether a kernel is one for this and was found to do right on the device."""
    kind, size = (spans[0].holds is not None, scoring.softcap is not None), query.shape[3]
    return takes(kernel, query, spans, scoring, carries) and agrees(kernel, query.device, query.dtype, size, *kind)


def kernels() -> tuple[Callable[..., Any], ...]:
    """All kernels, the fastest first: `varlen_attn` only where torch was told to use a newer flash attention in it.

    On an H100 its own takes 24.4 ms where ours takes 14.2, and 2.21 where ours takes 1.75 (benchmarks/results/gpu.md).
    """
    newer = current_flash_attention_impl() is not None
    return (by_varlen, by_triton, by_flex) if newer else (by_triton, by_flex)


def takes(
    kernel: Callable[..., Any], query: Tensor, spans: Sequence[PairSpan], scoring: Scoring, carries: bool = False
) -> bool:
    """Whether a kernel is one for this."""
    if kernel is by_operations:
        return not carries
    if query.device.type == "cpu" or query.dtype == torch.float64:
        return False
    if kernel is by_triton:
        holds = spans[0].holds
        fits = isinstance(holds, Carry) and not holds.carried if carries else holds is None
        fits = fits and scoring.slopes is None and query.dtype != torch.float32
        fits = fits and 16 <= query.shape[3] <= 256
        return fits and triton_module() is not None
    if kernel is by_varlen:
        plain, dim = spans[0].holds is None and scoring.plain, query.shape[3]
        plain = plain and all(one.joined(other) for one, other in pairwise(spans))
        return plain and query.dtype != torch.float32 and dim % 8 == 0 and dim <= 256
    return query.shape[2] > 1 and query.shape[3] >= 16


def by_sdpa(
    query: Tensor, key: Tensor, value: Tensor, spans: Sequence[PairSpan], scoring: Scoring, *_: Any
) -> tuple[Tensor, None]:
    """Attention of all pairs, causally, by the kernel that stock models use; without log-sum-exp."""
    output = scaled_dot_product_attention(
        query, key, value, is_causal=True, scale=scoring.scale, enable_gqa=query.shape[1] != key.shape[1]
    )
    return output.permute(2, 0, 1, 3), None


def by_triton(
    query: Tensor, key: Tensor, value: Tensor, spans: Sequence[PairSpan], scoring: Scoring, cache: dict[Any, Any],
    into: Tensor | None = None, carry_query: Tensor | None = None, log_sum: Tensor | None = None, added: bool = True,
    chosen: Tensor | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Attention of any spans of one `holds`, by our own kernel.

    carry_query: the queries of pairs that `holds`, a `Carry`, leaves out. log_sum: that of what is in `into` already,
    to which these spans are added, both in place, or which they overwrite where not `added`; None where nothing is.
    chosen: the heads that attend (int32); None: all.
    """
    batch, heads, tokens, dim = query.shape
    added = added and log_sum is not None
    into = query.new_empty(tokens, batch, heads, dim) if into is None else into
    log_sum = query.new_empty(batch * heads, tokens, dtype=torch.float32) if log_sum is None else log_sum
    states = query, carry_query, key, value, spans, scoring.scale, scoring.softcap, cache, into, log_sum, added
    triton_module().attend_spans(*states, chosen)
    return into, log_sum


def by_varlen(
    query: Tensor, key: Tensor, value: Tensor, spans: Sequence[PairSpan], scoring: Scoring, cache: dict[Any, Any],
    into: Tensor | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Attention of spans by PyTorch's flash attention over texts of any lengths; rows of a batch are further heads."""
    borders, longest = list[Tensor](), list[int]()
    for sides in ([span.queries for span in spans], [span.keys for span in spans]):
        ends = 0, *(end - sides[0][0] for _, end in sides)
        cache_key = "borders", ends, query.device
        if cache_key not in cache:
            cache[cache_key] = torch.tensor(ends, dtype=torch.int32).to(query.device, non_blocking=True)
        borders.append(cache[cache_key])
        longest.append(max(end - begin for begin, end in sides))
    queries, keys = longest
    longest[1] = queries + keys  # it takes a window as wide as the keys for none, also where queries go further back
    given: Any = *(states.permute(2, 0, 1, 3).flatten(1, 2) for states in (query, key, value)), *borders, *longest
    options = {
        "return_aux": varlen.AuxRequest(lse=True),
        "scale": scoring.scale,
        "window_size": spans[0].window,
        "enable_gqa": True,
    }
    flat = into.flatten(1, 2) if into is not None and len(query) == 1 else None
    output, log_sum = _varlen(flat, *given, **options)
    if log_sum.shape[0] != log_sum.shape[1]:
        by_head = log_sum.shape[0] == output.shape[1]
    else:  # as many queries as heads: the shape does not tell
        if "log-sum-exp by head" not in cache:
            cache["log-sum-exp by head"] = _log_sum_is_by_head(output)
        by_head = cache["log-sum-exp by head"]
    output, log_sum = output.unflatten(1, query.shape[:2]), log_sum if by_head else log_sum.t()
    return output if into is None else into if flat is not None else into.copy_(output), log_sum


def _varlen(into: Tensor | None, *given: Any, **options: Any) -> tuple[Tensor, Tensor]:
    """`varlen_attn` with its output in `into`, a new tensor where that is None."""
    direct = getattr(varlen, "varlen_attn_out", None)
    if into is not None and direct is not None:
        return direct(into, *given, **options)
    output, log_sum = varlen.varlen_attn(*given, **options)
    return output if into is None else into.copy_(output), log_sum


def _log_sum_is_by_head(like: Tensor) -> bool:
    """Whether `varlen_attn` gives its log-sum-exp as (head, query), found on one query of two heads.

    PyTorch's documentation has (query, head), its flash attention the other.
    """
    one, ends = like.new_zeros(1, 2, like.shape[2]), torch.tensor([0, 1], dtype=torch.int32).to(like.device)
    aux = varlen.AuxRequest(lse=True)
    options: Any = {"return_aux": aux, "scale": 1.0, "window_size": (-1, -1), "enable_gqa": True}
    return _varlen(torch.empty_like(one), one, one, one, ends, ends, 1, 1, **options)[1].shape[0] == 2


def by_flex(
    query: Tensor, key: Tensor, value: Tensor, spans: Sequence[PairSpan], scoring: Scoring, cache: dict[Any, Any],
    into: Tensor | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Attention of spans by a compiled `flex_attention`, whose blocks are laid out once for all layers.

    Spans may be any, in none of which a query is twice, and of one `holds`.
    """
    cache_key, cap = ("blocks", tuple(spans), query.device), ("softcap", scoring.softcap, query.device)
    if cache_key not in cache:
        cache[cache_key] = blocks_of(spans, query.device)
    if scoring.softcap is not None:
        if cap not in cache:
            cache[cap] = captured(scoring.softcap, query.device, torch.float32)
        scoring = replace(scoring, softcap=cache[cap])
    output, extra = compiled(flex.flex_attention, query.device)(  # as it is it would hold all scores
        query, key, value, score_mod=None if scoring.plain else _score(scoring),
        block_mask=cache[cache_key], scale=scoring.scale, enable_gqa=True, return_aux=flex.AuxRequest(lse=True),
    )  # fmt: skip
    output = output.permute(2, 0, 1, 3)
    return output if into is None else into.copy_(output), extra.lse.flatten(0, 1)


def by_operations(
    query: Tensor, key: Tensor, value: Tensor, spans: Sequence[PairSpan], scoring: Scoring, cache: dict[Any, Any],
    into: Tensor | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Attention of spans in plain operations, some queries at a time."""

    def attend(query: Tensor, key: Tensor, value: Tensor, span: PairSpan, scoring: Scoring) -> tuple[Tensor, Tensor]:
        (begin, end), (low, high), results = span.queries, span.keys, []
        step = max(1, _SCORES // (query.shape[0] * query.shape[1] * (high - low)))
        keys = torch.arange(low, high, device=query.device)
        for first in range(begin, end, step):
            rows = torch.arange(first, min(first + step, end), device=query.device).unsqueeze(1)
            scores = scores_of(query.narrow(2, first - begin, len(rows)), key) * scoring.scale
            scores = capped(scores, scoring.softcap)
            if scoring.slopes is not None:
                at, key_at = scoring.query_position, scoring.key_position
                assert at is not None
                assert key_at is not None
                scores = scores - scoring.slopes.view(-1, 1, 1) * (
                    at.narrow(0, first - begin, len(rows)).unsqueeze(1) - key_at
                )
            scores = scores.masked_fill(span.seen(rows, keys).logical_not(), -math.inf)
            log_sum = scores.logsumexp(-1)
            weights = (scores - log_sum.unsqueeze(-1)).exp().nan_to_num(nan=0.0).to(value.dtype)
            grouped = weights.unflatten(1, (value.shape[1], -1)).flatten(2, 3) @ value
            results.append((grouped.view(*query.shape[:2], len(rows), -1), log_sum))
        outputs, log_sums = zip(*results, strict=True)
        return torch.cat(outputs, 2), torch.cat(log_sums, 2)

    return _span_by_span(attend, query, key, value, spans, scoring, into)


def _span_by_span(
    attend: Callable[..., tuple[Tensor, Tensor]], query: Tensor, key: Tensor, value: Tensor, spans: Sequence[PairSpan],
    scoring: Scoring, into: Tensor | None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """What `attend` gives for each span, as a kernel of `kernel_for`."""
    ((first, _), (first_key, _)), results = sides_of(spans), []
    for span in spans:
        (begin, end), (low, high) = span[:2]
        keys = (states.narrow(2, low - first_key, high - low) for states in (key, value))
        own = scoring
        if scoring.query_position is not None and scoring.key_position is not None:
            own = replace(
                scoring,
                query_position=scoring.query_position.narrow(0, begin - first, end - begin),
                key_position=scoring.key_position.narrow(0, low - first_key, high - low),
            )
        output, log_sum = attend(query.narrow(2, begin - first, end - begin), *keys, span, own)
        results.append((output.permute(2, 0, 1, 3), log_sum.flatten(0, 1)))
    outputs, log_sums = zip(*results, strict=True)
    log_sum = log_sums[0] if len(spans) == 1 else torch.cat(log_sums, 1)
    if into is None:
        return outputs[0] if len(spans) == 1 else torch.cat(outputs), log_sum
    for span, output in zip(spans, outputs, strict=True):
        into.narrow(0, span.queries[0] - first, len(output)).copy_(output)
    return into, log_sum


def _score(scoring: Scoring) -> Callable[..., Tensor]:
    """`flex_attention`'s score_mod."""
    softcap, slopes, at, key_at = scoring.softcap, scoring.slopes, scoring.query_position, scoring.key_position

    def score(score: Tensor, batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        score = capped(score, softcap)
        if slopes is None or at is None or key_at is None:
            return score
        return score - slopes[head] * (at[query] - key_at[key])

    return score


def blocks_of(spans: Sequence[PairSpan], device: torch.device) -> flex.BlockMask:
    """Spans' mask for `flex_attention`: which blocks it leaves out, masks and reads in full, laid out on the host."""
    (begin, end), (low, high) = sides_of(spans)
    from_key, to_key = np.full(end - begin, high - low), np.full(end - begin, -1)  # which ones each query sees
    for span in spans:
        index, rows = np.arange(*span.queries), slice(span.queries[0] - begin, span.queries[1] - begin)
        first = np.maximum(span.keys[0], index - (end if span.farthest is None else span.farthest))
        last = np.minimum(span.keys[1] - 1, index - span.nearest)
        seeing = first <= last
        from_key[rows][seeing], to_key[rows][seeing] = (first - low)[seeing], (last - low)[seeing]
    rows, columns, holds = np.arange(0, end - begin, _BLOCK), np.arange(0, high - low, _BLOCK), spans[0].holds
    ends = np.minimum(columns + _BLOCK, high - low) - 1
    some, full = (
        (one.reduceat(from_key, rows)[:, None] <= edge) & (other.reduceat(to_key, rows)[:, None] >= other_edge)
        for one, other, edge, other_edge in (
            (np.minimum, np.maximum, ends, columns),
            (np.maximum, np.minimum, columns, ends),
        )
    )
    full = full & (ends - columns == _BLOCK - 1) & (holds is None)
    sides = list[np.ndarray]()
    for chosen in (some & ~full, full):
        sides += [chosen.sum(1), np.argsort(~chosen, 1, kind="stable")]
    tensors = [torch.from_numpy(side.astype(np.int32))[None, None].to(device, non_blocking=True) for side in sides]
    first, last, at, key_at = (captured(place, device) for place in (from_key, to_key, begin, low))
    if isinstance(holds, Carry):
        holds = replace(holds, width=captured(holds.width, device), shift=captured(holds.shift, device))

    def mask(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        inside = (key >= first[query]) & (key <= last[query])
        return inside if holds is None else inside & holds(query + at, key + key_at)

    lengths = end - begin, high - low
    return flex.BlockMask.from_kv_blocks(
        *tensors, BLOCK_SIZE=_BLOCK, mask_mod=mask, seq_lengths=lengths, compute_q_blocks=False
    )


def captured(number: Any, device: torch.device, dtype: torch.dtype = torch.int32) -> Any:
    """What a compiled function captures, as a tensor: numbers would be compiled in, or by `dynamic` refused."""
    return torch.tensor(number, dtype=dtype).to(device, non_blocking=True)


_TRIED: dict[Any, bool] = {}


def is_right(key: Any, name: str, difference: Callable[[], str | None], instead: str) -> bool:
    """Whether a kernel does what plain operations do, tried once for each key; warns where it does not.

    difference: says how the two differ, None for not at all. A kernel may refuse a device, a dtype or a head dim. Where
    it lacks memory that says nothing of the next time. instead: what is used in its place.
    """
    if key not in _TRIED:
        try:
            error = difference()
        except torch.OutOfMemoryError:
            return False
        except Exception as refusal:  # Triton's own errors have no class in common
            error = str(refusal).partition("\n")[0]
        _TRIED[key] = error is None
        if error is not None:
            warnings.warn(f"no {name}: {error}; {instead}", stacklevel=3)
    return _TRIED[key]


@functools.cache
def triton_module() -> Any:
    """The module of our Triton kernels; None where there is no Triton."""
    try:
        from mesa.engine.gpu import triton_kernels
    except ImportError:
        return None
    return triton_kernels


def tried_triton(
    name: str, device: torch.device, dtype: torch.dtype, difference: Callable[[Any], str | None], *shape: int
) -> Any:
    """The module of Triton kernels, where those of a name run on the device and are right; None where not."""
    if device.type not in ("cuda", "xpu") or dtype == torch.float64 or (module := triton_module()) is None:
        return None
    key, names = (name, device, dtype, *shape), f"Triton kernel for {name} on {device}"
    return module if is_right(key, names, lambda: difference(module), "other operations in its place") else None


def launch_kernels(device: torch.device, dtype: torch.dtype) -> Any:
    """The module of Triton kernels for `rotate` and `merge`; None where they do not run."""
    return tried_triton("rotation and merging", device, dtype, partial(_launches_differ, device=device))


def _launches_differ(kernels: Any, device: torch.device) -> str | None:
    """How `rotate` and `merge` differ from plain operations, if they do."""
    generator = torch.Generator().manual_seed(0)

    def drawn(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, device="cpu", dtype=torch.float32).to(device)

    for layout in (RotaryLayout(2, 4), RotaryLayout(0, 6, interleaved=True, backwards=True)):
        rows, states = torch.arange(40, device=device).flip(0), drawn(1, 3, 40, 12)
        tables = drawn(40, layout.pairs), drawn(40, layout.pairs), drawn(40, 1), drawn(12)
        expected, got = torch.zeros_like(states), torch.zeros_like(states)
        _rotate_plainly(expected, rows, states, *tables, layout)
        kernels.rotate(got, rows, states, *tables, layout)
        if error := differs([got], [expected], torch.float32, 1e-4):
            return error
    states = drawn(40, 2, 3, 12), drawn(6, 40), drawn(40, 2, 3, 12), drawn(6, 40), drawn(3)
    expected, got = ([part.clone() for part in states] for _ in range(2))
    merge_plainly(*expected)
    kernels.merge(*got)
    return differs(got[:2], expected[:2], torch.float32, 1e-4)


def agrees(
    kernel: Callable[..., Any],
    device: torch.device,
    dtype: torch.dtype,
    dim: int,
    patterned: bool = False,
    capped: bool = False,
) -> bool:
    """Whether a kernel gives what plain operations give in float64.

    patterned, capped: whether it is tried on spans that have `holds`, and with a soft cap, which are compiled apart.
    """
    key = kernel, device, dtype, dim, patterned, capped
    name = f"{kernel.__name__.removeprefix('by_')} attention for {dtype}, head dim {dim}, on {device}"
    return is_right(key, name, lambda: _error(*key), "slower")


TRIALS: dict[str, tuple[PairSpan, ...]] = {
    "a band far back": (PairSpan((600, 890), (0, 700), 40, 600),),
    "two triangles": (PairSpan((0, 150), (0, 150), 0, None), PairSpan((150, 290), (150, 290), 0, None)),
    "a band": (PairSpan((0, 290), (0, 290), 0, 40),),
    "a band further back": (PairSpan((30, 290), (0, 280), 10, 40),),
    "few keys, all but the nearest": (PairSpan((30, 290), (0, 70), 20, None),),
    "two rectangles": (PairSpan((100, 200), (0, 50), 0, None), PairSpan((200, 290), (50, 100), 0, None)),
    "rectangles of different widths": (PairSpan((100, 200), (0, 50), 0, None), PairSpan((200, 290), (0, 150), 0, None)),
    "a pattern": (PairSpan((600, 890), (0, 700), 10, None, Carry(3, 1, False)),),
    "a pattern in a window": (PairSpan((600, 890), (0, 700), 10, 450, Carry(3, 1, False)),),
    "queries without keys": (PairSpan((600, 890), (0, 700), 0, None, Carry(5, 2, True)),),
}
"""What a kernel is tried with: a window off by one, or a key forgotten, moves a log-sum-exp by .003 and more.

The first one of a kind has sizes all of which differ, so that what is compiled for it is for all sizes.
"""


def trial(spans: Sequence[PairSpan], dtype: torch.dtype, dim: int) -> tuple[Tensor, Tensor, Tensor]:
    """Random queries, keys and values for some spans, on the CPU, laid out as those that were turned."""
    generator, (queries, keys) = torch.Generator().manual_seed(0), sides_of(spans)

    def drawn(heads: int, begin: int, end: int) -> Tensor:
        states = torch.randn(end - begin, 1, heads, dim, generator=generator, device="cpu", dtype=torch.float32)
        return states.to(dtype).permute(1, 2, 0, 3)

    return drawn(4, *queries), drawn(2, *keys), drawn(2, *keys)


def _error(
    kernel: Callable[..., Any], device: torch.device, dtype: torch.dtype, dim: int, patterned: bool, capped: bool
) -> str | None:
    """How a kernel differs from plain operations in float64, if it does."""
    for name, spans in TRIALS.items():
        if patterned == (spans[0].holds is not None):
            error = trial_error(kernel, device, dtype, dim, spans, 2.0 if capped else None)
            if error:
                return f"{name}: {error}"
    return None


def trial_error(
    kernel: Callable[..., Any],
    device: torch.device,
    dtype: torch.dtype,
    dim: int,
    spans: Sequence[PairSpan],
    softcap: float | None,
) -> str | None:
    """How a kernel's attention differs from plain operations in float64, if it does; None where it is none for this."""
    scoring, holds = Scoring(dim**-0.5, softcap), spans[0].holds
    query, key, value = trial(spans, dtype, dim)
    there = query.to(device), key.to(device), value.to(device)
    carry = holds if kernel is by_triton and isinstance(holds, Carry) else None
    if not takes(kernel, there[0], spans, scoring, carry is not None):
        return None
    carry_query = {"carry_query": there[0].flip(3)} if carry else {}
    got = kernel(*there, spans, scoring, {}, **carry_query)
    expected = by_operations(query.double(), key.double(), value.double(), spans, scoring, {})
    if carry:
        others = [span._replace(holds=replace(carry, carried=True)) for span in spans]
        more = by_operations(query.double().flip(3), key.double(), value.double(), others, scoring, {})
        merge_plainly(*expected, *more)
    error = differs(got, expected, dtype)
    if error is None and kernel is by_triton:  # once more: the same output, twice the sum
        kernel(*there, spans, scoring, {}, got[0], log_sum=got[1], **carry_query)
        error = differs((got[0], got[1] - math.log(2)), expected, dtype)
        return error and f"added to itself, {error}"
    return error


def differs(got: Sequence[Tensor], expected: Sequence[Tensor], dtype: torch.dtype, least: float = 1e-5) -> str | None:
    """How an output, and a log-sum-exp, differ from exact ones by more than `dtype` explains, or `least`."""
    eps = torch.finfo(dtype).eps
    if dtype == torch.float32 and torch.get_float32_matmul_precision() != "highest":
        eps = 2.0**-10  # what TF32 keeps
    for name, one, other in zip(("output", "log-sum-exp"), got, expected, strict=False):
        one, other = one.double().cpu(), other.double()
        seen = other.isfinite()
        allowed = _ULPS * eps * max(1.0, float(other[seen].abs().max())) if name == "output" else 2e-3
        off = float((one - other)[seen].abs().max())
        if not off <= max(allowed, least):
            return f"{name} off by {off:.2g}, {allowed:.2g} allowed"
        if not (one[~seen] < -1e4).all():  # it would take weight from other parts
            return f"{name} of a query without keys {float(one[~seen].max()):.2g}, not -inf"
    return None
