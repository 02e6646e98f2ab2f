"""Where a model runs, by torch.accelerator (CUDA, ROCm, XPU and others), and whether its numbers are finite."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import torch

from mesa.decoder import layers_of, removed
from mesa.errors import Failed, Refused


def is_accelerator(device: torch.device | str) -> bool:
    """Whether it is on this machine's accelerator, whose memory is its own: not CPU or MPS."""
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    return accelerator is not None and torch.device(device).type == accelerator.type != "mps"


def free_bytes(device: torch.device | str = "cpu") -> int:
    """Free memory of an accelerator, with what torch holds unused, or of the machine, up to a container's limit."""
    if is_accelerator(device):
        place = torch.device(device)
        unused = torch.accelerator.memory_reserved(place) - torch.accelerator.memory_allocated(place)
        return torch.accelerator.get_memory_info(place)[0] + unused
    available, left = psutil.virtual_memory().available, _left_in_container(_CGROUP)
    return available if left is None else min(available, left)


_CGROUP = Path("/sys/fs/cgroup")
"""Where a container has its limits (cgroup v2)."""


def _left_in_container(folder: Path) -> int | None:
    """What a container may still take, the cache of files included, which the kernel drops; None: it has no limit."""
    try:
        limit, used = (int((folder / name).read_text()) for name in ("memory.max", "memory.current"))
        counts = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
        return max(0, limit - used + sum(int(counts.get(name, 0)) for name in ("active_file", "inactive_file")))
    except (OSError, ValueError):  # not there, or "max"
        return None


def now(device: torch.device | str) -> float:
    """Seconds on a clock, once the device has done all that it was passed."""
    device = torch.device(device)
    if device.type not in ("cpu", "meta"):
        torch.accelerator.synchronize(device)
    return time.perf_counter()


_WIDER = "run the model with --dtype {}"
_REMEDIES = {
    torch.float32: _WIDER.format("float64"),
    torch.float64: "its config.json or its weights are another model's, or damaged",
}
"""By the dtype of a model whose states are not finite; of halves, float32."""


@contextmanager
def states_checked(model: Any) -> Iterator[None]:
    """Raises RuntimeError at the end, naming the first layer, if its states, or the logits, held a NaN or infinity."""
    good: dict[int, torch.Tensor] = {}

    def look(module: Any, args: Any, output: Any, layer: int) -> None:
        states = output[0] if isinstance(output, tuple) else output
        finite = states.isfinite().all()
        good[layer] = good[layer] & finite if layer in good else finite

    layers = layers_of(model)
    heads = [head] if (head := model.get_output_embeddings()) is not None else []
    handles = [module.register_forward_hook(partial(look, layer=n)) for n, module in enumerate([*layers, *heads])]
    with removed(handles):
        yield
    bad = [layer for layer, finite in good.items() if not finite]
    if bad:
        what = f"states of layer {min(bad)}" if min(bad) < len(layers) else "logits"
        raise not_finite(model, what)


def not_finite(model: Any, what: str) -> Failed:
    """The error for values of a model's pass that are a NaN or an infinity."""
    return Failed(f"the {what} are not finite; {_REMEDIES.get(model.dtype, _WIDER.format('float32'))}")


def check_finite(name: str, model: torch.nn.Module) -> None:
    """Raises Refused naming the first tensor of a model that holds a NaN or an infinity."""
    for key, values in model.state_dict().items():
        if values.is_meta or not values.is_floating_point():
            continue
        if not values.sum(dtype=torch.float32).isfinite() and not (finite := values.isfinite()).all():
            count = finite.numel() - int(finite.sum())
            raise Refused(
                f"model {name!r}: {count} of {finite.numel()} numbers of {key} are not finite; its weights are "
                "damaged, get them again"
            )
