"""Tensors that say they are on a GPU and have no numbers: what a pass would launch, allocate, copy and wait for there.

They are PyTorch's meta tensors. Small ones whose numbers follow from what the host knows (indices, masks, frequencies)
keep them beside, so that a transfer to the host gives them, and is counted.
"""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import wraps
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import Tensor
from torch._higher_order_ops.flex_attention import _permute_strides
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map
from torch.utils.weak import WeakIdKeyDictionary

from mesa.engine.gpu import decode, kernels

CUDA, META = torch.device("cuda", 0), torch.device("meta")
KNOWN = 2**20
"""The most numbers that a tensor keeps beside (elements)."""

_aten = torch.ops.aten
NO_LAUNCH = {"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "_unsafe_view", "lift_fresh"}
"""Operations that run nothing on the device, beside views."""
COPIES = {"clone", "_to_copy", "copy_", "cat", "stack", "index", "index_select", "gather", "repeat", "constant_pad_nd",
          "index_put_", "index_copy_", "take_along_dim"}  # fmt: skip
"""Operations that move numbers and compute nothing."""
ENDS = ("attention", "attn", "mm", "matmul")
"""Parts of names of operations whose outputs are no keys or values, whatever they read."""


@dataclass
class Counts:
    """What one span of work took. extra: peak of bytes allocated in it, what came out of it left out."""

    launches: int = 0
    extra: int = 0
    copied: int = 0
    """Bytes of keys and values that were copied."""
    transfers: int = 0
    flops: float = 0.0
    """Floating-point operations of matrix products and attention calls."""
    names: dict[str, int] = field(default_factory=dict)


class Device(TorchDispatchMode):
    """Runs on meta tensors what is meant for the GPU, and counts it; the host's tensors are real."""

    supports_higher_order_operators = True  # flex_attention is one

    def __init__(self) -> None:
        super().__init__()
        self.counts = Counts()
        self.live, self.peak, self.fused = 0, 0, False
        self._sizes: dict[int, tuple[Any, int]] = {}
        self._keys: set[int] = set()
        self._known: Any = WeakIdKeyDictionary()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """One operation."""
        kwargs = kwargs or {}
        if isinstance(func, torch._ops.HigherOrderOperator):
            return self._flex(func, *args)
        given = _tensors((args, kwargs))
        on_device = [tensor for tensor in given if tensor.is_meta]
        name = func.__name__.split(".")[0] if hasattr(func, "__name__") else str(func)
        to_host = bool(on_device) and (func is _aten._local_scalar_dense.default or _moves_to_host(func, kwargs, args))
        if to_host or (on_device and name in ("nonzero", "masked_select", "_unique2", "unique_dim", "equal")):
            self.counts.transfers += 1
            return self._on_host(func, args, kwargs, to_host)
        output = func(*args, **kwargs)
        if on_device or any(tensor.is_meta for tensor in _tensors(output)):
            self._note(func, name, args, kwargs, given, output)
            self._keep(func, args, kwargs, given, output)
        return output

    def _flex(
        self, func: Any, query: Tensor, key: Tensor, value: Tensor, score: Any, mask: tuple[Any, ...], *_: Any
    ) -> tuple[Tensor, Tensor, Tensor]:
        """One launch: the output, and the log-sum-exp and the largest score of each query.

        Its operations are those of all pairs of the blocks that the mask does not leave out.
        """
        assert func.name() == "flex_attention", func
        blocks = [self._known[part] for part in (mask[2], mask[4]) if part is not None and part in self._known]
        pairs = sum(float(part.sum()) for part in blocks) * mask[-3] * mask[-2]
        self.counts.flops += 4.0 * pairs * query.shape[0] * query.shape[1] * query.shape[3]
        compiled = self.compiled(lambda: (
            _permute_strides(query.new_empty(*query.shape[:-1], value.shape[-1]), query.stride()),
            *(query.new_empty(query.shape[:-1], dtype=torch.float32) for _ in range(2)),
        ), name="flex_attention")  # fmt: skip
        return compiled()

    def causal(self, query: Tensor, key: Tensor, value: Tensor, *, scale: float, **_: Any) -> Tensor:
        """In the place of `scaled_dot_product_attention`, which has no kernel on meta tensors: one launch."""
        (batch, heads, rows, dim), columns = query.shape, key.shape[2]
        self.counts.flops += 4.0 * batch * heads * dim * _windowed(rows, columns, (-1, 0))
        return self.compiled(lambda: query.new_empty(batch, rows, heads, dim), name="attention")().transpose(1, 2)

    @property
    def decoding(self) -> SimpleNamespace:
        """In the place of the kernels of a decoded token: a launch each."""
        names = "attend_token", "combine"
        return SimpleNamespace(**{name: self.compiled(lambda *_: None, name=name) for name in names})

    def attend_spans(
        self, query: Tensor, carry_query: Tensor | None, key: Tensor, value: Tensor, spans: Any, *given: Any
    ) -> None:
        """In the place of our own attention kernel: one launch, which writes where it is told to."""
        pairs = sum(
            _windowed(queries[1] - queries[0], keys[1] - keys[0], span.window) * (len(query) if span.row is None else 1)
            for span in spans
            for queries, keys in (span[:2],)
        )  # those of a carry as well, which `holds` leaves out
        heads = query.shape[1] if given[-1] is None else len(given[-1])
        self.counts.flops += (4.0 + 2.0 * (carry_query is not None)) * pairs * heads * query.shape[3]
        self.compiled(lambda *_: None, name="attention")(query, key, value)

    def _on_host(self, func: Any, args: Any, kwargs: Any, to_host: bool) -> Any:
        """What a transfer to the host gives; an error where nobody knows."""
        real = tree_map(self._real, (args, kwargs))
        output = func(*real[0], **real[1])
        return (
            output if to_host else tree_map(lambda part: self.put(part) if isinstance(part, Tensor) else part, output)
        )

    def _real(self, value: Any) -> Any:
        if isinstance(value, Tensor) and value.is_meta:
            if value not in self._known:
                raise RuntimeError(f"numbers of a {tuple(value.shape)} tensor on the device are asked for")
            return self._known[value]
        return torch.device("cpu") if isinstance(value, torch.device) and value.type == "meta" else value

    def put(self, real: Tensor) -> Tensor:
        """A tensor on the device with these numbers."""
        output = torch.empty_like(real, device=META)
        self._known[output] = real
        self._track(output, False)
        return output

    def _note(self, func: Any, name: str, args: Any, kwargs: Any, given: list[Tensor], output: Any) -> None:
        """Counts an operation's launch, and what it allocates and copies."""
        outputs = _tensors(output)
        writes = any(argument.alias_info and argument.alias_info.is_write for argument in func._schema.arguments)
        views = any(part.alias_info for part in func._schema.returns) and not writes
        if views or self.fused:
            return
        keys = any(self.is_key(tensor) for tensor in given)
        if name not in NO_LAUNCH and (outputs or writes):
            self.counts.launches += 1
            self.counts.names[name] = self.counts.names.get(name, 0) + 1
            self.counts.flops += self._flops(name, func, args, kwargs, given)
            if keys and name in COPIES:
                self.counts.copied += sum(part.numel() * part.itemsize for part in outputs)
        for part in outputs:
            self._track(part, keys and not any(end in name for end in ENDS))

    def _flops(self, name: str, func: Any, args: Any, kwargs: Any, given: list[Tensor]) -> float:
        """Of a matrix product or an attention call; 0 for all else."""
        if name in ("mm", "bmm"):
            return 2.0 * given[0].numel() * given[1].shape[-1]
        named = dict(zip((argument.name for argument in func._schema.arguments), args, strict=False)) | kwargs
        if name in ("_varlen_attn", "_varlen_attn_out"):
            places = [named["cu_seq_q"], named.get("cu_seq_k")]
            queries, keys = (self._known[places[0] if place is None else place].diff() for place in places)
            window = named.get("window_size") or (-1, -1)
            pairs = sum(map(_windowed, queries.tolist(), keys.tolist(), [window] * len(queries)))
            return 4.0 * pairs * given[0].shape[-1] * given[0].shape[-2]
        return 0.0

    def _keep(self, func: Any, args: Any, kwargs: Any, given: list[Tensor], output: Any) -> None:
        """Keeps the numbers of a small output where those of all inputs are known."""
        outputs = _tensors(output)
        if not outputs or max(part.numel() for part in outputs) > KNOWN or func is _aten.empty.memory_format:
            return
        if all(not tensor.is_meta or tensor in self._known for tensor in given):
            real = tree_map(self._real, (args, kwargs))
            for part, numbers in zip(outputs, _tensors(func(*real[0], **real[1])), strict=True):
                self._known[part] = numbers

    def _track(self, tensor: Tensor, keys: bool) -> None:
        """Notes a tensor's memory until it is freed, and whether keys or values are in it."""
        storage = tensor.untyped_storage()
        place = storage._cdata
        if place not in self._sizes:
            size = storage.nbytes()
            self.live += size
            self.peak = max(self.peak, self.live)
            self._sizes[place] = weakref.ref(storage, lambda _: self._freed(place)), size
        if keys:
            self._keys.add(place)

    def _freed(self, place: int) -> None:
        self.live -= self._sizes.pop(place)[1]
        self._keys.discard(place)

    def is_key(self, tensor: Tensor) -> bool:
        """Whether keys or values are in it."""
        return tensor.is_meta and tensor.untyped_storage()._cdata in self._keys

    @contextmanager
    def counting(self, keys: tuple[Tensor, ...]) -> Iterator[Counts]:
        """Counts from here on; `keys` are the keys and values."""
        before, self.counts = self.counts, Counts()
        for states in keys:
            self._track(states, True)
        begin = self.peak = self.live
        try:
            yield self.counts
        finally:
            self.counts.extra, self.counts = self.peak - begin, before

    def compiled(self, function: Any = None, name: str = "", **options: Any) -> Any:
        """In the place of `torch.compile`: a function that is one launch and allocates what it returns."""
        if function is None:
            return lambda function: self.compiled(function)

        called = name or getattr(function, "__name__", "compiled")

        @wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            if self.fused:
                return function(*args, **kwargs)
            self.fused = True
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # flex_attention's, that it is not compiled
                    output = function(*args, **kwargs)
            finally:
                self.fused = False
            keys = any(self.is_key(part) for part in _tensors((args, kwargs)))
            self.counts.launches += 1
            self.counts.names[called] = self.counts.names.get(called, 0) + 1
            for part in _tensors(output):
                if part.is_meta:
                    self._track(part, keys and not any(end in called for end in ENDS))
            return output

        return call


class Named(TorchFunctionMode):
    """Meta tensors say that they are on a GPU, and what is asked for there is made as a meta tensor."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """One call."""
        kwargs = kwargs or {}
        if getattr(func, "__self__", None) is torch.Tensor.device:
            return CUDA if args[0].is_meta else func(*args)
        if getattr(func, "__self__", None) is torch.Tensor.is_cuda:
            return args[0].is_meta
        if func is torch.Tensor.cuda:
            return args[0].to(META)
        args, kwargs = tuple(map(_meta, args)), {name: _meta(value) for name, value in kwargs.items()}
        if func in (torch.tensor, torch.as_tensor) and kwargs.get("device") == META:
            return func(*args, **{**kwargs, "device": "cpu"}).to(META)  # made on the host on a GPU as well
        return func(*args, **kwargs)


def _meta(value: Any) -> Any:
    """META in place of the GPU."""
    if isinstance(value, torch.device) and value.type == "cuda":
        return META
    return META if isinstance(value, str) and value.split(":")[0] == "cuda" else value


def _moves_to_host(func: Any, kwargs: dict[str, Any], args: Any) -> bool:
    if func is _aten.copy_.default:
        return not args[0].is_meta and args[1].is_meta
    device = kwargs.get("device")
    return func is _aten._to_copy.default and device is not None and device.type == "cpu"


def _windowed(queries: int, keys: int, window: Any) -> int:
    """Pairs of so many last queries with keys in a window (left, right; -1: no end), aligned at the bottom right."""
    at = np.arange(keys - queries, keys)
    low = np.maximum(0, at - window[0]) if window[0] >= 0 else np.zeros_like(at)
    high = np.minimum(keys, at + window[1] + 1) if window[1] >= 0 else np.full_like(at, keys)
    return int(np.maximum(high - low, 0).sum()) if queries else 0


def _tensors(value: Any) -> list[Tensor]:
    """Those in tuples, lists and dicts; several times as fast as PyTorch's `tree_flatten`."""
    if isinstance(value, Tensor):
        return [value]
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    return [tensor for part in parts for tensor in _tensors(part)]


@contextmanager
def on_paper(device: Device | None = None) -> Iterator[Device]:
    """While this lasts there is a GPU, on paper: a new one, or the one that is given."""
    device = device or Device()
    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(torch, "compile", device.compiled))
        stack.enter_context(mock.patch.object(kernels, "launch_kernels", return_value=None))
        stack.enter_context(mock.patch.object(decode, "kernels_of", return_value=device.decoding))
        stack.enter_context(mock.patch.object(kernels, "scaled_dot_product_attention", device.causal))
        stack.enter_context(mock.patch.object(kernels, "triton_module", return_value=device))
        stack.enter_context(Named())
        stack.enter_context(device)
        yield device
