"""What is refused before a run because it does not fit in memory, and what is said of it."""

import pytest

from probe.capture import memory
from probe.commands.probe import ProbeRequest
from probe.commands.probe.plan import plan
from probe.commands.probe.run import check_fits


def free(monkeypatch, size):
    monkeypatch.setattr(memory, "free_bytes", lambda device="cpu": size)
    monkeypatch.setattr("mesa.device.free_bytes", lambda device="cpu": size)


@pytest.mark.parametrize("executor", ["fused", "dense"])
@pytest.mark.parametrize(("length", "longest"), [(512, 4096), (4096, 512)])
def test_the_option_of_the_longer_pass_is_named(monkeypatch, length, longest, executor):
    planned = plan(ProbeRequest(methods="origin", length=length, lengths=(256, longest), texts=0, executor=executor))
    free(monkeypatch, 0)
    named = f"--lengths {longest}" if longest > length else f"--length {length}"
    with pytest.raises(MemoryError, match=rf"{named} needs .*; shorten {named.split()[0]} or keep fewer"):
        check_fits(planned)
